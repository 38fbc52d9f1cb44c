"""A child process for suspects: a job whose process died runs alone, so that its next death harms nobody else.

One child per worker, used for one job at a time. It stands by with the App loaded, so that a take-over does not have to
wait for imports; without a spare it is started when the first suspect comes. One that died is started again.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import socket
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from time import monotonic
from typing import Protocol, cast

import msgspec

from kept.config import Settings
from kept.db.queries import load as load_queries
from kept.errors import Error
from kept.jobs.attempt import AGAIN_AFTER, Attempt
from kept.jobs.batches import attempt_at
from kept.jobs.context import Terms
from kept.jobs.model import Claimed, Deferred, Died, Lane, Outcome
from kept.jobs.registry import Registry
from kept.jobs.text import message_of
from kept.loading import load
from kept.loggers import Manner, configure, manner
from kept.signals import Signals, SpareReady, Warned

_PDEATHSIG = 1
_LEAST_LINE = 64 * 1024 * 1024  # a job or a result on one line
READY, BEGUN = b"ready\n", b"begun\n"
TRIES = 3  # children for a job that none of them has begun
STARTING = 60.0  # seconds for a child to load the App
SETTLE_IN = 1.0  # seconds after a worker's start before its spare is started: the worker and its keeper come first
PATIENCE = 3.0  # seconds that the spare then waits for the end of a backlog: with one of them for each worker, and
LOOK = 0.1  # few processors, loading them takes from a fleet that begins to work one off
QUICK = 5.0  # seconds: a spare that ends sooner is started again more slowly each time
SLOWEST = 60.0


class Hello(msgspec.Struct, frozen=True, kw_only=True):
    """What the child is told first."""

    location: str
    database: str
    schema: str
    limit: int
    manner: Manner | None  # the worker's: what a handler says looks the same wherever it runs, and is as safe to read


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """One job for the child."""

    job: Claimed
    lane: Lane


class NotStarted(Error):
    """There is no child to run it."""

    code = "not_run"


class Child:
    """The parent's view of one child, from its start to its end."""

    def __init__(
        self, process: asyncio.subprocess.Process, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.process = process
        self._reader = reader
        self._writer = writer

    @classmethod
    async def start(cls, limit: int) -> Child:
        ours, theirs = socket.socketpair()
        with theirs:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-P", "-c", "from kept.worker.alone import main; main()",
                str(theirs.fileno()), str(limit), str(os.getpid()),
                pass_fds=[theirs.fileno()], stdin=asyncio.subprocess.DEVNULL,
            )  # fmt: skip
        return cls(process, *await asyncio.open_connection(sock=ours, limit=_line(limit)))

    @property
    def alive(self) -> bool:
        return self.process.returncode is None and not self._writer.is_closing()

    async def ask(self, what: Hello | Order) -> bytes:
        """Its answer: one line, or less if it died."""
        with contextlib.suppress(ConnectionError):
            self._writer.write(msgspec.json.encode(what) + b"\n")
            await self._writer.drain()
            return await self.hear()
        return b""

    async def hear(self) -> bytes:
        """What it says next: one line, or less if it died."""
        with contextlib.suppress(ConnectionError):
            return await self._reader.readline()
        return b""

    def kill(self) -> None:
        """End it, whatever it does."""
        if self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self.process.kill()
        self._writer.close()

    async def ended(self) -> str:
        """How it ended, in words."""
        self.kill()
        return _told(await self.process.wait())


class Alone:
    """Runs attempts in the child, one at a time."""

    def __init__(self, location: str, *, database: str, schema: str, limit: int) -> None:
        self._hello = Hello(location=location, database=database, schema=schema, limit=limit, manner=manner())
        self._child: Child | None = None
        self._starting = asyncio.Lock()
        self._spare: asyncio.Task[None] | None = None

    async def run(self, attempt: Attempt) -> Outcome:
        """The attempt's outcome; Died if the child did not live to tell."""
        return await attempt.run_elsewhere(self._run(attempt), stop=self.kill)

    async def _run(self, attempt: Attempt) -> Outcome:
        child = await self._begun(Order(job=attempt.job, lane=attempt.terms.lane))
        attempt.begin(monotonic())  # not before: a task's time is not for starting processes
        line = await child.hear()
        if not line.endswith(b"\n"):
            return Died(f"the process died: {await child.ended()}")
        outcome: Outcome = msgspec.json.decode(line, type=Outcome)
        return outcome

    async def _begun(self, order: Order) -> Child:
        """The child that has begun with *order*. One that dies before says nothing against the job."""
        how = ""
        for _ in range(TRIES):
            child = await self._ready()
            if await child.ask(order) == BEGUN:
                return child
            how = await child.ended()
        raise NotStarted(f"the process to run this job alone ends before it begins: {how}")

    async def _ready(self) -> Child:
        """A child that has loaded the App; the one we have, if it lives."""
        async with self._starting:
            if self._child is not None and self._child.alive:
                return self._child
            child = self._child = await Child.start(self._hello.limit)
            try:
                async with asyncio.timeout(STARTING):
                    line = await child.ask(self._hello)
            except BaseException:
                child.kill()
                raise
            if line == READY:
                return child
            why = line.decode().strip() or f"it ended: {await child.ended()}"
            child.kill()
            raise NotStarted(f"the process to run this job alone could not be started: {why}")

    def kill(self) -> None:
        """End the child, whatever it does."""
        if self._child is not None:
            self._child.kill()

    async def close(self) -> None:
        """End the child and wait until it is gone."""
        if self._spare is not None:
            self._spare.cancel()
            await asyncio.wait([self._spare])
        if self._child is not None:
            await self._child.ended()

    # --- the spare

    def keep_spare(self, name: str, signals: Signals, busy: Callable[[], bool]) -> None:
        """From now on have a child stand by; it is started in the background, and again when it died.

        For the first time when its worker is no longer *busy*, but soon in any case.
        """
        self._spare = asyncio.create_task(self._stand_by(name, signals, busy))

    async def _stand_by(self, name: str, signals: Signals, busy: Callable[[], bool]) -> None:
        """Not at a lower priority while it loads: a plain user could not give the priority back to it."""
        await asyncio.sleep(SETTLE_IN)
        until = monotonic() + PATIENCE
        while busy() and monotonic() < until:  # noqa: ASYNC110  # nothing tells us of it, and nobody waits
            await asyncio.sleep(LOOK)
        failures = 0
        while True:
            failures = failures + 1 if await self._stood_by(name, signals) < QUICK else 0
            await asyncio.sleep(min(SLOWEST, 0.5 * 2**failures) if failures else 0.0)

    async def _stood_by(self, name: str, signals: Signals) -> float:
        """Start a child unless there is one, and wait for its end; for how many seconds it was ready."""
        began = monotonic()
        try:
            child = await self._ready()
        except Exception as error:  # noqa: BLE001  # no process to be had, or no App in it: the worker goes on
            signals.report(Warned(code="no_spare", message=message_of(error)))
            return 0.0
        ready = monotonic()
        signals.report(SpareReady(name=name, pid=child.process.pid, duration=ready - began))
        await child.process.wait()
        return monotonic() - ready


def _line(limit: int) -> int:
    # JSON within JSON: every quote may take a backslash.
    return max(_LEAST_LINE, 4 * limit)


def _told(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    with contextlib.suppress(ValueError):
        return f"killed by {signal.Signals(-code).name}"
    return f"killed by signal {-code}"


# --- the child's side


class Loaded(Protocol):
    """What the child needs of the user's App."""

    @property
    def registry(self) -> Registry: ...
    @property
    def settings(self) -> Settings: ...
    def configure(self, settings: Settings, location: str | None = None) -> None: ...
    def load_imports(self) -> None: ...


async def _serve(sock: socket.socket, limit: int) -> None:
    reader, writer = await asyncio.open_connection(sock=sock, limit=_line(limit))
    hello = msgspec.json.decode(await reader.readline(), type=Hello)
    try:
        registry = _registry(hello)
    except Exception as error:  # noqa: BLE001  # whatever the user's module does, it is to be told
        writer.write(" ".join(message_of(error).split()).encode() + b"\n")
        await writer.drain()
        return
    writer.write(READY)
    with ThreadPoolExecutor(max_workers=1) as threads:
        while line := await reader.readline():
            order = msgspec.json.decode(line, type=Order)
            writer.write(BEGUN)
            await writer.drain()
            outcome = await _outcome(registry, hello, order, threads)
            writer.write(msgspec.json.encode(outcome) + b"\n")
            await writer.drain()


def _registry(hello: Hello) -> Registry:
    """The App's tasks; the App itself is made to use the database that its worker uses."""
    app = cast("Loaded", load(hello.location))
    app.configure(replace(app.settings, database=hello.database, schema=hello.schema), hello.location)
    app.load_imports()
    if hello.manner is not None:
        configure(*hello.manner)
    return app.registry


async def _outcome(registry: Registry, hello: Hello, order: Order, threads: ThreadPoolExecutor) -> Outcome:
    declaration = registry.find(order.lane.task)
    if declaration is None:
        why = f"the process to run this job alone does not know the task {order.lane.task!r}"
        return Deferred(AGAIN_AFTER, why)
    terms = Terms(order.lane, declaration.timeout, load_queries("kept.jobs", hello.schema), hello.limit)
    return await attempt_at(order.job, declaration, terms).run(threads, asyncio.current_task(), monotonic())


def die_with_parent(sig: signal.Signals = signal.SIGKILL) -> None:
    """Ask the kernel (Linux) to end us when our parent ends."""
    with contextlib.suppress(OSError, AttributeError):
        prctl: Callable[[int, int], int] = ctypes.CDLL(None).prctl
        prctl(_PDEATHSIG, sig)


def main() -> None:
    """Entry point of the child."""
    die_with_parent()
    if os.getppid() != int(sys.argv[3]):
        os._exit(0)  # the worker was gone before we could ask to go with it
    for each in (signal.SIGINT, signal.SIGTERM):
        # Meant for the worker, which decides what becomes of the job. Not SIG_IGN: the handler's own children
        # would inherit that.
        signal.signal(each, lambda *_: None)
    sock = socket.socket(fileno=int(sys.argv[1]))
    os.set_inheritable(sock.fileno(), False)
    asyncio.run(_serve(sock, int(sys.argv[2])))
    os._exit(0)
