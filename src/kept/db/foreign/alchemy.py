"""SQLAlchemy's connections and sessions, whatever driver is below them.

Our statements go in by SQLAlchemy's own door, not to the driver behind its back: so it begins the transaction that
the job is to ride in, sees the errors, and wraps them as the caller expects. Nothing of the caller's is flushed.
"""

from __future__ import annotations

from typing import Any, LiteralString, Protocol

from kept.db.connect import Params
from kept.db.foreign import words
from kept.db.foreign.adapter import Rows, as_texts, loaded
from kept.db.foreign.asyncpg import AsyncpgServer, dollars
from kept.db.unfit import Server

# The caller's connection may be set up to stream what it reads; a cursor on the server cannot write.
_PLAIN = {"stream_results": False, "yield_per": None}


class Connection(Protocol):
    """What we need of ``sqlalchemy.Connection``."""

    closed: bool
    dialect: Any
    connection: Any

    def exec_driver_sql(self, statement: str, parameters: Any, execution_options: Any) -> Any: ...


class Alchemy:
    """A Connection, Session or scoped_session with a usable transaction."""

    def __init__(self, tx: Any) -> None:
        self._conn: Connection = _connection(tx)

    def rows(self, statement: LiteralString, params: Params) -> Rows:
        return _rows(self._conn, statement, params)

    def server(self) -> Server:
        return _server(self._conn)


class AsyncAlchemy:
    """An AsyncConnection, AsyncSession or async_scoped_session: the same, in its greenlet."""

    def __init__(self, tx: Any) -> None:
        self._tx = tx if hasattr(tx, "run_sync") else tx()  # what is scoped gives the session of this scope
        self._conn: Connection | None = None

    async def rows(self, statement: LiteralString, params: Params) -> Rows:
        if self._conn is None:
            self._conn = await self._tx.run_sync(_connection)
        rows: Rows = await self._tx.run_sync(self._rows, statement, params)
        return rows

    def _rows(self, _: object, statement: LiteralString, params: Params) -> Rows:
        assert self._conn is not None
        return _rows(self._conn, statement, params)

    def server(self) -> Server:
        assert self._conn is not None
        return _server(self._conn)


def _connection(tx: Any) -> Connection:
    """The connection of a session, or itself, checked."""
    if loaded("sqlalchemy").__version__.startswith("1."):
        raise words.refused("SQLAlchemy 2 is needed; before it, a connection commits by itself")
    exc = loaded("sqlalchemy.exc")
    try:
        conn: Connection = tx if hasattr(tx, "exec_driver_sql") else tx.connection()
        _check(conn)
    except exc.PendingRollbackError as error:
        raise words.aborted() from error
    except exc.UnboundExecutionError as error:
        raise words.refused(
            "this session does not say which database it means; give session.connection(bind_arguments=…)"
        ) from error
    return conn


def _check(conn: Connection) -> None:
    if conn.closed:
        raise words.closed()
    if conn.dialect.name != "postgresql" or conn.dialect.paramstyle not in ("pyformat", "numeric_dollar"):
        raise words.refused(
            "expected SQLAlchemy over psycopg, asyncpg or psycopg2, "
            f"got a connection over {conn.dialect.name}+{conn.dialect.driver}"
        )
    if conn.connection.dbapi_connection.autocommit:
        raise words.autocommit("take a connection whose isolation level is not AUTOCOMMIT")


def _rows(conn: Connection, statement: LiteralString, params: Params) -> Rows:
    if conn.dialect.paramstyle == "numeric_dollar":
        text, values = dollars(statement, params)
        result = conn.exec_driver_sql(text, tuple(values), _PLAIN)
    else:
        result = conn.exec_driver_sql(statement, as_texts(params), _PLAIN)
    rows: Rows = result.fetchall() if result.returns_rows else []
    return rows


def _server(conn: Connection) -> Server:
    driver = conn.connection.driver_connection
    server: Server = driver.info if hasattr(driver, "info") else AsyncpgServer(driver)
    return server
