"""Why a transaction is refused, in one sentence each."""

from __future__ import annotations

from kept.errors import Refused

ACCEPTED = (
    "expected a psycopg connection (psycopg.Connection or psycopg.AsyncConnection), an asyncpg or psycopg2 "
    "connection, a SQLAlchemy Connection or Session (plain or async), or a Django connection"
)


def refused(reason: str) -> Refused:
    """A refusal that names the parameter."""
    return Refused(f"tx: {reason}", field="tx")


def unknown(tx: object, hint: str | None) -> Refused:
    """It is none of what we take; *hint* says what to give instead."""
    kind = f"{type(tx).__module__}.{type(tx).__qualname__}"
    return refused(f"{ACCEPTED}, got {kind}" + (f": {hint}" if hint else ""))


def asynchronous() -> Refused:
    """An async connection in a sync call."""
    return refused("this is an async connection: await the async call (aenqueue, aemit, async with, …)")


def synchronous() -> Refused:
    """A sync connection in an async call."""
    return refused("this is a sync connection: make the sync call (enqueue, emit, with, …)")


def closed() -> Refused:
    """Nothing can be said over it any more."""
    return refused("the connection is closed")


def aborted() -> Refused:
    """PostgreSQL takes nothing but a rollback now."""
    return refused("the transaction is aborted by an earlier error; roll it back first")


def autocommit(way_out: str) -> Refused:
    """There is no transaction; *way_out* says how to have one."""
    return refused(
        "the connection is in autocommit and has no transaction open, so nothing would tie the job "
        f"to your data; {way_out}, or leave tx out"
    )
