-- What a verification does in the schema that it made for itself.

-- name: make_effects
create table kept.verify_effect (token bigint not null, job bigint not null, attempt int not null);

-- name: add_effect
insert into kept.verify_effect (token, job, attempt) values (%(token)s, %(job)s, %(attempt)s);

-- name: live
select count(*) from kept.job;

-- name: is_live
select exists (select from kept.job where id = %(job)s);

-- name: holder
select w.pid from kept.job j join kept.worker w on w.id = j.worker where j.id = %(job)s;

-- name: rows
select id, task, state, reason, attempt, charged, (payload ->> 'token')::bigint from kept.jobs;

-- name: moment
-- By the clock that slots go by, whatever a fault made of it; and the last of them.
select floor(extract(epoch from kept.now()))::bigint,
       (select extract(epoch from max(o.slot))::bigint
          from kept.occurrence o join kept.schedule s on s.id = o.schedule
         where s.name = %(schedule)s and not o.by_hand);

-- name: once
select token, job, attempt from kept.verify_effect;

-- name: slots
select extract(epoch from o.slot)::bigint, o.state, o.missed, o.job
  from kept.occurrence o join kept.schedule s on s.id = o.schedule
 where s.name = %(schedule)s and not o.by_hand;

-- name: hold_one
-- A running job, held until the end of the transaction; and whose it is.
select id, worker from kept.job where worker is not null and id >= %(since)s order by id limit 1 for update skip locked;

-- name: hold_some
select from kept.job where worker = %(worker)s and id <> %(job)s order by id desc limit 2 for update skip locked;

-- name: hold_rest
select from kept.job where worker = %(worker)s order by id for update;

-- name: is_waited_for
select exists (select from pg_stat_activity where %(pid)s = any(pg_blocking_pids(pid)));
