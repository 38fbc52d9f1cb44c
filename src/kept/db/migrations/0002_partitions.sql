-- kind: expand
-- How partitions of history and log come and go. When they do is decided by kept.archive, by kept.now().

-- The retention a partition was made or last reckoned with: tells a changed setting from a partition held back.
alter table kept.partition add column retention interval not null;

-- The full, quoted name of one of our tables, for statements put together at run time.
create function kept.full_name(the_table text) returns text
  language sql stable as $$
  select format('%s.%I', relnamespace::regnamespace, the_table) from pg_class where oid = 'kept.partition'::regclass
$$;

-- Make the partition of the_parent for [starts, ends) with what the default partition holds of that range, and
-- say how many rows that were; null if it exists. Nobody waits for long: on the parent only a weak lock is taken,
-- on the default partition a strong one that is given up on after a moment.
create function kept.make_partition(the_parent text, starts timestamptz, ends timestamptz, keep interval)
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

-- Drop a partition whose time has come, and say how many jobs were counted as purged, in the same transaction;
-- null if it may not go (any more). Whoever uses the parent in an open transaction comes first: this gives up
-- after a moment, because everybody else would have to queue behind it.
create function kept.drop_partition(the_name text)
  returns bigint language plpgsql set lock_timeout = '100ms' set timezone = 'UTC' as $$
declare
  part text := kept.full_name(the_name);
  the_parent text;
  jobs bigint := 0;
begin
  perform pg_advisory_xact_lock(hashtextextended('kept.partition', 0));
  delete from kept.partition p where p.name = the_name and p.drop_eligible_at <= kept.now()
    returning p.parent into the_parent;
  if the_parent is null then
    return null;
  end if;
  if to_regclass(part) is null then
    return 0;   -- somebody dropped it by hand
  end if;
  if the_parent like 'history%' then
    -- Counted before the strong lock is asked for, so that it is held for a moment only.
    execute format('lock table %s in share row exclusive mode', part);
    execute format('with counted as (select state, count(*) as jobs from %s group by state),
                         noted as (insert into kept.purged as p (state, jobs) select state, jobs from counted
                                   on conflict (state) do update set jobs = p.jobs + excluded.jobs)
                    select coalesce(sum(jobs), 0) from counted', part) into jobs;
  end if;
  execute format('alter table %s detach partition %s', kept.full_name(the_parent), part);
  execute format('drop table %s', part);
  return jobs;
end $$;

revoke all on function kept.full_name(text) from public;
revoke all on function kept.make_partition(text, timestamptz, timestamptz, interval) from public;
revoke all on function kept.drop_partition(text) from public;

-- The first 30 days, in UTC, so that nothing has to be moved later. Failures by the month: few partitions to look
-- into for one job, and there are never many failures in a month.
do $$
begin
  perform kept.make_partition(parent, day at time zone 'UTC', (day + span) at time zone 'UTC', keep)
    from (values ('history_done', 'day', interval '1 day', interval '7 days'),
                 ('history_failed', 'month', interval '1 month', interval '90 days'),
                 ('job_log', 'day', interval '1 day', interval '90 days')) as of(parent, unit, span, keep),
         lateral generate_series(date_trunc(unit, kept.now() at time zone 'UTC'),
                                 kept.now() at time zone 'UTC' + interval '30 days', span) as day;
end $$;
