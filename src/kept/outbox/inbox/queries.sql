-- The markers of consumers, in the transactions of consumers.

-- name: mark
-- A live marker that shows is the answer, and nothing is locked for it. What does not show may be under way: the
-- insert waits for that transaction, and after a rollback the marker is ours. An expired marker is as good as none.
-- Second column: seconds left of a marker that is committed for certain, so not of one from this transaction.
with seen as materialized (
  select extract(epoch from i.expires_at - kept.now())::float8 as seconds_left,
         i.tx is distinct from pg_current_xact_id_if_assigned() as committed
    from kept.inbox i
   where i.consumer = %(consumer)s and i.event_id = %(event_id)s and i.expires_at > kept.now()
), marked as (
  insert into kept.inbox as i (consumer, event_id, seen_at, expires_at)
  select %(consumer)s::text, %(event_id)s::text, kept.now(), kept.now() + %(ttl)s::float8 * interval '1 second'
   where not exists (select from seen)
  on conflict (consumer, event_id) do update
     set seen_at = excluded.seen_at, expires_at = excluded.expires_at, tx = excluded.tx
   where i.expires_at <= excluded.seen_at
  returning 1
)
select exists (select from marked) as first, (select seconds_left from seen where committed) as seconds_left,
       case when %(identify)s::bool then kept.inbox_identity() end as identity


-- name: take_back
-- Only the marker of this very transaction: a caller who committed inside the block keeps what was committed.
delete from kept.inbox
 where consumer = %(consumer)s and event_id = %(event_id)s and tx = pg_current_xact_id_if_assigned()
returning 1


-- name: forget
with gone as (
  delete from kept.inbox where consumer = %(consumer)s and event_id = %(event_id)s returning 1
)
select exists (select from gone) as found, kept.inbox_identity() as identity


-- name: consumers
-- Names by hopping through the index, never by reading the table; counts up to a limit, and what ANALYZE knows beyond.
with recursive named as (
  (select consumer from kept.inbox order by consumer limit 1)
  union all
  select (select i.consumer from kept.inbox i where i.consumer > n.consumer order by i.consumer limit 1)
    from named n
   where n.consumer is not null
), guessed as (
  select m.consumer, (c.reltuples * m.share)::bigint as markers
    from pg_class c
    join pg_namespace s on s.oid = c.relnamespace
    join pg_stats p on p.schemaname = s.nspname and p.tablename = c.relname and p.attname = 'consumer',
         unnest(p.most_common_vals::text::text[], p.most_common_freqs) m(consumer, share)
   where c.oid = 'kept.inbox'::regclass
)
select n.consumer,
       case when live.found > %(most)s::bigint then greatest(g.markers, live.found - 1) else live.found end as markers,
       live.found <= %(most)s::bigint as exact,
       least(dead.found, %(most)s::bigint) as expired,
       (select i.seen_at from kept.inbox i where i.consumer = n.consumer order by i.expires_at limit 1) as oldest,
       (select i.seen_at from kept.inbox i where i.consumer = n.consumer order by i.expires_at desc limit 1) as newest,
       (select extract(epoch from kept.now() - min(i.expires_at))::float8
          from kept.inbox i where i.consumer = n.consumer) as overdue
  from named n
  left join guessed g on g.consumer = n.consumer
 cross join lateral (select count(*) as found
                       from (select from kept.inbox i where i.consumer = n.consumer
                              limit %(most)s::bigint + 1) c) live
 cross join lateral (select count(*) as found
                       from (select from kept.inbox i where i.consumer = n.consumer and i.expires_at <= kept.now()
                              limit %(most)s::bigint + 1) c) dead
 where n.consumer is not null
 order by n.consumer
