-- The outbox's statements. Parameters are psycopg's; `kept` stands for the schema.


-- name: emit
-- Record an event and fan it out, in the caller's transaction; its id as text, which any connection reads alike.
select kept.record_event(%(type)s::text, %(version)s::int, %(occurred_at)s::timestamptz, %(actor)s::text,
                         %(aggregate_type)s::text, %(aggregate_id)s::text, %(headers)s::json, %(data)s::json,
                         %(key)s::text, %(unique_for)s::float8 * interval '1 second')::text


-- name: emit_many
select kept.record_events(%(types)s::text[], %(versions)s::int[], %(occurred)s::timestamptz[], %(actors)s::text[],
                          %(aggregate_types)s::text[], %(aggregate_ids)s::text[], %(headers)s::json[],
                          %(data)s::json[])::text


-- name: unknown
-- Of what an App declares, what the database does not know, or knows otherwise; unless `exact`, wanting more is not that.
select w.name
  from unnest(%(names)s::text[], %(patterns)s::text[], %(queues)s::text[], %(tasks)s::text[], %(sinks)s::text[])
       w(name, patterns, queue, task, sink)
  left join kept.subscription s on s.name = w.name
  left join kept.lane l on l.id = s.lane
 where s.id is null or s.retired_at is not null
    or case when %(exact)s::boolean then s.patterns <> string_to_array(w.patterns, ' ')
            else not s.patterns @> string_to_array(w.patterns, ' ') end
    or l.queue <> w.queue or l.task <> w.task or s.sink is distinct from w.sink
union all
select t.type from unnest(%(types)s::text[]) t(type)
 where not exists (select from kept.event_type k where k.type = t.type)


-- name: lock_routes
-- Nobody else changes subscriptions or learns of a type until we have committed.
update kept.routing set changed_at = kept.now() returning changed_at::text


-- name: learn_types
with new as (
  insert into kept.event_type (type) select type from unnest(%(types)s::text[]) t(type) order by type
  on conflict do nothing returning type
)
select type from new


-- name: subscribe
-- The subscriptions that are new, by name and id. Unless `exact`, one keeps the patterns it has: during a deploy the other
-- version wants them.
with told as (
  insert into kept.subscription as s (name, patterns, lane, sink)
  select w.name, string_to_array(w.patterns, ' '), l.id, w.sink
    from unnest(%(names)s::text[], %(patterns)s::text[], %(queues)s::text[], %(tasks)s::text[], %(sinks)s::text[])
         w(name, patterns, queue, task, sink)
    join kept.lane l on l.queue = w.queue and l.task = w.task
   order by w.name
  on conflict (name) do update
    set patterns = case when %(exact)s::boolean or s.retired_at is not null then excluded.patterns
                        else array(select distinct p from unnest(s.patterns || excluded.patterns) p order by p) end,
        lane = excluded.lane, sink = excluded.sink,
        declared_at = kept.now(), retired_at = null
  returning s.id, s.name, s.xmax = 0 as added
)
select name, id from told where added order by name


-- name: declare_sinks
with new as (
  insert into kept.sink as s (name, kind)
  select name, kind from unnest(%(names)s::text[], %(kinds)s::text[]) w(name, kind) order by name
  on conflict (name) do update set kind = excluded.kind where s.kind <> excluded.kind
  returning name
)
select name from new


-- name: reroute
-- Drop the routes that no longer hold, add those that are missing.
with gone as (
  delete from kept.route r
   using kept.subscription s
   where s.id = r.subscription
     and (s.retired_at is not null or r.lane <> s.lane or not kept.type_matches(r.type, s.patterns))
  returning 1
)
select count(*) from gone


-- name: expand_routes
select kept.expand_routes()::text


-- name: unmatched
-- Of these subscriptions, the patterns that match no type yet.
select s.name, p.pattern
  from kept.subscription s cross join lateral unnest(s.patterns) p(pattern)
 where s.name = any(%(names)s::text[])
   and not exists (select from kept.event_type t where kept.type_matches(t.type, array[p.pattern]))
 order by 1, 2


-- name: be_quick
-- For what is good to know and not worth waiting for.
select set_config('statement_timeout', '2s', true)


-- name: missed
-- How many recorded events this subscription would have got; not counted beyond `most`.
select count(*) from (
  select from kept.event e
   where e.type in (select r.type from kept.route r where r.subscription = %(subscription)s::int)
     and %(subscription)s::int <> all(e.subscriptions)
   limit %(most)s::int) e


-- name: events
-- The newest events, at most `limit`.
select e.seq, e.id::text, e.type, e.version, e.recorded_at, e.occurred_at, e.actor, e.aggregate_type, e.aggregate_id,
       cardinality(e.subscriptions) as subscriptions
  from kept.event e
 where e.seq < %(before)s::bigint
   and (%(pattern)s::text is null
        or e.type in (select t.type from kept.event_type t where kept.type_matches(t.type, array[%(pattern)s::text])))
   and (%(aggregate_type)s::text is null or e.aggregate_type = %(aggregate_type)s::text)
   and (%(aggregate_id)s::text is null or e.aggregate_id = %(aggregate_id)s::text)
   and e.recorded_at >= coalesce(kept.now() - %(newer_than)s::float8 * interval '1 second', '-infinity')
 order by e.seq desc
 limit %(limit)s::int


-- name: event
select e.seq, e.id::text, e.type, e.version, e.recorded_at, e.occurred_at, e.actor, e.aggregate_type, e.aggregate_id,
       cardinality(e.subscriptions), e.headers::text, e.data::text,
       array(select coalesce(s.name, '#' || n.id) from unnest(e.subscriptions) n(id)
               left join kept.subscription s on s.id = n.id order by n.id)
  from kept.event e
 where e.id = %(id)s::uuid


-- name: subscriptions
select s.id, s.name, s.patterns, l.queue, l.ordered, s.sink, s.created_at, s.declared_at, s.retired_at,
       (select count(*) from kept.route r where r.subscription = s.id) as types,
       exists (select from kept.worker w where w.state = 'live' and w.declared ? s.name) as declared,
       exists (select from kept.worker w where w.state = 'live') as anybody
  from kept.subscription s join kept.lane l on l.id = s.lane
 order by s.name


-- name: retire
-- Events from now on pass it by; jobs that wait are left to whoever still serves its lane.
with retired as (
  update kept.subscription set retired_at = kept.now() where name = %(name)s::text and retired_at is null returning id
), unrouted as (
  delete from kept.route r using retired s where r.subscription = s.id returning 1
)
select id, (select count(*) from unrouted) from retired


-- name: replayable
-- How many recorded events a replay means.
select count(*) from (
  select from kept.event e
   where (%(again)s::boolean or %(subscription)s::int <> all(e.subscriptions))
     and (%(ids)s::uuid[] is null or e.id = any(%(ids)s::uuid[]))
     and e.type in (select t.type from kept.event_type t
                     where kept.type_matches(t.type, %(patterns)s::text[])
                       and kept.type_matches(t.type, array[coalesce(%(pattern)s::text, '*')]))
     and e.recorded_at >= coalesce(%(since)s::timestamptz, '-infinity')
     and e.recorded_at < coalesce(%(until)s::timestamptz, 'infinity')
     and e.seq <= %(upto)s::bigint) e


-- name: newest_event
select coalesce(max(seq), 0) from kept.event


-- name: next_events
-- The next batch, in the order of emitting, from where the last one ended: locked, so that two replays at once do not tell
-- anybody twice. With the lane and key of those that are to be told in order.
select e.seq, l.id, case when l.ordered then e.aggregate_type || '/' || e.aggregate_id end
  from kept.event e cross join kept.subscription s join kept.lane l on l.id = s.lane
 where s.id = %(subscription)s::int and e.seq > %(after)s::bigint and e.seq <= %(upto)s::bigint
   and (%(again)s::boolean or %(subscription)s::int <> all(e.subscriptions))
   and (%(ids)s::uuid[] is null or e.id = any(%(ids)s::uuid[]))
   and e.type in (select t.type from kept.event_type t
                   where kept.type_matches(t.type, %(patterns)s::text[])
                     and kept.type_matches(t.type, array[coalesce(%(pattern)s::text, '*')]))
   and e.recorded_at >= coalesce(%(since)s::timestamptz, '-infinity')
   and e.recorded_at < coalesce(%(until)s::timestamptz, 'infinity')
 order by e.seq
 limit %(limit)s::int
   for update of e


-- name: replay
-- Jobs for these events, which are ours and whose keys are locked; each event remembers that it was fanned out.
with batch as materialized (
  select e.seq, e.recorded_at, e.id, e.type, e.version, e.occurred_at, e.actor, e.aggregate_type, e.aggregate_id,
         e.headers, e.data
    from kept.event e
   where e.seq = any(%(seqs)s::bigint[])
), remembered as (
  update kept.event e set subscriptions = e.subscriptions || %(subscription)s::int
    from batch b
   where e.seq = b.seq and e.recorded_at = b.recorded_at and %(subscription)s::int <> all(e.subscriptions)
), drawn as materialized (
  select nextval('kept.job_id_seq') as id, o.*
    from (select l.id as lane, l.priority, l.ordered, b.headers, b.aggregate_type || '/' || b.aggregate_id as key,
                 kept.envelope(b.id, b.type, b.version, b.occurred_at, b.actor, b.aggregate_type, b.aggregate_id,
                               b.headers, b.data) as envelope,
                 kept.now() + (%(delay)s::float8 + (row_number() over (order by b.seq) - 1) * %(pause)s::float8)
                              * interval '1 second' as due_at
            from batch b
           cross join kept.subscription s
            join kept.lane l on l.id = s.lane
           where s.id = %(subscription)s::int
           order by b.seq) o
), new as (
  insert into kept.job (id, lane, priority, ready, due_at, created_at, headers, payload, order_key)
  select d.id, d.lane, d.priority, d.due_at <= kept.now(), d.due_at, kept.now(), d.headers, d.envelope,
         case when d.ordered then coalesce(d.key, '#' || d.id) end
    from drawn d
  returning id
)
select count(*) from new


-- name: lock_keys
-- As whoever emits does, before ids are drawn: else two jobs of one aggregate could run at once.
select kept.lock_orders(%(lanes)s::int[], %(keys)s::text[])


-- name: wake_lane
select count(pg_notify('kept:wake', l.id || ':' || l.priority))
  from kept.lane l join kept.subscription s on s.lane = l.id
 where s.id = %(subscription)s::int


-- name: sinks
select k.name, k.kind, k.failures, k.opened_at, k.disabled_at, k.last_code, k.last_error, k.last_error_at,
       array(select l.id from kept.subscription s join kept.lane l on l.id = s.lane where s.sink = k.name) as lanes,
       (select count(*) from kept.history h
         where h.state = 'done' and h.settled_at > kept.now() - interval '1 minute'
           and h.lane in (select s.lane from kept.subscription s where s.sink = k.name)) / 60.0::float8 as rate
  from kept.sink k
 order by k.name


-- name: lock_sink
-- One at a time says how a sink is doing; and whether it is enabled. By itself, so that what follows sees what whoever
-- had the lock before us has written.
select disabled_at is null from kept.sink where name = %(sink)s::text for update


-- name: sink_failed
-- Count a failure of the broker, unless the lane rests already: because somebody has just counted, or for longer.
-- A broker that took something of the same batch has not failed before.
update kept.sink k
   set failures = case when %(took)s then 1 else k.failures + 1 end,
       last_code = %(code)s::text, last_error = %(error)s::text, last_error_at = kept.now(),
       opened_at = case when %(took)s then kept.now() else coalesce(k.opened_at, kept.now()) end
 where k.name = %(sink)s::text
   and not exists (select from kept.lane l where l.id = %(lane)s::int and l.paused_until > kept.now())
returning k.failures


-- name: rest_sink
-- Let a sink's lanes rest in the whole cluster; a longer pause that somebody else asked for stays. The lane that met
-- the failure rests in any case: a newer version of the program may have given its subscription another sink.
with rested as (
  update kept.lane l set paused_until = kept.now() + %(seconds)s::float8 * interval '1 second'
   where l.id in (select %(lane)s::int union select s.lane from kept.subscription s where s.sink = %(sink)s::text)
     and coalesce(l.paused_until, '-infinity') < kept.now() + %(seconds)s::float8 * interval '1 second'
  returning l.id
)
select count(*) from rested


-- name: sink_works
with closed as (
  update kept.sink set failures = 0, opened_at = null where name = %(sink)s::text and failures > 0 returning 1
)
select count(*) from closed


-- name: disable_sink
-- It said that it is gone: nothing is sent there until somebody enables it again.
with gone as (
  update kept.sink set disabled_at = kept.now(), last_code = %(code)s::text, last_error = %(error)s::text,
                       last_error_at = kept.now()
   where name = %(sink)s::text returning name
)
update kept.lane l set paused_until = 'infinity'
 where l.id in (select %(lane)s::int union select s.lane from kept.subscription s join gone on gone.name = s.sink)
returning l.id


-- name: enable_sink
with back as (
  update kept.sink set disabled_at = null, failures = 0, opened_at = null where name = %(sink)s::text returning name
)
update kept.lane l set paused_until = null
  from kept.subscription s join back on back.name = s.sink
 where s.lane = l.id
returning l.id, (select pg_notify('kept:wake', 'lanes')) as woken
