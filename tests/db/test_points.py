"""Crash points: armed by a file, hit once, and nothing at all where nobody asked for them."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from kept.db import migrate, points, tx
from kept.db.connect import Link
from kept.db.points import Points
from kept.db.queries import load
from kept.errors import Misconfigured
from kept.jobs import door
from kernel import add, live, rows, stores

SQL = load("kept.jobs")
REQUEST = door.Request(queue="mail", task="send", payload="{}")


@pytest.fixture
def armed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which places are armed, in this very process."""
    monkeypatch.setattr(points, "armed", Points(tmp_path))
    return tmp_path


def arm(folder: Path, place: str, way: str = "error", **where: str) -> None:
    (folder / place).write_text(json.dumps({"way": way, "where": where}))


def count(conn: psycopg.Connection) -> int:
    return rows(conn, "select count(*) as n from kept.job")[0]["n"]


def test_nothing_is_armed_unless_somebody_asked_for_it() -> None:
    assert points.armed is None


def test_a_folder_that_is_none_is_named_at_once() -> None:
    said = subprocess.run(
        [sys.executable, "-c", "import kept.db.points"],
        env={points.VARIABLE: "/nowhere"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert said.returncode == 1
    assert "KEPT_TEST_POINTS: '/nowhere' is not a folder; this variable is for tests of Kept only" in said.stderr
    with pytest.raises(Misconfigured):
        Points(Path("/nowhere"))


async def test_an_error_before_a_statement_means_that_it_was_not_sent(database: str, armed: Path) -> None:
    async with stores(database) as (store,):
        arm(armed, "before.jobs.register")
        with pytest.raises(psycopg.OperationalError, match=r"before jobs\.register"):
            await live(store)
        assert await store.link.rows("select count(*) from kept.worker") == [(0,)]
        await live(store)  # a place is hit once


async def test_an_error_after_a_statement_means_that_it_was_done_and_the_connection_is_gone(
    database: str, conn: psycopg.Connection, armed: Path
) -> None:
    async with stores(database) as (store,):
        arm(armed, "after.jobs.register")
        with pytest.raises(psycopg.OperationalError, match=r"after jobs\.register"):
            await live(store)
        assert store.link.conn.closed
    assert rows(conn, "select count(*) as n from kept.worker") == [{"n": 1}]
    assert [each.name.rpartition(".")[0] for each in armed.iterdir()] == ["hit.after.jobs.register"]


async def test_a_place_can_be_armed_for_certain_parameters(database: str, armed: Path) -> None:
    async with stores(database) as (store,):
        arm(armed, "before.jobs.wake", what="7:0")
        await store.wake("8:0")
        with pytest.raises(psycopg.OperationalError):
            await store.wake("7:0")


async def test_a_transaction_of_a_worker_is_undone_before_its_commit_and_stands_after_it(
    database: str, conn: psycopg.Connection, armed: Path
) -> None:
    add(conn)
    for place, left in (("before.some.commit", 1), ("after.some.commit", 0)):
        link = await Link.open(database)
        arm(armed, place)
        with pytest.raises(psycopg.OperationalError):
            async with link.transaction("some.commit"):
                await link.rows("delete from kept.job")
        assert count(conn) == left
        await link.close()


def test_an_operation_in_a_transaction_of_its_own_has_its_places_too(
    database: str, conn: psycopg.Connection, armed: Path
) -> None:
    places = ["before.jobs.enqueue_many", "after.jobs.enqueue_many", "before.tx.commit", "after.tx.commit"]
    for place, there in zip(places, (0, 0, 0, 1), strict=True):
        arm(armed, place)
        with psycopg.connect(database, autocommit=True) as own, pytest.raises(psycopg.OperationalError):
            tx.commit(own, door.enqueue_many(SQL, [REQUEST]))
        assert count(conn) == there


def test_a_killed_process_is_killed_by_itself_at_the_place(database: str, tmp_path: Path) -> None:
    arm(tmp_path, "before.tx.commit", "kill")
    code = f"""
import psycopg
from kept.db import tx
from kept.db.queries import load
from kept.jobs import door
with psycopg.connect({database!r}, autocommit=True) as conn:
    tx.commit(conn, door.enqueue_many(load("kept.jobs"), [door.Request(queue="mail", task="send", payload="{{}}")]))
"""
    ended = subprocess.run([sys.executable, "-c", code], env={points.VARIABLE: str(tmp_path)}, check=False)
    assert ended.returncode == -signal.SIGKILL


def test_a_migration_that_was_cut_off_is_whole_or_not_there(empty_database: str, armed: Path) -> None:
    known = [migrate.label(one) for one in migrate.migrations()]
    for when, there in (("before", 2), ("after", 3)):
        arm(armed, f"{when}.migration.{known[2]}")
        with psycopg.connect(empty_database, autocommit=True) as conn, pytest.raises(psycopg.OperationalError):
            migrate.apply(conn)
        with psycopg.connect(empty_database, autocommit=True) as conn:
            assert [migrate.label(one) for one in migrate.status(conn).applied] == known[:there]
