"""Real ``kept worker`` processes for a test, and what they left behind: logs, a ledger of effects, rows.

Every process of a fleet, keepers and children included, carries the fleet's mark in its environment, so that a test
can name them all, and none outlives it.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg

from support import eventually

HERE = Path(__file__).parent
KEPT = Path(sys.executable).with_name("kept")
MARK = "ERRANDS_FLEET"
# Long enough for a busy machine with two cores, short enough for a test.
SETTINGS = {
    "KEPT_LEASE": "3s",
    "KEPT_RENEW": "500ms",
    "KEPT_RECLAIM_SCAN": "500ms",
    "KEPT_LOG_FORMAT": "json",
    "KEPT_ERROR_BACKOFF": "1s",
    "KEPT_SPARE": "off",  # a process less for every worker, in tests that are not about it
}


@dataclass(frozen=True)
class Effect:
    """One line of the ledger."""

    job: int
    attempt: int
    pid: int
    event: str
    facts: Mapping[str, Any]


@dataclass
class Member:
    """One process that the test started."""

    process: subprocess.Popen[bytes]
    log: Path
    mark: str

    @property
    def pid(self) -> int:
        return self.process.pid

    def lines(self, event: str | None = None) -> list[dict[str, Any]]:
        """What it logged so far; a last line still being written is left for later."""
        found = []
        for line in self.log.read_text().splitlines(keepends=True):
            if line.endswith("\n") and line.startswith("{"):
                found.append(json.loads(line))
        return [line for line in found if event in (None, line["event"])]

    def says(self, event: str, timeout: float = 20) -> dict[str, Any]:
        """Wait until it logs *event*."""

        def said() -> list[dict[str, Any]]:
            ended = self.process.poll() is not None  # asked first: its last words may come in between
            found = self.lines(event)
            assert found or not ended, f"it ended and never said {event}"
            return found

        with explained(self.log.read_text):
            return eventually(said, timeout, what=f"{event} in {self.log.name}")[0]

    @property
    def printed(self) -> str:
        """What it wrote to its standard output so far."""
        return self.log.with_suffix(".out").read_text()

    def kill(self, which: signal.Signals = signal.SIGKILL) -> None:
        self.process.send_signal(which)

    def ended(self, timeout: float = 30) -> int:
        """Wait for its end; the exit code."""
        return self.process.wait(timeout)

    @property
    def children(self) -> list[int]:
        """The processes it started itself."""
        return children_of(self.pid, self.mark)

    def spare(self, other_than: int = 0) -> int:
        """Wait until a process that has loaded the App stands by; needs ``KEPT_LOG_LEVEL=debug``."""

        def ready() -> int:
            said = self.lines("spare_ready")
            return said[-1]["pid"] if said and said[-1]["pid"] != other_than else 0

        with explained(self.log.read_text):
            return eventually(ready, 30, what="a spare")

    @property
    def keeper(self) -> int:
        """The process that renews its lease."""
        found = eventually(lambda: [pid for pid in self.children if "worker.keeper" in _command(pid)], what="a keeper")
        return found[0]


class Fleet:
    """Workers of one database, all of the App in errands.py."""

    def __init__(self, database: str, folder: Path, **settings: str) -> None:
        self.database = database
        self.folder = folder
        self.mark = uuid4().hex
        self.members: list[Member] = []
        self._settings = SETTINGS | settings
        self._ledger = folder / "ledger"
        self._ledger.touch()

    def start(
        self,
        *options: str,
        database: str | None = None,
        wait: bool = True,
        app: str = "errands:app",
        command: str = "worker",
        **settings: str,
    ) -> Member:
        """Start ``kept worker`` with *options*; returns when it is at work, unless told not to *wait*."""
        log = self.folder / f"worker-{len(self.members)}.log"
        with log.open("wb") as stderr, log.with_suffix(".out").open("wb") as stdout:
            process = subprocess.Popen(
                [KEPT, command, app, *options],
                cwd=self.folder,
                env=self.environment(database=database, **settings),
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
            )
        member = Member(process, log, self.mark)
        self.members.append(member)
        if wait:
            member.says("worker_started")
        return member

    def run(self, *command: str, database: str | None = None, **settings: str) -> subprocess.CompletedProcess[str]:
        """Run ``kept`` with *command* to its end."""
        return subprocess.run(
            [KEPT, *command],
            cwd=self.folder,
            env=self.environment(database=database, **settings),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def environment(self, *, database: str | None = None, **settings: str) -> dict[str, str]:
        own = {name: value for name, value in os.environ.items() if not name.startswith("KEPT_")}
        return {
            **own,
            "PYTHONPATH": os.pathsep.join([str(HERE), own.get("PYTHONPATH", "")]),
            "KEPT_DATABASE_URL": database or self.database,
            "ERRANDS_LEDGER": str(self._ledger),
            MARK: self.mark,
            **self._settings,
            **settings,
        }

    @property
    def alive(self) -> list[int]:
        """Every process of this fleet that runs, whoever started it."""
        return processes(self.mark)

    def gate(self, name: str = "gate") -> Path:
        """A path for handlers to wait for; ``touch`` opens it."""
        return self.folder / name

    def effects(self, event: str | None = None, job: int | None = None) -> list[Effect]:
        """The ledger's lines, in the order in which they were written."""
        found = []
        for line in self._ledger.read_bytes().splitlines(keepends=True):
            if line.endswith(b"\n"):
                facts = json.loads(line)
                found.append(Effect(*(facts.pop(name) for name in ("job", "attempt", "pid", "event")), facts))
        return [e for e in found if event in (None, e.event) and job in (None, e.job)]

    def sees(self, event: str, job: int | None = None, count: int = 1, timeout: float = 20) -> list[Effect]:
        """Wait for *count* effects."""

        def enough() -> list[Effect]:
            found = self.effects(event, job)
            return found if len(found) >= count else []

        with explained(self.told):
            return eventually(enough, timeout, what=f"{count} of {event} (job {job}) in the ledger")

    def asleep(self, jobs: Jobs) -> None:
        """Wait until somebody sleeps and wants to be woken."""
        eventually(lambda: jobs.value("select count(*) from kept.sleeper where until > kept.now()"), what="a sleeper")

    def told(self) -> str:
        """The end of every log, for a message about a failure."""
        return "".join(f"--- {m.log.name}\n{m.log.read_text()[-3000:]}" for m in self.members)

    def clear(self) -> None:
        """End every process of the fleet, whatever state it is in."""
        for _ in range(10):  # a supervisor may start another one while we look
            left = self.alive
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            for member in self.members:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    member.process.wait(1)
            if not left:
                return
        eventually(lambda: not self.alive, what="the end of every process")


class Jobs:
    """What the database knows, asked over a connection of the test's own."""

    def __init__(self, conn: psycopg.Connection) -> None:
        self.conn = conn

    def enqueue(self, task: str, *, delay: float = 0, **args: object) -> int:
        """Enqueue as any client could: through SQL."""
        row = self.conn.execute(
            "select kept.enqueue(%s, %s::json, due_at => kept.now() + %s * interval '1 second')",
            [task, json.dumps(args), delay],
        ).fetchone()
        assert row is not None
        return int(row[0])

    def enqueue_many(self, task: str, count: int, **args: object) -> list[int]:
        rows = self.conn.execute(
            "select kept.enqueue(%s, %s::json) from generate_series(1, %s)", [task, json.dumps(args), count]
        ).fetchall()
        return [row[0] for row in rows]

    def one(self, job: int) -> dict[str, Any]:
        """The job as the public view shows it."""
        with psycopg.ClientCursor(self.conn, row_factory=psycopg.rows.dict_row) as cursor:
            row = cursor.execute("select * from kept.jobs where id = %s", [job]).fetchall()
        assert len(row) == 1, f"job {job} stands {len(row)} times in kept.jobs"
        return row[0]

    def state(self, job: int) -> str:
        return str(self.one(job)["state"])

    def states(self) -> dict[str, int]:
        """How many jobs are in each state."""
        return dict(self.conn.execute("select state, count(*) from kept.jobs group by state").fetchall())

    def log(self, job: int) -> list[str]:
        """The events of a job's log, in order."""
        rows = self.conn.execute("select event from kept.job_log where job = %s order by at, attempt", [job])
        return [row[0] for row in rows.fetchall()]

    def value(self, query: str, *params: object) -> Any:
        row = self.conn.execute(query, params).fetchone()
        return row[0] if row else None

    def renewed(self) -> None:
        """Wait until every lease is in the hands of its keeper, which makes it as short as it is set."""
        late = "select count(*) from kept.worker where state = 'live' and lease_until > kept.now() + '10 s'"
        eventually(lambda: not self.value(late), 30, what="every keeper's first renewal")

    def settled(self, job: int, state: str = "done", timeout: float = 20) -> dict[str, Any]:
        """Wait until the job is settled, and as *state*."""
        final = ("done", "failed", "cancelled", "skipped")
        eventually(lambda: self.state(job) in final, timeout, what=f"the end of job {job}")
        found = self.one(job)
        assert found["state"] == state, found
        return found

    def all_settled(self, timeout: float = 60, told: Callable[[], str] = str) -> dict[str, int]:
        """Wait until no job is live; the states they ended in."""
        with explained(told):
            eventually(lambda: not self.value("select count(*) from kept.job"), timeout, what="the end of all jobs")
        return self.states()


@contextlib.contextmanager
def explained(told: Callable[[], str]) -> Iterator[None]:
    """A failure within comes with what the workers had to say by then."""
    try:
        yield
    except AssertionError as error:
        raise AssertionError(f"{error}\n{told()}") from None


def processes(mark: str) -> list[int]:
    """Every process with this mark in its environment that has not ended."""
    wanted = f"{MARK}={mark}".encode()
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError):
                if wanted in (folder / "environ").read_bytes().split(b"\0"):
                    found.append(int(folder.name))
    return found


def children_of(parent: int, mark: str) -> list[int]:
    """The processes with this mark that *parent* started."""
    return [pid for pid in processes(mark) if _parent(pid) == parent]


def _parent(pid: int) -> int:
    with contextlib.suppress(OSError):
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return 0


def _command(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text()
    return ""


@contextlib.contextmanager
def fleet_of(database: str, folder: Path, **settings: str) -> Iterator[Fleet]:
    """A fleet that is gone when the block ends."""
    fleet = Fleet(database, folder, **settings)
    try:
        yield fleet
    finally:
        fleet.clear()
