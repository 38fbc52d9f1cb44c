"""The schema's history: numbered SQL files, each applied once, in order, by whoever comes first.

A file ``NNNN_name.sql`` starts with ``-- kind: expand|contract|breaking``. Code and schema of neighbouring
releases work together (expand first, contract a release later); only a *breaking* migration that the code
does not know makes it refuse the schema.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any, Literal, LiteralString, cast, get_args

import psycopg
from psycopg.rows import args_row
from psycopg.sql import SQL

from kept.db import points
from kept.db.queries import DEFAULT_SCHEMA, in_schema
from kept.errors import Error, Misconfigured, SchemaMismatch, Unavailable

Kind = Literal["expand", "contract", "breaking"]
Connection = psycopg.Connection[Any]
AsyncConnection = psycopg.AsyncConnection[Any]

OLDEST_SERVER = 15
READ_ONLY = "this connection is read-only, as on a standby; Kept needs the primary"
_FILE = re.compile(r"(\d{4})_(\w+)\.sql")
_HEADER = re.compile(r"-- kind: (\w+)\n")
# The wake-up channel is this name plus ":wake" and must fit the 63 bytes of an identifier.
_SCHEMA = re.compile(r"(?!pg_)[A-Za-z_][A-Za-z0-9_-]{0,57}")
# After each refusal of a lock; one try more than there are pauses.
_PAUSES = (0.5, 1.0, 2.0, 4.0)

_SERVER = """
select current_setting('server_version_num')::int / 10000 as version,
       pg_is_in_recovery() or current_setting('transaction_read_only')::bool as read_only,
       to_regclass('kept.migration') is not null as present"""
_APPLIED = "select version, name, kind, checksum from kept.migration order by version"

_RECORD = "insert into kept.migration (version, name, kind, checksum) values ({}, {}, {}, {})"

# Runs inside each migration's own transaction, so that it also holds behind a transaction pooler. Nothing is looked for
# where others may have planted something. The lock first and patiently, for somebody else may be migrating; the rest
# impatiently, for DDL that waits stops everybody who comes after it. The schema is made only where it is missing: that
# asks for a right on the whole database, which the owner of a schema need not have.
_PREPARE = """\
set local search_path = pg_catalog, pg_temp;
set local statement_timeout = 0;
set local lock_timeout = '60s';
do $$ begin perform pg_advisory_xact_lock(hashtextextended('kept.migration', 0)); end $$;
set local lock_timeout = '5s';
do $$ begin
  if not exists (select from pg_namespace where nspname = 'SCHEMA') then
    create schema kept;
  end if;
  if to_regclass('kept.migration') is null then
    create table kept.migration (
      version    int primary key,
      name       text not null,
      kind       text not null check (kind in ('expand', 'contract', 'breaking')),
      checksum   text not null,
      applied_at timestamptz not null default statement_timestamp()
    );
  end if;
end $$;
"""


@dataclass(frozen=True, slots=True)
class Migration:
    """One numbered file of this release, written for a schema called ``kept``."""

    version: int
    name: str
    kind: Kind
    sql: str
    checksum: str


@dataclass(frozen=True, slots=True)
class Applied:
    """One row of ``<schema>.migration``; possibly of a release newer than this code."""

    version: int
    name: str
    kind: Kind
    checksum: str


@dataclass(frozen=True, slots=True)
class Server:
    """What must be known of a server before its schema is worth a look."""

    version: int
    read_only: bool
    present: bool


@dataclass(frozen=True, slots=True)
class Status:
    """A schema beside this code: what it has, what it lacks, and what is wrong, if anything."""

    schema: str
    server: Server
    applied: tuple[Applied, ...]
    pending: tuple[Migration, ...]
    problem: Error | None


@cache
def migrations() -> list[Migration]:
    """All migrations of this release, in order."""
    folder = resources.files("kept.db").joinpath("migrations")
    files = {entry.name: entry for entry in folder.iterdir() if entry.name.endswith(".sql")}
    found = [parse(name, files[name].read_text(encoding="utf-8")) for name in sorted(files)]
    if [one.version for one in found] != list(range(1, len(found) + 1)):
        raise ValueError(f"migrations are numbered from 1 without gaps, found {sorted(files)}")
    return found


def parse(file: str, text: str) -> Migration:
    """A migration from its file; a name or a header that says too little is a ValueError."""
    name, header = _FILE.fullmatch(file), _HEADER.match(text)
    if name is None or header is None or header[1] not in get_args(Kind):
        kinds = "|".join(get_args(Kind))
        raise ValueError(f"{file}: needs a name like 0001_name.sql and a first line '-- kind: {kinds}'")
    checksum = hashlib.sha256(text.encode()).hexdigest()
    return Migration(int(name[1]), name[2], cast("Kind", header[1]), text, checksum)


def problem(
    schema: str, server: Server, applied: Sequence[Applied], known: Sequence[Migration]
) -> SchemaMismatch | Unavailable | None:
    """Why this code must not work with that schema, in one sentence; None if it may."""
    broken = unusable(server) or foreign(schema, applied, known)
    if broken is not None:
        return broken
    if not server.present:
        return SchemaMismatch(f'schema "{schema}" is not set up in this database; run `kept migrate`')
    behind = missing(applied, known)
    if behind:
        names = ", ".join(label(one) for one in behind)
        return SchemaMismatch(f'schema "{schema}" lacks what this code needs ({names}); run `kept migrate`')
    return None


def unusable(server: Server) -> SchemaMismatch | Unavailable | None:
    """Why this server cannot hold a queue at all, whatever its schema."""
    old = too_old(server.version)
    if old is None and server.read_only:
        return Unavailable(READ_ONLY)
    return old


def too_old(version: int) -> SchemaMismatch | None:
    """Why a server of this major version cannot be used, if it cannot."""
    if version < OLDEST_SERVER:
        return SchemaMismatch(f"Kept needs PostgreSQL {OLDEST_SERVER} or newer, this is {version}")
    return None


def foreign(schema: str, applied: Sequence[Applied], known: Sequence[Migration]) -> SchemaMismatch | Unavailable | None:
    """Why what was applied is not what this code takes it for; None where old and new get along."""
    by_version = {one.version: one for one in known}
    for row in applied:
        ours = by_version.get(row.version)
        if ours is None and row.kind == "breaking":
            return SchemaMismatch(
                f'schema "{schema}" holds the breaking migration {label(row)}, '
                "which this code does not know; upgrade kept"
            )
        if ours is not None and ours.checksum != row.checksum:
            return SchemaMismatch(
                f'schema "{schema}" was made with another {label(row)} than this code brings; '
                "a migration must not change once it was applied"
            )
    return None


def label(one: Migration | Applied) -> str:
    """``0001_kernel``."""
    return f"{one.version:04}_{one.name}"


def missing(applied: Sequence[Applied], known: Sequence[Migration]) -> tuple[Migration, ...]:
    """The migrations of this code that were not applied yet, in order."""
    done = {row.version for row in applied}
    return tuple(one for one in known if one.version not in done)


def status(conn: Connection, schema: str = DEFAULT_SCHEMA) -> Status:
    """What *schema* has and lacks; changes nothing."""
    server = _one(conn.cursor(row_factory=args_row(Server)).execute(_sql(_SERVER, schema)).fetchone())
    applied: list[Applied] = []
    if server.present:
        applied = conn.cursor(row_factory=args_row(Applied)).execute(_sql(_APPLIED, schema)).fetchall()
    return _status(schema, server, applied)


async def astatus(conn: AsyncConnection, schema: str = DEFAULT_SCHEMA) -> Status:
    """:func:`status` for async code."""
    cursor = await conn.cursor(row_factory=args_row(Server)).execute(_sql(_SERVER, schema))
    server = _one(await cursor.fetchone())
    applied: list[Applied] = []
    if server.present:
        rows = await conn.cursor(row_factory=args_row(Applied)).execute(_sql(_APPLIED, schema))
        applied = await rows.fetchall()
    return _status(schema, server, applied)


def pending(conn: Connection, schema: str = DEFAULT_SCHEMA) -> list[Migration]:
    """What :func:`apply` would apply now."""
    return list(status(conn, schema).pending)


def check(conn: Connection, schema: str = DEFAULT_SCHEMA) -> None:
    """Return if this code may work with *schema*; else raise SchemaMismatch or Unavailable, a sentence."""
    _raise(status(conn, schema).problem)


async def acheck(conn: AsyncConnection, schema: str = DEFAULT_SCHEMA) -> None:
    """:func:`check` for async code."""
    _raise((await astatus(conn, schema)).problem)


def apply(conn: Connection, schema: str = DEFAULT_SCHEMA) -> list[Migration]:
    """Bring *schema* up to this code, and say what was applied now.

    *conn* is in autocommit mode. Each migration is one transaction; racing migrators wait for each other, and
    each migration is applied by one of them.
    """
    now = status(conn, schema)
    _raise(unusable(now.server) or foreign(schema, now.applied, migrations()))
    return [one for one in now.pending if _apply_patiently(conn, schema, one)]


def script(schema: str = DEFAULT_SCHEMA, *, since: int = 0) -> str:
    """What :func:`apply` would do to a schema at version *since*, as a script for psql."""
    wanted = [one for one in migrations() if one.version > since]
    return "\n".join(["\\set ON_ERROR_STOP on", *(_printed(one, schema) for one in wanted)])


def _printed(one: Migration, schema: str) -> str:
    return f"""\
-- {label(one)}
begin;
{_sql(_PREPARE, schema)}
{_sql(one.sql, schema)}
{_record(one, schema)};
commit;
"""


def _apply_patiently(conn: Connection, schema: str, one: Migration) -> bool:
    """Apply *one* if nobody else did; a lock that is not to be had is asked for again, a few times."""
    for pause in (*_PAUSES, None):
        try:
            return _apply_one(conn, schema, one)
        except psycopg.errors.LockNotAvailable as refused:
            if pause is None:
                raise Unavailable(
                    f'migration {label(one)} did not get its locks on schema "{schema}": '
                    "a transaction there stays open; nothing was changed, try again when it has ended"
                ) from refused
            time.sleep(pause)
    raise AssertionError("the last try returns or raises")


def _apply_one(conn: Connection, schema: str, one: Migration) -> bool:
    with conn.transaction():
        conn.execute(_sql(_PREPARE, schema))
        if any(row.version == one.version for row in status(conn, schema).applied):
            return False
        conn.execute(_sql(one.sql, schema))
        conn.execute(_record(one, schema).encode())
        points.before(f"migration.{label(one)}")
    points.after(f"migration.{label(one)}", conn.pgconn)
    return True


def _record(one: Migration, schema: str) -> str:
    # Written out rather than passed, because the printed script needs it so.
    return SQL(_sql(_RECORD, schema)).format(one.version, one.name, one.kind, one.checksum).as_string()


def _sql(text: str, schema: str) -> LiteralString:
    """*text* for *schema*; its name must be plain, for it also stands in literals and in a channel's name."""
    if not _SCHEMA.fullmatch(schema):
        raise Misconfigured(
            f"schema: {schema[:70]!r} is not a usable name: "
            "letters, digits, _ and -, at most 58 of them, and not pg_ in front"
        )
    return in_schema(text, schema).replace("'SCHEMA'", f"'{schema}'")


def _status(schema: str, server: Server, applied: Sequence[Applied]) -> Status:
    known = migrations()
    found = problem(schema, server, applied, known)
    return Status(schema, server, tuple(applied), missing(applied, known), found)


def _one(row: Server | None) -> Server:
    assert row is not None, "a select without a from clause returns a row"
    return row


def _raise(found: Error | None) -> None:
    if found is not None:
        raise found
