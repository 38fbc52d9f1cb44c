"""A PostgreSQL of our own that may be harmed: restarted, killed, filled up, and made to answer again."""

from __future__ import annotations

import os
import shutil
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import Self

import psycopg
from psycopg.rows import TupleRow

from kept.db.connect import conninfo
from kept.db.embedded import Embedded
from kept.db.embedded.cluster import Shutdown
from kept.errors import Error, Unavailable

# What a killed server wrote is in the kernel's hands, and the machine stays up: fsync would prove nothing more here.
OPTIONS = {
    "fsync": "off",
    "max_connections": "100",
    "deadlock_timeout": "200ms",
    "max_wal_size": "512MB",
    "wal_keep_size": "256MB",  # so that a standby that was away can catch up
    "log_min_messages": "fatal",
}
PATIENCE, LOOK = 60.0, 0.05  # seconds for the server to answer again, and between looks
NAME = "kept verify fault"


class Down(Error):
    """The server under test does not come back."""

    code = "verify_server_down"


class Server:
    """The server in *folder*. It runs from :meth:`start` to :meth:`stop`, whatever is done to it in between."""

    def __init__(self, folder: Path) -> None:
        self._embedded = Embedded(folder, options=OPTIONS)

    @property
    def url(self) -> str:
        return self._embedded.url()

    @property
    def folder(self) -> Path:
        """Where its files are."""
        return self._embedded.root

    def start(self) -> None:
        """Start it, or start it again; returns when it answers."""
        until = time.monotonic() + PATIENCE
        while True:
            try:
                self._embedded.acquire()
                break
            except Unavailable:
                # A server that is still recovering, or one whose disk is not quite free yet.
                if time.monotonic() > until:
                    raise
                time.sleep(LOOK)
        self.wait()

    def stop(self) -> None:
        """Stop it for good."""
        self._embedded.release()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def connect(self) -> psycopg.Connection[TupleRow]:
        """A connection for a fault: in autocommit mode, and past the proxy."""
        return psycopg.Connection.connect(conninfo(self.url, name=NAME), autocommit=True)

    def answers(self) -> bool:
        """Whether it takes a statement now."""
        try:
            with self.connect() as conn:
                conn.execute("select 1")
        except psycopg.OperationalError:
            return False
        return True

    def wait(self, within: float = PATIENCE) -> None:
        """Return when it answers."""
        until = time.monotonic() + within
        while not self.answers():
            if time.monotonic() > until:
                raise Down(f"the server in {self.folder} does not answer within {within:.0f} s")
            time.sleep(LOOK)

    # --- harm

    def restart(self, how: Shutdown) -> None:
        """Stop it, ``immediate`` as in a crash, and start it again."""
        self._embedded.restart(how)
        self.wait()

    def kill(self, away: float = 0.0) -> int:
        """SIGKILL its main process, leave it down for *away* seconds, and start it again; the pid that died."""
        pid = self._embedded.postmaster()
        if pid is None:
            raise Down(f"the server in {self.folder} does not run")
        os.kill(pid, signal.SIGKILL)
        time.sleep(away)
        self.start()
        return pid

    def crash(self) -> None:
        """SIGKILL all its processes, as when its host dies, and leave it at that."""
        until = time.monotonic() + PATIENCE
        while left := self._embedded.processes():
            if time.monotonic() > until:
                raise Down(f"the server in {self.folder} does not die")
            for pid in left:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(LOOK)

    def remove(self) -> None:
        """Stop it, and leave nothing of it."""
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def follow(self, other: Server) -> None:
        """Start as a standby of *other*; returns when it streams from it."""
        self._embedded.follow(other.url)
        self.start()

    def promote(self) -> None:
        """Make a standby a primary; returns when it takes writes."""
        with self.connect() as conn:
            conn.execute("select pg_promote()")

    def kill_backend(self, pid: int) -> None:
        """SIGKILL the process of one connection: the server takes all connections down with it and recovers."""
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        until = time.monotonic() + PATIENCE
        while Path(f"/proc/{pid}").exists() and time.monotonic() < until:
            time.sleep(LOOK)
        self.wait()

    def backends(self, like: str) -> list[int]:
        """The processes of connections but ours whose application name is LIKE *like*, in a stable order."""
        with self.connect() as conn:
            found = conn.execute(
                "select pid from pg_stat_activity where application_name like %s and pid <> pg_backend_pid() "
                "order by application_name, pid",
                [like],
            )
            return [int(row[0]) for row in found.fetchall()]
