"""What the caller's transaction is, told by the names of its classes: nothing foreign is imported for that."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

from kept.db.foreign import words
from kept.db.foreign.adapter import Async, Sync
from kept.db.foreign.alchemy import Alchemy, AsyncAlchemy
from kept.db.foreign.asyncpg import Asyncpg
from kept.db.foreign.django import Django
from kept.db.foreign.psycopg2 import Psycopg2
from kept.errors import Refused

# By the package and the name of a class, wherever in the package it is defined.
_SYNC: dict[str, Callable[[Any], Sync]] = {
    "psycopg2.connection": Psycopg2,
    "sqlalchemy.Connection": Alchemy,
    "sqlalchemy.Session": Alchemy,
    "sqlalchemy.scoped_session": Alchemy,
    "django.BaseDatabaseWrapper": Django,
    "django.ConnectionProxy": Django,
}
_ASYNC: dict[str, Callable[[Any], Async]] = {
    "asyncpg.Connection": Asyncpg,
    "asyncpg.PoolConnectionProxy": Asyncpg,
    "sqlalchemy.AsyncConnection": AsyncAlchemy,
    "sqlalchemy.AsyncSession": AsyncAlchemy,
    "sqlalchemy.async_scoped_session": AsyncAlchemy,
}

_POOL = "a pool has many connections; give the one that your transaction is on"
_CURSOR = "give the connection it belongs to"
_TRANSACTION = "give the connection or session it belongs to"
_ENGINE = "an engine has many connections; give one with a transaction, as in `with engine.begin() as conn:`"
_MAKER = "give a session, as in `with Session.begin() as session:`"
_DJANGO = "give django.db.connection, inside `with transaction.atomic():`"
_HINTS = {
    "psycopg.BaseCursor": _CURSOR,
    "psycopg.BaseTransaction": _TRANSACTION,
    "psycopg_pool.BasePool": _POOL,
    "psycopg2.cursor": _CURSOR,
    "psycopg2.AbstractConnectionPool": _POOL,
    "asyncpg.Pool": _POOL,
    "asyncpg.Transaction": _TRANSACTION,
    "sqlalchemy.Engine": _ENGINE,
    "sqlalchemy.AsyncEngine": _ENGINE,
    "sqlalchemy.sessionmaker": _MAKER,
    "sqlalchemy.async_sessionmaker": _MAKER,
    "sqlalchemy.Transaction": _TRANSACTION,
    "sqlalchemy.AsyncTransaction": _TRANSACTION,
    "sqlalchemy.AsyncSessionTransaction": _TRANSACTION,
    "sqlalchemy.SessionTransaction": _TRANSACTION,
    "django.Atomic": _DJANGO,
    "django.ConnectionHandler": _DJANGO,
    "django.CursorWrapper": _CURSOR,
}


def sync(tx: object) -> Sync:
    """*tx* as something a sync call can use, or :class:`Refused` with the reason."""
    for name in _names(tx):
        if name in _ASYNC:
            raise words.asynchronous()
        if name in _SYNC and _is_database(tx, name):
            return _SYNC[name](tx)
    raise _unknown(tx)


def asynchronous(tx: object) -> Async:
    """*tx* as something an async call can use, or :class:`Refused` with the reason."""
    for name in _names(tx):
        if name in _SYNC and _is_database(tx, name):
            raise _in_a_thread() if _SYNC[name] is Django else words.synchronous()
        if name in _ASYNC:
            return _ASYNC[name](tx)
    raise _unknown(tx)


def _names(tx: object) -> Iterator[str]:
    for each in tx.__class__.__mro__:  # not type(tx): what traces a connection often stands for it
        yield f"{each.__module__.partition('.')[0]}.{each.__name__}"


def _is_database(tx: object, name: str) -> bool:
    """Django has the same proxy for its caches."""
    return name != "django.ConnectionProxy" or hasattr(tx, "in_atomic_block")


def _in_a_thread() -> Refused:
    return words.refused(
        "Django's connections are sync: make the sync call (enqueue, emit, with, …), in async code within sync_to_async"
    )


def _unknown(tx: object) -> Refused:
    if isinstance(tx, ModuleType) and tx.__name__.startswith("django."):
        return words.unknown(tx, _DJANGO)
    hints = (_HINTS[name] for name in _names(tx) if name in _HINTS)
    return words.unknown(tx, next(hints, None))
