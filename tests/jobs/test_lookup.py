"""One job by its id: found wherever it is, and never at the price of opening every partition there is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
import pytest
from psycopg import sql

from kept.admin import store
from kept.admin.model import Detail
from kept.db import migrate
from kept.db.queries import load
from kept.db.tx import run
from kept.jobs import door
from kept.jobs.door import Record
from kernel import SQL, lane_of
from support import Clock

ADMIN = load("kept.admin")
SETTLE = """
insert into kept.history (id, settled_at, created_at, lane, priority, attempt, uncharged, state, message, payload)
values (%(id)s, %(at)s::timestamptz, now(), %(lane)s, 0, 1, 0, %(state)s, %(message)s, '{}')
"""
PARTITIONS = """
select c.relname from pg_locks k join pg_class c on c.oid = k.relation
 where k.pid = pg_backend_pid() and k.locktype = 'relation' and c.relkind in ('r', 'p') and c.relname like 'history%'
 order by 1
"""


@pytest.fixture
def settle(conn: psycopg.Connection):
    """Write a record as if it had been settled at a moment given in words of SQL."""
    lane = lane_of(conn, "send")

    def write(id: int, at: str = "0 s", state: str = "done", message: str = "") -> None:
        moment = conn.execute("select kept.now() + %s::interval", [at]).fetchone()
        assert moment is not None
        conn.execute(SETTLE, {"id": id, "at": moment[0], "lane": lane, "state": state, "message": message})

    return write


def find(conn: psycopg.Connection, id: int) -> Record:
    """The one answer of every way to ask for a job."""
    found = run(conn, door.find(SQL, id))
    shown: Detail = run(conn, store.show_job(ADMIN, id))
    outcome = run(conn, door.outcome(SQL, id))
    assert found is not None
    assert (found.id, shown.job.id) == (id, id)
    assert (shown.job.state, shown.job.message) == (found.state, found.message)
    if found.state in ("pending", "running"):
        assert outcome is None
    else:
        assert outcome is not None
        assert (outcome.state, outcome.message) == (found.state, found.message)
    return found


@contextmanager
def opened(conn: psycopg.Connection) -> Iterator[list[str]]:
    """Which partitions of history were opened within."""
    names: list[str] = []
    with conn.transaction():
        yield names
        names += [name for (name,) in conn.execute(PARTITIONS).fetchall()]


# --- found wherever it is


@pytest.mark.parametrize("state", ["done", "failed", "cancelled", "skipped"])
@pytest.mark.parametrize("at", ["0 s", "-1 s", "30 s"])
def test_a_settled_job_is_found(conn, settle, state, at):
    settle(7, at, state, "this one")
    assert (find(conn, 7).state, find(conn, 7).message) == (state, "this one")


@pytest.mark.parametrize("state", ["done", "failed"])
@pytest.mark.parametrize("at", ["-400 days", "400 days"])
def test_a_record_in_a_default_partition_is_found(conn, settle, state, at):
    settle(7, at, state)
    assert find(conn, 7).state == state


@pytest.mark.parametrize("state", ["done", "failed"])
@pytest.mark.parametrize("by", ["1 day", "20 days"])
def test_a_record_from_before_the_clock_was_set_back_is_found(conn, settle, clock: Clock, state, by):
    clock.advance(by.replace(" days", "d").replace(" day", "d"))
    settle(7, "0 s", state)
    clock.set_back(by.replace(" days", "d").replace(" day", "d"))
    assert find(conn, 7).state == state


def test_a_record_in_a_partition_that_nobody_registered_is_found(conn, settle):
    settle(7, "-2 hours")
    conn.execute("delete from kept.partition")
    assert find(conn, 7).state == "done"


def test_a_partition_dropped_by_hand_hides_nothing_else(conn, settle):
    settle(7, "0 s")
    settle(8, "0 s", "failed")
    (name,) = conn.execute(
        "select relname from kept.history h join pg_class c on c.oid = h.tableoid where id = 7"
    ).fetchone()
    conn.execute(sql.SQL("drop table kept.{}").format(sql.Identifier(name)))
    assert find(conn, 8).state == "failed"
    assert run(conn, door.find(SQL, 7)) is None


def test_a_job_that_never_was_is_not_found(conn, settle):
    settle(7)
    assert run(conn, door.find(SQL, 8)) is None
    assert run(conn, door.outcome(SQL, 8)) is None


def test_a_settled_job_is_found_in_a_schema_of_any_name(empty_database):
    statements = load("kept.jobs", "Tenant-7")
    with psycopg.connect(empty_database, autocommit=True) as conn:
        migrate.apply(conn, "Tenant-7")
        ticket = run(conn, door.enqueue(statements, door.Request(queue="mail", task="send", payload="{}")))
        assert run(conn, door.cancel(statements, ticket.id)) == "pending"
        found = run(conn, door.find(statements, ticket.id))
        with opened(conn) as names:
            assert run(conn, door.outcome(statements, ticket.id)) is not None
    assert found is not None and found.state == "cancelled"
    assert 4 <= len(names) <= 6, names


# --- an id that was given twice, as after a failover


@pytest.mark.parametrize(
    ("older", "newer"),
    [
        (("-3 hours", "done"), ("0 s", "done")),
        (("-3 hours", "failed"), ("0 s", "done")),
        (("-3 hours", "done"), ("0 s", "failed")),
        (("-40 days", "failed"), ("-20 days", "cancelled")),
        (("-400 days", "done"), ("-1 hour", "failed")),
        (("-20 days", "failed"), ("-300 seconds", "skipped")),
    ],
)
def test_of_two_records_with_one_id_the_newer_is_the_answer(conn, settle, older, newer):
    for (at, state), message in ((older, "older"), (newer, "newer")):
        settle(7, at, state, message)
    assert find(conn, 7).message == "newer"
    conn.execute("delete from kept.history where message = 'newer'")
    assert find(conn, 7).message == "older"


def test_a_live_job_comes_before_a_record_with_its_id(conn, settle):
    settle(7, "-1 hour")
    conn.execute(
        "insert into kept.job (id, lane, priority, ready, due_at, created_at, payload) "
        "select 7, id, 0, true, now(), now(), '{}' from kept.lane"
    )
    assert find(conn, 7).state == "pending"


# --- rights


def test_a_role_that_may_read_history_but_no_partition_by_name_finds_it_all_the_same(role, conn, settle):
    settle(7, "0 s", "failed")
    name = sql.Identifier(role)
    conn.execute(sql.SQL("grant usage on schema kept to {}").format(name))
    conn.execute(sql.SQL("grant select on kept.history, kept.partition, kept.test_clock to {}").format(name))
    conn.execute(sql.SQL("grant execute on function kept.find_settled(bigint) to {}").format(name))
    with conn.transaction():
        conn.execute(sql.SQL("set local role {}").format(name))
        assert conn.execute("select state from kept.find_settled(7)").fetchall() == [("failed",)]
    conn.execute(sql.SQL("drop owned by {}").format(name))


# --- what it costs


def test_a_look_at_a_live_job_opens_no_history(conn):
    ticket = run(conn, door.enqueue(SQL, door.Request(queue="mail", task="send", payload="{}")))
    for _ in range(12):  # often enough to be prepared, with a plan for ever
        with opened(conn) as names:
            find(conn, ticket.id)
        assert names == []


def test_a_job_settled_lately_is_found_in_the_newest_partitions(conn, settle):
    settle(7, "0 s")
    with opened(conn) as names:
        find(conn, 7)
    # Today, the month of failures, and the two defaults; within an hour of midnight also those that begin then.
    assert 4 <= len(names) <= 6, names
    assert {"history_done_default", "history_failed_default"} < set(names)


def test_a_job_that_never_was_is_looked_for_in_no_partition_of_the_future(conn, settle):
    settle(7)
    ahead = {
        name
        for (name,) in conn.execute(
            "select name from kept.partition where parent like 'history%' and starts_at > kept.now() + '1 hour'"
        ).fetchall()
    }
    assert len(ahead) >= 29
    with opened(conn) as names:
        run(conn, door.find(SQL, 8))
        run(conn, door.outcome(SQL, 8))
    assert names and not ahead & set(names)
