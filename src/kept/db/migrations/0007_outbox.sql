-- kind: expand
-- The outbox: events in a log of their own, who wants them, and a job for each of those, all in the emitter's transaction.

-- Every type that was ever declared or emitted. Patterns are matched when a type or a subscription is new, never at emit.
create table kept.event_type (
  type       text primary key,
  created_at timestamptz not null default kept.now(),
  constraint type_is_words_and_dots check (type ~ '^[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*$' and length(type) <= 200)
);

-- Who wants to be told. Its jobs go into its lane, whoever emits.
create table kept.subscription (
  id          int generated always as identity primary key,
  name        text not null unique,
  patterns    text[] not null,
  lane        int not null references kept.lane (id),
  sink        text,                            -- the sink it publishes to; null: a handler
  created_at  timestamptz not null default kept.now(),
  declared_at timestamptz not null default kept.now(),
  retired_at  timestamptz
);

create table kept.route (
  type         text not null references kept.event_type (type),
  subscription int not null references kept.subscription (id),
  lane         int not null,
  primary key (type, subscription)
);

-- One row, locked by whoever changes subscriptions, shared by whoever learns of a type: else each of the two could miss
-- what the other has not committed yet. A row and not an advisory lock, so that a transaction whose snapshot is older
-- than the last change cannot go on as if it had seen it: it gets a serialization failure, and is tried again.
create table kept.routing (
  only_one   boolean primary key default true check (only_one),
  changed_at timestamptz not null default kept.now()
);
insert into kept.routing default values;

create sequence kept.event_seq;
create table kept.event (
  seq            bigint not null default nextval('kept.event_seq'),   -- the order in which they were emitted
  id             uuid not null,
  recorded_at    timestamptz not null,
  occurred_at    timestamptz not null,
  version        int not null,
  type           text not null,
  actor          text,
  aggregate_type text,
  aggregate_id   text,
  headers        json,
  data           json not null,
  subscriptions  int[] not null                -- to whom it was fanned out: a replay knows exactly what is missing
) partition by range (recorded_at);
create table kept.event_default partition of kept.event default;
create index event_order on kept.event (seq);
create index event_id on kept.event (id);

create table kept.event_key (
  type       text not null,
  key        text not null,
  event      uuid not null,
  expires_at timestamptz not null,
  primary key (type, key)
);
create index event_key_expiry on kept.event_key (expires_at);

-- What is known of a broker, in the whole cluster.
create table kept.sink (
  name          text primary key,
  kind          text not null,
  failures      int not null default 0,        -- in a row, of the broker itself
  last_code     text,
  last_error    text,
  last_error_at timestamptz,
  opened_at     timestamptz,                   -- since when nothing gets through
  disabled_at   timestamptz,                   -- it said that it is gone for good
  created_at    timestamptz not null default kept.now()
);

-- A version 7 uuid: it begins with the time, so an index of events grows at its end.
create function kept.uuid7() returns uuid
  language sql volatile parallel safe as $$
  select encode(set_bit(set_bit(overlay(uuid_send(gen_random_uuid())
           placing substring(int8send((extract(epoch from kept.now()) * 1000)::bigint) from 3) from 1 for 6),
           52, 1), 53, 1), 'hex')::uuid
$$;

create function kept.type_matches(the_type text, patterns text[]) returns boolean
  language sql immutable parallel safe as $$
  select exists (select from unnest(patterns) p
                  where p = the_type or p = '*' or (right(p, 2) = '.*' and starts_with(the_type, left(p, -1))))
$$;

-- Routes for every type and subscription that has none yet. Whoever changes subscriptions calls it with the row of
-- kept.routing locked.
create function kept.expand_routes() returns void
  language sql as $$
  insert into kept.route (type, subscription, lane)
  select t.type, s.id, s.lane
    from kept.subscription s join kept.event_type t on kept.type_matches(t.type, s.patterns)
   where s.retired_at is null
  on conflict (type, subscription) do nothing
$$;

create function kept.learn_type(the_type text) returns void
  language plpgsql as $$
begin
  perform from kept.routing for share;
  insert into kept.event_type (type) values (the_type) on conflict do nothing;
  insert into kept.route (type, subscription, lane)
  select the_type, s.id, s.lane from kept.subscription s
   where s.retired_at is null and kept.type_matches(the_type, s.patterns)
  on conflict do nothing;
end $$;

-- What handlers and brokers are given of an event.
create function kept.envelope(
  id uuid, type text, version int, occurred_at timestamptz, actor text, aggregate_type text, aggregate_id text,
  headers json, data json
) returns json
  language sql stable parallel safe as $$
  select ('{"event_id":"' || id || '","type":' || to_json(type) || ',"version":' || version
          || ',"occurred_at":"' || to_char(occurred_at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')
          || '","actor":' || coalesce(to_json(actor)::text, 'null')
          || ',"aggregate_type":' || coalesce(to_json(aggregate_type)::text, 'null')
          || ',"aggregate_id":' || coalesce(to_json(aggregate_id)::text, 'null')
          || ',"headers":' || coalesce(headers::text, '{}') || ',"data":' || data || '}')::json
$$;

-- Record an event and fan it out: one job for each that wants one, its payload the envelope. Gives back its id, or that
-- of the event which holds its key. Everything was checked by whoever calls. Most calls are for one event, and take half
-- as long as record_events does; planning anew each time would take longer than the work.
create function kept.record_event(
  the_type text, the_version int, given_at timestamptz, the_actor text, the_aggregate_type text,
  the_aggregate_id text, the_headers json, the_data json, the_key text, unique_for interval
) returns uuid
  language plpgsql set plan_cache_mode = force_generic_plan as $$
declare
  now_ timestamptz := kept.now();
  the_id uuid := kept.uuid7();
  happened_at timestamptz := coalesce(given_at, now_);
  aggregate text := the_aggregate_type || '/' || the_aggregate_id;
  holder uuid;
  told int[];
  lanes int[];
  priorities int[];
  orders boolean[];
  known boolean;
  envelope json;
begin
  if the_key is not null then
    insert into kept.event_key as k (type, key, event, expires_at)
    values (the_type, the_key, the_id, now_ + unique_for)
    on conflict (type, key) do update
      set event = case when k.expires_at <= now_ then excluded.event else k.event end,
          expires_at = case when k.expires_at <= now_ then excluded.expires_at else k.expires_at end
    returning k.event into holder;
    if holder <> the_id then
      return holder;
    end if;
  end if;

  for attempt in 1..2 loop
    -- Routes and whether the type is known, in one look: in two, somebody who has just made it known comes in between,
    -- and nobody would be told.
    select array_agg(r.subscription order by r.subscription), array_agg(l.id order by r.subscription),
           array_agg(l.priority order by r.subscription), array_agg(l.ordered order by r.subscription),
           exists (select from kept.event_type t where t.type = the_type)
      into told, lanes, priorities, orders, known
      from kept.route r join kept.lane l on l.id = r.lane
     where r.type = the_type;
    exit when known;
    perform kept.learn_type(the_type);
  end loop;

  -- Jobs of one aggregate get their ids in the order of commits: whoever comes second waits here, before it draws any.
  if aggregate is not null and true = any(orders) then
    perform kept.lock_order(o.lane, aggregate)
       from (select distinct r.lane from unnest(lanes, orders) r(lane, ordered) where r.ordered order by 1) o;
  end if;

  insert into kept.event (id, recorded_at, occurred_at, version, type, actor, aggregate_type, aggregate_id, headers, data,
                          subscriptions)
  values (the_id, now_, happened_at, the_version, the_type, the_actor, the_aggregate_type, the_aggregate_id, the_headers,
          the_data, coalesce(told, '{}'));
  if told is null then
    return the_id;
  end if;

  envelope := kept.envelope(the_id, the_type, the_version, happened_at, the_actor, the_aggregate_type, the_aggregate_id,
                            the_headers, the_data);
  insert into kept.job (id, lane, priority, ready, due_at, created_at, headers, payload, order_key)
  select d.id, d.lane, d.priority, true, now_, now_, the_headers, envelope,
         case when d.ordered then coalesce(aggregate, '#' || d.id) end
    from (select nextval('kept.job_id_seq') as id, r.lane, r.priority, r.ordered
            from unnest(lanes, priorities, orders) r(lane, priority, ordered)) d;
  if exists (select from kept.sleeper s where s.lane = any(lanes) and s.until > now_) then
    perform pg_notify('kept:wake', r.lane || ':' || r.priority)
       from unnest(lanes, priorities) r(lane, priority)
      where exists (select from kept.sleeper s where s.lane = r.lane and s.until > now_);
  end if;
  return the_id;
end $$;

-- record_event for many at once, without keys; their ids in the same order.
create function kept.record_events(
  types text[], versions int[], occurred timestamptz[], actors text[], aggregate_types text[],
  aggregate_ids text[], headers json[], data json[]
) returns uuid[]
  language plpgsql
  -- One plan, whatever the tables held when it was made: an index scan for each event, never a table for each. Before
  -- PostgreSQL 18 what is off counts as very dear, and each new type would be compiled for: hence no jit.
  set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
  set jit = off
  as $$
declare
  now_ timestamptz := kept.now();
  ids uuid[] := array(select kept.uuid7() from unnest(types));
  woken bigint;
begin
  perform kept.learn_type(t.type)
     from (select distinct e.type from unnest(types) e(type) order by e.type) t
    where not exists (select from kept.event_type k where k.type = t.type);

  -- Jobs of one aggregate get their ids in the order of commits: whoever comes second waits here, before it draws any.
  perform kept.lock_orders(array_agg(l.id), array_agg(e.aggregate_type || '/' || e.aggregate_id))
     from unnest(types, aggregate_types, aggregate_ids) e(type, aggregate_type, aggregate_id)
     join kept.route r on r.type = e.type
     join kept.lane l on l.id = r.lane and l.ordered
    where e.aggregate_id is not null
   having count(*) > 0;

  with fresh as (
    select g.ord, g.id, g.type, g.version, coalesce(g.given_at, now_) as occurred_at, g.actor, g.aggregate_type,
           g.aggregate_id, g.headers, g.data,
           kept.envelope(g.id, g.type, g.version, coalesce(g.given_at, now_), g.actor, g.aggregate_type,
                         g.aggregate_id, g.headers, g.data) as envelope
      from unnest(ids, types, versions, occurred, actors, aggregate_types, aggregate_ids, headers, data)
           with ordinality
           g(id, type, version, given_at, actor, aggregate_type, aggregate_id, headers, data, ord)
  ), recorded as (
    insert into kept.event (id, recorded_at, occurred_at, version, type, actor, aggregate_type, aggregate_id,
                            headers, data, subscriptions)
    select f.id, now_, f.occurred_at, f.version, f.type, f.actor, f.aggregate_type, f.aggregate_id, f.headers, f.data,
           array(select r.subscription from kept.route r where r.type = f.type order by r.subscription)
      from fresh f
     order by f.ord
  ), drawn as materialized (
    select nextval('kept.job_id_seq') as id, o.*
      from (select r.lane, l.priority, l.ordered, f.headers, f.envelope, f.aggregate_type || '/' || f.aggregate_id as key
              from fresh f
              join kept.route r on r.type = f.type
              join kept.lane l on l.id = r.lane
             order by f.ord, r.subscription) o
  ), new as (
    insert into kept.job (id, lane, priority, ready, due_at, created_at, headers, payload, order_key)
    select d.id, d.lane, d.priority, true, now_, now_, d.headers, d.envelope,
           case when d.ordered then coalesce(d.key, '#' || d.id) end
      from drawn d
    returning lane, priority
  )
  select count(pg_notify('kept:wake', n.lane || ':' || n.priority)) into woken
    from (select distinct lane, priority from new) n
   where exists (select from kept.sleeper s where s.lane = n.lane and s.until > now_);
  return ids;
end $$;

-- Emit from any language, in the caller's transaction.
create function kept.emit(
  type text, data json default '{}', aggregate_type text default null, aggregate_id text default null,
  version int default 1, actor text default null, occurred_at timestamptz default null, headers json default null,
  key text default null, unique_for interval default '24 hours'
) returns uuid
  language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
  if emit.type is null or length(emit.type) > 200 or emit.type !~ '^[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*$' then
    raise exception 'type: % is not the type of an event; write words of letters, digits, _ and - with dots between',
      coalesce(quote_literal(left(emit.type, 80)), 'null') using errcode = 'invalid_parameter_value';
  end if;
  if emit.data is null or json_typeof(emit.data) <> 'object' then
    raise exception 'data: must be a JSON object' using errcode = 'invalid_parameter_value';
  end if;
  if octet_length(emit.data::text) > 1048576 then
    raise exception 'data: % bytes exceed the limit of 1048576; store the data elsewhere and pass a reference',
      octet_length(emit.data::text) using errcode = 'program_limit_exceeded';
  end if;
  -- jsonb refuses what json lets through and no worker could read, json_each neither: NUL and lone surrogates.
  begin
    perform emit.data::jsonb, emit.headers::jsonb;
  exception when data_exception then
    raise exception 'data: %', sqlerrm using errcode = 'invalid_parameter_value',
      detail = 'NUL characters, lone surrogates and numbers too large to be kept are refused, in headers too.';
  end;
  if emit.headers is not null and
     (json_typeof(emit.headers) <> 'object' or octet_length(emit.headers::text) > 16384
      or exists (select from json_each(emit.headers) h where json_typeof(h.value) <> 'string')) then
    raise exception 'headers: must be a JSON object of texts, of at most 16384 bytes'
      using errcode = 'invalid_parameter_value';
  end if;
  if (emit.aggregate_type is null) <> (emit.aggregate_id is null) then
    raise exception 'aggregate_type and aggregate_id: give both or neither' using errcode = 'invalid_parameter_value';
  end if;
  if emit.aggregate_type = '' or octet_length(emit.aggregate_type) > 200
     or emit.aggregate_id = '' or octet_length(emit.aggregate_id) > 512 then
    raise exception 'aggregate_type and aggregate_id: must have 1 to 200 and 1 to 512 bytes'
      using errcode = 'invalid_parameter_value';
  end if;
  if emit.actor = '' or octet_length(emit.actor) > 512 then
    raise exception 'actor: must have 1 to 512 bytes' using errcode = 'invalid_parameter_value';
  end if;
  if emit.version is null or emit.version not between 1 and 1000000 then
    raise exception 'version: must lie between 1 and 1000000' using errcode = 'invalid_parameter_value';
  end if;
  if emit.occurred_at not between '0002-01-01 00:00+00' and '9998-12-31 00:00+00' then
    raise exception 'occurred_at: must lie between the years 2 and 9998' using errcode = 'invalid_parameter_value';
  end if;
  if emit.key = '' or octet_length(emit.key) > 512 then
    raise exception 'key: must have 1 to 512 bytes' using errcode = 'invalid_parameter_value';
  end if;
  if emit.unique_for is null or emit.unique_for not between '0' and '3650 days' then
    raise exception 'unique_for: must lie between 0 and 3650 days' using errcode = 'invalid_parameter_value';
  end if;
  return kept.record_event(emit.type, emit.version, emit.occurred_at, emit.actor, emit.aggregate_type,
                           emit.aggregate_id, emit.headers, emit.data, emit.key, emit.unique_for);
end $$;

revoke all on all tables in schema kept from public;
revoke all on all sequences in schema kept from public;
revoke all on function kept.uuid7() from public;
revoke all on function kept.type_matches(text, text[]) from public;
revoke all on function kept.expand_routes() from public;
revoke all on function kept.learn_type(text) from public;
revoke all on function kept.envelope(uuid, text, int, timestamptz, text, text, text, json, json) from public;
revoke all on function kept.record_event(text, int, timestamptz, text, text, text, json, json, text, interval) from public;
revoke all on function kept.record_events(text[], int[], timestamptz[], text[], text[], text[], json[], json[])
  from public;
revoke all on function kept.emit(text, json, text, text, int, text, timestamptz, json, text, interval) from public;

do $$
begin
  if exists (select from pg_roles where rolname = 'kept_producer') then
    grant execute on function kept.emit(text, json, text, text, int, text, timestamptz, json, text, interval)
       to kept_producer;
  end if;
  perform kept.make_partition('event', day at time zone 'UTC', (day + interval '1 day') at time zone 'UTC', '30 days')
    from generate_series(date_trunc('day', kept.now() at time zone 'UTC'),
                         kept.now() at time zone 'UTC' + interval '30 days', interval '1 day') as day;
end $$;
