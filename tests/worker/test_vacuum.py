"""A busy worker vacuums what it leaves behind; claims do not wait for it, and who may not do it goes on without."""

from __future__ import annotations

from urllib.parse import urlsplit

import psycopg
import pytest
from psycopg.sql import SQL, Identifier

from kept import App
from kept.signals import RunnerFailed, Signal, Signals
from kept.worker import vacuum
from kept.worker.vacuum import Vacuum
from support import aeventually, eventually

VACUUMS = "select vacuum_count from pg_stat_user_tables where schemaname = 'kept' and relname = 'job'"


def vacuums(conn: psycopg.Connection) -> int:
    return conn.execute(VACUUMS).fetchone()[0]


async def idle(it: Vacuum) -> None:
    await aeventually(lambda: it._task is None, what="the end of a vacuum")


@pytest.fixture
def told() -> list[Signal]:
    return []


@pytest.fixture
def vacuuming(database: str, told: list[Signal]) -> Vacuum:
    return Vacuum(database, "kept", "host:1", Signals(told.append))


async def test_a_worker_that_settled_many_jobs_vacuums_them(
    database: str, conn: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vacuum, "AFTER", 50)
    app = App(database)

    @app.task()
    async def send() -> None: ...

    async with app, app.worker():
        await app.aenqueue_many([send.bind() for _ in range(60)])
        await aeventually(lambda: vacuums(conn) == 1, what="a vacuum")


async def test_few_settled_jobs_are_left_to_the_server(vacuuming: Vacuum) -> None:
    vacuuming.look(vacuum.AFTER - 1)
    assert vacuuming._task is None


async def test_the_next_one_is_due_after_as_many_again(
    vacuuming: Vacuum, conn: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vacuum, "COST", 0)
    vacuuming.look(vacuum.AFTER)
    await idle(vacuuming)
    vacuuming.look(2 * vacuum.AFTER - 1)
    assert vacuuming._task is None
    vacuuming.look(2 * vacuum.AFTER)
    await idle(vacuuming)
    eventually(lambda: vacuums(conn) == 2, what="the second vacuum to be counted")


async def test_it_rests_for_twenty_times_what_it_took(vacuuming: Vacuum) -> None:
    vacuuming.look(vacuum.AFTER)
    await idle(vacuuming)
    vacuuming.look(9 * vacuum.AFTER)
    assert vacuuming._task is None, "a vacuum takes a millisecond at least"


async def test_a_role_that_may_not_vacuum_asks_once_and_is_not_told_of_as_a_failure(
    role: str, database: str, conn: psycopg.Connection, told: list[Signal], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vacuum, "COST", 0)
    conn.execute(SQL("alter role {} login").format(Identifier(role)))
    conn.execute(SQL("grant usage on schema kept to {0}").format(Identifier(role)))
    parts = urlsplit(database)
    url = parts._replace(netloc=f"{role}@{parts.netloc.partition('@')[2]}").geturl()
    it = Vacuum(url, "kept", "host:1", Signals(told.append))
    it.look(vacuum.AFTER)
    await idle(it)
    it.look(9 * vacuum.AFTER)
    assert it._task is None
    assert told == []
    assert vacuums(conn) == 0
    conn.execute(SQL("drop owned by {}").format(Identifier(role)))


async def test_whoever_is_at_it_already_is_not_waited_for(
    vacuuming: Vacuum, database: str, conn: psycopg.Connection, told: list[Signal], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vacuum, "COST", 0)
    with psycopg.connect(database) as other:
        other.execute("lock table kept.job in share update exclusive mode")
        vacuuming.look(vacuum.AFTER)
        await idle(vacuuming)
        assert vacuums(conn) == 0
    vacuuming.look(2 * vacuum.AFTER)
    await idle(vacuuming)
    eventually(lambda: vacuums(conn) == 1, what="a vacuum, once the other is gone")
    assert told == []


async def test_a_server_that_is_not_there_is_told_of_and_nothing_else(told: list[Signal]) -> None:
    it = Vacuum("postgresql://127.0.0.1:1/none", "kept", "host:1", Signals(told.append))
    it.look(vacuum.AFTER)
    await idle(it)
    (failure,) = told
    assert isinstance(failure, RunnerFailed)
    assert failure.runner == "vacuum"


async def test_a_worker_that_stops_does_not_wait_for_a_vacuum(vacuuming: Vacuum, told: list[Signal]) -> None:
    vacuuming.look(vacuum.AFTER)
    task = vacuuming._task
    await vacuuming.stop()
    assert task is not None
    assert task.done()
    assert told == []
