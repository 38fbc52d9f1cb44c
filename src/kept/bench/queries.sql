-- What measuring needs besides the kernel. Parameters are psycopg's; `kept` stands for the schema.


-- name: server
select current_setting('server_version') as version, current_setting('fsync') as fsync,
       current_setting('synchronous_commit') as synchronous_commit,
       current_setting('full_page_writes') as full_page_writes,
       current_setting('shared_buffers') as shared_buffers


-- name: lane
select kept.lane_id(%(task)s, %(queue)s)


-- name: empty
-- Fresh tables: what earlier rounds left would be measured with the next one.
truncate kept.job, kept.history, kept.job_log, kept.unique_key restart identity


-- name: fill
-- Jobs that are due now. Payloads have about 100 bytes and differ.
insert into kept.job (lane, priority, ready, due_at, created_at, payload)
select %(lane)s, 0, %(delay)s::float8 <= 0, kept.now() + %(delay)s * interval '1 second', kept.now(),
       json_build_object('number', n, 'text', repeat('x', 70))
  from generate_series(1, %(jobs)s) n


-- name: outcome
select (select count(*) from kept.history where lane = %(lane)s and state = 'done'),
       (select count(*) from kept.job where lane = %(lane)s)


-- name: payload_bytes
select coalesce(max(octet_length(payload::text)), 0) from (select payload from kept.job limit 100) j


-- name: wal_position
select pg_current_wal_insert_lsn()


-- name: wal_written
select pg_wal_lsn_diff(pg_current_wal_insert_lsn(), %(since)s::pg_lsn)::float8


-- name: add_walinspect
create extension pg_walinspect schema kept


-- name: flush_wal
-- Whoever does not wait for commits has WAL that cannot be looked into yet; one commit that waits brings it all out.
select set_config('synchronous_commit', 'on', true), pg_logical_emit_message(true, 'kept bench', '')


-- name: records_written
-- Without full-page images: those depend on when the last checkpoint was, not on what was done.
select coalesce(sum(record_size), 0)::float8
  from kept.pg_get_wal_stats(%(since)s::pg_lsn, pg_current_wal_flush_lsn())


-- name: own_tables
-- A row of the caller's own, and what a job would be without Kept: the same columns, checks and indexes.
create table kept.thing (id bigint generated always as identity primary key, name text not null);
create table kept.bare (like kept.job including all) with (fillfactor = 60)


-- name: empty_own_tables
truncate kept.thing, kept.bare


-- name: add_thing
insert into kept.thing (name) values (%(name)s)


-- name: add_bare
insert into kept.bare (lane, priority, ready, due_at, created_at, headers, payload)
values (%(lane)s, 0, true, kept.now(), kept.now(), null, %(payload)s::json)


-- name: copy_bare
copy kept.bare (lane, priority, ready, due_at, created_at, payload) from stdin


-- name: fill_bare
insert into kept.bare overriding user value select * from kept.job


-- name: own_event_tables
-- A row of the caller's own, and what an event would be without Kept: the same columns and indexes.
create table kept.thing (id bigint generated always as identity primary key, name text not null);
create table kept.bare_event (like kept.event including all)


-- name: empty_own_event_tables
truncate kept.thing, kept.bare_event, kept.event


-- name: add_bare_event
insert into kept.bare_event (id, recorded_at, occurred_at, version, type, aggregate_type, aggregate_id, data,
                             subscriptions)
values (gen_random_uuid(), kept.now(), kept.now(), 1, %(type)s, 'thing', %(id)s, %(data)s::json, '{}')


-- name: trickle
-- What enqueue_many does, without its arguments: a producer that leaves the processor to what is measured.
with new as (
  insert into kept.job (lane, priority, ready, due_at, created_at, payload)
  select %(lane)s, 0, true, kept.now(), kept.now(), json_build_object('number', n, 'text', repeat('x', 70))
    from generate_series(1, %(jobs)s) n
)
select pg_notify('kept:wake', %(lane)s || ':0')
  from kept.sleeper s
 where s.lane = %(lane)s and s.until > kept.now()
 limit 1


-- name: pick_ups
-- Milliseconds from enqueue to claim.
select count(*), coalesce(percentile_disc(array[0.5, 0.9, 0.99, 1.0]) within group (
         order by extract(epoch from claimed_at - created_at)::float8 * 1000), '{0,0,0,0}')
  from kept.history


-- name: fill_history
insert into kept.history (id, settled_at, created_at, claimed_at, worker, lane, priority, attempt, uncharged, state,
                          payload)
select nextval('kept.job_id_seq'), kept.now(), kept.now(), kept.now(), gen_random_uuid(), %(lane)s, 0, 1, 0, 'done',
       json_build_object('number', n, 'text', repeat('x', 70))
  from generate_series(1, %(jobs)s) n


-- name: pause
update kept.lane set paused_until = 'infinity' where id = %(lane)s


-- name: transactions
select xact_commit + xact_rollback, pg_stat_force_next_flush() from pg_stat_database where datname = current_database()


-- name: next_wal_file
-- One in which nothing was written is not ended.
select pg_switch_wal() from (select pg_logical_emit_message(true, 'kept bench', '') offset 0) written


-- name: now
select kept.now()


-- name: moment
-- Not that of the statement: to set the server's clock beside another.
select extract(epoch from clock_timestamp())::float8


-- name: empty_schedules
truncate kept.schedule, kept.occurrence, kept.schedule_log restart identity


-- name: fill_schedules
-- Schedules whose next slot is `slot`, each with a rule of its own.
insert into kept.schedule (name, origin, cron, every, zone, anchor, misfire, most, overlap, lane, payload, last_slot,
                           next_slot, look_at)
select 'schedule-' || r.n, 'added', r.cron, r.every * interval '1 second', r.zone, %(slot)s::timestamptz, 'once', 1, 'skip',
       %(lane)s::int, %(payload)s::json, %(slot)s::timestamptz - interval '1 second', %(slot)s::timestamptz,
       %(slot)s::timestamptz
  from unnest(%(cron)s::text[], %(every)s::float8[], %(zone)s::text[]) with ordinality r(cron, every, zone, n)


-- name: add_beat
-- A slot every second, from `first` to `last`.
insert into kept.schedule (name, origin, every, zone, anchor, ends_at, misfire, most, overlap, lane, payload, last_slot,
                           next_slot, look_at)
values ('beat', 'added', interval '1 second', 'UTC', %(first)s::timestamptz, %(last)s::timestamptz, 'once', 1, 'allow',
        %(lane)s::int, json_build_object('first', %(begin)s::bigint), %(first)s::timestamptz - interval '1 second',
        %(first)s::timestamptz, %(first)s::timestamptz)


-- name: still_due
-- Whether a schedule still stands before its slot, and how long ago the slot was, in milliseconds. Reads one entry of an
-- index: whoever looks on must not be in the way.
select exists (select from kept.schedule s where s.look_at <= %(slot)s::timestamptz and s.paused_at is null
                                             and s.retired_at is null),
       extract(epoch from kept.now() - %(slot)s::timestamptz)::float8 * 1000


-- name: firings
-- Slots on record, different ones, different jobs, jobs done of schedules that differ; when the first and the last were
-- fired and the last was done, in milliseconds; by how many statements.
select count(*), count(distinct (schedule, slot)), count(distinct job),
       (select count(distinct headers ->> 'kept-schedule') from kept.history where state = 'done'),
       extract(epoch from min(recorded_at) - %(slot)s::timestamptz)::float8 * 1000,
       extract(epoch from max(recorded_at) - %(slot)s::timestamptz)::float8 * 1000,
       (select extract(epoch from max(settled_at) - %(slot)s::timestamptz)::float8 * 1000 from kept.history),
       count(distinct recorded_at)
  from kept.occurrence


-- name: worker_sessions
-- The server processes of the workers of this schema's measurement: what a worker's connection is called.
select pid from pg_stat_activity where datname = current_database() and application_name like 'kept worker%%'
