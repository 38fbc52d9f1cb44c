"""What the doctor collects, from a real database."""

from __future__ import annotations

import time

import psycopg

from kept.admin.examine import collect, sessions
from kept.db.queries import load
from kept.db.tx import run
from planted import enqueue, worker
from support import Clock


def test_the_facts_of_a_fresh_database_are_collected(conn):
    enqueue(conn)
    worker(conn, declared={"send": "d1"})
    facts = collect(conn, "kept", migrations=2)
    assert not facts.pooled
    assert abs(facts.clock.offset) < 2
    assert facts.strays == facts.missing == ()
    assert [lane.name for lane in facts.lanes] == ["mail/send"]
    assert facts.workers[0].declared == {"send": "d1"}
    assert facts.server.backend_pid == conn.info.backend_pid


def test_a_clock_that_is_off_is_noticed(conn, clock: Clock):
    clock.advance("1h")
    assert 3590 < collect(conn, "kept", 2).clock.offset < 3610
    facts = collect(conn, "kept", 2, local=lambda: time.time() + 7200)
    assert -3610 < facts.clock.offset < -3590


def test_partitions_that_are_missing_and_rows_without_one_are_noticed(conn, clock: Clock):
    clock.advance("40d")
    conn.execute("insert into kept.job_log (job, at, attempt, event) values (1, kept.now(), 1, 'failed')")
    facts = collect(conn, "kept", 2)
    assert facts.strays == ("job_log_default",)
    assert {make.parent for make in facts.missing} >= {"history_done", "job_log"}


def test_an_open_transaction_is_seen_with_its_name_and_state(conn, database):
    with psycopg.connect(database, application_name="leaky app") as other:
        other.execute("select count(*) from kept.job")
        (seen,) = run(conn, sessions(load("kept.admin"), seconds=0.0))
        assert (seen.pid, seen.name) == (other.info.backend_pid, "leaky app")
    assert seen.state == "idle in transaction"
    assert seen.seconds >= 0


def test_a_role_that_may_not_look_knows_what_it_does_not_see(role, conn, database):
    with psycopg.connect(database, autocommit=True) as other:
        other.execute(f"grant usage on schema kept to {role}")
        other.execute(f"grant select on all tables in schema kept to {role}")
        other.execute(f"set role {role}")
        facts = collect(other, "kept", 2)
    assert facts.hidden_sessions >= 1


def test_a_schedule_whose_last_three_jobs_failed_is_noticed(conn):
    conn.execute(
        """insert into kept.schedule (name, origin, every, zone, anchor, misfire, most, overlap, lane, payload,
                                     last_slot)
           select name, 'added', '1h', 'UTC', kept.now(), 'once', 1, 'skip', kept.lane_id('t', 'q'), '{}', kept.now()
             from unnest('{bad,new,mended}'::text[]) name;
           insert into kept.occurrence (schedule, slot, state, job, recorded_at, outcome, code)
           select s.id, kept.now() + n * interval '1h', 'fired', n, kept.now(),
                  case when s.name = 'mended' and n = 4 then 'done' else 'failed' end, 'boom ' || n
             from kept.schedule s, generate_series(1, 4) n
            where s.name <> 'new' or n < 3"""
    )
    facts = collect(conn, "kept", 2)
    assert [each.name for each in facts.schedules] == ["bad", "mended", "new"]
    assert [(each.name, each.code) for each in facts.failing] == [("bad", "boom 4")]
