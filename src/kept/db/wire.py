"""Statements as the hot path sends them: prepared once, parameters in text, results in binary.

Not through the driver's cursors: what they do for each statement takes 0.3 ms on a worker that has slept, a third
of the time that a job waits for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import LiteralString, NamedTuple

import psycopg
from psycopg import pq
from psycopg.adapt import Transformer
from psycopg.generators import execute
from psycopg.rows import TupleRow

from kept.db import points

EARLY = "wire.early"  # a statement that is sent before anybody can wait for its answer
Connection = psycopg.AsyncConnection[TupleRow]
Values = Sequence[bytes | None]


class Reply:
    """What the server answered, as it came."""

    def __init__(self, conn: Connection, result: pq.abc.PGresult) -> None:
        self._conn = conn
        self._result = result
        self.count = result.ntuples

    def rows(self) -> list[TupleRow]:
        """Read it."""
        reader = Transformer(self._conn)
        reader.set_pgresult(self._result)
        return reader.load_rows(0, self.count, tuple)


class Sent:
    """A statement that was sent before anybody could wait for its answer; until then the connection is its own."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._reply: Reply | None = None
        self._waiting = True

    async def reply(self) -> Reply:
        """The answer: at once, if somebody else has waited for it."""
        if self._waiting:
            try:
                self._reply = await self._wire.receive_early()
            finally:
                self._waiting = False
                self._wire.let_go(self)
        if self._reply is None:
            raise psycopg.OperationalError("the answer to a statement was lost")
        return self._reply


class Ready(NamedTuple):
    """A statement that can be sent without further ado."""

    wire: Wire
    name: bytes
    values: Values

    def send(self) -> Sent | None:
        """Send it; None: the connection is in use."""
        return self.wire.send(self)


class Wire:
    """One connection's prepared statements."""

    def __init__(self, conn: Connection) -> None:
        self._conn = conn
        self._encoding = "utf-8" if conn.info.encoding == "ascii" else conn.info.encoding
        self._names: dict[str, bytes] = {}
        self._sent: Sent | None = None

    async def ask(self, text: LiteralString, values: Sequence[object]) -> Reply:
        """Send a statement and wait for the answer."""
        encoded = self._encode(values)
        if self._sent is not None:
            await self._sent.reply()
        async with self._conn.lock:
            self._conn.pgconn.send_query_prepared(
                self._names.get(text) or await self._prepare(text), encoded, result_format=pq.Format.BINARY
            )
            return await self.receive()

    def made_up(self, text: LiteralString, values: Sequence[object]) -> Ready | None:
        """A statement to be sent later; None if the server does not know it yet."""
        name = self._names.get(text)
        return None if name is None else Ready(self, name, self._encode(values))

    def send(self, ready: Ready) -> Sent | None:
        """Send a statement now; None if the connection is in use."""
        points.before(EARLY)
        wire = self._conn.pgconn
        if not _taken_at_once(self._conn):
            return None
        try:
            wire.send_query_prepared(ready.name, ready.values, result_format=pq.Format.BINARY)
            wire.flush()
        except BaseException:
            self._conn.lock.release()
            raise
        self._sent = Sent(self)
        return self._sent

    async def receive(self) -> Reply:
        """The answer to what was sent."""
        results = await self._conn.wait(execute(self._conn.pgconn))
        for result in results:
            if result.status == pq.ExecStatus.FATAL_ERROR:
                raise psycopg.errors.error_from_result(result, encoding=self._encoding)
        return Reply(self._conn, results[-1])

    async def receive_early(self) -> Reply:
        """The answer to what was sent without waiting."""
        reply = await self.receive()
        points.after(EARLY, self._conn.pgconn)
        return reply

    def let_go(self, sent: Sent) -> None:
        """The connection is anybody's again."""
        if self._sent is sent:
            self._sent = None
            self._conn.lock.release()

    async def _prepare(self, text: LiteralString) -> bytes:
        name = f"kept_{len(self._names)}".encode()
        self._conn.pgconn.send_prepare(name, text.encode(self._encoding))
        await self.receive()
        self._names[text] = name
        return name

    def _encode(self, values: Sequence[object]) -> Values:
        return [self._encoded(value) for value in values]

    def _encoded(self, value: object) -> bytes | None:
        if value is None:
            return None
        encoded = str(value).encode(self._encoding)
        if b"\0" in encoded:  # it would end there
            raise psycopg.DataError("PostgreSQL text fields cannot contain NUL (0x00) bytes")
        return encoded


def _taken_at_once(conn: Connection) -> bool:
    """Take the connection's lock, unless that would mean to wait."""
    taking = conn.lock.acquire()
    try:
        taking.send(None)
    except StopIteration:
        return True
    taking.close()
    return False
