-- kind: expand
-- Schedules: rules by which jobs come into being again and again, and what came of each of their slots.

create table kept.schedule (
  id          int generated always as identity primary key,
  name        text not null unique,
  revision    int not null default 1,           -- rises at every change: whoever decided on an older one decided on nothing
  origin      text not null check (origin in ('declared', 'added')),
  owner       text,
  description text,
  -- when
  cron        text,
  every       interval,
  zone        text not null,
  anchor      timestamptz not null,             -- an interval counts from here, so it keeps its phase
  starts_at   timestamptz,
  ends_at     timestamptz,
  jitter      interval not null default '0',
  blackout    text[] not null default '{}',
  misfire     text not null check (misfire in ('skip', 'once', 'all')),
  most        int not null check (most between 1 and 1000),
  within      interval,
  overlap     text not null check (overlap in ('allow', 'skip', 'queue')),
  -- what
  lane        int not null references kept.lane (id),
  priority    int,
  payload     json not null,
  -- where it stands
  last_slot   timestamptz not null,             -- no slot up to here fires any more, whatever the clock says
  next_slot   timestamptz,                      -- null: there is none
  queued_slot timestamptz,                      -- it has come, and waits for the job before it
  look_at     timestamptz,                      -- when there is something to decide
  paused_at   timestamptz,
  undeclared_at timestamptz,                    -- since when no live worker declares it
  retired_at  timestamptz,                      -- nobody did for long enough: it fires no more
  done_at     timestamptz,                      -- when a job of its last ended well
  digest      text,                             -- of the definition in force, if it was declared
  digests     text[] not null default '{}',     -- … and of those that were before it
  created_at  timestamptz not null default kept.now(),
  changed_at  timestamptz not null default kept.now(),
  constraint name_is_a_name check (name ~ '^[A-Za-z0-9_][A-Za-z0-9_.:/-]{0,199}$'),
  constraint either_cron_or_every check ((cron is null) <> (every is null)),
  constraint every_is_not_zero check (every > '0'),
  constraint end_after_start check (ends_at > starts_at),
  constraint slot_after_the_last check (next_slot > last_slot)
) with (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0);

create index schedule_look on kept.schedule (look_at) where paused_at is null and retired_at is null;

-- Whatever is on record of something that ran takes its id from here, so that one id names one of them.
create sequence kept.run_id;

-- One row for each slot that came: the job it became, or why there is none.
create table kept.occurrence (
  id          bigint primary key default nextval('kept.run_id'),
  schedule    int not null references kept.schedule (id) on delete cascade,
  slot        timestamptz not null,
  by_hand     boolean not null default false,
  state       text not null check (state in ('fired', 'queued', 'skipped', 'missed')),
  reason      text,
  missed      int not null default 0,           -- slots before this one that nobody fired
  job         bigint,
  recorded_at timestamptz not null,
  -- what became of the job: copied when it is settled, because history is kept for a shorter time
  outcome     text,
  started_at  timestamptz,
  finished_at timestamptz,
  worker      uuid,
  code        text,
  message     text,
  counters    jsonb not null default '{}',
  constraint fired_means_job check ((state = 'fired') = (job is not null))
) with (autovacuum_vacuum_scale_factor = 0.05);

create unique index occurrence_slot on kept.occurrence (schedule, slot) where not by_hand;
create index occurrence_schedule on kept.occurrence (schedule, slot, id);
create index occurrence_open on kept.occurrence (schedule, job) where job is not null and outcome is null;
create index occurrence_recorded on kept.occurrence (recorded_at);

-- Who changed what, and when.
create table kept.schedule_log (
  id       bigint generated always as identity primary key,
  schedule text not null,
  at       timestamptz not null default kept.now(),
  who      text not null,
  what     text not null,
  detail   text
);
create index schedule_log_schedule on kept.schedule_log (schedule, id);

-- Which schedules a worker declares: name to the digest of its definition.
alter table kept.worker add column schedules jsonb not null default '{}';

-- Once in a while, in the whole cluster: what became of the jobs of schedules.
insert into kept.runner (name, next_at) values ('occurrences', '-infinity') on conflict do nothing;

revoke all on all tables in schema kept from public;
revoke all on all sequences in schema kept from public;
