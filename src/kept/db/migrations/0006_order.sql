-- kind: expand
-- Order: jobs of one key run one at a time, in the order in which they were committed.

-- In an ordered lane every job has an order key; one without a key of its own stands alone, as '#' and its id. By bytes:
-- keys are compared often and never shown sorted.
alter table kept.job add column order_key text collate "C";
alter table kept.lane add column ordered boolean not null default false;

-- (id + 0), as in job_ready: the primary key must not look like a way to the followers of a job.
create index job_order on kept.job (lane, order_key, (id + 0)) where order_key is not null;

create or replace view kept.jobs as
select j.id, l.queue, l.task,
       case when j.worker is null then 'pending' else 'running' end as state,
       j.key, j.priority, j.attempt, j.attempt - j.uncharged as charged, l.max_attempts, j.suspect,
       j.created_at, j.due_at, j.claimed_at, null::timestamptz as settled_at,
       w.name as locked_by, case when j.worker is not null then w.lease_until end as locked_until,
       null::text as code, null::text as reason, null::text as message,
       j.retry_of, j.headers, j.payload, null::json as result, j.order_key
  from kept.job j
  join kept.lane l on l.id = j.lane
  left join kept.worker w on w.id = j.worker
union all
select h.id, l.queue, l.task, h.state,
       h.key, h.priority, h.attempt, h.attempt - h.uncharged, l.max_attempts, false,
       h.created_at, null, h.claimed_at, h.settled_at,
       null, null, h.code, h.reason, h.message,
       h.retry_of, h.headers, h.payload, h.result, null
  from kept.history h
  join kept.lane l on l.id = h.lane;

-- Whoever writes jobs of a key takes this first, before an id is drawn: then ids of one key follow the order of commits.
-- Held until the transaction ends. The lane is shared with those who write other keys, and with nobody who has it whole.
create function kept.lock_order(lane int, order_key text) returns void
  language sql as $$
  select pg_advisory_xact_lock_shared(hashtextextended('kept.order:' || lane, 0));
  select pg_advisory_xact_lock(hashtextextended('kept.order:' || lane || ':' || order_key, 0));
$$;

-- The same for many: in one order for everybody, so that two of them cannot deadlock, and the whole lane where there
-- are many keys, because the server has room for some thousands of locks and not for a hundred thousand.
create function kept.lock_orders(lanes int[], order_keys text[]) returns boolean   -- true, to stand in a condition
  language plpgsql as $$
declare
  wanted record;
begin
  for wanted in
    select d.lane, d.order_key, count(*) over (partition by d.lane) > 200 as whole,
           row_number() over (partition by d.lane order by d.order_key collate "C") = 1 as first
      from (select distinct k.lane, k.order_key from unnest(lanes, order_keys) k(lane, order_key)
             where k.order_key is not null) d
     order by d.lane, d.order_key collate "C"
  loop
    if not wanted.whole then
      perform kept.lock_order(wanted.lane, wanted.order_key);
    elsif wanted.first then
      perform pg_advisory_xact_lock(hashtextextended('kept.order:' || wanted.lane, 0));
    end if;
  end loop;
  return true;
end $$;

revoke all on function kept.lock_order(int, text) from public;
revoke all on function kept.lock_orders(int[], text[]) from public;

-- As it was; a lane in another queue is ordered if the task is.
create or replace function kept.lane_id(the_task text, the_queue text) returns int
  language plpgsql as $$
declare
  wanted text := the_queue;
  found_id int;
begin
  if wanted is null then
    select queue into wanted from kept.lane where task = the_task order by home desc, id limit 1;
    wanted := coalesce(wanted, 'default');
  end if;
  select id into found_id from kept.lane where queue = wanted and task = the_task;
  if found_id is null then
    insert into kept.lane (queue, task, max_attempts, priority, retry_base, retry_max, ordered)
    select wanted, the_task, coalesce(h.max_attempts, 3), coalesce(h.priority, 0),
           coalesce(h.retry_base, '5 seconds'), coalesce(h.retry_max, '2 minutes'), coalesce(h.ordered, false)
      from (select 1) one left join kept.lane h on h.task = the_task and h.home
     limit 1
    on conflict (queue, task) do nothing
    returning id into found_id;
    if found_id is null then
      select id into found_id from kept.lane where queue = wanted and task = the_task;
    end if;
    perform pg_notify('kept:wake', 'lanes');
  end if;
  return found_id;
end $$;

drop function kept.enqueue(text, json, text, timestamptz, int, text, json, interval);
-- As it was, with an order key.
create function kept.enqueue(
  task text, args json default '{}', queue text default null, due_at timestamptz default null,
  priority int default null, key text default null, headers json default null,
  unique_for interval default '24 hours', order_key text default null
) returns bigint
  language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
  lane_id int;
  the_lane kept.lane;
  drawn bigint;
  held bigint;
  now_ timestamptz := kept.now();
begin
  if enqueue.task is null or enqueue.task !~ '^[A-Za-z0-9_][A-Za-z0-9_.:/-]{0,199}$' then
    raise exception 'task: % is not a task name', coalesce(quote_literal(left(enqueue.task, 80)), 'null')
      using errcode = 'invalid_parameter_value';
  end if;
  if enqueue.queue !~ '^[A-Za-z0-9_][A-Za-z0-9_.:/-]{0,99}$' then
    raise exception 'queue: % is not a queue name', quote_literal(left(enqueue.queue, 80))
      using errcode = 'invalid_parameter_value';
  end if;
  if enqueue.args is null or json_typeof(enqueue.args) <> 'object' then
    raise exception 'args: must be a JSON object of named arguments' using errcode = 'invalid_parameter_value';
  end if;
  if octet_length(enqueue.args::text) > 1048576 then
    raise exception 'args: % bytes exceed the limit of 1048576; store the data elsewhere and pass a reference',
      octet_length(enqueue.args::text) using errcode = 'program_limit_exceeded';
  end if;
  if enqueue.headers is not null and
     (json_typeof(enqueue.headers) <> 'object' or octet_length(enqueue.headers::text) > 16384) then
    raise exception 'headers: must be a JSON object of at most 16384 bytes' using errcode = 'invalid_parameter_value';
  end if;
  if enqueue.key = '' or octet_length(enqueue.key) > 512 then
    raise exception 'key: must have 1 to 512 bytes' using errcode = 'invalid_parameter_value';
  end if;
  if enqueue.due_at not between '0002-01-01 00:00+00' and '9998-12-31 00:00+00' then
    raise exception 'due_at: must lie between the years 2 and 9998' using errcode = 'invalid_parameter_value';
  end if;
  if enqueue.priority not between -1000 and 1000 then
    raise exception 'priority: must lie between -1000 and 1000' using errcode = 'invalid_parameter_value';
  end if;
  if enqueue.unique_for is null or enqueue.unique_for not between '0' and '3650 days' then
    raise exception 'unique_for: must lie between 0 and 3650 days' using errcode = 'invalid_parameter_value';
  end if;
  if enqueue.order_key !~ '^[^#]' or octet_length(enqueue.order_key) > 512 then
    raise exception 'order_key: must have 1 to 512 bytes and not begin with #' using errcode = 'invalid_parameter_value';
  end if;
  -- jsonb refuses what json lets through and no worker could read: NUL and lone surrogates.
  begin
    perform enqueue.args::jsonb, enqueue.headers::jsonb;
  exception when data_exception then
    raise exception 'args: %', sqlerrm using errcode = 'invalid_parameter_value',
      detail = 'NUL characters, lone surrogates and numbers too large to be kept are refused, in headers too.';
  end;

  -- In two statements: one statement's snapshot would not show a lane that it made itself.
  lane_id := kept.lane_id(enqueue.task, enqueue.queue);
  select * into the_lane from kept.lane l where l.id = lane_id;
  if enqueue.order_key is not null then
    -- A lane that nobody has declared yet may turn out to be ordered.
    if the_lane.declared_at is not null and not the_lane.ordered then
      raise exception 'order_key: the task % is not declared as ordered', quote_literal(enqueue.task)
        using errcode = 'invalid_parameter_value';
    end if;
    perform kept.lock_order(the_lane.id, enqueue.order_key);
  end if;
  drawn := nextval('kept.job_id_seq');
  if enqueue.key is not null then
    insert into kept.unique_key as u (lane, key, job, expires_at)
    values (the_lane.id, enqueue.key, drawn, now_ + enqueue.unique_for)
    on conflict on constraint unique_key_pkey do update
      set (job, expires_at) = (
        select case when free then excluded.job else u.job end,
               case when free then excluded.expires_at else u.expires_at end
          -- A job that our snapshot does not show may be one we had to wait for: its key must show too.
          from (select u.expires_at <= now_
                       and not exists (select from kept.job j where j.id = u.job)
                       and exists (select from kept.unique_key k
                                    where k.lane = u.lane and k.key = u.key and k.job = u.job) as free) f)
    returning u.job into held;
    if held <> drawn then
      return held;
    end if;
  end if;
  insert into kept.job (id, lane, priority, ready, due_at, created_at, key, headers, payload, order_key)
  values (drawn, the_lane.id, coalesce(enqueue.priority, the_lane.priority),
          coalesce(enqueue.due_at, now_) <= now_, coalesce(enqueue.due_at, now_), now_,
          enqueue.key, enqueue.headers, enqueue.args,
          coalesce(enqueue.order_key, case when the_lane.ordered then '#' || drawn end));
  if coalesce(enqueue.due_at, now_) <= now_ + interval '2 seconds' then
    perform pg_notify('kept:wake', the_lane.id || ':' || coalesce(enqueue.priority, the_lane.priority))
      where exists (select from kept.sleeper s where s.lane = the_lane.id and s.until > now_);
  end if;
  return drawn;
end $$;

revoke all on function kept.enqueue(text, json, text, timestamptz, int, text, json, interval, text) from public;
do $$
begin
  if exists (select from pg_roles where rolname = 'kept_producer') then
    grant execute on function kept.enqueue(text, json, text, timestamptz, int, text, json, interval, text)
      to kept_producer;
  end if;
end $$;
