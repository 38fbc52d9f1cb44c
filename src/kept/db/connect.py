"""Connections that end: with timeouts, keepalives, a name, and errors that never show a password."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import cache
from typing import Any, LiteralString

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.rows import TupleRow

from kept.db import points
from kept.db.wire import Connection, Ready, Reply, Wire
from kept.errors import Misconfigured, Unavailable
from kept.redact import redact

_QUOTED = re.compile(r"""(?<!["'].)["'](?!.["']).*""")  # but not "=", which is quoted as well
_NAMED = re.compile(r"%\((\w+)\)s")
Row = Sequence[Any]
Params = Mapping[str, object]

_DEFAULTS: dict[str, str | int] = {
    "connect_timeout": 10,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
}

# A worker's statements have one right plan each, and it is an index scan in a nested loop. Left alone, a plan
# made while the table was empty would scan the whole of it after a burst: 2.8 s instead of 2 ms a claim.
# And what it writes goes to the disk as it comes: Linux would keep it for 30 s, and all commits then wait for that.
_WORKER_SETTINGS: LiteralString = """
select set_config('enable_seqscan', 'off', {local}), set_config('enable_bitmapscan', 'off', {local}),
       set_config('enable_sort', 'off', {local}), set_config('enable_hashjoin', 'off', {local}),
       set_config('enable_mergejoin', 'off', {local}), set_config('jit', 'off', {local}),
       set_config('plan_cache_mode', 'force_generic_plan', {local}), set_config('timezone', 'UTC', {local}),
       set_config('search_path', 'pg_catalog, pg_temp', {local}), set_config('statement_timeout', '30s', {local}),
       set_config('idle_in_transaction_session_timeout', '60s', {local}),
       set_config('backend_flush_after', '1MB', {local})
"""
# What somebody has planted in a schema that every session looks into must not be found by our statements: a function
# whose arguments fit better wins over PostgreSQL's own, and would run with our rights. Not through a pooler, which
# greets with a process id of its own making: there the session will be somebody else's next.
_PINNED: LiteralString = (
    "select set_config('search_path', 'pg_catalog, pg_temp', false) where pg_backend_pid() = %(greeted)s"
)
_FOR_SESSION = _WORKER_SETTINGS.replace("{local}", "false")
_FOR_TRANSACTION = _WORKER_SETTINGS.replace("{local}", "true")


def conninfo(database: str, *, name: str = "kept") -> str:
    """*database* with our timeouts and application name wherever it does not say otherwise."""
    try:
        given = conninfo_to_dict(database)
        missing = {k: v for k, v in (_DEFAULTS | {"application_name": name}).items() if k not in given}
        return make_conninfo(database, **missing)
    except psycopg.ProgrammingError as error:
        raise _unreadable(error) from None


def _unreadable(error: psycopg.ProgrammingError) -> Misconfigured:
    # The driver quotes what it stumbled over, and that is often the password: cut there.
    problem = _QUOTED.sub("…", " ".join(str(error).split()))
    return Misconfigured(
        f"the database URL is not readable: {problem}; write special characters percent-encoded, as in p%40ss"
    )


def unavailable(error: psycopg.Error) -> Unavailable:
    """The driver's error as ours: one line, no password."""
    text = " ".join(redact(str(error)).split())
    return Unavailable(f"the database is not available: {text[:500]}")


async def connect(database: str, *, name: str = "kept") -> Connection:
    """An autocommit connection, or :class:`Unavailable` with a sentence."""
    try:
        conn = await psycopg.AsyncConnection.connect(conninfo(database, name=name), autocommit=True)
    except psycopg.OperationalError as error:
        raise unavailable(error) from None
    except psycopg.ProgrammingError as error:
        raise _unreadable(error) from None
    try:
        await conn.execute(_PINNED, {"greeted": conn.info.backend_pid}, prepare=False)
    except psycopg.Error as error:
        await conn.close()
        raise unavailable(error) from None
    except BaseException:
        await conn.close()
        raise
    return conn


def connect_sync(database: str, *, name: str = "kept") -> psycopg.Connection[TupleRow]:
    """:func:`connect`, for sync code."""
    try:
        conn = psycopg.Connection.connect(conninfo(database, name=name), autocommit=True)
    except psycopg.OperationalError as error:
        raise unavailable(error) from None
    except psycopg.ProgrammingError as error:
        raise _unreadable(error) from None
    try:
        conn.execute(_PINNED, {"greeted": conn.info.backend_pid}, prepare=False)
    except psycopg.Error as error:
        conn.close()
        raise unavailable(error) from None
    except BaseException:
        conn.close()
        raise
    return conn


class Link:
    """A worker's own connection: the settings its plans need, on a server's session or through a pooler.

    Behind a pooler in transaction mode nothing set on a session may be relied on: there every statement gets
    a transaction of its own with the settings inside, and nothing is prepared.
    """

    def __init__(self, conn: Connection, *, pooled: bool) -> None:
        self.conn = conn
        self.pooled = pooled
        self._wire = Wire(conn)

    @classmethod
    async def open(cls, database: str, *, name: str = "kept worker") -> Link:
        conn = await connect(database, name=name)
        try:
            link = cls(conn, pooled=await is_pooled(conn))
            if link.pooled:
                conn.prepare_threshold = None
            else:
                await conn.execute(_FOR_SESSION)
        except psycopg.OperationalError as error:
            await conn.close()
            raise unavailable(error) from None
        except BaseException:
            await conn.close()
            raise
        return link

    async def rows(self, query: LiteralString, params: Params | None = None) -> list[TupleRow]:
        """Run one statement of the hot path: prepared, results in binary."""
        return (await self.ask(query, params)).rows()

    async def ask(self, query: LiteralString, params: Params | None = None) -> Reply:
        """:meth:`rows`, to be read later: that takes time which another statement could use."""
        if points.armed is None:
            return await self._ask(*_bound(query, params))
        points.before_statement(query, params)
        reply = await self._ask(*_bound(query, params))
        points.after_statement(query, self.conn.pgconn, params)
        return reply

    async def _ask(self, text: LiteralString, values: Sequence[object]) -> Reply:
        if not self.pooled:
            return await self._wire.ask(text, values)
        cursor = psycopg.AsyncRawCursor(self.conn)
        async with self.conn.transaction():
            await self.conn.execute(_FOR_TRANSACTION)
            await cursor.execute(text, values, binary=True)
            assert cursor.pgresult is not None
            return Reply(self.conn, cursor.pgresult)

    @asynccontextmanager
    async def transaction(self, name: str) -> AsyncIterator[None]:
        """One transaction for several statements; *name* is what its commit does."""
        async with self.conn.transaction():
            yield
            points.before(name)
        points.after(name, self.conn.pgconn)

    def made_up(self, query: LiteralString, params: Params) -> Ready | None:
        """A statement that was asked before, to be sent later without waiting; None: this cannot be done here."""
        return None if self.pooled else self._wire.made_up(*_bound(query, params))

    async def close(self) -> None:
        await self.conn.close()


def _bound(query: LiteralString, params: Params | None) -> tuple[LiteralString, list[object]]:
    text, names = numbered(query)
    return text, [params[name] for name in names] if params else []


async def is_pooled(conn: Connection) -> bool:
    """Whether a pooler stands between us and the server: it makes up the process id it greets us with."""
    cursor = await conn.execute("select pg_backend_pid()")
    row = await cursor.fetchone()
    return row is not None and row[0] != conn.info.backend_pid


@cache
def numbered(query: LiteralString) -> tuple[LiteralString, tuple[str, ...]]:
    """*query* with its named parameters numbered, as the server wants them, and their names in that order.

    Done once per statement: left to the driver, it is done anew for every call and every value.
    """
    names: dict[str, int] = {}
    text = _NAMED.sub(lambda found: f"${names.setdefault(found[1], len(names) + 1)}", query).replace("%%", "%")
    return text, tuple(names)


def numbers(values: list[int]) -> str:
    """:func:`array` of whole numbers, of which the hot path has many."""
    return f"{{{str(values)[1:-1]}}}"


def array(values: Sequence[object]) -> str:
    """*values* as the text of a PostgreSQL array.

    Handed over as text of unknown type and cast in the statement, so that the statement keeps one set of
    parameter types, and with it one plan, whatever the values are.
    """
    return "{" + ",".join([_element(value) for value in values]) + "}"


def _element(value: object) -> str:
    if value is None:
        return "null"
    if value is True or value is False:
        return "t" if value else "f"
    if isinstance(value, int | float):
        return repr(value)
    text = str(value).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{text}"'
