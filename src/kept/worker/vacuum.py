"""Vacuums the jobs that a busy worker settled.

The server's own vacuum comes once a minute. By then a worker that settles 70,000 jobs a second has left four million
dead rows behind: the table has grown to gigabytes, every look below the floors passes by all of them, and the vacuum
takes a processor for ten seconds. The dead of one second are gone in 20 ms, and their room is used again.
"""

from __future__ import annotations

import asyncio
from time import monotonic

from psycopg.errors import Diagnostic

from kept.db.connect import connect
from kept.db.queries import load
from kept.jobs.text import message_of
from kept.signals import RunnerFailed, Signals

AFTER = 100_000  # jobs settled by this worker; with fewer, the server's own vacuum is in time
COST = 20  # and it rests for so many times what the last one took: a snapshot held open makes them useless and slow
PATIENCE = 3.0  # seconds: a migration that wants the table waits for five, and nobody ends a vacuum for it
REFUSED = 3600.0  # seconds before a role that may not vacuum asks again
ENDING = 1.0  # seconds for a vacuum to end when its worker does; the server goes on without us
BUSY = "55P03"  # somebody else is at it; whatever else the server warns of, it is as well not to insist


class Vacuum:
    """One worker's share of it, on a connection that is there only meanwhile: claims never wait for it."""

    def __init__(self, database: str, schema: str, name: str, signals: Signals) -> None:
        self._database = database
        self._sql = load("kept.jobs", schema)
        self._name = name
        self._signals = signals
        self._refused = False
        self._settled = 0  # when it last began
        self._next_at = 0.0
        self._task: asyncio.Task[None] | None = None

    def look(self, settled: int) -> None:
        """Begin if it is time to; *settled* is how many jobs this worker has settled so far."""
        if self._task is None and settled - self._settled >= AFTER and monotonic() >= self._next_at:
            self._settled = settled
            self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Leave the rest to the server."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task], timeout=ENDING)

    async def _run(self) -> None:
        began = monotonic()
        try:
            async with asyncio.timeout(PATIENCE):
                await self._vacuum()
        except Exception as error:  # noqa: BLE001  # nobody needs it: it saves time
            told = f"{type(error).__name__}: {message_of(error)}"
            self._signals.report(RunnerFailed(runner="vacuum", error=told))
        finally:
            self._next_at = monotonic() + (REFUSED if self._refused else COST * (monotonic() - began))
            self._task, self._refused = None, False

    async def _vacuum(self) -> None:
        conn = await connect(self._database, name=f"kept vacuum {self._name}"[:63])
        async with conn:
            conn.add_notice_handler(self._hear)
            await conn.execute(self._sql["vacuum"])

    def _hear(self, notice: Diagnostic) -> None:
        """Only who owns the table or the database may vacuum it, or was granted MAINTAIN; others need not ask often."""
        if notice.sqlstate != BUSY:
            self._refused = True
