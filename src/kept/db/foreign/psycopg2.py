"""psycopg2's connections."""

from __future__ import annotations

from typing import Any, LiteralString, Protocol

from kept.db.connect import Params
from kept.db.foreign import words
from kept.db.foreign.adapter import Rows, as_texts, loaded
from kept.db.unfit import Server

_IDLE = 0  # psycopg2.extensions.TRANSACTION_STATUS_IDLE


class Connection(Protocol):
    """What we need of ``psycopg2.extensions.connection``."""

    closed: int
    autocommit: bool
    info: Server

    def get_transaction_status(self) -> int: ...
    def cursor(self, *, cursor_factory: type) -> Any: ...


class Psycopg2:
    """One of them, with a usable transaction."""

    def __init__(self, conn: Connection) -> None:
        if conn.closed:
            raise words.closed()
        if conn.autocommit and conn.get_transaction_status() == _IDLE:
            raise words.autocommit("set `conn.autocommit = False`")
        self._conn = conn

    def rows(self, statement: LiteralString, params: Params) -> Rows:
        # A cursor of the plain class: the caller's connection may be set up to return dicts.
        with self._conn.cursor(cursor_factory=loaded("psycopg2.extensions").cursor) as cursor:
            cursor.execute(statement, as_texts(params))
            rows: Rows = cursor.fetchall() if cursor.description else []
            return rows

    def server(self) -> Server:
        return self._conn.info
