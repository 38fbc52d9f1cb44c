-- What measuring needs besides the kernel. Parameters are psycopg's; `kept` stands for the schema.


-- name: server
select current_setting('server_version') as version, current_setting('fsync') as fsync,
       current_setting('synchronous_commit') as synchronous_commit,
       current_setting('full_page_writes') as full_page_writes,
       current_setting('shared_buffers') as shared_buffers


-- name: hold
-- Held by a running measurement: whoever gets it may drop the schema.
select pg_try_advisory_lock(hashtextextended(%(schema)s, 0))


-- name: leftovers
select nspname from pg_namespace where nspname ~ '^kept_bench_[0-9a-f]{8}$' order by 1


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


-- name: payload_bytes
select coalesce(max(octet_length(payload::text)), 0) from (select payload from kept.job limit 100) j


-- name: wal_position
select pg_current_wal_insert_lsn()


-- name: wal_written
select pg_wal_lsn_diff(pg_current_wal_insert_lsn(), %(since)s::pg_lsn)::float8


-- name: add_walinspect
create extension pg_walinspect schema kept


-- name: records_written
-- Without full-page images: those depend on when the last checkpoint was, not on what was done.
select coalesce(sum(record_size), 0)::float8
  from kept.pg_get_wal_stats(%(since)s::pg_lsn, pg_current_wal_flush_lsn())
