-- kind: expand
-- The inbox: which consumer has handled which event. A marker is written in the consumer's own transaction.

-- Consumers by name: a small number and a table for the names saved nothing that could be measured (names of up
-- to 12 characters fill what alignment leaves empty), and would let the first events of a new one wait in line.
create table kept.inbox (
  consumer   text not null,
  event_id   text not null,
  seen_at    timestamptz not null,
  expires_at timestamptz not null,
  tx         xid8 not null default pg_current_xact_id(),   -- whose marker: only it may take the marker back
  primary key (consumer, event_id),
  check (consumer ~ '^[A-Za-z0-9_][A-Za-z0-9_.:/-]{0,99}$'),
  check (char_length(event_id) between 1 and 200)
) with (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0);
create index inbox_expiry on kept.inbox (consumer, expires_at);

-- Which table of which server this is, for keys outside of the database. A physical copy of a server has the same.
create function kept.inbox_identity() returns text
  language plpgsql stable as $$
declare
  server bigint;
begin
  if has_function_privilege('pg_control_system()', 'execute') then
    select system_identifier into server from pg_control_system();
  end if;
  return concat_ws(':', server, (select oid from pg_database where datname = current_database()),
                   'kept.inbox'::regclass::oid);
end $$;

revoke all on kept.inbox from public;
revoke all on function kept.inbox_identity() from public;
