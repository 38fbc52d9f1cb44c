-- Runners of your own and their runs. Everything is decided by kept.now().

-- name: declare
-- A shorter interval holds from now on; a pause that an API asked for stays.
insert into kept.runner (name, next_at, every, singleton)
values (%(row)s::text, kept.now(), %(every)s::float8 * interval '1 second', %(singleton)s::boolean)
on conflict (name) do update
   set every = excluded.every, singleton = excluded.singleton,
       next_at = least(kept.runner.next_at, kept.now() + excluded.every)
 where (kept.runner.every, kept.runner.singleton) is distinct from (excluded.every, excluded.singleton)
returning name

-- name: take
-- One row, if the place could be looked at: the run that was begun, seconds until one is due, and who is at it.
-- A pass that began more than an interval from now was begun by a clock that went ahead and came back: it holds nobody up.
-- The row is not waited for: somebody's statement on it is soon over, and a tick has other things to do.
with mine as materialized (
  select pg_try_advisory_xact_lock(hashtextextended(%(key)s::text, 0)) as locked
), place as materialized (
  select r.name, r.run,
         case when r.ran_at > kept.now() + %(every)s::float8 * interval '1 second' then kept.now()
              else r.next_at end as next_at
    from kept.runner r
   where r.name = %(row)s::text and (select locked from mine)
     for update skip locked
), alive as materialized (
  select w.id from kept.worker w
   where w.id = %(worker)s::uuid and w.state = 'live' and w.lease_until > kept.now()
     for key share
), holder as materialized (
  select u.worker_name, coalesce(w.state <> 'live', true) as dead, coalesce(w.lease_until <= kept.now(), true) as late
    from place p
    join kept.run u on u.id = p.run and u.state = 'running'
    left join kept.worker w on w.id = u.worker
), opened as (
  insert into kept.run (name, worker, worker_name, singleton, started_at)
  select %(name)s::text, a.id, %(worker_name)s::text, %(singleton)s::boolean, kept.now()
    from place p cross join alive a
   where p.next_at <= kept.now() + %(early)s::float8 * interval '1 second'
     and not (%(singleton)s::boolean and exists (select from holder))
  on conflict (name) where state = 'running' and singleton do nothing
  returning id
), taken as (
  update kept.runner r
     set worker = %(worker)s::uuid, run = o.id, ran_at = kept.now(),
         next_at = kept.now() + %(every)s::float8 * interval '1 second'
    from opened o
   where r.name = %(row)s::text
  returning r.run
)
select (select t.run from taken t), extract(epoch from p.next_at - kept.now())::float8,
       h.worker_name, h.dead, h.late
  from place p left join holder h on true

-- name: finish
-- Ends our pass: 'ended', 'busy' (a transaction of the user's has it locked), or 'lost': it is not ours any more.
-- The row may name a later pass already, unless the runner is a singleton: that one is still open, but we did well.
with mine as materialized (
  select u.id
    from kept.run u
   where u.id = %(run)s::bigint and u.worker = %(worker)s::uuid and u.state = 'running'
     and exists (select from kept.worker w where w.id = u.worker and w.state = 'live')
     for update skip locked
), dropped as (
  delete from kept.run where id = (select id from mine) and %(state)s::text = 'idle'
), closed as (
  update kept.run
     set state = %(state)s::text, finished_at = kept.now(), counters = %(counters)s::jsonb,
         code = %(code)s::text, reason = %(reason)s::text, error = %(error)s::text
   where id = (select id from mine) and %(state)s::text <> 'idle'
), freed as (
  update kept.runner
     set run = nullif(run, (select id from mine)),
         deaths = case when run = (select id from mine) then 0 else deaths end,
         done_at = case when %(state)s::text in ('idle', 'done') then kept.now() else done_at end,
         next_at = greatest(next_at, kept.now() + %(after)s::float8 * interval '1 second')
   where name = %(row)s::text and exists (select from mine)
)
select case when exists (select from mine) then 'ended'
            when exists (select from kept.run u join kept.worker w on w.id = u.worker
                          where u.id = %(run)s::bigint and u.worker = %(worker)s::uuid and u.state = 'running'
                            and w.state = 'live') then 'busy'
            else 'lost' end

-- name: fence
-- In the user's own transaction: while it is open nobody can close this run, and so nobody begins the next.
select u.id
  from kept.run u
 where u.id = %(run)s::bigint and u.worker = %(worker)s::uuid and u.state = 'running'
   and exists (select from kept.worker w
                where w.id = u.worker and w.state = 'live' and w.lease_until > kept.now())
   for share of u

-- name: abandon
-- Closes what dead workers left open. The pass is made up for at once; but not if that died as well: whatever kills
-- its process may kill one in each interval, not one after the other.
with dead as materialized (
  select u.id
    from kept.run u
   where u.state = 'running'
     and not exists (select from kept.worker w where w.id = u.worker and w.state = 'live')
     for update skip locked
), closed as (
  update kept.run
     set state = 'abandoned', finished_at = kept.now(), code = 'worker_died'
   where id = any(array(select id from dead))
  returning id, name, worker_name, extract(epoch from finished_at - started_at)::float8 as duration
), again as (
  update kept.runner
     set next_at = case when deaths = 0 then least(next_at, kept.now()) else next_at end, deaths = deaths + 1
   where run = any(array(select id from closed))
)
select id, name, worker_name, duration from closed

-- name: disown
-- After a lost reply: passes that were begun in our name and nobody runs.
with gone as (
  delete from kept.run
   where worker = %(worker)s::uuid and state = 'running' and id <> all(%(known)s::bigint[])
  returning id
)
update kept.runner set run = null, next_at = least(next_at, kept.now())
 where run = any(array(select id from gone))
returning name

-- name: purge
with gone as (
  delete from kept.run
   where id = any(array(select u.id from kept.run u
                         where u.started_at < kept.now() - %(keep)s::float8 * interval '1 second'
                           and u.state <> 'running'
                         order by u.started_at limit %(limit)s for update skip locked))
  returning 1
)
select count(*) from gone

-- name: runs
select r.id, r.name, r.kind, r.worker, r.slot, r.started_at, r.finished_at, r.state, r.counters::text,
       r.code, r.error, r.job,
       extract(epoch from coalesce(r.finished_at, kept.now()) - r.started_at)::float8
  from kept.runs r
 where (%(name)s::text is null or r.name = %(name)s::text)
   and (%(state)s::text is null or r.state = %(state)s::text)
   and (%(since)s::timestamptz is null or coalesce(r.started_at, r.slot) >= %(since)s::timestamptz)
   and (%(newer_than)s::float8 is null
        or coalesce(r.started_at, r.slot) >= kept.now() - %(newer_than)s::float8 * interval '1 second')
   and r.id < %(before)s::bigint
 order by r.id desc
 limit %(limit)s

-- name: run
select r.id, r.name, r.kind, r.worker, r.slot, r.started_at, r.finished_at, r.state, r.counters::text,
       r.code, r.error, r.job,
       extract(epoch from coalesce(r.finished_at, kept.now()) - r.started_at)::float8
  from kept.runs r
 where r.id = %(id)s::bigint

-- name: successes
-- When passes last ended well, idle ones included; of shards, the one that has waited longest. Who has not succeeded for
-- long comes first, so that a limit leaves out the others; what nobody runs any more would be there for ever.
select split_part(name, '#', 1), extract(epoch from min(done_at))::float8 from kept.runner
 where every is not null and done_at is not null and next_at >= kept.now() - (every + interval '1 hour')
 group by 1 order by 2 limit %(most)s::int

-- name: runners
select r.name, extract(epoch from r.every)::float8, r.singleton,
       (select u.worker_name from kept.run u join kept.worker w on w.id = u.worker and w.state = 'live'
         where u.id = r.run and u.state = 'running'),
       case when isfinite(r.next_at) then r.next_at end, r.ran_at, r.done_at,
       (select u.state from kept.run u where u.name = split_part(r.name, '#', 1) order by u.started_at desc limit 1)
  from kept.runner r
 where r.every is not null
 order by r.name
