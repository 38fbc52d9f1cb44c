-- kind: expand
-- A settled job by its id, however many partitions there are.

-- The newest record with this id; no row if there is none. (After a failover an id may have been given twice.)
-- Looked for partition by partition, the newest first: what is not opened costs nothing, and a connection that asks
-- for the first time has to load what it opens. Through kept.history it would open all of them, and of those most are
-- made for the days to come. A record in one of these was settled before the clock was set back: they are looked into
-- when it is nowhere else, as far as they hold anything at all.
create function kept.find_settled(the_id bigint) returns setof kept.history
  language plpgsql stable as $$
declare
  -- Whoever settled it may have read the clock a moment after us.
  soon timestamptz := kept.now() + interval '1 hour';
  home text := (select relnamespace::regnamespace from pg_class where oid = 'kept.history'::regclass);
  look text := 'select (h::kept.history).* from %s h where h.id = $1 order by h.settled_at desc limit 1';
  seen oid[] := '{}';
  part record;
  met kept.history;
  newest kept.history;
begin
  for part in
    select to_regclass(format('%s.%I', home, p.name)) as name, p.ends_at
      from kept.partition p
     where p.parent in ('history_done', 'history_failed') and p.starts_at < soon
    union all
    values ('kept.history_done_default'::regclass, timestamptz 'infinity'),
           ('kept.history_failed_default'::regclass, 'infinity')
     order by ends_at desc
  loop
    exit when part.ends_at <= newest.settled_at;
    continue when part.name is null;   -- dropped by hand
    execute format(look, part.name) into met using the_id;
    seen := seen || part.name::oid;
    if met.settled_at > coalesce(newest.settled_at, '-infinity') then
      newest := met;
    end if;
  end loop;
  if newest.id is null then
    for part in
      select i.inhrelid::regclass as name
        from pg_inherits i
       where i.inhparent in ('kept.history_done'::regclass, 'kept.history_failed'::regclass)
         and i.inhrelid <> all(seen)
    loop
      continue when pg_relation_size(part.name) = 0;
      execute format(look, part.name) into met using the_id;
      if met.settled_at > coalesce(newest.settled_at, '-infinity') then
        newest := met;
      end if;
    end loop;
  end if;
  if newest.id is not null then
    return next newest;
  end if;
exception
  -- A partition was dropped while we looked, or this role may read kept.history but not its partitions by name.
  when undefined_table or insufficient_privilege or syntax_error then
    return query select * from kept.history h where h.id = the_id order by h.settled_at desc limit 1;
end $$;

revoke all on function kept.find_settled(bigint) from public;
