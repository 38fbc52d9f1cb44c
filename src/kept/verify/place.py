"""Where is verified: a server and a schema of our own in it, a folder for the logs; all gone afterwards."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import psycopg
from psycopg.rows import TupleRow
from psycopg.sql import SQL, Identifier

from kept.db import migrate
from kept.db.connect import connect_sync
from kept.db.queries import Queries, load
from kept.verify.proxy import Proxy
from kept.verify.rig import Rig
from kept.verify.server import Server

Conn = psycopg.Connection[TupleRow]
FOLDER = "kept-verify-"
NAME = "kept verify"
STOPPING = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}


@dataclass(slots=True)
class Place:
    """A schema of our own on a server, and a folder for what is written down."""

    database: str  # for workers and producers
    direct: str
    schema: str
    folder: Path
    server: Server | None = None
    proxy: Proxy | None = None
    extras: dict[str, Any] = field(default_factory=dict)

    @property
    def sql(self) -> Queries:
        return load("kept.verify", self.schema)

    def connect(self) -> Conn:
        """A connection past the proxy, in autocommit mode."""
        return connect_sync(self.direct, name=NAME)


@contextmanager
def place(database: str | None, needs: frozenset[str], keep: Path | None) -> Iterator[Place]:
    """A place with what *needs* names; without *database*, on a server of our own."""
    with _folder(keep) as folder, _rigged(database, needs, folder) as rig, _schema(rig.direct) as schema:
        yield Place(rig.database, rig.direct, schema, folder, rig.server, rig.proxy, rig.extras)


@contextmanager
def _rigged(database: str | None, needs: frozenset[str], folder: Path) -> Iterator[Rig]:
    rig = Rig(folder)
    try:
        rig.open(database, needs)
        yield rig
    finally:
        with uninterrupted():
            rig.close()


@contextmanager
def _schema(url: str) -> Iterator[str]:
    """A new schema; dropped at the end, however that comes."""
    schema = f"kept_verify_{secrets.token_hex(4)}"
    sql = load("kept.verify", schema)
    with connect_sync(url, name=NAME) as conn:
        migrate.apply(conn, schema)
        conn.execute(sql["make_effects"])
    try:
        yield schema
    finally:
        with uninterrupted(), connect_sync(url, name=NAME) as conn:
            conn.execute("select set_config('lock_timeout', '20s', false)")
            conn.execute("select set_config('client_min_messages', 'error', false)")
            conn.execute(SQL("drop schema if exists {} cascade").format(Identifier(schema)))


@contextmanager
def _folder(keep: Path | None) -> Iterator[Path]:
    """A temporary folder; what was written down in it is copied to *keep*."""
    folder = Path(mkdtemp(prefix=FOLDER))
    try:
        folder.chmod(0o711)  # root's server runs as somebody else, who must get through
        yield folder
    finally:
        with uninterrupted():
            if keep is not None:
                keep.mkdir(parents=True, exist_ok=True)
                for path in folder.iterdir():
                    if path.is_file() and os.access(path, os.R_OK):
                        shutil.copy2(path, keep)
            shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Let nothing but SIGKILL stop what is done here; a signal that comes meanwhile is answered afterwards.

    By handlers of our own and not by a mask, which holds for one thread: with several, another one takes the signal.
    """
    heard: list[int] = []
    before = {each: signal.signal(each, lambda number, _: heard.append(number)) for each in STOPPING}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
        for number in heard[:1]:
            signal.raise_signal(number)
