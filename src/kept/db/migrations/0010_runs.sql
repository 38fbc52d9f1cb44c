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

create table kept.run (
  id          bigint primary key default nextval('kept.run_id'),
  name        text not null,
  worker      uuid not null,
  worker_name text not null,
  singleton   boolean not null default false,
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

-- Everything that ran: passes of runners, and slots of schedules with what became of their jobs.
create view kept.runs as
select r.id, r.name, 'runner'::text as kind, r.worker_name as worker, null::timestamptz as slot, r.started_at,
       r.finished_at, r.state, r.counters, r.code, r.error, null::bigint as job
  from kept.run r
union all
select o.id, s.name, 'schedule', w.name, o.slot, coalesce(o.started_at, live.claimed_at, h.claimed_at),
       coalesce(o.finished_at, h.settled_at), coalesce(o.outcome, live.state, h.state, nullif(o.state, 'fired'), 'unknown'),
       o.counters, coalesce(o.code, h.code, o.reason), coalesce(o.message, h.message), o.job
  from kept.occurrence o
  join kept.schedule s on s.id = o.schedule
  left join lateral (select case when j.worker is null then 'pending' else 'running' end as state, j.claimed_at, j.worker
                       from kept.job j where j.id = o.job and o.outcome is null) live on true
  -- "offset 0": the condition is asked before history is looked into, not after
  left join lateral (select f.* from (select where o.job is not null and o.outcome is null and live.state is null offset 0) open
                      cross join lateral kept.find_settled(o.job) f) h on true
  left join kept.worker w on w.id = coalesce(o.worker, live.worker, h.worker);

revoke all on table kept.run, kept.runs from public;
