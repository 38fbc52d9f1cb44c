"""A worker's identity and the lease it lives by."""

from __future__ import annotations

import asyncio
import os
import platform
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from time import monotonic
from uuid import UUID, uuid4

import msgspec

from kept.jobs.store import Store
from kept.worker.board import Board, clock
from kept.worker.keeper import Orders

QUICK = 1.0  # seconds: a keeper that ends sooner is not started again before that
STARTING = 10.0  # seconds that a keeper may take to start on a busy machine
LOOK = 0.02  # seconds between looks whether it has
VIGIL = 3.0  # seconds that a keeper waits for the end of a backlog before it loads what it renews with
KEEPER = "from kept.worker.vigil import keep_vigil; keep_vigil({}, {}, {}); from kept.worker.keeper import main; main()"


@dataclass(slots=True, kw_only=True)
class Lease:
    """One identity: random, so that it cannot repeat; lost once, it is never used again."""

    database: str
    schema: str
    name: str
    queues: Sequence[str] | None
    concurrency: int
    batch: int
    declared: dict[str, str]
    schedules: dict[str, str] = field(default_factory=dict)
    seconds: float
    renew: float
    stall: float
    kept: bool = True  # by a keeper process; without one the lease simply lasts its seconds
    worker: UUID = field(default_factory=uuid4)
    board: Board = field(init=False)
    _gone: bool = False
    _keeper: subprocess.Popen[bytes] | None = None
    _keeper_since: float = 0.0
    _seen: tuple[int, int] = (0, 0)

    def __post_init__(self) -> None:
        # Prefetched jobs may be done before a slow step has written any of them.
        self.board = Board.create(self.concurrency + 4 * self.batch)

    async def begin(self, store: Store) -> None:
        """Register the identity and put a keeper beside it; a short lease is in its hands when this returns."""
        try:
            await self._register(store)
            self._start_keeper(vigil=self._vigil)
            await self._hold_until_kept(store)
        except BaseException:
            self.end(closed=True)  # nothing is in our name; a keeper left to itself would end this process one day
            raise

    async def _hold_until_kept(self, store: Store) -> None:
        """Hold a lease that may be shorter than its keeper takes to start. Nothing is in its name yet."""
        until = monotonic() + STARTING
        while self.kept and self.seconds < STARTING and not self.board.renewals and monotonic() < until:
            self.look_after_keeper()
            sent_at = clock()
            if self.board.renewed_age > self.renew and await store.renew(self.worker, self.seconds):
                self.board.held(sent_at)
            await asyncio.sleep(LOOK)

    @property
    def _vigil(self) -> float:
        """Seconds for which the first keeper has nothing to renew; a short lease is none to leave alone."""
        return min(VIGIL, self.renew / 2) if self.seconds >= STARTING + VIGIL else 0.0

    async def _register(self, store: Store) -> None:
        await store.register(
            self.worker,
            name=self.name,
            host=platform.node(),
            pid=os.getpid(),
            version=own_version(),
            queues=self.queues,
            concurrency=self.concurrency,
            declared=msgspec.json.encode(self.declared).decode(),
            schedules=msgspec.json.encode(self.schedules).decode(),
            lease=self.seconds,
        )

    @property
    def gone(self) -> bool:
        """Whether we must stop acting under this identity: told so, or too long without a renewal to be sure.

        Once it is gone it stays so, even if the keeper gets through again: handlers have been told to stop by then.
        """
        self._gone = self._gone or self.board.fenced or self.board.renewed_age > self.seconds
        return self._gone

    @property
    def secure(self) -> bool:
        """Whether to begin anything under it: what is begun under a lease that then runs out is begun again elsewhere.

        It is not when a renewal is overdue by half of the time that was left for it.
        """
        return not self.kept or self.board.renewed_age <= (self.renew + self.seconds) / 2

    def look_after_keeper(self) -> int | None:
        """Start the keeper again if it ended on its own; its exit code then, else None."""
        if self._keeper is None or self._keeper.poll() is None or self.board.fenced:
            return None
        if monotonic() < self._keeper_since + QUICK:
            return None  # one that cannot live is not started ten times a second
        code = self._keeper.returncode
        self._start_keeper()
        return code

    def news(self) -> tuple[int, int]:
        """(renewals, failed renewals) since the last call."""
        now = (self.board.renewals, self.board.failures)
        seen, self._seen = self._seen, now
        return now[0] - seen[0], now[1] - seen[1]

    def end(self, *, closed: bool) -> None:
        """Stop the keeper if *closed*: nothing is in our name any more. Else it stays until it has given that back."""
        if closed:
            self.board.say_closed()
        else:
            self.board.say_left()
        if self._keeper is not None and closed:
            self._keeper.kill()
            self._keeper.wait()
        elif self._keeper is not None:  # it outlives us here; somebody has to take note of its end
            threading.Thread(target=self._keeper.wait, daemon=True).start()
        self.board.close()

    def _start_keeper(self, vigil: float = 0.0) -> None:
        if not self.kept:
            return
        orders = Orders(
            database=self.database,
            schema=self.schema,
            worker=self.worker,
            name=self.name,
            parent=os.getpid(),
            board=self.board.fd,
            slots=self.board.slots,
            lease=self.seconds,
            renew=self.renew,
            stall=self.stall,
        )
        self._keeper_since = monotonic()
        self._keeper = subprocess.Popen(
            # Not from here: what lies in the working directory is the user's, and may be called like a part of Python.
            [sys.executable, "-P", "-c", KEEPER.format(orders.parent, orders.board, vigil)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            pass_fds=[self.board.fd],
        )
        assert self._keeper.stdin is not None
        # The pipe is closed at once: the database's password is in it. A line, so that nobody can hold it open.
        self._keeper.stdin.write(msgspec.json.encode(orders) + b"\n")
        self._keeper.stdin.close()


def own_version() -> str:
    """The version of the installed distribution."""
    try:
        return version("kept")
    except PackageNotFoundError:
        return "unknown"
