"""A database that is not the one our statements are written for: without our schema, too old, or read-only."""

from __future__ import annotations

import psycopg

from kept.db.migrate import READ_ONLY, too_old
from kept.errors import Error, SchemaMismatch, Unavailable

# Said about statements of ours, so it is a table, a column or a function of ours that is not there.
_MISSING = (
    psycopg.errors.UndefinedTable,
    psycopg.errors.UndefinedColumn,
    psycopg.errors.UndefinedFunction,
    psycopg.errors.InvalidSchemaName,
)


def in_our_words(error: psycopg.Error, server: psycopg.ConnectionInfo) -> Error | None:
    """What is wrong with the database as a whole, if that is what *error* is about."""
    if isinstance(error, _MISSING):
        return too_old(server.server_version // 10_000) or SchemaMismatch(
            "the schema is not set up in this database, or older than this code needs "
            f"({error.diag.message_primary}); run `kept migrate`"
        )
    match error:
        case psycopg.errors.ReadOnlySqlTransaction():
            return Unavailable(READ_ONLY)
        # A standby may stumble over our unlogged table before it finds that we want to write.
        case psycopg.errors.FeatureNotSupported() if server.parameter_status("in_hot_standby") == "on":
            return Unavailable(READ_ONLY)
        case _:
            return None
