-- kind: expand
-- Partitions are read by id and by time; rough statistics are enough for that. ANALYZE reads 300 rows for each unit of the
-- target: with the usual 100, the history of one busy minute takes it nine seconds, and as long as it holds its snapshot
-- no settled job can be vacuumed. With 10 it takes less than one.

create function kept.sample_few(the_table text) returns void language plpgsql as $$
begin
  execute format('alter table %s %s', kept.full_name(the_table), (
    select string_agg(format('alter column %I set statistics 10', attname), ', ')
      from pg_attribute where attrelid = kept.full_name(the_table)::regclass and attnum > 0 and not attisdropped));
end $$;

revoke all on function kept.sample_few(text) from public;

create or replace function kept.make_partition(the_parent text, starts timestamptz, ends timestamptz, keep interval)
  returns bigint language plpgsql set lock_timeout = '200ms' set timezone = 'UTC' as $$
declare
  fresh text := the_parent || to_char(starts, '_YYYYMMDD');
  parent text := kept.full_name(the_parent);
  part text := kept.full_name(fresh);
  spare text := kept.full_name(the_parent || '_default');
  by_time text := substring(pg_get_partkeydef(parent::regclass) from '\((.+)\)');
  in_range text := format('%I is not null and %I >= %L and %I < %L', by_time, by_time, starts, by_time, ends);
  moved bigint;
begin
  perform pg_advisory_xact_lock(hashtextextended('kept.partition', 0));
  if exists (select from kept.partition p where p.name = fresh) then
    return null;
  end if;
  execute format('create table %s (like %s including all)', part, parent);
  perform kept.sample_few(fresh);
  -- Strong from the start: asked for only to attach, it could be refused when all the work is done.
  execute format('lock table %s in access exclusive mode', spare);
  execute format('with gone as (delete from %s where %s returning *) insert into %s select * from gone',
                 spare, in_range, part);
  get diagnostics moved = row_count;
  -- Saves attaching the trouble of reading every moved row.
  execute format('alter table %s add constraint in_range check (%s and %s)', part, in_range,
                 coalesce(pg_get_partition_constraintdef(parent::regclass), 'true'));
  execute format('alter table %s attach partition %s for values from (%L) to (%L)', parent, part, starts, ends);
  execute format('alter table %s drop constraint in_range', part);
  insert into kept.partition (name, parent, starts_at, ends_at, drop_eligible_at, retention)
  values (fresh, the_parent, starts, ends, ends + keep, keep);
  return moved;
end $$;

do $$
begin
  perform kept.sample_few(p.name) from kept.partition p where to_regclass(kept.full_name(p.name)) is not null;
end $$;
