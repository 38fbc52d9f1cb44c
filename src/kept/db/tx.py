"""The caller's own transaction: recognised, checked, and used for one operation.

An operation is written once, as a generator that yields statements and receives rows (:data:`Steps`);
:func:`run` and :func:`arun` drive it over a connection of either colour.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any, LiteralString, TypeVar

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from kept.db.connect import Params
from kept.db.unfit import in_our_words
from kept.errors import Refused

T = TypeVar("T")
Rows = Sequence[Sequence[Any]]
Steps = Generator[tuple[LiteralString, Params], Rows, T]

SyncConnection = psycopg.Connection[Any]
AsyncConnection = psycopg.AsyncConnection[Any]


def sync_tx(tx: object) -> SyncConnection:
    """*tx* as a sync connection with a usable transaction, or :class:`Refused` with the reason."""
    if isinstance(tx, psycopg.AsyncConnection):
        raise Refused("tx: this is an async connection; call aenqueue (await …) with it", field="tx")
    if not isinstance(tx, psycopg.Connection):
        raise _foreign(tx)
    _check_state(tx)
    return tx


def async_tx(tx: object) -> AsyncConnection:
    """*tx* as an async connection with a usable transaction, or :class:`Refused` with the reason."""
    if isinstance(tx, psycopg.Connection):
        raise Refused("tx: this is a sync connection; call enqueue (without await) with it", field="tx")
    if not isinstance(tx, psycopg.AsyncConnection):
        raise _foreign(tx)
    _check_state(tx)
    return tx


def run(conn: SyncConnection, steps: Steps[T]) -> T:
    """Drive *steps* over a sync connection."""
    # A cursor of our own class: the caller's connection may be set up to return dicts.
    with psycopg.Cursor(conn, row_factory=tuple_row) as cursor:
        try:
            query, params = next(steps)
            while True:
                cursor.execute(query, params)
                query, params = steps.send(_fetched(cursor))
        except StopIteration as done:
            result: T = done.value
            return result
        except psycopg.Error as error:
            ours = in_our_words(error, conn.info)
            if ours is None:
                raise
            raise ours from error


async def arun(conn: AsyncConnection, steps: Steps[T]) -> T:
    """Drive *steps* over an async connection."""
    async with psycopg.AsyncCursor(conn, row_factory=tuple_row) as cursor:
        try:
            query, params = next(steps)
            while True:
                await cursor.execute(query, params)
                query, params = steps.send(await _afetched(cursor))
        except StopIteration as done:
            result: T = done.value
            return result
        except psycopg.Error as error:
            ours = in_our_words(error, conn.info)
            if ours is None:
                raise
            raise ours from error


# Not by asking for cursor.description: in a pipeline there is none before somebody fetches.


def _fetched(cursor: psycopg.Cursor[Any]) -> Rows:
    try:
        return cursor.fetchall()
    except psycopg.ProgrammingError as error:
        return _no_rows(error)


async def _afetched(cursor: psycopg.AsyncCursor[Any]) -> Rows:
    try:
        return await cursor.fetchall()
    except psycopg.ProgrammingError as error:
        return _no_rows(error)


def _no_rows(error: psycopg.ProgrammingError) -> Rows:
    """The driver says that there is nothing to fetch; what the server says has a code."""
    if error.sqlstate is not None:
        raise error
    return []


def _foreign(tx: object) -> Refused:
    kind = f"{type(tx).__module__}.{type(tx).__qualname__}"
    return Refused(
        f"tx: expected a psycopg connection (psycopg.Connection or psycopg.AsyncConnection), got {kind}",
        field="tx",
    )


def _check_state(conn: SyncConnection | AsyncConnection) -> None:
    if conn.closed:
        raise Refused("tx: the connection is closed", field="tx")
    status = conn.info.transaction_status
    if status == TransactionStatus.INERROR:
        raise Refused("tx: the transaction is aborted by an earlier error; roll it back first", field="tx")
    if conn.autocommit and status == TransactionStatus.IDLE:
        raise Refused(
            "tx: the connection is in autocommit and has no transaction open, so nothing would tie the job "
            "to your data; open one with `with conn.transaction():`, or leave tx out",
            field="tx",
        )
