"""Connections of our own for calls without ``tx=``: opened on first use, per process and per event loop.

Not a pool with workers of its own: nothing here runs in the background, so nothing is left behind when a
test's event loop ends or a server forks.
"""

from __future__ import annotations

import asyncio
import os
import select
import threading
import weakref
from collections import deque
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from time import monotonic

import psycopg
from psycopg.rows import TupleRow

from kept.db.connect import connect, connect_sync

MOST_CONNECTIONS = 10
MOST_IDLE = 4
STALE_AFTER = 1.0  # seconds: a connection idle for longer is asked whether it still lives

Conn = psycopg.Connection[TupleRow]
AConn = psycopg.AsyncConnection[TupleRow]
Loops = weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, "_LoopPool"]


class SyncPool:
    """At most ten connections at a time, shared by the threads of one process."""

    def __init__(self, database: str) -> None:
        self._database = database
        self._start_over()

    def _start_over(self) -> None:
        self._inherited = getattr(self, "_idle", None)  # not ours to close, so not to be dropped either
        self._pid = os.getpid()
        self._idle: deque[tuple[Conn, float]] = deque()
        self._room = threading.BoundedSemaphore(MOST_CONNECTIONS)
        weakref.finalize(self, _hang_up, self._idle, self._pid)

    @contextmanager
    def connection(self) -> Iterator[Conn]:
        """One autocommit connection, ours while the block runs."""
        if self._pid != os.getpid():
            self._start_over()  # after a fork: the parent's sockets are not ours to touch
        room = self._room
        with room:
            conn = self._borrow()
            try:
                yield conn
            finally:
                self._give_back(conn)

    def _borrow(self) -> Conn:
        while self._idle:
            conn, since = self._idle.pop()
            if _is_fresh(conn, since) or _answers(conn):
                return conn
            conn.close()
        return connect_sync(self._database)

    def _give_back(self, conn: Conn) -> None:
        idle = psycopg.pq.TransactionStatus.IDLE
        if not conn.closed and conn.info.transaction_status == idle and len(self._idle) < MOST_IDLE:
            self._idle.append((conn, monotonic()))
        else:
            conn.close()

    def close(self) -> None:
        """Close what is idle; the pool can be used again."""
        while self._idle:
            self._idle.pop()[0].close()


class AsyncPool:
    """The same for coroutines; each event loop has connections of its own."""

    def __init__(self, database: str) -> None:
        self._database = database
        self._start_over()

    def _start_over(self) -> None:
        self._inherited = getattr(self, "_loops", None)
        self._pid = os.getpid()
        self._loops: Loops = weakref.WeakKeyDictionary()

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[AConn]:
        """One autocommit connection, ours while the block runs."""
        pool = self._here()
        async with pool.room:
            conn = await pool.borrow(self._database)
            try:
                yield conn
            finally:
                await pool.give_back(conn)

    async def close(self) -> None:
        """Close what is idle on the running loop."""
        await self._here().close()

    def _here(self) -> _LoopPool:
        if self._pid != os.getpid():
            self._start_over()
        loop = asyncio.get_running_loop()
        if loop not in self._loops:
            # A loop that ended without close(): nobody can use its connections, and they may keep it alive.
            for ended in [each for each in self._loops if each.is_closed()]:
                self._loops.pop(ended).hang_up()
            self._loops[loop] = _LoopPool()
        return self._loops[loop]


class _LoopPool:
    def __init__(self) -> None:
        self.room = asyncio.BoundedSemaphore(MOST_CONNECTIONS)
        self._idle: deque[tuple[AConn, float]] = deque()
        self.hang_up = weakref.finalize(self, _hang_up, self._idle, os.getpid())

    async def borrow(self, database: str) -> AConn:
        while self._idle:
            conn, since = self._idle.pop()
            if _is_fresh(conn, since) or await _aanswers(conn):
                return conn
            await conn.close()
        return await connect(database)

    async def give_back(self, conn: AConn) -> None:
        idle = psycopg.pq.TransactionStatus.IDLE
        if not conn.closed and conn.info.transaction_status == idle and len(self._idle) < MOST_IDLE:
            self._idle.append((conn, monotonic()))
        else:
            await conn.close()

    async def close(self) -> None:
        while self._idle:
            await self._idle.pop()[0].close()


def _hang_up(idle: deque[tuple[Conn, float]] | deque[tuple[AConn, float]], pid: int) -> None:
    """Close what a pool left behind, without a loop; in a forked child the sockets are its parent's."""
    while idle and os.getpid() == pid:
        conn, _ = idle.pop()
        conn.pgconn.finish()


def _is_fresh(conn: Conn | AConn, since: float) -> bool:
    """Used a moment ago, and the server has said nothing since: what it says unasked is mostly good-bye."""
    if conn.closed or monotonic() - since >= STALE_AFTER:
        return False
    poll = select.poll()
    poll.register(conn.fileno(), select.POLLIN)
    return not poll.poll(0)


def _answers(conn: Conn) -> bool:
    try:
        conn.execute("select 1")
    except psycopg.Error:
        return False
    return True


async def _aanswers(conn: AConn) -> bool:
    try:
        await conn.execute("select 1")
    except psycopg.Error:
        return False
    return True
