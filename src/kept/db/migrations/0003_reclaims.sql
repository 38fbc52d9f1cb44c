-- kind: expand
-- Word of jobs that were taken back by somebody who serves no metrics and writes no log: a dead worker's keeper.

-- Left in the transaction that took them back, taken by the first live worker that sees it, so that it is told once.
create table kept.reclaim (
  id     bigint generated always as identity primary key,
  worker uuid not null,
  name   text not null,
  reason text not null,
  jobs   int not null,
  failed int not null,
  at     timestamptz not null default kept.now(),
  check (failed between 0 and jobs)
);
revoke all on table kept.reclaim from public;

-- As for due_at: a moment that a worker's language cannot read would stand in the way of every claim.
update kept.job set created_at = least(due_at, kept.now())
 where created_at not between '0002-01-01 00:00+00' and '9998-12-31 00:00+00';
alter table kept.job add constraint created_at_is_a_readable_moment
  check (created_at between '0002-01-01 00:00+00' and '9998-12-31 00:00+00');
