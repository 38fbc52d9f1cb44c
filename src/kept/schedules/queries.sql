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
 where s.look_at <= kept.now() and s.paused_at is null and s.retired_at is null and s.id <> all(%(without)s::int[])
 order by s.look_at
 limit %(most)s::int


-- name: fire
-- Everything that was decided, in one statement: the slots on record, their jobs, and where each schedule stands now. Only
-- for schedules nobody else has changed since; those that somebody is changing right now are passed by. Tells where jobs
-- came to be that are due, by lane and priority.
with mine as materialized (
  select b.* from unnest(%(ids)s::int[], %(revisions)s::int[]) w(id, revision)
   cross join lateral (   -- a look-up for each: a join, or the condition of schedule_look, would read every schedule
          select s.id, s.last_slot, s.queued_slot from kept.schedule s
           where s.id = w.id and s.revision = w.revision and coalesce(s.paused_at, s.retired_at) is null
             for update skip locked) b
), moved as (
  update kept.schedule s
     set last_slot = w.last_slot, next_slot = w.next_slot, queued_slot = w.queued_slot, look_at = w.look_at,
         revision = s.revision + 1
    from unnest(%(ids)s::int[], %(last_slots)s::timestamptz[], %(next_slots)s::timestamptz[],
                %(queued_slots)s::timestamptz[], %(looks)s::timestamptz[]) w(id, last_slot, next_slot, queued_slot, look_at)
   where s.id = w.id and s.id in (select id from mine) and s.last_slot <= w.last_slot
  returning s.id, s.name, s.lane, s.priority, s.payload
), decided as materialized (
  select m.*, o.slot, o.state, o.reason, o.missed, o.due_at,
         case when o.state = 'fired' then nextval('kept.job_id_seq') end as job
    from unnest(%(schedules)s::int[], %(slots)s::timestamptz[], %(states)s::text[], %(reasons)s::text[],
                %(missed)s::int[], %(due_at)s::timestamptz[]) with ordinality
         o(schedule, slot, state, reason, missed, due_at, ord)
    join moved m on m.id = o.schedule
    join mine b on b.id = m.id and (o.slot > b.last_slot or o.slot = b.queued_slot)
   order by o.ord
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
    join recorded r on r.job = d.job
    join kept.lane l on l.id = d.lane
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
-- Copy what became of their jobs. One that is nowhere any more was purged, or lost with the server's own commits.
with gone as (
  select id, job from kept.occurrence where id = any(%(ids)s::bigint[]) and outcome is null order by id for update skip locked
), closed as (
  update kept.occurrence o
     set outcome = coalesce(h.state, 'unknown'), started_at = h.claimed_at,
         finished_at = coalesce(h.settled_at, kept.now()), worker = h.worker, code = h.code, message = h.message,
         counters = case when json_typeof(h.result) in ('object', 'number') then h.result end
    from gone g left join lateral kept.find_settled(g.job) h on true
   where o.id = g.id
  returning o.id
)
select count(*) from closed


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
     and not exists (select from kept.worker w
                      where w.state = 'live' and w.lease_until > kept.now() and w.schedules ? s.name)
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
-- The schedules of these names, locked, and whether a live worker declares what is in force.
select s.name, s.origin, s.digest, s.digests, s.retired_at is not null, s.undeclared_at is not null,
       exists (select from kept.worker w
                where w.state = 'live' and w.lease_until > kept.now() and w.schedules ->> s.name = s.digest) as in_use
  from kept.schedule s
 where s.name = any(%(names)s::text[])
 order by s.name
   for update


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
                       from kept.job j where j.id = o.job) live on true
 where (%(name)s::text is null or s.name = %(name)s::text)
   and (%(task)s::text is null or l.task = %(task)s::text)
   and (%(origin)s::text is null or s.origin = %(origin)s::text)
   and (%(retired)s::boolean or s.retired_at is null)
 order by s.name
 limit %(limit)s::int


-- name: names
select name from kept.schedule order by name


-- name: occurrences
-- The newest slots of a schedule; what is not copied yet of their jobs is looked up.
select o.slot, o.by_hand, o.state, o.reason, o.missed, o.job,
       coalesce(o.outcome, live.state, h.state), coalesce(o.started_at, live.claimed_at, h.claimed_at),
       coalesce(o.finished_at, h.settled_at), coalesce(o.code, h.code), coalesce(o.message, h.message)
  from kept.occurrence o
  left join lateral (select case when j.worker is null then 'pending' else 'running' end as state, j.claimed_at
                       from kept.job j where j.id = o.job and o.outcome is null) live on true
  left join lateral (select f.* from kept.find_settled(o.job) f
                      where o.job is not null and o.outcome is null and live.state is null) h on true
 where o.schedule = %(schedule)s::int
 order by o.slot desc, o.id desc
 limit %(limit)s::int


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
