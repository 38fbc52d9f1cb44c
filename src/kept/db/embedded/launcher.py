"""Users of one embedded server: the first starts it, others join, the last one out stops it.

There is no list of users that could go stale. Each holds a shared flock on ``users.lock``; the kernel drops
it when the process ends, however it ends. Whoever gets that lock exclusively was the last. ``start.lock``
makes them come and go one at a time.
"""

from __future__ import annotations

import atexit
import fcntl
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

from kept.db.embedded import binaries
from kept.db.embedded.account import Mode
from kept.db.embedded.cluster import Cluster, Shutdown
from kept.db.embedded.places import make_home, settle_in
from kept.errors import Misconfigured


class Embedded:
    """A real PostgreSQL in the directory *root*, shared by all processes (and objects) that name it.

    *options* are server settings (``{"fsync": "off"}``); they count when we start it, not when we join.
    *mode* says how root becomes somebody else: leave it to ``auto``.
    """

    def __init__(
        self,
        root: Path,
        *,
        bin_dir: Path | None = None,
        options: Mapping[str, str] | None = None,
        mode: Mode = "auto",
    ) -> None:
        self.root = root.expanduser().resolve()
        found = binaries.find(bin_dir)
        self._home, self._account = settle_in(self.root, mode)
        self._cluster = Cluster(self._home, found, self._account, options or {})
        self._hold: int | None = None

    def acquire(self) -> str:
        """Start the server or join it, and return its URL; called again, it revives a server that died."""
        try:
            make_home(self._home, self._account)
            with self._alone():
                self._join()
        except OSError as error:
            raise Misconfigured(f"the embedded PostgreSQL cannot use {self._home}: {error}") from error
        return self.url()

    def release(self, *, stop: bool = True) -> bool:
        """Leave; the last one out stops the server unless *stop* is false. True if we were the last."""
        if self._hold is None:
            return False
        if not self._home.exists():
            # Somebody removed it under us; a server without its files ends by itself.
            self._let_go()
            return True
        with self._alone():
            last = self._let_go()
            if last and stop:
                self._cluster.stop()
        return last

    def url(self, database: str = "postgres") -> str:
        """The URL of *database*, for psycopg and everything else that uses libpq."""
        return self._cluster.url(database)

    def alive(self) -> bool:
        """Does the server answer?"""
        return self._cluster.alive()

    def postmaster(self) -> int | None:
        """The pid of the server's main process, if it runs."""
        return self._cluster.postmaster()

    def processes(self) -> frozenset[int]:
        """The pids of all its processes; none where the system cannot tell."""
        return self._account.servers_in(self._cluster.data) or frozenset()

    def follow(self, url: str) -> None:
        """Make this a standby of the server at *url*, before it was ever started."""
        make_home(self._home, self._account)
        with self._alone():
            self._cluster.follow(url)

    def restart(self, mode: Shutdown = "fast") -> None:
        """Stop the server, ``immediate`` as in a crash, and start it again; every connection is lost."""
        with self._alone():
            self._cluster.stop(mode)
            self._cluster.ensure()

    def __enter__(self) -> Self:
        self.acquire()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def _join(self) -> None:
        joined_before = self._hold is not None
        if self._hold is None:
            self._hold = _open(self._home / "users.lock")
            fcntl.flock(self._hold, fcntl.LOCK_SH)
            _held.add(self)
        try:
            self._cluster.ensure()
        except BaseException:
            if not joined_before:
                self._let_go()
            raise

    def _let_go(self) -> bool:
        """Give up our hold; True if nobody else has one."""
        if self._hold is None:
            return False
        try:
            # Unlocked, not only closed: a forked child may have a copy of the descriptor.
            fcntl.flock(self._hold, fcntl.LOCK_UN)
            fcntl.flock(self._hold, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            return False
        finally:
            self._forget()

    def _forget(self) -> None:
        if self._hold is not None:
            os.close(self._hold)
        self._hold = None
        _held.discard(self)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Nobody else starts, joins or leaves this server meanwhile."""
        descriptor = _open(self._home / "start.lock")
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            fcntl.flock(descriptor, fcntl.LOCK_UN)
            os.close(descriptor)


_held: set[Embedded] = set()


@atexit.register
def _release_all() -> None:
    for server in tuple(_held):
        server.release()


def _forget_all() -> None:
    """A forked child is no user: its exit must not end what its parent holds, nor its life prolong it."""
    for server in tuple(_held):
        server._forget()


os.register_at_fork(after_in_child=_forget_all)


def _open(path: Path) -> int:
    """A descriptor to lock: not inherited by programs we start, never through a link somebody put there."""
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
