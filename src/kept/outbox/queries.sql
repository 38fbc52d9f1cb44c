-- The outbox's statements. Parameters are psycopg's; `kept` stands for the schema.


-- name: emit
-- Record events and fan them out, in the caller's transaction; the ids as text, which any connection reads alike.
select kept.record_events(%(types)s::text[], %(versions)s::int[], %(occurred)s::timestamptz[], %(actors)s::text[],
                          %(aggregate_types)s::text[], %(aggregate_ids)s::text[], %(headers)s::json[],
                          %(data)s::json[], %(keys)s::text[], %(unique_for)s::float8 * interval '1 second')::text


-- name: unknown
-- Of what an App declares, what the database does not know, or knows otherwise.
select w.name
  from unnest(%(names)s::text[], %(patterns)s::text[], %(queues)s::text[], %(tasks)s::text[], %(sinks)s::text[])
       w(name, patterns, queue, task, sink)
  left join kept.subscription s on s.name = w.name
  left join kept.lane l on l.id = s.lane
 where s.id is null or s.retired_at is not null or s.patterns <> string_to_array(w.patterns, ' ')
    or l.queue <> w.queue or l.task <> w.task or s.sink is distinct from w.sink
union all
select t.type from unnest(%(types)s::text[]) t(type)
 where not exists (select from kept.event_type k where k.type = t.type)


-- name: lock_routes
-- Nobody else changes subscriptions or learns of a type until we have committed.
select pg_advisory_xact_lock(hashtextextended('kept.routes', 0))::text


-- name: learn_types
with new as (
  insert into kept.event_type (type) select type from unnest(%(types)s::text[]) t(type) order by type
  on conflict do nothing returning type
)
select type from new


-- name: subscribe
-- The subscriptions that are new, by name and id.
with told as (
  insert into kept.subscription as s (name, patterns, lane, sink)
  select w.name, string_to_array(w.patterns, ' '), l.id, w.sink
    from unnest(%(names)s::text[], %(patterns)s::text[], %(queues)s::text[], %(tasks)s::text[], %(sinks)s::text[])
         w(name, patterns, queue, task, sink)
    join kept.lane l on l.queue = w.queue and l.task = w.task
   order by w.name
  on conflict (name) do update
    set patterns = excluded.patterns, lane = excluded.lane, sink = excluded.sink,
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


-- name: missed
-- How many recorded events this subscription would have got; not counted beyond `most`.
select count(*) from (
  select from kept.event e
   where e.type in (select r.type from kept.route r where r.subscription = %(subscription)s::int)
     and %(subscription)s::int <> all(e.subscriptions)
   limit %(most)s::int) e
