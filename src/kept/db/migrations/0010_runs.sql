-- kind: expand
-- Runs: what runners of your own did, and who holds the slot of one that may run only once at a time.

-- A row for each runner; one of several shards has a row "name#index/count". Held while *run* names an open run.
alter table kept.runner
  add column every     interval,                        -- null: one of Kept's own
  add column singleton boolean not null default false,
  add column run       bigint,                          -- the last pass that was begun and has not been finished
  add column deaths    int not null default 0,          -- passes in a row whose worker died
  add column ran_at    timestamptz,                     -- when the last pass began
  add column done_at   timestamptz;                     -- when one last ended well, idle ones included

-- Other records of something that ran may take their ids from here, so that one id names one of them.
create sequence kept.run_id;

create table kept.run (
  id          bigint primary key default nextval('kept.run_id'),
  name        text not null,
  worker      uuid not null,
  worker_name text not null,
  singleton   boolean not null default false,
  slot        timestamptz,                              -- the nominal time, if there is one
  started_at  timestamptz not null default kept.now(),
  finished_at timestamptz,
  state       text not null default 'running'
              check (state in ('running', 'done', 'failed', 'abandoned', 'cancelled')),
  counters    jsonb not null default '{}',
  code        text,
  reason      text,
  error       text,
  check ((state = 'running') = (finished_at is null))
);
-- Whatever else goes wrong: two open runs of a singleton cannot be.
create unique index run_alone on kept.run (name) where state = 'running' and singleton;
create index run_open on kept.run (worker) where state = 'running';
create index run_started on kept.run (started_at);
create index run_name on kept.run (name, started_at);

create view kept.runs as
select r.id, r.name, 'runner'::text as kind, r.worker_name as worker, r.slot, r.started_at, r.finished_at, r.state,
       r.counters, r.code, r.error, null::bigint as job
  from kept.run r;

revoke all on table kept.run, kept.runs from public;
revoke all on sequence kept.run_id from public;
