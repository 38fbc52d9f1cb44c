-- kind: expand
-- stub, replaced when the kernel's own lands
alter table kept.job add column order_key text;
alter table kept.lane add column ordered boolean not null default false;
create function kept.lock_order(the_lane int, the_key text) returns void
  language sql as $$ select pg_advisory_xact_lock(hashtextextended('kept.order:' || the_lane || ':' || the_key, 0)) $$;
revoke all on function kept.lock_order(int, text) from public;
