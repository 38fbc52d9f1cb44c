"""Every kind of transaction that people have, opened for real: one interface, whatever its library and colour."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing, contextmanager
from dataclasses import dataclass
from typing import Any

import asyncpg
import django
import django.conf
import psycopg
import psycopg2
import psycopg2.extras
import sqlalchemy as sa
from django.db import connections, transaction
from psycopg.conninfo import conninfo_to_dict
from psycopg.rows import dict_row
from sqlalchemy.ext.asyncio import (
    AsyncEngine,
    AsyncSession,
    async_scoped_session,
    async_sessionmaker,
    create_async_engine,
)
from sqlalchemy.orm import Session, scoped_session, sessionmaker

django.conf.settings.configure(
    DATABASES={"default": {"ENGINE": "django.db.backends.postgresql"}}, USE_TZ=True, INSTALLED_APPS=[]
)
django.setup()


@dataclass(frozen=True)
class Way:
    """A transaction of one kind. Nothing was said in it yet."""

    tx: Any
    is_async: bool
    _execute: Callable[[str], Any]
    _commit: Callable[[], Any]
    _rollback: Callable[[], Any]
    _nested: Callable[[], Any]

    async def execute(self, statement: str) -> None:
        await _settled(self._execute(statement))

    async def commit(self) -> None:
        await _settled(self._commit())

    async def rollback(self) -> None:
        await _settled(self._rollback())

    @asynccontextmanager
    async def nested(self) -> AsyncIterator[None]:
        """A savepoint by the library's own means."""
        inner = self._nested()
        if hasattr(inner, "__aenter__"):
            async with inner:
                yield
        else:
            with inner:
                yield

    async def enqueue(self, task: Any, *args: Any, **options: Any) -> Any:
        ready = task.using(tx=self.tx, **options)
        return await (ready.aenqueue(*args) if self.is_async else _settled(ready.enqueue(*args)))

    async def enqueue_many(self, app: Any, calls: list[Any]) -> Any:
        if self.is_async:
            return await app.aenqueue_many(calls, tx=self.tx)
        return app.enqueue_many(calls, tx=self.tx)

    async def complete(self, ctx: Any, result: Any) -> None:
        await (ctx.acomplete(self.tx, result) if self.is_async else _settled(ctx.complete(self.tx, result)))


async def _settled(value: Any) -> Any:
    return await value if isinstance(value, Awaitable) else value


def over(database: str, driver: str) -> str:
    """The URL by which SQLAlchemy finds *database* with *driver*."""
    return database.replace("postgresql:", f"postgresql+{driver}:", 1)


# --- sync


@contextmanager
def by_psycopg(database: str, **options: Any) -> Iterator[Way]:
    with psycopg.connect(database, **options) as conn:
        yield Way(conn, False, conn.execute, conn.commit, conn.rollback, conn.transaction)


@contextmanager
def by_psycopg2(database: str, **options: Any) -> Iterator[Way]:
    with closing(psycopg2.connect(database, **options)) as conn:

        def execute(statement: str) -> None:
            with conn.cursor() as cursor:
                cursor.execute(statement)

        @contextmanager
        def nested() -> Iterator[None]:
            execute("savepoint inner_one")
            try:
                yield
            except BaseException:
                execute("rollback to inner_one")
                raise
            execute("release inner_one")

        yield Way(conn, False, execute, conn.commit, conn.rollback, nested)


@contextmanager
def engine_for(database: str, driver: str, **options: Any) -> Iterator[sa.Engine]:
    """SQLAlchemy's engine, which keeps connections until it is told not to."""
    engine = sa.create_engine(over(database, driver), **options)
    try:
        yield engine
    finally:
        engine.dispose()


@contextmanager
def by_connection(database: str, driver: str) -> Iterator[Way]:
    with engine_for(database, driver) as engine, engine.connect() as it:
        yield Way(it, False, lambda text: it.execute(sa.text(text)), it.commit, it.rollback, it.begin_nested)


@contextmanager
def by_session(database: str, driver: str) -> Iterator[Way]:
    with engine_for(database, driver) as engine, Session(engine) as it:
        yield Way(it, False, lambda text: it.execute(sa.text(text)), it.commit, it.rollback, it.begin_nested)


@contextmanager
def by_scoped_session(database: str, driver: str) -> Iterator[Way]:
    with engine_for(database, driver) as engine:
        it = scoped_session(sessionmaker(engine))
        try:
            yield Way(it, False, lambda text: it.execute(sa.text(text)), it.commit, it.rollback, it.begin_nested)
        finally:
            it.remove()


def for_django(database: str) -> dict[str, str]:
    """The parts of the URL by the names that Django has for them."""
    names = {"dbname": "NAME", "user": "USER", "password": "PASSWORD", "host": "HOST", "port": "PORT"}
    return {names[key]: str(value) for key, value in conninfo_to_dict(database).items() if key in names}


@contextmanager
def django_connection(database: str) -> Iterator[Any]:
    """``connections["default"]``, outside of ``atomic()``."""
    connections.databases["default"].update(for_django(database))
    connections["default"] = connections.create_connection("default")
    try:
        yield connections["default"]
    finally:
        connections["default"].close()
        del connections["default"]


@contextmanager
def by_django(database: str) -> Iterator[Way]:
    with django_connection(database) as connection:
        atomic = transaction.atomic()
        atomic.__enter__()

        def execute(statement: str) -> None:
            with connection.cursor() as cursor:
                cursor.execute(statement)

        def leave(*, undo: bool) -> None:
            transaction.set_rollback(undo)
            atomic.__exit__(None, None, None)

        def commit() -> None:
            leave(undo=False)

        def rollback() -> None:
            leave(undo=True)

        try:
            yield Way(connection, False, execute, commit, rollback, transaction.atomic)
        finally:
            if connection.in_atomic_block:
                rollback()


# --- async


@asynccontextmanager
async def by_async_psycopg(database: str) -> AsyncIterator[Way]:
    async with await psycopg.AsyncConnection.connect(database) as conn:
        yield Way(conn, True, conn.execute, conn.commit, conn.rollback, conn.transaction)


@asynccontextmanager
async def by_asyncpg(database: str) -> AsyncIterator[Way]:
    conn = await asyncpg.connect(database)
    begun = conn.transaction()
    await begun.start()
    try:
        yield Way(conn, True, conn.execute, begun.commit, begun.rollback, conn.transaction)
    finally:
        await conn.close()


@asynccontextmanager
async def by_asyncpg_pool(database: str) -> AsyncIterator[Way]:
    async with asyncpg.create_pool(database, min_size=1, max_size=1) as pool, pool.acquire() as conn:
        begun = conn.transaction()
        await begun.start()
        yield Way(conn, True, conn.execute, begun.commit, begun.rollback, conn.transaction)


@asynccontextmanager
async def async_engine_for(database: str, driver: str, **options: Any) -> AsyncIterator[AsyncEngine]:
    """:func:`engine_for`, for async code."""
    engine = create_async_engine(over(database, driver), **options)
    try:
        yield engine
    finally:
        await engine.dispose()


@asynccontextmanager
async def by_async_connection(database: str, driver: str) -> AsyncIterator[Way]:
    async with async_engine_for(database, driver) as engine, engine.connect() as it:
        yield Way(it, True, lambda text: it.execute(sa.text(text)), it.commit, it.rollback, it.begin_nested)


@asynccontextmanager
async def by_async_session(database: str, driver: str) -> AsyncIterator[Way]:
    async with async_engine_for(database, driver) as engine, AsyncSession(engine) as it:
        yield Way(it, True, lambda text: it.execute(sa.text(text)), it.commit, it.rollback, it.begin_nested)


@asynccontextmanager
async def by_async_scoped_session(database: str, driver: str) -> AsyncIterator[Way]:
    async with async_engine_for(database, driver) as engine:
        it = async_scoped_session(async_sessionmaker(engine), scopefunc=lambda: 1)
        try:
            yield Way(it, True, lambda text: it.execute(sa.text(text)), it.commit, it.rollback, it.begin_nested)
        finally:
            await it.remove()


WAYS: dict[str, Callable[[str], Any]] = {
    "psycopg": by_psycopg,
    "psycopg, dicts": lambda database: by_psycopg(database, row_factory=dict_row),
    "psycopg2": by_psycopg2,
    "psycopg2, dicts": lambda database: by_psycopg2(database, cursor_factory=psycopg2.extras.RealDictCursor),
    "Connection, psycopg": lambda database: by_connection(database, "psycopg"),
    "Connection, psycopg2": lambda database: by_connection(database, "psycopg2"),
    "Session, psycopg": lambda database: by_session(database, "psycopg"),
    "Session, psycopg2": lambda database: by_session(database, "psycopg2"),
    "scoped_session": lambda database: by_scoped_session(database, "psycopg"),
    "Django": by_django,
    "async psycopg": by_async_psycopg,
    "asyncpg": by_asyncpg,
    "asyncpg, pool": by_asyncpg_pool,
    "AsyncConnection, asyncpg": lambda database: by_async_connection(database, "asyncpg"),
    "AsyncConnection, psycopg": lambda database: by_async_connection(database, "psycopg"),
    "AsyncSession, asyncpg": lambda database: by_async_session(database, "asyncpg"),
    "AsyncSession, psycopg": lambda database: by_async_session(database, "psycopg"),
    "async_scoped_session": lambda database: by_async_scoped_session(database, "asyncpg"),
}


@asynccontextmanager
async def opened(name: str, database: str) -> AsyncIterator[Way]:
    """The way called *name*."""
    way = WAYS[name](database)
    if isinstance(way, AbstractAsyncContextManager):
        async with way as it:
            yield it
    else:
        with way as it:
            yield it
