"""Django's connections: ``django.db.connection`` and ``django.db.connections[…]``."""

from __future__ import annotations

from datetime import datetime
from typing import Any, LiteralString, Protocol
from zoneinfo import ZoneInfo

from kept.db.connect import Params
from kept.db.foreign import words
from kept.db.foreign.adapter import Rows, as_texts
from kept.db.unfit import Server


class Connection(Protocol):
    """What we need of a ``DatabaseWrapper``, or of the proxy that stands for the default one."""

    connection: Any
    vendor: str
    in_atomic_block: bool
    closed_in_transaction: bool
    needs_rollback: bool
    timezone_name: str

    def get_autocommit(self) -> bool: ...
    def cursor(self) -> Any: ...


class Django:
    """One of them, inside ``atomic()``."""

    def __init__(self, conn: Connection) -> None:
        if conn.vendor != "postgresql":
            raise words.refused(f"expected a Django connection to PostgreSQL, got one to {conn.vendor}")
        if conn.in_atomic_block:
            if conn.connection is None or conn.closed_in_transaction:
                raise words.closed()
            if conn.needs_rollback:
                raise words.aborted()
        elif conn.get_autocommit():
            raise words.autocommit("open one with `with transaction.atomic():`")
        self._conn = conn

    def rows(self, statement: LiteralString, params: Params) -> Rows:
        with self._conn.cursor() as cursor:
            cursor.execute(statement, as_texts(params))
            return [self._aware(row) for row in cursor.fetchall()] if cursor.description else []

    def _aware(self, row: tuple[Any, ...]) -> tuple[Any, ...]:
        """With USE_TZ off, Django cuts the time zone off: put it back."""
        return tuple(
            value.replace(tzinfo=ZoneInfo(self._conn.timezone_name))
            if isinstance(value, datetime) and value.tzinfo is None
            else value
            for value in row
        )

    def server(self) -> Server:
        server: Server = self._conn.connection.info
        return server
