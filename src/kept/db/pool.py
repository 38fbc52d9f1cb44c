"""Connections of our own for calls without ``tx=``: opened on first use, per process and per event loop.

Not a pool with workers of its own: nothing here runs in the background, so nothing is left behind when a test's
event loop ends or a server forks.
"""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from collections import deque
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from time import monotonic

import psycopg
from psycopg.rows import TupleRow

from kept.db.connect import conninfo, unavailable

MOST_CONNECTIONS = 10
MOST_IDLE = 4
STALE_AFTER = 1.0  # seconds: a connection idle for longer is asked whether it still lives

Conn = psycopg.Connection[TupleRow]
AConn = psycopg.AsyncConnection[TupleRow]


class SyncPool:
    """At most ten connections at a time, shared by the threads of one process."""

    def __init__(self, database: str) -> None:
        self._database = database
        self._start_over()

    def _start_over(self) -> None:
        self._pid = os.getpid()
        self._idle: deque[tuple[Conn, float]] = deque()
        self._room = threading.BoundedSemaphore(MOST_CONNECTIONS)

    @contextmanager
    def connection(self) -> Iterator[Conn]:
        """One autocommit connection, ours while the block runs."""
        if self._pid != os.getpid():
            self._start_over()  # after a fork: the parent's sockets are not ours to touch
        room = self._room
        with room:
            try:
                conn = self._borrow()
            except psycopg.OperationalError as error:
                raise unavailable(error) from None
            try:
                yield conn
            finally:
                self._give_back(conn)

    def _borrow(self) -> Conn:
        while self._idle:
            conn, since = self._idle.pop()
            if monotonic() - since < STALE_AFTER or _answers(conn):
                return conn
            conn.close()
        return psycopg.Connection.connect(conninfo(self._database), autocommit=True)

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
        self._pid = os.getpid()
        self._loops: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _LoopPool] = weakref.WeakKeyDictionary()

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[AConn]:
        """One autocommit connection, ours while the block runs."""
        pool = self._here()
        async with pool.room:
            try:
                conn = await pool.borrow(self._database)
            except psycopg.OperationalError as error:
                raise unavailable(error) from None
            try:
                yield conn
            finally:
                await pool.give_back(conn)

    async def close(self) -> None:
        """Close what is idle on the running loop."""
        await self._here().close()

    def _here(self) -> _LoopPool:
        if self._pid != os.getpid():
            self._pid = os.getpid()
            self._loops = weakref.WeakKeyDictionary()
        return self._loops.setdefault(asyncio.get_running_loop(), _LoopPool())


class _LoopPool:
    def __init__(self) -> None:
        self.room = asyncio.BoundedSemaphore(MOST_CONNECTIONS)
        self._idle: deque[tuple[AConn, float]] = deque()

    async def borrow(self, database: str) -> AConn:
        while self._idle:
            conn, since = self._idle.pop()
            if monotonic() - since < STALE_AFTER or await _aanswers(conn):
                return conn
            await conn.close()
        return await psycopg.AsyncConnection.connect(conninfo(database), autocommit=True)

    async def give_back(self, conn: AConn) -> None:
        idle = psycopg.pq.TransactionStatus.IDLE
        if not conn.closed and conn.info.transaction_status == idle and len(self._idle) < MOST_IDLE:
            self._idle.append((conn, monotonic()))
        else:
            await conn.close()

    async def close(self) -> None:
        while self._idle:
            await self._idle.pop()[0].close()


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
