-- kind: expand
-- A claim has one index that it can use, and room on the page for what it writes.

-- By (id + 0), which is id, because the primary key does not know that: a claim prepared while all jobs are of one lane
-- would else read job_pkey from its floor upwards, and with it every job of the lanes that fill up later.
create index job_ready on kept.job (lane, priority desc, (id + 0)) where ready;
drop index kept.job_claim;

-- At 60, a page has no room for a second version of each of its rows: two claims in five were not HOT, and each of
-- those wrote every index. What stands in full pages already is worked off as it is.
alter table kept.job set (fillfactor = 45);
