-- An operator's statements. Rows of jobs are taken with FOR UPDATE SKIP LOCKED, in batches, in the order of ids:
-- a worker is never waited for and never made to wait for long.
-- due_at is cut to years that every client can read: SQL producers may say 'infinity'.


-- name: list
-- Newest first, from both homes of a job. Each arm walks its index on id and stops at the limit.
with live as (
  select j.id, j.lane, case when j.worker is null then 'pending' else 'running' end as state, j.key, j.priority,
         j.attempt, j.uncharged, j.suspect, j.created_at, j.due_at, j.claimed_at, null::timestamptz as settled_at,
         j.worker, null::text as code, null::text as reason, null::text as message, j.retry_of
    from kept.job j
   where %(live)s and j.id < %(before)s
     and case when j.worker is null then 'pending' else 'running' end = any(%(states)s::text[])
     and (%(lanes)s::int[] is null or j.lane = any(%(lanes)s::int[]))
     and (%(key)s::text is null or j.key = %(key)s)
     and (%(older_than)s::float8 is null or j.created_at <= kept.now() - %(older_than)s * interval '1 second')
     and (%(newer_than)s::float8 is null or j.created_at >= kept.now() - %(newer_than)s * interval '1 second')
   order by j.id desc limit %(limit)s
), settled as (
  select h.id, h.lane, h.state, h.key, h.priority,
         h.attempt, h.uncharged, false, h.created_at, null::timestamptz, h.claimed_at, h.settled_at,
         null::uuid, h.code, h.reason, h.message, h.retry_of
    from kept.history h
   where h.id < %(before)s
     and h.state = any(%(states)s::text[])
     and (%(code)s::text is null or h.code = %(code)s)
     and (%(lanes)s::int[] is null or h.lane = any(%(lanes)s::int[]))
     and (%(key)s::text is null or h.key = %(key)s)
     and (%(older_than)s::float8 is null or h.settled_at <= kept.now() - %(older_than)s * interval '1 second')
     and (%(newer_than)s::float8 is null or h.settled_at >= kept.now() - %(newer_than)s * interval '1 second')
   order by h.id desc limit %(limit)s
)
select x.id, l.queue, l.task, x.state, x.key, x.priority, x.attempt, x.attempt - x.uncharged as charged,
       l.max_attempts, x.suspect, x.created_at,
       case when x.due_at is not null then least(greatest(x.due_at, '0002-01-01Z'), '9999-01-01Z') end as due_at,
       x.claimed_at, x.settled_at, w.name as locked_by, w.lease_until as locked_until,
       x.code, x.reason, x.message, x.retry_of,
       extract(epoch from kept.now() - coalesce(x.settled_at, x.created_at))::float8 as age
  from (select * from live union all select * from settled) x
  join kept.lane l on l.id = x.lane
  left join kept.worker w on w.id = x.worker
 order by x.id desc limit %(limit)s


-- name: show
-- One job; the second arm is not begun if the first has a row.
select x.id, l.queue, l.task, x.state, x.key, x.priority, x.attempt, x.attempt - x.uncharged as charged,
       l.max_attempts, x.suspect, x.created_at,
       case when x.due_at is not null then least(greatest(x.due_at, '0002-01-01Z'), '9999-01-01Z') end as due_at,
       x.claimed_at, x.settled_at, w.name as locked_by, w.lease_until as locked_until,
       x.code, x.reason, x.message, x.retry_of,
       extract(epoch from kept.now() - coalesce(x.settled_at, x.created_at))::float8 as age,
       x.headers::text, x.payload::text, x.result::text
  from ((select j.id, j.lane, case when j.worker is null then 'pending' else 'running' end as state, j.key,
                j.priority, j.attempt, j.uncharged, j.suspect, j.created_at, j.due_at, j.claimed_at,
                null::timestamptz as settled_at, j.worker, null::text as code, null::text as reason,
                null::text as message, j.retry_of, j.headers, j.payload, null::json as result
           from kept.job j
          where j.id = %(id)s)
        union all
        (select h.id, h.lane, h.state, h.key,
                h.priority, h.attempt, h.uncharged, false, h.created_at, null, h.claimed_at,
                h.settled_at, null, h.code, h.reason,
                h.message, h.retry_of, h.headers, h.payload, h.result
           from kept.find_settled(%(id)s) h)
        limit 1) x
  join kept.lane l on l.id = x.lane
  left join kept.worker w on w.id = x.worker


-- name: log
select g.at, g.attempt, g.event, g.code, g.message, g.detail, coalesce(w.name, g.worker::text) as worker
  from kept.job_log g
  left join kept.worker w on w.id = g.worker
 where g.job = %(id)s
 order by g.at desc, g.attempt desc limit %(limit)s


-- name: count_pending
select count(*), max(id)
  from kept.job
 where worker is null
   and (%(lanes)s::int[] is null or lane = any(%(lanes)s::int[]))
   and (%(key)s::text is null or key = %(key)s)
   and (%(older_than)s::float8 is null or created_at <= kept.now() - %(older_than)s * interval '1 second')
   and (%(newer_than)s::float8 is null or created_at >= kept.now() - %(newer_than)s * interval '1 second')


-- name: take_pending
-- The next batch after the last one; what a claim holds this very moment is skipped.
select id
  from kept.job
 where worker is null
   and id > %(after)s and id <= %(upto)s
   and (%(ids)s::bigint[] is null or id = any(%(ids)s::bigint[]))
   and (%(lanes)s::int[] is null or lane = any(%(lanes)s::int[]))
   and (%(key)s::text is null or key = %(key)s)
   and (%(older_than)s::float8 is null or created_at <= kept.now() - %(older_than)s * interval '1 second')
   and (%(newer_than)s::float8 is null or created_at >= kept.now() - %(newer_than)s * interval '1 second')
 order by id limit %(limit)s
   for update skip locked


-- name: count_settled
select count(*), max(h.id)
  from kept.history h
 where h.state = any(%(states)s::text[])
   and (%(code)s::text is null or h.code = %(code)s)
   and (%(lanes)s::int[] is null or h.lane = any(%(lanes)s::int[]))
   and (%(key)s::text is null or h.key = %(key)s)
   and (%(older_than)s::float8 is null or h.settled_at <= kept.now() - %(older_than)s * interval '1 second')
   and (%(newer_than)s::float8 is null or h.settled_at >= kept.now() - %(newer_than)s * interval '1 second')
   and (%(again)s or not exists (select from kept.job_log g where g.job = h.id and g.event = 'retried'))


-- name: take_settled
select h.id
  from kept.history h
 where h.state = any(%(states)s::text[])
   and h.id > %(after)s and h.id <= %(upto)s
   and (%(ids)s::bigint[] is null or h.id = any(%(ids)s::bigint[]))
   and (%(code)s::text is null or h.code = %(code)s)
   and (%(lanes)s::int[] is null or h.lane = any(%(lanes)s::int[]))
   and (%(key)s::text is null or h.key = %(key)s)
   and (%(older_than)s::float8 is null or h.settled_at <= kept.now() - %(older_than)s * interval '1 second')
   and (%(newer_than)s::float8 is null or h.settled_at >= kept.now() - %(newer_than)s * interval '1 second')
   and (%(again)s or not exists (select from kept.job_log g where g.job = h.id and g.event = 'retried'))
 order by h.id limit %(limit)s
   for update of h skip locked


-- name: retry
-- New jobs for records that are locked by now. Asked once more whether they were retried: the statement that took
-- them began before it had them. A key moves on to the new job, unless another job has it by right.
with source as materialized (
  select h.id as old, nextval('kept.job_id_seq') as id, h.lane, h.priority, h.attempt, h.key, h.headers, h.payload,
         l.ordered
    from kept.history h
    join kept.lane l on l.id = h.lane
   where h.id = any(%(ids)s::bigint[]) and h.state in ('failed', 'cancelled', 'skipped')
     and (%(again)s or not exists (select from kept.job_log g where g.job = h.id and g.event = 'retried'))
), held as (
  insert into kept.unique_key as u (lane, key, job, expires_at)
  select distinct on (lane, key) lane, key, id, kept.now() + interval '24 hours'
    from source where key is not null
   order by lane, key, old desc       -- of several with one key, the newest; and one order for everybody
  on conflict (lane, key) do update
    set (job, expires_at) = (
      select case when free then excluded.job else u.job end,
             case when free then excluded.expires_at else u.expires_at end
        from (select exists (select from source s where s.id = excluded.job and s.old = u.job)
                     or (u.expires_at <= kept.now()
                         and not exists (select from kept.job j where j.id = u.job)) as free) f)
  returning u.lane, u.key, u.job
), new as (
  insert into kept.job (id, lane, priority, ready, due_at, created_at, key, headers, payload, retry_of, order_key)
  select s.id, s.lane, s.priority, true, kept.now(), kept.now(), s.key, s.headers, s.payload, s.old,
         case when s.ordered then '#' || s.id end   -- its place in the order has passed: it stands alone
    from source s
    left join held h on h.lane = s.lane and h.key = s.key
   where s.key is null or h.job = s.id
  returning id, lane, priority, retry_of
), logged as (
  insert into kept.job_log (job, at, attempt, event, message, detail)
  select s.old, kept.now(), s.attempt, 'retried', 'as job ' || n.id, n.id::text
    from new n join source s on s.id = n.id
), woken as (
  select pg_notify('kept:wake', n.lane || ':' || n.priority)
    from (select distinct lane, priority from new) n
   where exists (select from kept.sleeper s where s.lane = n.lane and s.until > kept.now())
)
select n.retry_of, n.id, (select count(*) from woken) as woken from new n order by n.retry_of


-- name: delete
-- Records that are locked by now go, with their log and the key that still names them, and are counted as purged.
with gone as (
  delete from kept.history
   where id = any(%(ids)s::bigint[])
  returning id, lane, key, state
), unlogged as (
  delete from kept.job_log where job in (select id from gone)
), freed as (
  delete from kept.unique_key
   where (lane, key) in (
     select u.lane, u.key
       from kept.unique_key u
       join gone g on g.lane = u.lane and g.key = u.key and g.id = u.job
      order by u.lane, u.key          -- the order in which bulk enqueues take them
        for update of u)
), counted as (
  insert into kept.purged as p (state, jobs)
  select state, count(*) from gone group by state order by state
  on conflict (state) do update set jobs = p.jobs + excluded.jobs
)
select id from gone order by id


-- name: standing
-- Why a job was not changed: its state, the job it was retried as, and the job that has its key.
select j.id, j.state,
       (select g.detail::bigint from kept.job_log g
         where g.job = j.id and g.event = 'retried' order by g.at desc limit 1) as retried_as,
       (select u.job from kept.lane l join kept.unique_key u on u.lane = l.id and u.key = j.key
         where l.queue = j.queue and l.task = j.task and u.job <> j.id) as holder
  from kept.jobs j
 where j.id = any(%(ids)s::bigint[])
 order by j.id


-- name: lanes
with waiting as (
  select lane,
         count(*) filter (where worker is null and due_at <= kept.now()) as due,
         count(*) filter (where worker is null and due_at > kept.now()) as parked,
         count(*) filter (where worker is not null) as running,
         min(due_at) filter (where worker is null and due_at <= kept.now()) as oldest
    from kept.job
   group by lane
)
select l.id, l.queue, l.task, coalesce(w.due, 0) as due, coalesce(w.parked, 0) as parked,
       coalesce(w.running, 0) as running,
       case when w.oldest is not null
            then extract(epoch from kept.now() - greatest(w.oldest, '0002-01-01Z'))::float8 end as oldest_due,
       coalesce(l.paused_until > kept.now(), false) as paused,
       case when l.paused_until > kept.now() and l.paused_until < '9999-01-01Z' then l.paused_until end as paused_until,
       l.declared_at is not null as declared
  from kept.lane l
  left join waiting w on w.lane = l.id
 order by l.queue, l.task


-- name: lane_names
select id, queue, task from kept.lane order by queue, task


-- name: pause
update kept.lane
   set paused_until = coalesce(kept.now() + %(seconds)s::float8 * interval '1 second', 'infinity')
 where id = any(%(lanes)s::int[])
returning id


-- name: resume
with resumed as (
  update kept.lane set paused_until = null
   where id = any(%(lanes)s::int[]) and paused_until is not null
  returning id
)
select id, (select pg_notify('kept:wake', 'lanes')) as woken from resumed


-- name: workers
with held as (
  select worker, count(*) as jobs from kept.job where worker is not null group by worker
)
select w.id::text, w.name, w.host, w.pid, w.version, w.queues, w.state,
       extract(epoch from w.lease_until - kept.now())::float8 as lease_left, w.started_at,
       coalesce(h.jobs, 0) as running, w.declared
  from kept.worker w
  left join held h on h.worker = w.id
 where %(all)s or w.state in ('live', 'lost')
 order by case when w.state <> 'live' then 2 when w.lease_until <= kept.now() then 1 else 0 end,
          w.started_at desc, w.name


-- name: recent
select h.lane,
       count(*) filter (where h.state = 'done') as done,
       count(*) filter (where h.state = 'failed') as failed,
       coalesce(sum(h.attempt - h.uncharged) filter (where h.state = 'done'), 0)::bigint as attempts
  from kept.history h
 where h.settled_at > kept.now() - %(seconds)s * interval '1 second'
 group by h.lane


-- name: clock
select kept.now()


-- name: server
select current_setting('server_version'), current_setting('fsync')::bool, current_setting('full_page_writes')::bool,
       current_setting('synchronous_commit'), pg_backend_pid()


-- name: dead_rows
select n_dead_tup, n_live_tup from pg_stat_all_tables where relid = 'kept.job'::regclass


-- name: sessions
-- Who keeps dead rows from being removed in this database: open transactions, by age.
select pid, coalesce(application_name, '') as name, coalesce(state, '') as state,
       extract(epoch from clock_timestamp() - xact_start)::float8 as seconds
  from pg_stat_activity
 where datname = current_database() and pid <> pg_backend_pid() and backend_type = 'client backend'
   and xact_start is not null and (backend_xmin is not null or state like 'idle in transaction%%')
   and xact_start <= clock_timestamp() - %(seconds)s * interval '1 second'
 order by xact_start


-- name: hidden_sessions
-- Sessions of other roles, of which we may not see what they do.
select count(*) from pg_stat_activity
 where datname = current_database() and query = '<insufficient privilege>'


-- name: strays
-- Default partitions that hold rows.
select 'history_done_default' as name where exists (select from kept.history_done_default)
union all
select 'history_failed_default' where exists (select from kept.history_failed_default)
union all
select 'job_log_default' where exists (select from kept.job_log_default)
union all
select 'event_default' where exists (select from kept.event_default)
