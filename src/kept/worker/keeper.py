"""The keeper: a small process that renews its worker's lease and gives it back when the worker is dead.

A process of its own, because a handler may block the event loop or hold the GIL for minutes and must not lose its
lease for that (promise 7); and because somebody has to be left to tell, within a moment, that a worker was killed
and which of its jobs had started (promises 5 and 6).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from pathlib import Path
from time import monotonic
from uuid import UUID

import msgspec
import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from kept.db.connect import Link
from kept.errors import Unavailable
from kept.jobs.reclaim import hand_back_with_word
from kept.jobs.store import Store
from kept.signals import ReclaimReason
from kept.worker.board import Board, clock

LOOK = 0.2  # seconds between looks at the parent where the kernel cannot tell us
RETRY = 0.5  # seconds before a renewal that failed is sent again
PATIENCE = 1.0  # seconds for a renewal, at least
HANDING_BACK = 10.0  # seconds for a hand-back, at least: it may have to find its jobs among millions
LEAST_CONNECT, MOST_CONNECT = 2.0, 130.0  # seconds: the driver takes no shorter limit, and this one for none at all


class Orders(msgspec.Struct, frozen=True, kw_only=True):
    """What the worker tells its keeper, once, over a pipe that is closed at once."""

    database: str
    schema: str
    worker: UUID
    name: str
    parent: int
    board: int
    slots: int
    lease: float
    renew: float
    stall: float


class Keeper:
    """Watches one worker process on behalf of one identity."""

    def __init__(self, orders: Orders) -> None:
        self.orders = orders
        self.board = Board(orders.board, orders.slots)
        self._gone = asyncio.Event()
        self._watched_from = clock()  # without a break: a worker that is stopped, or we ourselves, cannot beat
        self._link: Link | None = None
        self._database = _impatient(orders.database, orders.lease)
        # Connecting takes a time of its own: the first of several hosts may be dead, and not even refuse.
        self._patience = PATIENCE + 2 * _longest_connect(self._database)

    async def run(self) -> None:
        """Renew until the worker is gone or fenced."""
        self._watch_parent()
        if os.getppid() != self.orders.parent:
            self._gone.set()
        while not (self._gone.is_set() or self.board.left):
            if self.board.closed:
                return
            wait = await self._renew()
            if self.board.fenced:
                return
            await self._wait(wait)
        if not self.board.closed:
            await self._hand_back()

    async def _wait(self, seconds: float) -> None:
        """Until the worker is gone, or for so long."""
        began = clock()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._gone.wait(), seconds)
        self._mind_a_break(began, seconds)

    def _mind_a_break(self, began: int, seconds: float) -> None:
        """If a wait took much longer than it should, we were stopped, and perhaps our worker as well."""
        if clock() - began > (seconds + PATIENCE) * 1e9:
            self._watched_from = clock()

    async def _renew(self) -> float:
        """Renew if the worker deserves it; returns the seconds until the next try."""
        if _is_stopped(self.orders.parent):
            self._watched_from = clock()
            return LOOK  # frozen: it may thaw in an hour and must not find its lease alive
        if min(self.board.beat_age, (clock() - self._watched_from) / 1e9) > self.orders.stall:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.orders.parent, signal.SIGKILL)
            return LOOK
        sent_at = clock()
        try:
            async with asyncio.timeout(self._patience):
                store = await self._store()
            # A connection that swallows what we say may be the only one that does: a new one is soon tried.
            async with asyncio.timeout(max(PATIENCE, self.orders.lease / 4)):
                alive = await store.renew(self.orders.worker, self.orders.lease)
        except (Unavailable, psycopg.Error, OSError):
            self.board.failed()
            await self._drop_link()
            return min(RETRY, self.orders.renew)
        if alive:
            self.board.renewed(sent_at)
        else:
            self.board.say_fenced()
        return self.orders.renew

    async def _hand_back(self) -> None:
        """Give everything back at once; keep trying for as long as the lease could last."""
        until = monotonic() + self.orders.lease
        reason: ReclaimReason = "handed_back" if self.board.left else "worker_died"
        while True:
            try:
                async with asyncio.timeout(self._patience):
                    store, orders = await self._store(), self.orders
                # As for a renewal: the server's side of this connection may be gone, and a new one would get through.
                async with asyncio.timeout(max(HANDING_BACK, self.orders.lease / 4)):
                    await hand_back_with_word(store, orders.worker, orders.name, self.board.started, reason)
            except (Unavailable, psycopg.Error, OSError):
                await self._drop_link()
                if monotonic() > until:
                    return  # whoever scans for expired leases has seen it by now
                await asyncio.sleep(RETRY)
            else:
                return

    async def _store(self) -> Store:
        if self._link is None:
            self._link = await Link.open(self._database, name=f"kept keeper {self.orders.name}"[:63])
        return Store(self._link, self.orders.schema)

    async def _drop_link(self) -> None:
        if self._link is not None:
            link, self._link = self._link, None
            with contextlib.suppress(Exception):
                await link.close()

    def _watch_parent(self) -> None:
        loop = asyncio.get_running_loop()
        with contextlib.suppress(AttributeError, OSError):  # a kernel without pidfd: look now and then
            descriptor = os.pidfd_open(self.orders.parent)
            loop.add_reader(descriptor, self._parent_ended, descriptor)
        loop.create_task(self._look_for_parent())  # noqa: RUF006  # lives as long as the loop

    def _parent_ended(self, descriptor: int) -> None:
        asyncio.get_running_loop().remove_reader(descriptor)
        self._gone.set()

    async def _look_for_parent(self) -> None:
        while os.getppid() == self.orders.parent and not self.board.left:  # nothing tells us of it
            began = clock()
            await asyncio.sleep(LOOK)
            self._mind_a_break(began, LOOK)
        self._gone.set()


def _impatient(database: str, lease: float) -> str:
    """*database* with a limit for each host that lets a lease outlive a dead one, unless it says a limit itself."""
    if "connect_timeout" in conninfo_to_dict(database):
        return database
    return make_conninfo(database, connect_timeout=int(min(10.0, max(LEAST_CONNECT, lease / 8))))


def _longest_connect(database: str) -> float:
    """Seconds it may take to try every host once."""
    given = conninfo_to_dict(database)
    hosts = str(given.get("host") or given.get("hostaddr") or "").split(",")
    limit = float(given.get("connect_timeout") or 0.0)
    return len(hosts) * (max(LEAST_CONNECT, limit) if limit > 0 else MOST_CONNECT)


def _is_stopped(pid: int) -> bool:
    """Whether the process is stopped by a signal or a debugger; where /proc is not, nobody is."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in ("T", "t")
    return False


def main() -> None:
    """Entry point of the keeper process, after its vigil."""
    orders = msgspec.json.decode(sys.stdin.buffer.readline(), type=Orders)
    sys.stdin.close()
    asyncio.run(Keeper(orders).run())
