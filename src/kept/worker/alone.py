"""A child process for suspects: a job whose process died runs alone, so that its next death harms nobody else.

One child per worker, started when the first suspect comes, used for one job at a time and started again when one
kills it.
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
from kept.jobs.context import Terms
from kept.jobs.model import Claimed, Deferred, Died, Lane, Outcome
from kept.jobs.registry import Registry
from kept.jobs.text import message_of
from kept.loading import load

_PDEATHSIG = 1
_LEAST_LINE = 64 * 1024 * 1024  # a job or a result on one line
READY = b"ready\n"
STARTING = 60.0  # seconds for a child to load the App


class Hello(msgspec.Struct, frozen=True, kw_only=True):
    """What the child is told first."""

    location: str
    database: str
    schema: str
    limit: int


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """One job for the child."""

    job: Claimed
    lane: Lane


class NotStarted(Error):
    """There is no child to run it."""

    code = "not_run"


class Alone:
    """The parent's side: runs attempts in the child, one at a time."""

    def __init__(self, location: str, *, database: str, schema: str, limit: int) -> None:
        self._hello = Hello(location=location, database=database, schema=schema, limit=limit)
        self._process: asyncio.subprocess.Process | None = None
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def run(self, attempt: Attempt) -> Outcome:
        """The attempt's outcome; Died if the child did not live to tell."""
        return await attempt.run_elsewhere(self._run(attempt), stop=self.kill)

    async def _run(self, attempt: Attempt) -> Outcome:
        reader, writer = await self._child()
        attempt.begin(monotonic())  # not before: a task's time is not for starting processes
        line = await _ask(reader, writer, Order(job=attempt.job, lane=attempt.terms.lane))
        if not line.endswith(b"\n"):
            return Died(f"the process died: {await self._ended()}")
        outcome: Outcome = msgspec.json.decode(line, type=Outcome)
        return outcome

    async def _child(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A child that has loaded the App; the one we have, if it lives."""
        if self._process is not None and self._process.returncode is None and self._streams is not None:
            return self._streams
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-c", "from kept.worker.alone import main; main()",
                str(theirs.fileno()), str(self._hello.limit),
                pass_fds=[theirs.fileno()], stdin=asyncio.subprocess.DEVNULL,
            )  # fmt: skip
        reader, writer = self._streams = await asyncio.open_connection(sock=ours, limit=_line(self._hello.limit))
        async with asyncio.timeout(STARTING):
            line = await _ask(reader, writer, self._hello)
        if line == READY:
            return self._streams
        why = line.decode().strip() or f"it ended: {await self._ended()}"
        self.kill()
        raise NotStarted(f"the process to run this job alone could not be started: {why}")

    async def _ended(self) -> str:
        """How the child ended, in words."""
        assert self._process is not None
        self.kill()
        code = await self._process.wait()
        self._process = None
        return _told(code)

    def kill(self) -> None:
        """End the child, whatever it does."""
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None

    async def close(self) -> None:
        """End the child and wait until it is gone."""
        self.kill()
        if self._process is not None:
            await self._process.wait()
            self._process = None


async def _ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, what: Hello | Order) -> bytes:
    """The child's answer: one line, or less if it died."""
    with contextlib.suppress(ConnectionError):
        writer.write(msgspec.json.encode(what) + b"\n")
        await writer.drain()
        return await reader.readline()
    return b""


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
            outcome = await _outcome(registry, hello, msgspec.json.decode(line, type=Order), threads)
            writer.write(msgspec.json.encode(outcome) + b"\n")
            await writer.drain()


def _registry(hello: Hello) -> Registry:
    """The App's tasks; the App itself is made to use the database that its worker uses."""
    app = cast("Loaded", load(hello.location))
    app.configure(replace(app.settings, database=hello.database, schema=hello.schema), hello.location)
    app.load_imports()
    return app.registry


async def _outcome(registry: Registry, hello: Hello, order: Order, threads: ThreadPoolExecutor) -> Outcome:
    declaration = registry.find(order.lane.task)
    if declaration is None:
        why = f"the process to run this job alone does not know the task {order.lane.task!r}"
        return Deferred(AGAIN_AFTER, why)
    terms = Terms(order.lane, declaration.timeout, load_queries("kept.jobs", hello.schema), hello.limit)
    return await Attempt(order.job, declaration, terms).run(threads, asyncio.current_task(), monotonic())


def die_with_parent(sig: signal.Signals = signal.SIGKILL) -> None:
    """Ask the kernel (Linux) to end us when our parent ends."""
    with contextlib.suppress(OSError, AttributeError):
        prctl: Callable[[int, int], int] = ctypes.CDLL(None).prctl
        prctl(_PDEATHSIG, sig)


def main() -> None:
    """Entry point of the child."""
    die_with_parent()
    for each in (signal.SIGINT, signal.SIGTERM):
        # Meant for the worker, which decides what becomes of the job. Not SIG_IGN: the handler's own children
        # would inherit that.
        signal.signal(each, lambda *_: None)
    sock = socket.socket(fileno=int(sys.argv[1]))
    os.set_inheritable(sock.fileno(), False)
    asyncio.run(_serve(sock, int(sys.argv[2])))
    os._exit(0)
