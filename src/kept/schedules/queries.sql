-- Statements about schedules. Parameters are psycopg's; `kept` stands for the schema.


-- name: due
-- Schedules about which something is to be decided, with the moment at which that is asked. Nothing is locked: whoever
-- decides on a revision that is no longer the current one decides on nothing.
select s.id, s.revision, s.name, s.cron, extract(epoch from s.every)::float8, s.zone, s.anchor, s.starts_at, s.ends_at,
       s.blackout, extract(epoch from s.jitter)::float8, s.misfire, s.most, extract(epoch from s.within)::float8, s.overlap,
       s.last_slot, s.queued_slot,
       s.overlap <> 'allow' and exists (
         select from kept.occurrence o
          where o.schedule = s.id and o.job is not null and o.outcome is null
            and exists (select from kept.job j where j.id = o.job)) as busy,
       kept.now() as now
  from kept.schedule s
 where s.look_at <= kept.now() and s.paused_at is null and s.retired_at is null
   and s.id <> all(%(without)s::int[])
   and not exists (select from unnest(%(odd)s::int[], %(odd_revisions)s::int[]) o(id, revision)
                    where o.id = s.id and o.revision = s.revision)
 order by s.look_at
 limit %(most)s::int


-- name: fire
-- Everything that was decided, in one statement: the slots on record, their jobs, and where each schedule stands now. Only
-- for schedules nobody else has changed since; those that somebody is changing right now are passed by. Tells where jobs
-- came to be that are due, by lane and priority.
--
-- Each step finds the rows of the one before by index, by position or by hash: a worker's connection joins in nested
-- loops only, and a loop over two lists takes as long as one is times the other. "= any(array[…])" is "=" that no
-- plan can turn round to read the whole table, and "coalesce" keeps it off the index of what is due.
with mine as materialized (
  select w.*, s.last_slot as last_before, s.queued_slot as queued_before
    from unnest(%(ids)s::int[], %(revisions)s::int[], %(last_slots)s::timestamptz[], %(next_slots)s::timestamptz[],
                %(queued_slots)s::timestamptz[], %(looks)s::timestamptz[], %(firsts)s::int[], %(lasts)s::int[])
         with ordinality w(id, revision, last_slot, next_slot, queued_slot, look_at, first, last, ord)
   cross join lateral (
          select s.last_slot, s.queued_slot from kept.schedule s
           where s.id = w.id and s.revision = w.revision and coalesce(s.paused_at, s.retired_at) is null
             for update skip locked) s
), moved as (
  update kept.schedule s
     set last_slot = m.last_slot, next_slot = m.next_slot, queued_slot = m.queued_slot, look_at = m.look_at,
         revision = s.revision + 1
    from mine m
   where s.id = any(array[m.id]) and s.last_slot <= m.last_slot
  returning s.id, s.name, s.lane, s.priority, s.payload, m.first, m.last, m.ord, m.last_before, m.queued_before
), decided as materialized (
  select m.id, m.name, m.lane, m.priority, m.payload, o.slot, o.state, o.reason, o.missed, o.due_at,
         case when o.state = 'fired' then nextval('kept.job_id_seq') end as job
    from moved m
   cross join lateral unnest(
          (%(slots)s::timestamptz[])[m.first:m.last], (%(states)s::text[])[m.first:m.last],
          (%(reasons)s::text[])[m.first:m.last], (%(missed)s::int[])[m.first:m.last],
          (%(due_at)s::timestamptz[])[m.first:m.last]) with ordinality o(slot, state, reason, missed, due_at, ord)
   where o.slot > m.last_before or o.slot = m.queued_before
   order by m.ord, o.ord
), recorded as (
  -- A slot that waited for its turn is on record already; no other can be.
  insert into kept.occurrence as r (schedule, slot, state, reason, missed, job, recorded_at)
  select id, slot, state, reason, missed, job, kept.now() from decided
  on conflict (schedule, slot) where not by_hand do update
     set state = excluded.state, reason = excluded.reason, job = excluded.job
   where r.state = 'queued'
  returning r.job
), enqueued as (
  insert into kept.job (id, lane, priority, ready, due_at, created_at, headers, payload, order_key)
  select d.job, d.lane, coalesce(d.priority, l.priority), d.due_at <= kept.now(), greatest(d.due_at, kept.now()),
         kept.now(),
         json_build_object('kept-schedule', d.name, 'kept-slot',
                           to_char(d.slot at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')),
         d.payload, case when l.ordered then '#' || d.job end
    from decided d
    join kept.lane l on l.id = any(array[d.lane])
   where (d.job in (select job from recorded)) is true   -- a join would be a loop in a loop
  returning lane, priority, ready
), begun as (
  select lane, priority, count(*) as jobs from enqueued where ready group by lane, priority
), woken as (
  select count(pg_notify('kept:wake', b.lane || ':' || b.priority)) as sleepers
    from begun b
   where exists (select from kept.sleeper s where s.lane = b.lane and s.until > kept.now())
)
select b.lane, b.priority, b.jobs, w.sleepers from begun b cross join woken w
union all
select null, null, (select count(*) from moved), null


-- name: settled
-- Open occurrences whose job lives no more, after the one of `schedule` and `job`: in the order of occurrence_open, which
-- holds the open ones alone.
select o.id, o.schedule, o.job
  from kept.occurrence o
 where o.job is not null and o.outcome is null and (o.schedule, o.job) > (%(schedule)s::int, %(job)s::bigint)
   and not exists (select from kept.job j where j.id = o.job)
 order by o.schedule, o.job
 limit %(most)s::int


-- name: close
-- Copy what became of their jobs, and tell it. One that is nowhere any more was purged, or lost with the server's own
-- commits. What a job returned counts as far as it is numbers by name.
with gone as (
  select id, job from kept.occurrence where id = any(%(ids)s::bigint[]) and outcome is null order by id for update skip locked
), closed as (
  update kept.occurrence o
     set outcome = coalesce(h.state, 'unknown'), started_at = h.claimed_at,
         finished_at = coalesce(h.settled_at, kept.now()), worker = h.worker, code = h.code, message = h.message,
         counters = coalesce((select jsonb_object_agg(e.key, e.value)
                                from json_each(case when json_typeof(h.result) = 'object' then h.result end) e
                               where json_typeof(e.value) = 'number'), '{}')
    from gone g left join lateral kept.find_settled(g.job) h on true
   where o.id = g.id
  returning o.id, o.schedule, o.outcome, o.finished_at, o.started_at, o.code, o.message, o.counters
)
select c.id, s.name, c.outcome, extract(epoch from c.finished_at - coalesce(c.started_at, c.finished_at))::float8,
       c.code, c.message, c.counters::text, c.schedule, c.finished_at
  from closed c join kept.schedule s on s.id = c.schedule
 order by c.id


-- name: note_successes
-- When jobs of these schedules last ended well. By itself and past what is locked: it must wait for nobody's transaction.
update kept.schedule s set done_at = greatest(s.done_at, d.at)
  from unnest(%(schedules)s::int[], %(moments)s::timestamptz[]) d(schedule, at)
 where s.id = any(array[d.schedule])
   and s.id = any(array(select id from kept.schedule
                         where id = any(%(schedules)s::int[]) order by id for no key update skip locked))
returning s.id


-- name: purge
-- Occurrences and changes from before the time they are kept for; open ones stay.
with old as (
  select o.id from kept.occurrence o
   where o.recorded_at < kept.now() - %(keep)s::float8 * interval '1 second' and (o.job is null or o.outcome is not null)
   order by o.recorded_at limit %(most)s::int for update skip locked
), gone as (
  delete from kept.occurrence where id in (select id from old) returning 1
), logged as (
  delete from kept.schedule_log
   where id in (select id from kept.schedule_log
                 where at < kept.now() - %(keep)s::float8 * interval '1 second' order by id limit %(most)s::int)
  returning 1
)
select (select count(*) from gone) + (select count(*) from logged)


-- name: undeclared
-- Declared schedules that no live worker declares: noted at first, retired when nobody did for a while. Tells the retired.
with lonely as (
  select s.id, s.undeclared_at from kept.schedule s
   where s.origin = 'declared' and s.retired_at is null
     -- All names once: a worker's list has to be unpacked as a whole, and not for each schedule anew.
     and s.name not in (select k.name from kept.worker w cross join lateral jsonb_object_keys(w.schedules) k(name)
                         where w.state = 'live' and w.lease_until > kept.now())
   order by s.id
     for update skip locked
), noted as (
  update kept.schedule s set undeclared_at = kept.now()
   where s.id in (select id from lonely where undeclared_at is null)
), gone as (
  update kept.schedule s set retired_at = kept.now(), revision = s.revision + 1
   where s.id in (select id from lonely
                   where undeclared_at <= kept.now() - %(grace)s::float8 * interval '1 second')
  returning s.name
), logged as (
  insert into kept.schedule_log (schedule, who, what, detail)
  select name, %(who)s::text, 'retired', 'no live worker declares it' from gone
)
select name from gone order by name


-- name: declared
-- The schedules of these names, and whether a live worker declares what is in force.
select s.name, s.origin, s.digest, s.digests, s.retired_at is not null, s.undeclared_at is not null,
       coalesce((s.name, s.digest) in (
         select d.key, d.value from kept.worker w cross join lateral jsonb_each_text(w.schedules) d
          where w.state = 'live' and w.lease_until > kept.now()), false) as in_use,
       s.changed_at > kept.now() - %(grace)s::float8 * interval '1 second' as fresh
  from kept.schedule s
 where s.name = any(%(names)s::text[])
 order by s.name


-- name: lock_declared
-- include: declared
   for update of s


-- name: now
select kept.now()


-- name: lane
select kept.lane_id(%(task)s::text, %(queue)s::text)


-- name: add
-- No row: there is one of this name.
insert into kept.schedule (name, origin, owner, description, cron, every, zone, anchor, starts_at, ends_at, jitter, blackout,
                           misfire, most, within, overlap, lane, priority, payload, last_slot, next_slot, look_at, digest)
values (%(name)s::text, %(origin)s::text, %(owner)s::text, %(description)s::text, %(cron)s::text,
        %(every)s::float8 * interval '1 second', %(zone)s::text, %(anchor)s::timestamptz, %(starts_at)s::timestamptz,
        %(ends_at)s::timestamptz, %(jitter)s::float8 * interval '1 second', %(blackout)s::text[], %(misfire)s::text,
        %(most)s::int, %(within)s::float8 * interval '1 second', %(overlap)s::text, %(lane)s::int, %(priority)s::int,
        %(payload)s::json, %(last_slot)s::timestamptz, %(next_slot)s::timestamptz, %(next_slot)s::timestamptz,
        %(digest)s::text)
on conflict (name) do nothing
returning id


-- name: change
-- Another definition. Slots up to `last_slot` were the old one's, and fire no more. A digest goes to those that were before.
update kept.schedule s
   set owner = %(owner)s::text, description = %(description)s::text, cron = %(cron)s::text,
       every = %(every)s::float8 * interval '1 second', zone = %(zone)s::text, anchor = %(anchor)s::timestamptz,
       starts_at = %(starts_at)s::timestamptz, ends_at = %(ends_at)s::timestamptz,
       jitter = %(jitter)s::float8 * interval '1 second', blackout = %(blackout)s::text[], misfire = %(misfire)s::text,
       most = %(most)s::int, within = %(within)s::float8 * interval '1 second', overlap = %(overlap)s::text,
       lane = %(lane)s::int, priority = %(priority)s::int, payload = %(payload)s::json,
       last_slot = %(last_slot)s::timestamptz, next_slot = %(next_slot)s::timestamptz,
       look_at = case when s.queued_slot is null then %(next_slot)s::timestamptz else kept.now() end, digest = %(digest)s::text, retired_at = null, undeclared_at = null,
       digests = case when s.digest is distinct from %(digest)s::text and s.digest is not null
                      then (array_remove(s.digests, s.digest) || s.digest)[greatest(1, cardinality(s.digests) - 18):]
                      else s.digests end,
       revision = s.revision + 1, changed_at = kept.now()
 where s.name = %(name)s::text
returning s.id


-- name: revive
-- Declared again as it was: slots that went by meanwhile are judged by its misfire policy.
update kept.schedule set retired_at = null, undeclared_at = null, revision = revision + 1
 where name = any(%(names)s::text[])
returning name


-- name: log
insert into kept.schedule_log (schedule, who, what, detail)
values (%(name)s::text, %(who)s::text, %(what)s::text, %(detail)s::text)
returning id


-- name: list
select s.id, s.revision, s.name, s.origin, s.owner, s.description, s.cron, extract(epoch from s.every)::float8, s.zone,
       s.anchor, s.starts_at, s.ends_at, s.blackout, extract(epoch from s.jitter)::float8, s.misfire, s.most,
       extract(epoch from s.within)::float8, s.overlap, l.task, l.queue, s.priority, s.payload::text, s.last_slot,
       s.next_slot, s.queued_slot, s.paused_at, s.retired_at, s.created_at, s.changed_at,
       o.slot as last_fired, o.job as last_job,
       case when o.job is not null then coalesce(o.outcome, live.state, 'settled') end as last_outcome
  from kept.schedule s
  join kept.lane l on l.id = s.lane
  left join lateral (select r.slot, r.job, r.outcome from kept.occurrence r
                      where r.schedule = s.id and r.job is not null and not r.by_hand
                      order by r.slot desc limit 1) o on true
  left join lateral (select case when j.worker is null then 'pending' else 'running' end as state
                       from kept.job j where j.id = o.job and o.outcome is null) live on true
 where (%(name)s::text is null or s.name = %(name)s::text)
   and (%(task)s::text is null or l.task = %(task)s::text)
   and (%(origin)s::text is null or s.origin = %(origin)s::text)
   and (%(retired)s::boolean or s.retired_at is null)
 order by s.name
 limit %(limit)s::int


-- name: summary
select count(*) filter (where state = 'active'), count(*) filter (where state = 'paused'),
       count(*) filter (where state = 'ended'), count(*) filter (where state = 'retired'),
       (array_agg(name order by next_slot, name) filter (where state = 'active' and next_slot is not null))[1],
       min(next_slot) filter (where state = 'active'),
       extract(epoch from min(next_slot) filter (where state = 'active') - kept.now())::float8
  from (select s.name, s.next_slot,
               case when s.retired_at is not null then 'retired' when s.paused_at is not null then 'paused'
                    when s.next_slot is null and s.queued_slot is null then 'ended' else 'active' end as state
          from kept.schedule s) s


-- name: failing
-- Schedules of which the last jobs, as many as `times`, all failed.
select s.name, o.codes[1], o.messages[1]
  from kept.schedule s
 cross join lateral (
         select count(*) filter (where x.outcome = 'failed') as failed, array_agg(x.code order by x.slot desc) as codes,
                array_agg(x.message order by x.slot desc) as messages
           from (select r.slot, r.outcome, r.code, r.message from kept.occurrence r
                  where r.schedule = s.id and not r.by_hand and r.outcome is not null
                  order by r.slot desc limit %(times)s::int) x) o
 where s.retired_at is null and o.failed = %(times)s::int
 order by s.name


-- name: home
select l.queue, l.declared_at is not null from kept.lane l where l.task = %(task)s::text order by l.home desc, l.id limit 1


-- name: names
select name from kept.schedule order by name


-- name: occurrences
-- The newest slots of a schedule; what is not copied yet of their jobs is looked up.
select o.slot, o.by_hand, o.state, o.reason, o.missed, o.job,
       coalesce(o.outcome, live.state, h.state), coalesce(o.started_at, live.claimed_at, h.claimed_at),
       coalesce(o.finished_at, h.settled_at), coalesce(o.code, h.code), coalesce(o.message, h.message)
  from (select * from kept.occurrence
         where schedule = %(schedule)s::int order by slot desc, id desc limit %(limit)s::int) o
  left join lateral (select case when j.worker is null then 'pending' else 'running' end as state, j.claimed_at
                       from kept.job j where j.id = o.job and o.outcome is null) live on true
  -- "offset 0": the condition is asked before history is looked into, not after
  left join lateral (select f.* from (select where o.job is not null and o.outcome is null and live.state is null offset 0) open
                      cross join lateral kept.find_settled(o.job) f) h on true
 order by o.slot desc, o.id desc


-- name: changes
select at, who, what, detail from kept.schedule_log
 where schedule = %(name)s::text order by id desc limit %(limit)s::int


-- name: lock
select id from kept.schedule where name = %(name)s::text for update


-- name: pause
update kept.schedule set paused_at = kept.now(), revision = revision + 1, changed_at = kept.now()
 where name = %(name)s::text and paused_at is null
returning id


-- name: resume
-- What went by while it was paused fires no more.
update kept.schedule
   set paused_at = null, last_slot = greatest(last_slot, %(last_slot)s::timestamptz), next_slot = %(next_slot)s::timestamptz,
       look_at = case when queued_slot is null then %(next_slot)s::timestamptz else kept.now() end,
       revision = revision + 1, changed_at = kept.now()
 where name = %(name)s::text and paused_at is not null
returning id


-- name: remove
delete from kept.schedule where name = %(name)s::text returning id


-- name: run_now
-- A job at once, beside the slots: the next one comes when it comes.
with it as (
  select s.id, s.name, s.lane, s.payload, coalesce(s.priority, l.priority) as priority, l.ordered,
         nextval('kept.job_id_seq') as job
    from kept.schedule s join kept.lane l on l.id = s.lane
   where s.name = %(name)s::text
), recorded as (
  insert into kept.occurrence (schedule, slot, by_hand, state, job, recorded_at)
  select id, kept.now(), true, 'fired', job, kept.now() from it
), enqueued as (
  insert into kept.job (id, lane, priority, ready, due_at, created_at, headers, payload, order_key)
  select job, lane, priority, true, kept.now(), kept.now(),
         json_build_object('kept-schedule', name, 'kept-slot',
                           to_char(kept.now() at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')),
         payload, case when ordered then '#' || job end
    from it
  returning id, lane, priority
), woken as (
  select count(pg_notify('kept:wake', e.lane || ':' || e.priority)) as sleepers
    from enqueued e
   where exists (select from kept.sleeper s where s.lane = e.lane and s.until > kept.now())
)
select e.id, w.sleepers from enqueued e cross join woken w


-- name: figures
-- How schedules stand: how many of which kind, how many are late, and by how many seconds the latest.
select count(*) filter (where paused_at is null and retired_at is null) as active,
       count(*) filter (where paused_at is not null and retired_at is null) as paused,
       count(*) filter (where retired_at is not null) as retired,
       count(*) filter (where paused_at is null and retired_at is null
                          and look_at < kept.now() - %(late)s::float8 * interval '1 second') as late,
       coalesce(extract(epoch from max(kept.now() - look_at)
                        filter (where paused_at is null and retired_at is null and look_at < kept.now())), 0)::float8
  from kept.schedule


-- name: successes
-- When jobs of active schedules last ended well, longest ago first.
select name, extract(epoch from done_at)::float8 from kept.schedule
 where done_at is not null and paused_at is null and retired_at is null and next_slot is not null
 order by done_at limit %(most)s::int
