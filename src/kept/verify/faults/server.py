"""PostgreSQL goes away and comes back, loses a process, or runs out of something."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager, ExitStack, suppress
from random import Random
from typing import ClassVar

import psycopg
from psycopg.rows import TupleRow
from psycopg.sql import SQL, Identifier

from kept.db.embedded.cluster import Shutdown
from kept.db.queries import Queries, load
from kept.verify import disk
from kept.verify.faults.fault import Fault, Group, Need
from kept.verify.model import Repeats
from kept.verify.scene import Scene
from kept.verify.server import Server

SHORT = (0.5, 2.5)  # seconds
WORKERS = "kept worker%"
MOST = 1000  # connections that a server may have room for
LONGEST = 20.0  # seconds to provoke a deadlock
WAITED, PILE_UP = 2.0, 0.7  # … of one try, until a worker waits for us, and then until it has more to settle
TOGETHER, MS = 24, 400  # jobs of one try, and how long they take

Conn = psycopg.Connection[TupleRow]


def server(scene: Scene) -> Server:
    """The server, which is ours: the fault said that it needs that."""
    assert scene.server is not None
    return scene.server


class _OnServer(Fault):
    group: ClassVar[Group] = "server"
    repeats: ClassVar[Repeats] = "whoever starves"
    needs: ClassVar[frozenset[Need]] = frozenset({"own_server"})


class Restart(_OnServer):
    """A restart in order: connections end, and the server is away for a moment."""

    name: ClassVar[str] = "restart"
    how: ClassVar[Shutdown] = "fast"

    def inject(self, scene: Scene, chance: Random) -> str:  # noqa: ARG002  # nothing is left to chance
        server(scene).restart(self.how)
        return "the server"


class RestartAtOnce(Restart):
    """A restart as after a crash, with recovery."""

    name: ClassVar[str] = "restart-immediate"
    how: ClassVar[Shutdown] = "immediate"


class KillPostmaster(_OnServer):
    """SIGKILL of the server's main process; it stays away for shorter or longer than a lease."""

    name: ClassVar[str] = "postmaster"

    def inject(self, scene: Scene, chance: Random) -> str:
        return f"postmaster {server(scene).kill(away=scene.lease * chance.uniform(0, 1.5))}"


class KillBackend(_OnServer):
    """SIGKILL of the process that serves a worker: the server drops everybody and recovers."""

    name: ClassVar[str] = "backend"

    def inject(self, scene: Scene, chance: Random) -> str:
        found = server(scene).backends(WORKERS)
        if not found:
            return ""
        pid = chance.choice(found)
        server(scene).kill_backend(pid)
        return f"backend {pid}"


class Connections(_OnServer):
    """Every connection that the server has room for is taken, and workers lose theirs."""

    name: ClassVar[str] = "connections"

    def inject(self, scene: Scene, chance: Random) -> str:
        with ExitStack() as held:
            ours = [held.enter_context(server(scene).connect())]
            victims = chance.sample(found := server(scene).backends(WORKERS), len(found) // 2)
            _take_all(scene, held, ours)
            for pid in victims:
                ours[0].execute("select pg_terminate_backend(%s, 1000)", [pid])
            until = time.monotonic() + chance.uniform(*SHORT)
            while time.monotonic() < until:
                _take_all(scene, held, ours)
                time.sleep(0.05)
            return f"{len(ours)} connections"


def _take_all(scene: Scene, held: ExitStack, ours: list[psycopg.Connection[TupleRow]]) -> None:
    with suppress(psycopg.OperationalError):
        while len(ours) < MOST:
            ours.append(held.enter_context(server(scene).connect()))


class Snapshot(_OnServer):
    """Somebody holds a snapshot open: dead rows stay, and nobody may mind."""

    name: ClassVar[str] = "snapshot"
    repeats: ClassVar[Repeats] = "nobody"
    needs: ClassVar[frozenset[Need]] = frozenset()

    def inject(self, scene: Scene, chance: Random) -> str:
        with psycopg.Connection.connect(scene.direct, autocommit=True) as conn:
            conn.execute("begin isolation level repeatable read")
            conn.execute(SQL("select count(*) from {}").format(Identifier(scene.schema, "job")))
            time.sleep(chance.uniform(3, 6))
            conn.execute("rollback")
            return f"a snapshot of backend {conn.info.backend_pid}"


class Deadlock(_OnServer):
    """Somebody takes the rows of a worker against the order in which it settles them: PostgreSQL ends one of the two.

    Our own deadlock_timeout is long, so that it is the worker who finds out, and its statement that is given up.
    """

    name: ClassVar[str] = "deadlock"
    repeats: ClassVar[Repeats] = "nobody"  # what was given up is written again

    def inject(self, scene: Scene, chance: Random) -> str:
        sql = load("kept.verify", scene.schema)
        with ExitStack() as stack:
            first, second, watcher = (stack.enter_context(server(scene).connect()) for _ in range(3))
            second.execute("set deadlock_timeout = '20s'")
            second.execute("set lock_timeout = '3s'")
            before = _deadlocks(watcher)
            until = time.monotonic() + LONGEST
            while time.monotonic() < until:
                since = min(scene.client.enqueue("slow", ms=MS) for _ in range(TOGETHER))
                _provoke(first, second, watcher, sql, since)
                if found := _deadlocks(watcher) - before:
                    return f"{found} statements"
                time.sleep(chance.uniform(0, 0.05))
        return ""


def _deadlocks(conn: Conn) -> int:
    conn.execute("select pg_stat_clear_snapshot()")
    row = conn.execute("select deadlocks from pg_stat_database where datname = current_database()").fetchone()
    return int(row[0]) if row else 0


def _provoke(first: Conn, second: Conn, watcher: Conn, sql: Queries, since: int) -> None:
    """Have a worker wait with one settlement until it has several, and take the last of those that come next."""
    with suppress(psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected), _rolled_back(second):
        with _rolled_back(first):
            held = first.execute(sql["hold_one"], {"since": since}).fetchone()
            if held is None:
                return
            its = {"job": held[0], "worker": held[1]}
            _wait_for_waiter(watcher, first.info.backend_pid, sql)
            time.sleep(PILE_UP)
            second.execute(sql["hold_some"], its)
        _wait_for_waiter(watcher, second.info.backend_pid, sql)
        second.execute(sql["hold_rest"], its)  # waits for the worker, which waits for us


def _wait_for_waiter(watcher: Conn, pid: int, sql: Queries) -> None:
    """Until somebody waits for *pid*, or nobody does for long."""
    until = time.monotonic() + WAITED
    while time.monotonic() < until and watcher.execute(sql["is_waited_for"], {"pid": pid}).fetchone() != (True,):
        time.sleep(0.01)


def _rolled_back(conn: Conn) -> AbstractContextManager[object]:
    """A transaction that changes nothing."""
    return conn.transaction(force_rollback=True)


class DiskFull(_OnServer):
    """The disk under data and WAL is full for a while. A server that gave up is started again afterwards."""

    name: ClassVar[str] = "disk"
    needs: ClassVar[frozenset[Need]] = frozenset({"own_server", "disk"})

    def missing(self) -> str | None:
        return disk.missing()

    def inject(self, scene: Scene, chance: Random) -> str:
        with scene.extras["disk"].full():
            if chance.random() < 0.5:
                self._end_wal_file(scene)
            time.sleep(chance.uniform(1, 3))
        gave_up = not server(scene).answers()
        server(scene).start()
        return f"the server{', which gave up' if gave_up else ''}"

    def _end_wal_file(self, scene: Scene) -> None:
        """Make the server need another file for its WAL, which it cannot do without."""
        with suppress(psycopg.OperationalError), server(scene).connect() as conn:
            for _ in range(3):
                conn.execute("select pg_switch_wal()")


FAULTS: tuple[Fault, ...] = (
    Restart(),
    RestartAtOnce(),
    KillPostmaster(),
    KillBackend(),
    Connections(),
    Snapshot(),
    Deadlock(),
    DiskFull(),
)
