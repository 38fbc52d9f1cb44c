-- What upkeep does. Each statement is a transaction of its own; everything is decided by kept.now().

-- name: clock
select kept.now()

-- name: registry
select name, parent, starts_at, ends_at, coalesce(drop_eligible_at <= kept.now(), false) as due
  from kept.partition

-- name: strays
-- The days a default partition holds rows of: none, unless nobody looked after partitions for a month.
select 'history_done', date_trunc('day', settled_at, 'UTC') as day from kept.history_done_default group by day
union all
select 'history_failed', date_trunc('day', settled_at, 'UTC') as day from kept.history_failed_default group by day
union all
select 'job_log', date_trunc('day', at, 'UTC') as day from kept.job_log_default group by day
union all
select 'event', date_trunc('day', recorded_at, 'UTC') as day from kept.event_default group by day

-- name: reckon
-- A changed retention moves the day on which partitions may go, except where somebody else has moved it.
update kept.partition
   set retention = %(keep)s, drop_eligible_at = ends_at + %(keep)s
 where parent = %(parent)s and retention <> %(keep)s and drop_eligible_at = ends_at + retention
returning name

-- name: make_partition
select kept.make_partition(%(parent)s, %(starts_at)s, %(ends_at)s, %(keep)s)

-- name: drop_partition
select kept.drop_partition(%(name)s)

-- name: purge_keys
-- One batch, from where the last one ended: keys of live jobs hold, and must not be met again and again.
with batch as (
  select u.ctid, u.expires_at, u.lane, u.key, u.job
    from kept.unique_key u
   where u.expires_at <= kept.now()
     and (u.expires_at, u.lane, u.key) > (%(after)s::timestamptz, %(lane)s::int, %(key)s::text)
   order by u.expires_at, u.lane, u.key
   limit %(limit)s
     for update skip locked
), gone as (
  delete from kept.unique_key
   where ctid = any(array(select b.ctid from batch b
                           where not exists (select from kept.job j where j.id = b.job)))
  returning 1
)
select b.expires_at, b.lane, b.key, (select count(*) from gone)
  from batch b
 order by b.expires_at desc, b.lane desc, b.key desc
 limit 1

-- name: purge_event_keys
with gone as (
  delete from kept.event_key
   where ctid = any(array(select k.ctid from kept.event_key k where k.expires_at <= kept.now()
                           order by k.expires_at limit %(limit)s for update skip locked))
  returning 1
)
select count(*) from gone

-- name: next_consumer
select min(consumer) from kept.inbox where consumer > %(after)s::text

-- name: purge_markers
-- One batch of a consumer's expired markers, from where the last one ended: its dead entries need not be met again.
with batch as (
  select i.ctid, i.expires_at
    from kept.inbox i
   where i.consumer = %(consumer)s::text and i.expires_at <= kept.now() and i.expires_at >= %(after)s::timestamptz
   order by i.expires_at
   limit %(limit)s
     for update skip locked
), gone as (
  delete from kept.inbox where ctid = any(array(select b.ctid from batch b)) returning 1
)
select (select max(b.expires_at) from batch b), (select count(*) from gone)

-- name: purge_workers
-- There is no index on job.worker; the jobs are read only if there is a worker to ask about.
with over as materialized (
  select id from kept.worker where state <> 'live' and lease_until < kept.now() - interval '1 day'
), named as materialized (
  select distinct worker from kept.job where worker is not null and exists (select from over)
), gone as (
  delete from kept.worker
   where id = any(array(select id from over except select worker from named))
  returning 1
)
select count(*) from gone

-- name: purge_sleepers
with gone as (
  delete from kept.sleeper
   where ctid = any(array(select s.ctid from kept.sleeper s where s.until < kept.now() - interval '1 minute'
                             for update skip locked))
  returning 1
)
select count(*) from gone
