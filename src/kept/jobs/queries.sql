-- The kernel's statements. Parameters are psycopg's; `kept` stands for the schema.
-- Worker sessions run with enable_seqscan, enable_sort and friends off (see db/connect.py): a statement prepared
-- on an empty table must not keep its plan when a million rows arrive.


-- name: enqueue
-- One job that is due now, in the caller's transaction; no row comes back when the lane does not exist yet, or is
-- ordered: then `enqueue_many` is to write it.
-- Whoever sleeps is told in WHERE: a second column to return costs a little more, a statement with a WITH half as much
-- again.
insert into kept.job (lane, priority, ready, due_at, created_at, headers, payload)
select l.id, coalesce(%(priority)s::int, l.priority), true, kept.now(), kept.now(), %(headers)s::json, %(payload)s::json
  from kept.lane l
 where l.queue = %(queue)s::text and l.task = %(task)s::text and not l.ordered
   and (not exists (select from kept.sleeper s where s.lane = l.id and s.until > kept.now())
        or pg_notify('kept:wake', l.id || ':' || coalesce(%(priority)s::int, l.priority)) is not null)  -- always true
returning id


-- name: enqueue_later
-- One job that is due at some time; see `enqueue`.
insert into kept.job (lane, priority, ready, due_at, created_at, headers, payload)
select l.id, coalesce(%(priority)s::int, l.priority), d.due_at <= kept.now(), d.due_at, kept.now(),
       %(headers)s::json, %(payload)s::json
  from kept.lane l
 cross join (select coalesce(%(due_at)s::timestamptz,
                             kept.now() + %(delay)s::float8 * interval '1 second') as due_at) d
 where l.queue = %(queue)s::text and l.task = %(task)s::text and not l.ordered
   and (d.due_at > kept.now() + interval '2 seconds'
        or not exists (select from kept.sleeper s where s.lane = l.id and s.until > kept.now())
        or pg_notify('kept:wake', l.id || ':' || coalesce(%(priority)s::int, l.priority)) is not null)
returning id


-- name: lane_ids
-- The lanes of these tasks and their priorities; those missing are made (and announced).
select w.queue, w.task, coalesce(l.id, kept.lane_id(w.task, w.queue)) as id, l.priority, l.ordered
  from unnest(%(queues)s::text[], %(tasks)s::text[]) w(queue, task)
  left join kept.lane l on l.queue = w.queue and l.task = w.task


-- name: reserve
-- So many ids for jobs to be copied in, and the time they are written at; as text, which any connection reads alike.
select to_char(kept.now() at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US+00:00'),
       array(select nextval('kept.job_id_seq') from generate_series(1, %(count)s::int))::text


-- name: copy_jobs
copy kept.job (id, lane, priority, ready, due_at, created_at, headers, payload) from stdin (format binary)


-- name: wake_sleepers
-- Tell those who sleep that there is work in these lanes.
select pg_notify('kept:wake', w.lane || ':' || w.priority)
  from unnest(%(lanes)s::int[], %(priorities)s::int[]) w(lane, priority)
 where exists (select from kept.sleeper s where s.lane = w.lane and s.until > kept.now())


-- name: enqueue_many
-- Many jobs, keyed or not, in the caller's order. A key that is held gives back the job that holds it.
-- A key is free when its time is over and its job gone. Whether a job is gone is seen in this statement's snapshot,
-- which does not show the job of a transaction that we had to wait for: such a key is held.
-- Order keys are locked before any id is drawn, so that ids of one of them follow the order of commits.
with call as materialized (
  select c.ord, c.lane, c.priority, c.key, c.unique_for, c.headers, c.payload, c.retry_of, c.order_key,
         nextval('kept.job_id_seq') as id,
         coalesce(c.due_at, kept.now() + c.delay * interval '1 second') as due_at
    from unnest(%(lanes)s::int[], %(priorities)s::int[], %(due_at)s::timestamptz[], %(delays)s::float8[],
                %(keys)s::text[], %(unique_for)s::float8[], %(headers)s::json[], %(payloads)s::json[],
                %(retry_of)s::bigint[], %(order_keys)s::text[])
         with ordinality as c(lane, priority, due_at, delay, key, unique_for, headers, payload, retry_of, order_key, ord)
   where (select case when cardinality(%(order_keys)s::text[]) = 0 then true     -- (select …): once, not for each
                      else kept.lock_orders(%(lanes)s::int[], %(order_keys)s::text[]) end)
), held as (
  insert into kept.unique_key as u (lane, key, job, expires_at)
  select lane, key, id, kept.now() + unique_for * interval '1 second'
    from call where key is not null
   order by lane, key                 -- one order for everybody: two bulk enqueues cannot deadlock
  on conflict (lane, key) do update   -- always an update: it waits for the other transaction and returns the row
    set (job, expires_at) = (
      select case when free then excluded.job else u.job end,
             case when free then excluded.expires_at else u.expires_at end
        from (select u.expires_at <= kept.now()
                     and not exists (select from kept.job j where j.id = u.job)
                     and exists (select from kept.unique_key k
                                  where k.lane = u.lane and k.key = u.key and k.job = u.job) as free) f)
  returning u.lane, u.key, u.job
), new as (
  insert into kept.job (id, lane, priority, ready, due_at, created_at, key, headers, payload, retry_of, order_key)
  select c.id, c.lane, coalesce(c.priority, l.priority), c.due_at <= kept.now(), c.due_at, kept.now(),
         c.key, c.headers, c.payload, c.retry_of, coalesce(c.order_key, case when l.ordered then '#' || c.id end)
    from call c
    join kept.lane l on l.id = c.lane
    left join held h on h.lane = c.lane and h.key = c.key
   where c.key is null or h.job = c.id
  returning id, lane, priority, due_at, created_at
), woken as (
  select pg_notify('kept:wake', n.lane || ':' || n.priority)
    from (select distinct lane, priority from new where due_at <= kept.now() + interval '2 seconds') n
   where exists (select from kept.sleeper s where s.lane = n.lane and s.until > kept.now())
)
select c.ord, coalesce(h.job, c.id) as id, h.job is null or h.job = c.id as created, c.due_at,
       (select count(*) from woken) as woken
  from call c
  left join held h on h.lane = c.lane and h.key = c.key
 order by c.ord


-- name: claim
-- Up to `most` jobs of these lanes and priorities, from their floors upwards; rows others hold are skipped.
update kept.job
   set worker = %(worker)s, claimed_at = kept.now(), attempt = attempt + 1
 where id = any(array(
   select j.id
     from (select from kept.worker
            where id = %(worker)s and state = 'live' and lease_until > kept.now() and session = %(session)s
              for key share) alive            -- without it a claim racing a reclaim strands its jobs
    cross join unnest(%(lanes)s::int[], %(priorities)s::int[], %(wants)s::int[], %(floors)s::bigint[])
               w(lane, priority, want, floor)
    cross join lateral (
           select id from kept.job
            where lane = w.lane and priority = w.priority and ready and worker is null and id + 0 >= w.floor
            order by id + 0 limit w.want       -- + 0: as in job_ready, the one index that serves this well
              for update skip locked) j
    where (select (l.paused_until is null or l.paused_until <= kept.now()) and not l.ordered
             from kept.lane l where l.id = w.lane)      -- not a join: that could change the order of w
    limit %(most)s))
returning id, lane, priority, attempt, uncharged, suspect, due_at, created_at, claimed_at, key, retry_of,
          headers::text, payload::text


-- name: step
-- Settle what is finished, park what comes back, claim what is next: one statement, one commit.
-- Fenced: a row changes only if (id, attempt, worker) still match; ids that did not come first, as an array in place of a payload.
-- Arrays of details may be shorter than the ids: what is missing is null, so plain successes cost two numbers.
-- `= any(array[d.id])`, not `= d.id`: by that no plan can begin at kept.job. A plain join, prepared while the table
-- is empty and vacuumed, reads all of it: for an empty table that looks cheapest.
with settled as (
  delete from kept.job j
   using unnest(%(ids)s::bigint[], %(attempts)s::int[], %(states)s::text[], %(codes)s::text[],
                %(reasons)s::text[], %(messages)s::text[], %(results)s::json[])
         d(id, attempt, state, code, reason, message, result)
   where j.id = any(array[d.id]) and j.attempt = d.attempt and j.worker = %(worker)s
  returning j.id, j.created_at, j.claimed_at, j.retry_of, j.lane, j.priority, j.attempt, j.uncharged, j.key,
            j.headers, j.payload, coalesce(d.state, 'done') as state, d.code, d.reason, d.message, d.result
), recorded as (
  insert into kept.history (id, settled_at, created_at, claimed_at, retry_of, worker, lane, priority, attempt,
                            uncharged, state, code, reason, message, key, headers, payload, result)
  select id, kept.now(), created_at, claimed_at, retry_of, %(worker)s, lane, priority, attempt,
         uncharged, state, code, reason, message, key, headers, payload, result
    from settled
), parked as (
  update kept.job j
     set worker = null, claimed_at = null,
         ready = p.delay <= 0 and not p.suspect,
         suspect = p.suspect,
         due_at = case when p.delay <= 0 then least(j.due_at, kept.now())
                       else kept.now() + p.delay * interval '1 second' end,
         uncharged = j.uncharged + case when p.charged then 0 else 1 end,
         order_key = case when p.aside then '#' || j.id else j.order_key end
    from unnest(%(park_ids)s::bigint[], %(park_attempts)s::int[], %(park_delays)s::float8[],
                %(park_charged)s::boolean[], %(park_suspect)s::boolean[], %(park_aside)s::boolean[])
         p(id, attempt, delay, charged, suspect, aside)
   where j.id = any(array[p.id]) and j.attempt = p.attempt and j.worker = %(worker)s
  returning j.id
), logged as (
  insert into kept.job_log (job, at, attempt, worker, event, code, message, detail)
  select n.job, kept.now(), n.attempt, %(worker)s, n.event, n.code, n.message, n.detail
    from unnest(%(note_jobs)s::bigint[], %(note_attempts)s::int[], %(note_events)s::text[],
                %(note_codes)s::text[], %(note_messages)s::text[], %(note_details)s::text[])
         n(job, attempt, event, code, message, detail)
   where (n.job in (select id from settled union all select id from parked)) is true  -- hashed; a join is not
), claimed as (
  -- include: claim
)
-- In this order: a settlement may have to wait for somebody who took the job from us, and whoever waits must not hold
-- fresh claims that the other waits for.
select null::bigint as id, null::int as lane, null::int as priority, null::int as attempt, null::int as uncharged,
       null::boolean as suspect, null::timestamptz as due_at, null::timestamptz as created_at,
       null::timestamptz as claimed_at, null::text as key, null::bigint as retry_of, null::text as headers,
       array(select sent from unnest(%(ids)s::bigint[] || %(park_ids)s::bigint[]) sent
              where sent not in (select id from settled union all select id from parked))::text as payload
union all
select * from claimed


-- name: claim_ordered
-- Jobs of ordered lanes. Of each key after the last one looked at: the head, if nobody has it, and behind it what
-- follows without a gap. Only heads are locked: who has the head has the key. Rows without an attempt tell of jobs
-- that somebody else was quicker with: what follows those must not be run. Rows without an id tell of each lane how
-- many keys were looked at, how many had a free head, and which was the last.
with recursive w as materialized (
  select w.lane, w.want, w.keys, w.reach, w.after
    from (select from kept.worker
           where id = %(worker)s and state = 'live' and lease_until > kept.now() and session = %(session)s
             for key share) alive
   cross join unnest(%(lanes)s::int[], %(wants)s::int[], %(keys)s::int[], %(reaches)s::int[], %(afters)s::text[])
              w(lane, want, keys, reach, after)
   where (select l.ordered and (l.paused_until is null or l.paused_until <= kept.now())
            from kept.lane l where l.id = w.lane)
), k(lane, keys, order_key, id, free, looked, found) as (
  select w.lane, w.keys, h.order_key, h.id, h.free, 1, h.free::int
    from w
   cross join lateral (
          select j.order_key, j.id, j.ready and j.worker is null as free from kept.job j
           where j.lane = w.lane and j.order_key > w.after
           order by j.order_key, j.id + 0 limit 1) h
  union all
  select k.lane, k.keys, h.order_key, h.id, h.free, k.looked + 1, k.found + h.free::int
    from k
   cross join lateral (
          select j.order_key, j.id, j.ready and j.worker is null as free from kept.job j
           where j.lane = k.lane and j.order_key > k.order_key
           order by j.order_key, j.id + 0 limit 1) h
   where k.looked < %(looks)s and k.found < k.keys
), run as materialized (
  select w.lane, f.order_key, f.id
    from w
   cross join lateral (
          select k.order_key, p.id
            from k
           cross join lateral (
                  select from kept.job h
                   where h.id = k.id         -- by the primary key and nothing else
                     and case when h.ready then h.worker is null and h.order_key = k.order_key end
                     for update skip locked) head
           cross join lateral (         -- min: so that it is looked for once, and not for each that follows
                  select min(q.place) as place
                    from (select p.place
                            from (select j.id + 0 as place, j.ready and j.worker is null as free from kept.job j
                                   where j.lane = k.lane and j.order_key = k.order_key and j.id + 0 >= k.id
                                   order by j.id + 0 limit w.reach) p
                           where not p.free limit 1) q) in_the_way
           cross join lateral (
                  select j.id from kept.job j
                   where j.lane = k.lane and j.order_key = k.order_key and j.id + 0 >= k.id
                     and j.id + 0 < coalesce(in_the_way.place, 9223372036854775807)
                   order by j.id + 0 limit w.reach) p
           where k.lane = w.lane and k.free
           limit w.want) f
), claimed as (
  update kept.job
     set worker = %(worker)s, claimed_at = kept.now(), attempt = attempt + 1
   where id = any(array(select id from run))
     and case when ready then worker is null end       -- not plainly: no plan is to begin at job_ready
  returning id, lane, priority, attempt, uncharged, suspect, due_at, created_at, claimed_at, key, retry_of,
            headers::text, payload::text, order_key
)
select * from claimed
union all
select id, lane, null, null, null, null, null, null, null, null, null, null, null, order_key
  from run where id <> all(array(select id from claimed))
union all
select null, lane, max(looked), null, max(found), null, null, null, null, null, null, null, null, max(order_key)
  from k
 where (select count(*) from run) < (select sum(want) from w)   -- else nobody needs to know, and looking costs
 group by lane


-- name: claim_suspects
-- Jobs whose process died, one at a time: they never stand in the claim index. In an ordered lane, heads only.
update kept.job
   set worker = %(worker)s, claimed_at = kept.now(), attempt = attempt + 1
 where id = any(array(
   select j.id
     from (select from kept.worker
            where id = %(worker)s and state = 'live' and lease_until > kept.now() and session = %(session)s
              for key share) alive
    cross join unnest(%(lanes)s::int[]) w(lane)
    cross join lateral (
           select id from kept.job j
            where lane = w.lane and suspect and worker is null and due_at <= kept.now()
              and (order_key is null or not exists (select from kept.job e
                                                     where e.lane = j.lane and e.order_key = j.order_key
                                                       and e.id + 0 < j.id))
            order by due_at limit %(most)s
              for update skip locked) j
    where (select l.paused_until is null or l.paused_until <= kept.now() from kept.lane l where l.id = w.lane)
    limit %(most)s))
returning id, lane, priority, attempt, uncharged, suspect, due_at, created_at, claimed_at, key, retry_of,
          headers::text, payload::text


-- name: survey
-- What a worker must know besides its own floors: promotes due jobs and tells, in rows of (what, lane, priority,
-- id, seconds): where ready jobs begin, when the next parked job, suspect or schedule is due, whether there is anything
-- to reclaim or to tell of it, which of how many like us we are, the newest lane.
with recursive open_lane as materialized (
  select id as lane, ordered from kept.lane
   where id = any(%(lanes)s::int[]) and (paused_until is null or paused_until <= kept.now())
), promoted as (
  update kept.job set ready = true
   where id = any(array(
     select p.id from open_lane w
      cross join lateral (
             select id from kept.job
              where lane = w.lane and not ready and not suspect and due_at <= kept.now()
              order by due_at limit %(most)s
                for update skip locked) p))
     -- and no other condition: "not ready" here would let a plan read the whole of job_parked instead
  returning id, lane, priority
), bottom(lane, priority, id) as (
  (select w.lane, f.priority, f.id from open_lane w
    cross join lateral (
           select priority, id from kept.job j
            where j.lane = w.lane and j.ready and j.worker is null
            order by j.priority desc, j.id + 0 limit 1) f
    where %(bottom)s and not w.ordered)   -- there, what is ready may have to wait for what is not
  union all
  select b.lane, f.priority, f.id from bottom b
   cross join lateral (
          select priority, id from kept.job j
           where j.lane = b.lane and j.ready and j.worker is null and j.priority < b.priority
           order by j.priority desc, j.id + 0 limit 1) f
)
select 'promoted' as what, lane, priority, min(id) as id, count(*)::float8 as seconds
  from promoted group by lane, priority
union all
select 'ready', lane, priority, id, null from bottom
union all
(select 'due', w.lane, null, null, extract(epoch from d.due_at - kept.now())::float8
  from open_lane w
 cross join lateral (select due_at from kept.job j
                      where j.lane = w.lane and not j.ready and not j.suspect and j.due_at > kept.now()
                      order by j.due_at limit 1) d)
union all
(select 'suspect', w.lane, null, null, extract(epoch from s.due_at - kept.now())::float8
  from open_lane w
 cross join lateral (select due_at from kept.job j
                      where j.lane = w.lane and j.suspect and j.worker is null
                        and (j.order_key is null or not exists (select from kept.job e
                                                                 where e.lane = j.lane and e.order_key = j.order_key
                                                                   and e.id + 0 < j.id))
                      order by j.due_at limit 1) s)
union all
select 'expired', null, null, null, null
 where exists (select from kept.worker where state = 'lost' or (state = 'live' and lease_until <= kept.now()))
    or exists (select from kept.reclaim)
union all
(select 'schedule', null, null, null, extract(epoch from s.look_at - kept.now())::float8
   from kept.schedule s where s.paused_at is null and s.retired_at is null and s.look_at is not null
  order by s.look_at limit 1)
union all
-- Alike are those with the same queues and declarations of the same size: to read these would cost more than to be wrong.
(select 'peers', null, count(*) filter (where w.id < me.id), count(*), null
  from kept.worker me
  join kept.worker w on w.state = 'live' and w.lease_until > kept.now()
                    and w.queues is not distinct from me.queues
                    and pg_column_size(w.declared) = pg_column_size(me.declared)
 where me.id = %(worker)s::uuid
having count(*) > 1)
union all
select 'lanes', null, null, max(id), null from kept.lane


-- name: figures
-- What is due in each lane and who works, in rows of (what, lane, queue, task, count, seconds). It reads up to so
-- many jobs of a lane and priority, those with the lowest ids, so that a low priority which starves is seen beside a full one.
with recursive level(lane, priority) as (
  (select l.id, f.priority from kept.lane l
    cross join lateral (
           select priority from kept.job j
            where j.lane = l.id and j.ready and j.worker is null
            order by j.priority desc, j.id + 0 limit 1) f)
  union all
  select v.lane, f.priority from level v
   cross join lateral (
          select priority from kept.job j
           where j.lane = v.lane and j.ready and j.worker is null and j.priority < v.priority
           order by j.priority desc, j.id + 0 limit 1) f
), due as (
  select v.lane, d.due_at from level v
   cross join lateral (
          select due_at from kept.job j
           where j.lane = v.lane and j.priority = v.priority and j.ready and j.worker is null
           order by j.id + 0 limit %(most)s) d
  union all
  select l.id, d.due_at from kept.lane l          -- not promoted yet, as in a lane that nobody serves
   cross join lateral (
          select due_at from kept.job j
           where j.lane = l.id and not j.ready and not j.suspect and j.worker is null and j.due_at <= kept.now()
           order by j.due_at limit %(most)s) d
  union all
  select l.id, d.due_at from kept.lane l
   cross join lateral (
          select due_at from kept.job j
           where j.lane = l.id and j.suspect and j.worker is null and j.due_at <= kept.now()
           order by j.due_at limit %(most)s) d
), waiting as materialized (
  select lane, count(*) as jobs, min(due_at) as oldest from due group by lane
)
select 'lane' as what, l.id as lane, l.queue, l.task, least(coalesce(w.jobs, 0), %(most)s) as count,
       case when l.paused_until is null or l.paused_until <= kept.now()   -- else they wait on purpose
            then extract(epoch from kept.now() - w.oldest)::float8 end as seconds
  from kept.lane l
  left join waiting w on w.lane = l.id
 where w.jobs > 0 or l.declared_at is not null
union all
select case when state = 'live' and lease_until > kept.now() then 'live' else 'expired' end, null, null, null,
       count(*), null
  from kept.worker
 where state in ('live', 'lost')
 group by 1


-- name: adopt
-- Jobs claimed in our name that we never heard of: the reply was lost.
select id, lane, priority, attempt, uncharged, suspect, due_at, created_at, claimed_at, key, retry_of,
       headers::text, payload::text, order_key
  from kept.job
 where worker = %(worker)s and id <> all(%(known)s::bigint[])


-- name: next_session
-- Waits for a claim in flight, then shuts out any that arrives later under the old number.
with mine as (
  select id from kept.worker where id = %(worker)s and state = 'live' for update
)
update kept.worker set session = session + 1 where id in (select id from mine) returning session


-- name: settled_by
-- Of these attempts, the ones that history says were settled by this worker.
select id from kept.history
 where id = any(%(ids)s::bigint[]) and worker = %(worker)s
   and (id, attempt) in (select * from unnest(%(ids)s::bigint[], %(attempts)s::int[]))


-- name: complete
-- Settle one job inside the handler's own transaction; no row = the lease is gone.
with settled as (
  delete from kept.job
   where id = %(id)s::bigint and attempt = %(attempt)s::int and worker = %(worker)s::uuid
  returning *
)
insert into kept.history (id, settled_at, created_at, claimed_at, retry_of, worker, lane, priority, attempt,
                          uncharged, state, key, headers, payload, result)
select id, kept.now(), created_at, claimed_at, retry_of, worker, lane, priority, attempt,
       uncharged, 'done', key, headers, payload, %(result)s::json
  from settled
returning id


-- name: still_ours
-- Of jobs whose handler said it completed them: those that stand there unlocked after all. Locked ones may yet commit.
select id from kept.job
 where id = any(%(ids)s::bigint[]) and worker = %(worker)s
   for update skip locked


-- name: present
-- Of these, the ones still in our name, whatever locks are on them.
select id from kept.job where id = any(%(ids)s::bigint[]) and worker = %(worker)s


-- name: register
insert into kept.worker (id, name, host, pid, version, queues, concurrency, declared, schedules, lease_until)
values (%(id)s, %(name)s, %(host)s, %(pid)s, %(version)s, %(queues)s::text[], %(concurrency)s, %(declared)s::jsonb,
        %(schedules)s::jsonb, kept.now() + %(lease)s * interval '1 second')


-- name: renew
-- No row = fenced: the lease was lost and this identity never lives again.
update kept.worker set lease_until = kept.now() + %(lease)s * interval '1 second'
 where id = %(id)s and state = 'live'
returning id


-- name: close
-- Waits for a claim in flight, and shuts out any that comes later.
update kept.worker set state = 'closed', lease_until = kept.now()
 where id = any(array(select id from kept.worker where id = %(id)s and state = 'live' for update))
returning id


-- name: lose_expired
-- A lease that ran out ends its identity for good. Workers in the middle of a claim are skipped: they are alive.
-- Those lost before whose jobs are not all back yet come along.
update kept.worker set state = 'lost'
 where id = any(array(
   select id from kept.worker
    where state = 'lost' or (state = 'live' and lease_until <= kept.now())
      for update skip locked))
returning id, name


-- name: sweep
-- Lost workers that no job names any more are done with. One scan for all of them: after a large failure there are
-- many dead workers and a long backlog.
update kept.worker set state = 'swept'
 where id = any(%(workers)s::uuid[]) and state = 'lost'
   and id <> all(array(select distinct worker from kept.job where worker = any(%(workers)s::uuid[])))


-- name: lose
-- The keeper's word that this worker is gone.
update kept.worker set state = 'lost'
 where id = any(array(select id from kept.worker where id = %(id)s and state = 'live' for update))
returning id, name


-- name: orphans
-- What dead workers hold, with their lane's numbers. No index on worker: this scans, and only when one died.
select j.id, j.lane, j.priority, j.attempt, j.uncharged, j.suspect, j.due_at, j.created_at, j.claimed_at, j.key,
       j.retry_of, j.headers::text, j.payload::text, j.worker,
       l.queue, l.task, l.max_attempts, l.priority as lane_priority,
       extract(epoch from l.retry_base)::float8 as retry_base, extract(epoch from l.retry_max)::float8 as retry_max,
       exists (select from kept.subscription s where s.lane = l.id and s.sink is not null) as trusted
  from kept.job j
  join kept.lane l on l.id = j.lane
 where j.worker = any(%(workers)s::uuid[])
   for update of j skip locked        -- a settlement in flight keeps its row: it is still the holder's to settle


-- name: held
-- What a dead worker holds of these, as `orphans` tells it: by id, so that nobody has to wait for a scan.
select j.id, j.lane, j.priority, j.attempt, j.uncharged, j.suspect, j.due_at, j.created_at, j.claimed_at, j.key,
       j.retry_of, j.headers::text, j.payload::text, j.worker,
       l.queue, l.task, l.max_attempts, l.priority as lane_priority,
       extract(epoch from l.retry_base)::float8 as retry_base, extract(epoch from l.retry_max)::float8 as retry_max,
       exists (select from kept.subscription s where s.lane = l.id and s.sink is not null) as trusted
  from unnest(%(ids)s::bigint[]) i(id)
  join kept.job j on j.id = any(array[i.id])
  join kept.lane l on l.id = j.lane
 where j.worker = %(worker)s
   for update of j skip locked


-- name: abandoned
-- Workers named by jobs although they are not live, or unknown: must not happen; looked for once an hour.
select distinct j.worker from kept.job j
 where j.worker is not null
   and not exists (select from kept.worker w where w.id = j.worker and w.state = 'live')


-- name: leave_word
-- For a live worker to tell: whoever says this has no log and no metrics.
insert into kept.reclaim (worker, name, reason, jobs, failed)
values (%(worker)s, %(name)s, %(reason)s, %(jobs)s, %(failed)s)


-- name: take_word
-- Each word goes to one worker.
delete from kept.reclaim where id = any(array(select id from kept.reclaim order by id for update skip locked))
returning worker, name, jobs, failed, reason


-- name: wake
select pg_notify('kept:wake', %(what)s)


-- name: vacuum
-- Whoever is at it already is not waited for. No truncating: it would lock everybody out, and the room is needed again.
vacuum (skip_locked, truncate off, index_cleanup on) kept.job


-- name: sleep
insert into kept.sleeper (lane, worker, until)
select lane, %(worker)s, kept.now() + %(seconds)s * interval '1 second' from unnest(%(lanes)s::int[]) lane
on conflict (lane, worker) do update set until = excluded.until


-- name: awake
delete from kept.sleeper where worker = %(worker)s


-- name: lanes
select id, queue, task, max_attempts, priority,
       extract(epoch from retry_base)::float8 as retry_base, extract(epoch from retry_max)::float8 as retry_max, ordered
  from kept.lane
 where %(queues)s::text[] is null or queue = any(%(queues)s::text[])


-- name: declare
-- Makes or updates the lanes of declared tasks; lanes of the same task in other queues follow its numbers. Unless `exact`,
-- a lane that is ordered stays so: during a deploy the other version counts on it.
-- Tells how many changed, how many are new, how many became ordered or ceased to be, and how many were missed: somebody
-- who enqueued made them at the same moment, and they are not as declared.
with declared as (
  select * from unnest(%(queues)s::text[], %(tasks)s::text[], %(attempts)s::int[], %(priorities)s::int[],
                       %(bases)s::float8[], %(maxes)s::float8[], %(ordered)s::boolean[])
           d(queue, task, max_attempts, priority, retry_base, retry_max, ordered)
), changed as (
  update kept.lane l
     set max_attempts = d.max_attempts, priority = d.priority, home = (l.queue = d.queue),
         retry_base = d.retry_base * interval '1 second', retry_max = d.retry_max * interval '1 second',
         declared_at = kept.now(), ordered = d.ordered or (l.ordered and not %(exact)s::boolean)
    from declared d
   where l.task = d.task
     and (l.max_attempts, l.priority, l.home, l.retry_base, l.retry_max, l.declared_at is null, l.ordered)
         is distinct from
         (d.max_attempts, d.priority, l.queue = d.queue, d.retry_base * interval '1 second',
          d.retry_max * interval '1 second', false, d.ordered or (l.ordered and not %(exact)s::boolean))
  returning l.id
), added as (
  insert into kept.lane (queue, task, home, max_attempts, priority, retry_base, retry_max, declared_at, ordered)
  select d.queue, d.task, true, d.max_attempts, d.priority, d.retry_base * interval '1 second',
         d.retry_max * interval '1 second', kept.now(), d.ordered
    from declared d
   where not exists (select from kept.lane l where l.queue = d.queue and l.task = d.task)
   order by d.queue, d.task
  on conflict (queue, task) do nothing
  returning id
)
select (select count(*) from changed) as changed, (select count(*) from added) as added,
       (select count(*) from kept.lane l join declared d on d.task = l.task where l.ordered <> (d.ordered or (l.ordered and not %(exact)s::boolean))) as turned,
       (select count(*) from declared d
         where not exists (select from kept.lane l where l.queue = d.queue and l.task = d.task))
       - (select count(*) from added) as missed


-- name: stand_alone
-- Jobs in ordered lanes that have no order key, because they were written before the lane was ordered. Each gets one of
-- its own: without it no claim would see them. This scans.
update kept.job set order_key = '#' || id
 where id = any(array(
   select j.id from kept.job j join kept.lane l on l.id = j.lane
    where l.ordered and j.order_key is null
      for update of j skip locked))
returning id


-- name: waiting_tasks
-- Lanes, among these, with a job nobody has claimed yet.
select l.queue, l.task from kept.lane l
 where l.id = any(%(lanes)s::int[])
   and exists (select from kept.job j where j.lane = l.id and j.ready and j.worker is null)


-- name: turn
-- Whoever moves next_at has the turn: once per interval in the whole cluster. One that is further away than that was set
-- by a clock that went ahead and came back: nobody would have a turn until it is there again.
update kept.runner set worker = %(worker)s, next_at = kept.now() + %(seconds)s * interval '1 second'
 where name = %(name)s
   and (next_at <= kept.now() or next_at > kept.now() + %(seconds)s * interval '1 second')
returning name


-- name: find
-- One job as kept.jobs shows it, its JSON as text, which every driver reads alike. The live one first: the second
-- arm is not begun if the first has a row.
(select j.id, l.queue, l.task, case when j.worker is null then 'pending' else 'running' end as state,
        j.key, j.priority, j.attempt, j.attempt - j.uncharged as charged, l.max_attempts, j.suspect,
        j.created_at, j.due_at, j.claimed_at, null::timestamptz as settled_at,
        w.name as locked_by, w.lease_until as locked_until,
        null::text as code, null::text as reason, null::text as message,
        j.retry_of, j.headers::text, j.payload::text, null::text as result, j.order_key
   from kept.job j
   join kept.lane l on l.id = j.lane
   left join kept.worker w on w.id = j.worker
  where j.id = %(id)s::bigint)
union all
(select h.id, l.queue, l.task, h.state,
        h.key, h.priority, h.attempt, h.attempt - h.uncharged, l.max_attempts, false,
        h.created_at, null, h.claimed_at, h.settled_at,
        null, null, h.code, h.reason, h.message,
        h.retry_of, h.headers::text, h.payload::text, h.result::text, null
   from kept.find_settled(%(id)s::bigint) h
   join kept.lane l on l.id = h.lane)
limit 1


-- name: find_many
select id, queue, task, state, key, priority, attempt, charged, max_attempts, suspect, created_at, due_at, claimed_at,
       settled_at, locked_by, locked_until, code, reason, message, retry_of, headers::text, payload::text, result::text,
       order_key
  from kept.jobs
 where id = any(%(ids)s::bigint[])
 order by id


-- name: outcome
-- The record of a settled job, if it is settled. A job that lives is not looked for among those that do not.
select h.state, h.code, h.reason, h.message, h.result::text as result
  from kept.find_settled(%(id)s::bigint) h
 where not exists (select from kept.job j where j.id = %(id)s::bigint)


-- name: cancel
-- Pending jobs only; those that a claim holds this very moment are skipped, never waited for.
with settled as (
  delete from kept.job
   where id = any(array(
     select id from kept.job
      where id = any(%(ids)s::bigint[]) and worker is null
        for update skip locked))
  returning *
), logged as (
  insert into kept.job_log (job, at, attempt, event)
  select id, kept.now(), attempt, 'cancelled' from settled
)
insert into kept.history (id, settled_at, created_at, retry_of, lane, priority, attempt, uncharged, state, reason,
                          key, headers, payload)
select id, kept.now(), created_at, retry_of, lane, priority, attempt, uncharged, 'cancelled', 'cancelled',
       key, headers, payload
  from settled
returning id
