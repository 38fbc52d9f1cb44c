"""The caller's own transaction: recognised, checked, and used for one operation.

An operation is written once, as a generator that yields statements, or rows to be copied, and receives rows
(:data:`Steps`); :func:`run` and :func:`arun` drive it over a connection of either colour. Connections that are not
psycopg's have adapters in :mod:`kept.db.foreign`.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from typing import Any, LiteralString, NamedTuple, TypeVar

import psycopg
from psycopg.pq import PipelineStatus, TransactionStatus
from psycopg.rows import tuple_row

from kept.db import points
from kept.db.connect import Params, numbered
from kept.db.foreign import adapter, kinds, words
from kept.db.unfit import in_our_words

T = TypeVar("T")
Rows = Sequence[Sequence[Any]]
COMMIT = "tx.commit"  # of an operation in a transaction of our own


class Copy(NamedTuple):
    """Rows for COPY … FROM STDIN. The answer is one row; none if this connection cannot copy now."""

    statement: LiteralString
    data: Iterable[bytes]


Steps = Generator[tuple[LiteralString, Params] | Copy, Rows, T]

SyncConnection = psycopg.Connection[Any]
AsyncConnection = psycopg.AsyncConnection[Any]


def sync_tx(tx: object) -> SyncConnection | adapter.Sync:
    """*tx* as a sync connection with a usable transaction, or :class:`Refused` with the reason."""
    if isinstance(tx, psycopg.Connection):
        _check_state(tx)
        return tx
    if isinstance(tx, psycopg.AsyncConnection):
        raise words.asynchronous()
    return kinds.sync(tx)


def async_tx(tx: object) -> AsyncConnection | adapter.Async:
    """*tx* as an async connection with a usable transaction, or :class:`Refused` with the reason."""
    if isinstance(tx, psycopg.AsyncConnection):
        _check_state(tx)
        return tx
    if isinstance(tx, psycopg.Connection):
        raise words.synchronous()
    return kinds.asynchronous(tx)


def run(conn: SyncConnection | adapter.Sync, steps: Steps[T]) -> T:
    """Drive *steps* over a sync connection."""
    if not isinstance(conn, psycopg.Connection):
        return _run_foreign(conn, steps)
    # A cursor of our own class: the caller's connection may be set up to return dicts. Nothing of it is on the server,
    # so there is nothing to close.
    cursor = psycopg.RawCursor(conn, row_factory=tuple_row)
    try:
        what = next(steps)
        while True:
            points.before_statement(what[0])
            answer = _answer(cursor, what)
            points.after_statement(what[0], conn.pgconn)
            what = steps.send(answer)
    except StopIteration as done:
        result: T = done.value
        return result
    except psycopg.Error as error:
        ours = in_our_words(error, conn.info)
        if ours is None:
            raise
        raise ours from error


async def arun(conn: AsyncConnection | adapter.Async, steps: Steps[T]) -> T:
    """Drive *steps* over an async connection."""
    if not isinstance(conn, psycopg.AsyncConnection):
        return await _arun_foreign(conn, steps)
    async with psycopg.AsyncRawCursor(conn, row_factory=tuple_row) as cursor:
        try:
            what = next(steps)
            while True:
                points.before_statement(what[0])
                answer = await _aanswer(cursor, what)
                points.after_statement(what[0], conn.pgconn)
                what = steps.send(answer)
        except StopIteration as done:
            result: T = done.value
            return result
        except psycopg.Error as error:
            ours = in_our_words(error, conn.info)
            if ours is None:
                raise
            raise ours from error


def commit(conn: SyncConnection, steps: Steps[T]) -> T:
    """Drive *steps* in a transaction of their own, which commits."""
    with conn.transaction():
        done = run(conn, steps)
        points.before(COMMIT)
    points.after(COMMIT, conn.pgconn)
    return done


async def acommit(conn: AsyncConnection, steps: Steps[T]) -> T:
    """:func:`commit` over an async connection."""
    async with conn.transaction():
        done = await arun(conn, steps)
        points.before(COMMIT)
    points.after(COMMIT, conn.pgconn)
    return done


def _answer(cursor: psycopg.RawCursor[Any], what: tuple[LiteralString, Params] | Copy) -> Rows:
    if isinstance(what, Copy):
        if not _can_copy(cursor):
            return []
        with cursor.copy(what.statement) as copy:
            for data in what.data:
                copy.write(data)
        return [()]
    text, names = numbered(what[0])
    cursor.execute(text, [what[1][name] for name in names])
    return _fetched(cursor)


async def _aanswer(cursor: psycopg.AsyncRawCursor[Any], what: tuple[LiteralString, Params] | Copy) -> Rows:
    if isinstance(what, Copy):
        if not _can_copy(cursor):
            return []
        async with cursor.copy(what.statement) as copy:
            for data in what.data:
                await copy.write(data)
        return [()]
    text, names = numbered(what[0])
    await cursor.execute(text, [what[1][name] for name in names])
    return await _afetched(cursor)


def _can_copy(cursor: psycopg.RawCursor[Any] | psycopg.AsyncRawCursor[Any]) -> bool:
    conn = cursor.connection
    return conn.pgconn.pipeline_status == PipelineStatus.OFF and conn.info.encoding == "utf-8"


# Not by asking for cursor.description: in a pipeline there is none before somebody fetches.


def _fetched(cursor: psycopg.RawCursor[Any]) -> Rows:
    try:
        return cursor.fetchall()
    except psycopg.ProgrammingError as error:
        return _no_rows(error)


async def _afetched(cursor: psycopg.AsyncRawCursor[Any]) -> Rows:
    try:
        return await cursor.fetchall()
    except psycopg.ProgrammingError as error:
        return _no_rows(error)


def _no_rows(error: psycopg.ProgrammingError) -> Rows:
    """The driver says that there is nothing to fetch; what the server says has a code."""
    if error.sqlstate is not None:
        raise error
    return []


def _check_state(conn: SyncConnection | AsyncConnection) -> None:
    if conn.closed:
        raise words.closed()
    status = conn.pgconn.transaction_status
    if status == TransactionStatus.INERROR:
        raise words.aborted()
    if conn.autocommit and status == TransactionStatus.IDLE:
        raise words.autocommit("open one with `with conn.transaction():`")


# Over a foreign connection nothing is copied: an operation has another statement for that.


def _run_foreign(conn: adapter.Sync, steps: Steps[T]) -> T:
    with adapter.in_our_words(conn.server):
        try:
            what = next(steps)
            while True:
                what = steps.send([] if isinstance(what, Copy) else conn.rows(*what))
        except StopIteration as done:
            result: T = done.value
            return result


async def _arun_foreign(conn: adapter.Async, steps: Steps[T]) -> T:
    with adapter.in_our_words(conn.server):
        try:
            what = next(steps)
            while True:
                what = steps.send([] if isinstance(what, Copy) else await conn.rows(*what))
        except StopIteration as done:
            result: T = done.value
            return result
