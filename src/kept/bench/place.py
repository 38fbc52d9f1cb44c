"""Where is measured: a server, and a schema of our own in it that is gone afterwards."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import gettempdir, mkdtemp
from typing import LiteralString

import psycopg
from psycopg.rows import TupleRow
from psycopg.sql import SQL, Identifier, Literal

from kept.bench.model import Server
from kept.bench.proc import is_in_memory
from kept.db import temporary
from kept.db.connect import connect_sync
from kept.db.embedded import Embedded, is_embedded, let_through, location
from kept.db.queries import Queries, load
from kept.errors import Error

Conn = psycopg.Connection[TupleRow]

WAL_FILE, LEAST_WAL = 16, 4096  # MB
MIB = 2**20
# A server as one would run it: commits are on disk when they are confirmed, and no checkpoint falls into a round.
OPTIONS = {
    "fsync": "on",
    "synchronous_commit": "on",
    "full_page_writes": "on",
    "shared_buffers": "256MB",
    "checkpoint_timeout": "30min",
}
FOLDER, SCHEMA = "kept-bench-", "kept_bench"
SERVER, HELD = "pg", "held"
STOPPING = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}


class Unsound(Error):
    """What was measured is not what was meant."""

    code = "bench_unsound"


@dataclass(slots=True)
class Place:
    """A schema of our own, a connection to it, and the statements to use it with."""

    url: str
    schema: str
    conn: Conn
    sql: Queries
    server: Server
    folder: Path
    own: bool = False  # nobody else's server
    walinspect: bool = False

    def one(self, query: LiteralString, **params: object) -> object:
        """The one value that *query* gives."""
        row = self.conn.execute(query, params).fetchone()
        assert row is not None
        return row[0]

    # --- jobs

    def lane(self, task: str, queue: str) -> int:
        return int(str(self.one(self.sql["lane"], task=task, queue=queue)))

    def empty(self) -> None:
        """As if no job had ever been there."""
        self.conn.execute(self.sql["empty"])

    def fill(self, lane: int, jobs: int, *, delay: float = 0.0) -> None:
        """Put *jobs* jobs into *lane*, due after *delay* seconds."""
        self.conn.execute(self.sql["fill"], {"lane": lane, "jobs": jobs, "delay": delay})

    def fill_history(self, lane: int, jobs: int) -> None:
        """Put *jobs* settled jobs of *lane* into history."""
        self.conn.execute(self.sql["fill_history"], {"lane": lane, "jobs": jobs})

    def settle_down(self) -> None:
        """Vacuum, analyse and write a checkpoint, so that no round pays for what came before it."""
        for table in ("job", "history"):
            self.conn.execute(SQL("vacuum (analyze) {}").format(Identifier(self.schema, table)))
        with suppress(psycopg.errors.InsufficientPrivilege):
            self.conn.execute("checkpoint")

    def leave_nothing_to_vacuum(self) -> None:
        """On a server of our own: what we just made would have autovacuum take a processor while we watch."""
        if self.own:
            self.conn.execute("vacuum (analyze)")

    @contextmanager
    def without_autovacuum(self) -> Iterator[None]:
        """On a server of our own: autovacuum's transactions would be counted as a worker's."""
        if not self.own:
            yield
            return
        self._configure(autovacuum="off")
        try:
            yield
        finally:
            self._configure(autovacuum="on")

    def have_wal(self, megabytes: int) -> None:
        """On a server of our own: as many WAL files as one has that ran for a while and writes over its old ones.

        To make a new one takes 50 ms, and every commit waits for it. As long as these last no checkpoint comes.
        """
        if not self.own:
            return
        here = min(megabytes, shutil.disk_usage(self.folder).free // MIB // 4)
        self.keep_wal(3 * here)
        for _ in range(here // WAL_FILE):
            self.conn.execute(self.sql["next_wal_file"])
        self.conn.execute("checkpoint")

    def keep_wal(self, megabytes: int) -> None:
        """On a server of our own: no checkpoint before half of that is written, and no file of it is removed."""
        if self.own:
            size = f"{max(megabytes, LEAST_WAL)}MB"
            self._configure(max_wal_size=size, min_wal_size=size)

    def _configure(self, **settings: str) -> None:
        for name, value in settings.items():
            self.conn.execute(SQL("alter system set {} = {}").format(Identifier(name), Literal(value)))
        self.conn.execute("select pg_reload_conf()")

    def check_done(self, lane: int, jobs: int) -> None:
        """Raise unless *jobs* jobs of *lane* are done and none is left: a rate of failures is no rate."""
        row = self.conn.execute(self.sql["outcome"], {"lane": lane}).fetchone()
        if row != (jobs, 0):
            raise Unsound(f"of {jobs} jobs, not all were done: (done, left) is {row}; nothing can be said")

    # --- WAL

    def wal_position(self) -> str:
        return str(self.one(self.sql["wal_position"]))

    def wal_since(self, position: str) -> float:
        """Bytes of WAL since *position*; without full-page images where the server can tell."""
        if not self.walinspect:
            return float(str(self.one(self.sql["wal_written"], since=position)))
        return _records_written(self.conn, self.sql, position)


@dataclass(frozen=True, slots=True)
class Site:
    """A server to measure on, and a temporary folder for what the measured processes share."""

    url: str
    folder: Path
    embedded: bool
    in_memory: bool = False
    own: bool = False  # there for this measurement only


@contextmanager
def site(database: str | None) -> Iterator[Site]:
    """The server of *database*, or one of our own; what is ours is gone at the end."""
    with _folder() as folder:
        if database is None:
            let_through(folder)
            with _running(Embedded(folder / SERVER, options=OPTIONS)) as url:
                yield Site(url, folder, True, is_in_memory(folder), own=True)
        elif is_embedded(database):
            with _running(Embedded(location(database))) as url:
                yield Site(url, folder, True)
        else:
            yield Site(database, folder, False)


@contextmanager
def _running(embedded: Embedded) -> Iterator[str]:
    url = embedded.acquire()
    try:
        yield url
    finally:
        with uninterrupted():
            embedded.release()


@contextmanager
def place(site: Site) -> Iterator[Place]:
    """A new schema on *site*; dropped at the end, however that comes."""
    with connect_sync(site.url, name="kept bench") as conn:
        schema = temporary.new_name(SCHEMA)
        sql = load("kept.bench", schema)
        temporary.hold(conn, schema)
        try:
            temporary.build(conn, schema)
            facts = _facts(conn, sql, site)
            made = Place(url=site.url, schema=schema, conn=conn, sql=sql, server=facts, folder=site.folder)
            made.own = site.own
            made.keep_wal(LEAST_WAL)
            made.walinspect = _add_walinspect(conn, sql)
            yield made
        finally:
            with uninterrupted():
                _drop_by_itself(site.url, schema)


def clean(database: str | None) -> list[str]:
    """Remove the folders, and the schemas in *database*, that killed measurements left; their names."""
    gone = [str(folder) for folder in sorted(Path(gettempdir()).glob(f"{FOLDER}*")) if _remove_abandoned(folder)]
    if database is None:
        return gone
    with site(database) as there, connect_sync(there.url, name="kept bench") as conn:
        return gone + temporary.sweep(conn, SCHEMA)


def _drop_by_itself(url: str, schema: str) -> None:
    """On a connection of its own: ours may be in the middle of something."""
    with connect_sync(url, name="kept bench") as conn:
        temporary.drop(conn, schema)


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Let nothing but SIGKILL stop what is done here; a signal that comes meanwhile is answered afterwards."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _folder() -> Iterator[Path]:
    """A temporary folder that is ours while we hold its lock."""
    folder = Path(mkdtemp(prefix=FOLDER))
    try:
        (folder / HELD).touch(mode=0o600)
        with (folder / HELD).open("wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield folder
    finally:
        with uninterrupted():
            shutil.rmtree(folder, ignore_errors=True)


def _remove_abandoned(folder: Path) -> bool:
    """Remove *folder*, with the server in it, unless it is somebody else's or a measurement still runs there."""
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        return False
    with (folder / HELD).open("wb") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        if (folder / SERVER).exists():
            embedded = Embedded(folder / SERVER, options=OPTIONS)
            if embedded.alive():
                embedded.acquire()
                embedded.release()
        shutil.rmtree(folder, ignore_errors=True)
    return True


def _facts(conn: Conn, sql: Queries, site: Site) -> Server:
    row = conn.execute(sql["server"]).fetchone()
    assert row is not None
    version, fsync, synchronous_commit, full_page_writes, shared_buffers = map(str, row)
    return Server(
        version=version.split()[0],
        embedded=site.embedded,
        in_memory=site.in_memory,
        cpus=os.cpu_count() or 1,
        fsync=fsync,
        synchronous_commit=synchronous_commit,
        full_page_writes=full_page_writes,
        shared_buffers=shared_buffers,
    )


def _add_walinspect(conn: Conn, sql: Queries) -> bool:
    """Whether the server lets us look into its WAL; what we need for that goes with our schema."""
    before = conn.execute(sql["wal_position"]).fetchone()
    assert before is not None
    try:
        conn.execute(sql["add_walinspect"])  # writes some WAL itself: of nothing, it could tell nothing
        _records_written(conn, sql, str(before[0]))
    except psycopg.Error:
        return False
    return True


def _records_written(conn: Conn, sql: Queries, since: str) -> float:
    conn.execute(sql["flush_wal"])
    row = conn.execute(sql["records_written"], {"since": since}).fetchone()
    assert row is not None
    return float(row[0])
