"""Where is verified: a server and a schema of our own in it, a folder for the logs; all gone afterwards."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import psycopg
from psycopg.rows import TupleRow

from kept.db import temporary
from kept.db.connect import connect_sync
from kept.db.queries import Queries, load
from kept.verify import leftovers
from kept.verify.proxy import Proxy
from kept.verify.rig import Rig
from kept.verify.server import Server

Conn = psycopg.Connection[TupleRow]
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
    schema = temporary.new_name(leftovers.SCHEMA)
    sql = load("kept.verify", schema)
    with connect_sync(url, name=NAME) as held:  # on a server that is not ours, it shows that the schema is in use
        leftovers.sweep_schemas(held)
        temporary.hold(held, schema)
        try:
            temporary.build(held, schema)
            held.execute(sql["make_effects"])
            yield schema
        finally:
            with uninterrupted(), connect_sync(url, name=NAME) as conn:
                temporary.drop(conn, schema)


@contextmanager
def _folder(keep: Path | None) -> Iterator[Path]:
    """A temporary folder; what was written down in it is copied to *keep*."""
    leftovers.sweep_folders()
    folder = Path(mkdtemp(prefix=leftovers.FOLDER))
    with ExitStack() as until:
        until.callback(shutil.rmtree, folder, ignore_errors=True)
        leftovers.hold_folder(folder, until)
        try:
            yield folder
        finally:
            with uninterrupted():
                if keep is not None:
                    copy(folder, keep)
                until.close()


def copy(folder: Path, keep: Path) -> None:
    """What was written down in *folder*, to be read when that is gone."""
    keep.mkdir(parents=True, exist_ok=True)
    for path in folder.iterdir():
        if path.is_file() and path.name != leftovers.HELD and os.access(path, os.R_OK):
            shutil.copy2(path, keep)


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
