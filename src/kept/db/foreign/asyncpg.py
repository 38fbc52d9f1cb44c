"""asyncpg's connections, and what its pool hands out for them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from typing import Any, LiteralString, Protocol

from kept.db.connect import Params, numbered
from kept.db.foreign import words
from kept.db.foreign.adapter import Rows, as_text
from kept.db.unfit import Server

_CAST = re.compile(r"\$(\d+)(?=::)")


class Connection(Protocol):
    """What we need of ``asyncpg.Connection``."""

    def is_closed(self) -> bool: ...
    def is_in_transaction(self) -> bool: ...
    async def fetch(self, query: str, *args: object) -> Sequence[Any]: ...
    def get_server_version(self) -> Any: ...
    def get_settings(self) -> Any: ...


class Asyncpg:
    """One of them, with a usable transaction."""

    def __init__(self, conn: Connection) -> None:
        if _is_closed(conn):
            raise words.closed()
        if not conn.is_in_transaction():
            raise words.autocommit("open one with `async with conn.transaction():`")
        self._conn = conn

    async def rows(self, statement: LiteralString, params: Params) -> Rows:
        text, values = dollars(statement, params)
        return [tuple(row) for row in await self._conn.fetch(text, *values)]

    def server(self) -> Server:
        return AsyncpgServer(self._conn)


class AsyncpgServer:
    """The facts by the names that psycopg gives them."""

    def __init__(self, conn: Connection) -> None:
        self.server_version = conn.get_server_version().major * 10_000
        self._settings = conn.get_settings()

    def parameter_status(self, param_name: str, /) -> str | None:
        return getattr(self._settings, param_name, None)


def dollars(statement: LiteralString, params: Params) -> tuple[str, list[object]]:
    """*statement* and its values as asyncpg wants them: it asks the server for each parameter's type.

    What the statement casts is declared to be text. The rest has a type that the server finds for itself, and a
    value of that type.
    """
    text, names, cast = _declared(statement)
    return text, [as_text(params[name]) if name in cast else params[name] for name in names]


@cache
def _declared(statement: LiteralString) -> tuple[str, tuple[str, ...], frozenset[str]]:
    text, names = numbered(statement)
    cast = frozenset(names[int(number) - 1] for number in _CAST.findall(text))
    return _CAST.sub(r"$\1::text", text), names, cast


def _is_closed(conn: Connection) -> bool:
    try:
        return conn.is_closed()
    except Exception as error:  # what the pool handed out says so of everything once it was given back
        raise words.refused("the connection was given back to its pool") from error
