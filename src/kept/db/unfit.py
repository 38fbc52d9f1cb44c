"""A database that is not the one our statements are written for: without our schema, too old, or read-only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import psycopg

from kept.db.migrate import READ_ONLY, too_old
from kept.errors import Error, SchemaMismatch, Unavailable

# Said about statements of ours, so it is a table, a column, a function or a schema of ours that is not there.
_MISSING = ("42P01", "42703", "42883", "3F000")
_READ_ONLY = "25006"
_NOT_SUPPORTED = "0A000"


class Server(Protocol):
    """What a driver tells of the server without asking it."""

    @property
    def server_version(self) -> int: ...
    def parameter_status(self, param_name: str, /) -> str | None: ...


def in_our_words(error: psycopg.Error, server: psycopg.ConnectionInfo) -> Error | None:
    """What is wrong with the database as a whole, if that is what *error* is about."""
    return by_code(error.sqlstate, error.diag.message_primary, lambda: server)


def by_code(code: str | None, said: str | None, server: Callable[[], Server]) -> Error | None:
    """:func:`in_our_words` for the error of any driver: its SQLSTATE, and what the server said."""
    if code in _MISSING:
        return too_old(server().server_version // 10_000) or SchemaMismatch(
            f"the schema is not set up in this database, or older than this code needs ({said}); run `kept migrate`"
        )
    # A standby may stumble over our unlogged table before it finds that we want to write.
    if code == _READ_ONLY or (code == _NOT_SUPPORTED and server().parameter_status("in_hot_standby") == "on"):
        return Unavailable(READ_ONLY)
    return None
