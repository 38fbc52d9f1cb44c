"""Where is measured: a server, and a schema of our own in it that is gone afterwards."""

from __future__ import annotations

import os
import secrets
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import psycopg
from psycopg.rows import TupleRow
from psycopg.sql import SQL, Identifier

from kept.bench.model import Server
from kept.db import migrate
from kept.db.connect import connect_sync
from kept.db.embedded import Embedded, is_embedded, location
from kept.db.queries import Queries, load

Conn = psycopg.Connection[TupleRow]

# A server as one would run it: commits are on disk when they are confirmed, and no checkpoint falls into a round.
OPTIONS = {
    "fsync": "on",
    "synchronous_commit": "on",
    "full_page_writes": "on",
    "shared_buffers": "256MB",
    "max_wal_size": "4GB",
    "checkpoint_timeout": "30min",
}
FOLDER = "kept-bench-"
STOPPING = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}


@dataclass(slots=True)
class Place:
    """A schema of our own, a connection to it, and the statements to use it with."""

    url: str
    schema: str
    conn: Conn
    sql: Queries
    server: Server
    walinspect: bool = False

    def one(self, name: str, **params: object) -> object:
        """The one value that statement *name* gives."""
        row = self.conn.execute(self.sql[name], params).fetchone()
        assert row is not None
        return row[0]

    # --- jobs

    def lane(self, task: str, queue: str) -> int:
        return int(str(self.one("lane", task=task, queue=queue)))

    def empty(self) -> None:
        """As if no job had ever been there."""
        self.conn.execute(self.sql["empty"])

    def fill(self, lane: int, jobs: int, *, delay: float = 0.0) -> None:
        """Put *jobs* jobs into *lane*, due after *delay* seconds."""
        self.conn.execute(self.sql["fill"], {"lane": lane, "jobs": jobs, "delay": delay})

    def settle_down(self) -> None:
        """Vacuum, analyse and write a checkpoint, so that no round pays for what came before it."""
        for table in ("job", "history"):
            self.conn.execute(SQL("vacuum (analyze) {}").format(Identifier(self.schema, table)))
        with suppress(psycopg.errors.InsufficientPrivilege):
            self.conn.execute("checkpoint")

    # --- WAL

    def wal_position(self) -> str:
        return str(self.one("wal_position"))

    def wal_since(self, position: str) -> float:
        """Bytes of WAL since *position*; without full-page images where the server can tell."""
        statement = "records_written" if self.walinspect else "wal_written"
        return float(str(self.one(statement, since=position)))


@contextmanager
def place(database: str | None) -> Iterator[Place]:
    """A new schema in *database*, or on a server of our own; dropped at the end, however that comes."""
    with _server(database) as url, connect_sync(url, name="kept bench") as conn:
        schema = f"kept_bench_{secrets.token_hex(4)}"
        sql = load("kept.bench", schema)
        conn.execute(sql["hold"], {"schema": schema})
        try:
            migrate.apply(conn, schema)
            made = Place(url, schema, conn, sql, _facts(conn, sql, embedded=database is None))
            made.walinspect = _add_walinspect(conn, sql)
            yield made
        finally:
            with uninterrupted():
                _drop_by_itself(url, schema)


def clean(database: str | None) -> list[str]:
    """Drop what killed measurements left in *database*, or in our own temporary folders; their names."""
    if database is None:
        return []
    with _server(database) as url, connect_sync(url, name="kept bench") as conn:
        sql = load("kept.bench")
        names = [str(row[0]) for row in conn.execute(sql["leftovers"]).fetchall()]
        dropped = [name for name in names if _is_free(conn, sql, name)]
        for name in dropped:
            drop(conn, name)
        return dropped


def _is_free(conn: Conn, sql: Queries, schema: str) -> bool:
    row = conn.execute(sql["hold"], {"schema": schema}).fetchone()
    return row is not None and bool(row[0])


def drop(conn: Conn, schema: str) -> None:
    """Drop *schema* with all it holds."""
    conn.execute("select set_config('lock_timeout', '20s', false), set_config('client_min_messages', 'error', false)")
    conn.execute(SQL("drop schema if exists {} cascade").format(Identifier(schema)))


def _drop_by_itself(url: str, schema: str) -> None:
    """On a connection of its own: ours may be in the middle of something."""
    with connect_sync(url, name="kept bench") as conn:
        drop(conn, schema)


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Let nothing but SIGKILL stop what is done here; a signal that comes meanwhile is answered afterwards."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _server(database: str | None) -> Iterator[str]:
    if database is None:
        with _own_server() as url:
            yield url
    elif is_embedded(database):
        with Embedded(location(database)) as embedded:
            yield embedded.url()
    else:
        yield database


@contextmanager
def _own_server() -> Iterator[str]:
    """A PostgreSQL in a temporary folder, removed with it."""
    with TemporaryDirectory(prefix=FOLDER) as folder:
        Path(folder).chmod(0o711)  # root's server runs as somebody else, who must get through
        with Embedded(Path(folder) / "pg", options=OPTIONS) as embedded:
            yield embedded.url()


def _facts(conn: Conn, sql: Queries, *, embedded: bool) -> Server:
    row = conn.execute(sql["server"]).fetchone()
    assert row is not None
    version, fsync, synchronous_commit, full_page_writes, shared_buffers = map(str, row)
    return Server(
        version=version.split()[0],
        embedded=embedded,
        cpus=os.cpu_count() or 1,
        fsync=fsync,
        synchronous_commit=synchronous_commit,
        full_page_writes=full_page_writes,
        shared_buffers=shared_buffers,
    )


def _add_walinspect(conn: Conn, sql: Queries) -> bool:
    """Whether the server lets us look into its WAL; what we need for that goes with our schema."""
    try:
        conn.execute(sql["add_walinspect"])
        conn.execute(sql["records_written"], {"since": str(_position(conn, sql))})
    except psycopg.Error:
        return False
    return True


def _position(conn: Conn, sql: Queries) -> object:
    row = conn.execute(sql["wal_position"]).fetchone()
    return row and row[0]
