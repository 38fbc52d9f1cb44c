"""``kept doctor``."""

from __future__ import annotations

import psycopg
import pytest

from planted import claim, declare, enqueue, worker
from support import Clock


@pytest.fixture
def levels(kept):
    """What the doctor finds: the level of each code."""

    def ask(expected: int) -> dict[str, str]:
        said = kept("doctor", "--json")
        assert said.code == expected
        return {finding["code"]: finding["level"] for finding in said.json["findings"]}

    return ask


def test_a_database_in_order_is_found_to_be(levels, conn):
    enqueue(conn)
    declare(conn)
    worker(conn, declared={"send": "d1"})
    found = levels(0)
    found.pop("not_durable", None)  # a server for tests need not be durable
    assert set(found.values()) == {"ok"}
    assert {"server", "schema", "pooling", "clock", "bloat", "leases", "service", "declarations"} <= set(found)


def test_every_finding_has_a_level_a_code_a_sentence_and_advice(kept):
    for finding in kept("doctor", "--json").json["findings"]:
        assert set(finding) == {"level", "code", "message", "advice"}
        assert finding["level"] == "ok" or finding["advice"]


def test_due_jobs_that_nobody_serves_are_a_problem(levels, conn):
    enqueue(conn)
    assert levels(1)["no_worker"] == "problem"
    worker(conn, "a", queues=["pdf"])
    assert levels(1)["queue_unserved"] == "problem"
    worker(conn, "b", declared={"other": "d"})
    assert levels(1)["task_unhandled"] == "problem"
    worker(conn, "c", declared={"send": "d"})
    assert levels(0)["service"] == "ok"


def test_workers_that_disagree_on_a_task_are_named(kept, conn):
    worker(conn, "north:1", declared={"send": "d1"})
    worker(conn, "south:2", declared={"send": "d2"})
    said = kept("doctor")
    assert said.code == 0
    assert "warning  declarations_differ: Task send is declared differently by workers north:1 and south:2." in said.out


def test_a_dead_workers_jobs_that_nobody_takes_back_are_a_problem(levels, conn):
    claim(conn, enqueue(conn), worker(conn, lease=-60))
    assert levels(1)["lease_expired"] == "problem"


def test_clocks_partitions_and_undeclared_tasks_are_warnings(levels, conn, clock: Clock):
    enqueue(conn, due_at="2200-01-01Z")
    clock.advance("40d")
    found = levels(0)
    assert found["clock"] == found["partition_missing"] == found["undeclared"] == "warning"


def test_a_schema_that_is_missing_is_a_problem_and_all_there_is_to_say(at, empty_database):
    said = at(empty_database)("doctor")
    assert said.code == 1
    first, second = said.out.splitlines()
    assert first.startswith('problem  schema: Schema "kept" is not set up in this database')
    assert "kept migrate" in second


def test_a_standby_is_a_problem(at, kept, conn, database):
    conn.execute(f"alter database {conn.info.dbname} set default_transaction_read_only = on")
    said = kept("doctor")
    assert said.code == 1
    assert said.out.startswith("problem  read_only: This connection is read-only")


def test_an_unreachable_database_is_a_problem_without_its_password(at):
    said = at("postgresql://u:sekret@127.0.0.1:1/x")("doctor")
    assert said.code == 1
    assert said.out.startswith("problem  connection: The database is not available")
    assert "sekret" not in said.out + said.err


def test_what_sessions_call_themselves_is_spelled_out(kept, conn, database):
    conn.execute(
        "insert into kept.worker (id, name, host, pid, version, concurrency, lease_until, declared) "
        "select gen_random_uuid(), E'\\x1b[31m' || n, 'h', 1, 'v', 1, kept.now() + interval '1 min', "
        "jsonb_build_object('send', n::text) from generate_series(1, 2) n"
    )
    said = kept("doctor")
    assert r"\x1b[31m1" in said.out
    assert "\x1b" not in said.out


def test_a_role_without_rights_gets_a_sentence(at, role, conn, database):
    with psycopg.connect(database, autocommit=True) as admin:
        admin.execute(f"alter role {role} login")
    said = at(database.replace("postgres@", f"{role}@", 1))("jobs", "list")
    assert said.code == 1
    assert "permission denied" in said.err
