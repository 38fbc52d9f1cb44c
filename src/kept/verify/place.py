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
EVIDENCE = "kept-evidence-"  # folders with the logs of runs in which something was amiss
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
def place(database: str | None, needs: frozenset[str]) -> Iterator[Place]:
    """A place with what *needs* names, in a folder that is gone afterwards; without *database*, on our own server."""
    with temporary_folder() as folder, place_in(folder, database, needs) as where:
        yield where


@contextmanager
def place_in(folder: Path, database: str | None, needs: frozenset[str]) -> Iterator[Place]:
    """The same, in *folder*."""
    with _rigged(database, needs, folder) as rig, _schema(rig.direct) as schema:
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
def temporary_folder() -> Iterator[Path]:
    """A folder of our own; gone afterwards, however that comes."""
    leftovers.sweep_folders()
    folder = Path(mkdtemp(prefix=leftovers.FOLDER))
    with ExitStack() as until:
        until.callback(shutil.rmtree, folder, ignore_errors=True)
        leftovers.hold_folder(folder, until)
        try:
            yield folder
        finally:
            with uninterrupted():
                until.close()


def saved(folder: Path, keep: Path | None) -> Path | None:
    """Move what was written down in *folder* to *keep*, or to a folder of its own; where it is, if there was any."""
    found = [path for path in folder.iterdir() if path.is_file() and path.name != leftovers.HELD]
    readable = [path for path in found if os.access(path, os.R_OK)]  # a pooler's account has files of its own
    if not readable:
        return None
    with uninterrupted():
        there = Path(mkdtemp(prefix=EVIDENCE)) if keep is None else keep
        there.mkdir(parents=True, exist_ok=True)
        for path in readable:
            shutil.move(path, there / path.name)
    return there


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
