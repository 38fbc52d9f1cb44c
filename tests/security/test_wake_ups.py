"""Anybody who may connect to the database may NOTIFY: whatever a wake-up says, workers go on."""

from __future__ import annotations

import psycopg
import pytest

from kept import App
from kept.config import Settings
from kept.signals import ConnectionLost, RunnerFailed, Signal
from support import aeventually

# "%" stands for a lane that there is.
FORGED = [
    *("x", ":", "%", "%:", ":1", "%:2:3", "-1:-1", "0:0", "99999999:0", "%:1001", "%:-32769", "%:32768"),
    *("%:2147483648", "%:-2147483649", f"%:{10**30}", f"{10**30}:1", "%:" + "9" * 5000, "%: 1", "%:\u0661", "%:1_000"),
    *("\x1b[31m", "'; drop table kept.job; --", "x" * 7999),
]


def done(conn: psycopg.Connection) -> int:
    return conn.execute("select count(*) from kept.history where state = 'done'").fetchone()[0]


@pytest.mark.parametrize("asleep", [True, False])
async def test_forged_wake_ups_harm_no_worker(database: str, conn: psycopg.Connection, asleep: bool) -> None:
    app = App(database, settings=Settings(grace="1s", idle_max="1s" if asleep else "5ms"))
    bad: list[Signal] = []
    app.signals.subscribe(lambda told: bad.append(told) if isinstance(told, RunnerFailed | ConnectionLost) else None)

    @app.task()
    async def note(number: int) -> None: ...

    async with app.worker():
        (lane,) = conn.execute("select id from kept.lane where task = 'note'").fetchone()
        for number, payload in enumerate(each.replace("%", str(lane)) for each in FORGED):
            conn.execute("select pg_notify('kept:wake', %s)", [payload])
            await note.aenqueue(number)
            await aeventually(lambda wanted=number + 1: done(conn) == wanted, what=f"a job after {payload[:40]!r}")
    await app.aclose()
    assert bad == []


async def test_a_forged_priority_does_not_keep_a_worker_from_its_backlog(
    database: str, conn: psycopg.Connection
) -> None:
    app = App(database, settings=Settings(grace="1s", concurrency=2, batch=2))

    @app.task()
    async def note(number: int) -> None: ...

    async with app.worker():
        (lane,) = conn.execute("select id from kept.lane where task = 'note'").fetchone()
        await app.aenqueue_many([note.bind(number) for number in range(400)])

        def forge() -> bool:
            conn.execute("select pg_notify('kept:wake', %s)", [f"{lane}:{2**31}"])
            return done(conn) == 400

        await aeventually(forge, 5, what="400 jobs while somebody forges wake-ups")
    await app.aclose()
