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

import msgspec

from kept.db.queries import load as load_queries
from kept.jobs.attempt import Attempt
from kept.jobs.context import Context
from kept.jobs.model import Claimed, Died, Lane, Outcome
from kept.jobs.registry import Registry
from kept.loading import load

_PDEATHSIG = 1
_LINE = 64 * 1024 * 1024  # a job or a result on one line


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """One job for the child."""

    location: str
    schema: str
    limit: int
    job: Claimed
    lane: Lane


class Alone:
    """The parent's side: runs attempts in the child, one at a time."""

    def __init__(self, location: str, *, schema: str, limit: int) -> None:
        self._location = location
        self._schema = schema
        self._limit = limit
        self._process: asyncio.subprocess.Process | None = None
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def run(self, attempt: Attempt) -> Outcome:
        """The attempt's outcome; Died if the child did not live to tell."""
        return await attempt.run_elsewhere(self._run(attempt), stop=self.kill)

    async def _run(self, attempt: Attempt) -> Outcome:
        order = Order(
            location=self._location, schema=self._schema, limit=self._limit, job=attempt.job, lane=attempt.lane
        )
        reader, writer = await self._child()
        line = b""
        with contextlib.suppress(ConnectionError):
            writer.write(msgspec.json.encode(order) + b"\n")
            await writer.drain()
            line = await reader.readline()
        if not line.endswith(b"\n"):
            return await self._died()
        outcome: Outcome = msgspec.json.decode(line, type=Outcome)
        return outcome

    async def _died(self) -> Died:
        assert self._process is not None
        self.kill()
        code = await self._process.wait()
        self._process = None
        return Died(f"the process died: {_told(code)}")

    async def _child(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._process is None or self._process.returncode is not None or self._streams is None:
            ours, theirs = socket.socketpair()
            with theirs:
                self._process = await asyncio.create_subprocess_exec(
                    sys.executable, "-c", "from kept.worker.alone import main; main()", str(theirs.fileno()),
                    pass_fds=[theirs.fileno()], stdin=asyncio.subprocess.DEVNULL,
                )  # fmt: skip
            self._streams = await asyncio.open_connection(sock=ours, limit=_LINE)
        return self._streams

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


def _told(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    with contextlib.suppress(ValueError):
        return f"killed by {signal.Signals(-code).name}"
    return f"killed by signal {-code}"


# --- the child's side


async def _serve(sock: socket.socket) -> None:
    reader, writer = await asyncio.open_connection(sock=sock, limit=_LINE)
    with ThreadPoolExecutor(max_workers=1) as threads:
        while line := await reader.readline():
            order = msgspec.json.decode(line, type=Order)
            attempt = _attempt(order)
            outcome = await attempt.run(threads, result_limit=order.limit)
            writer.write(msgspec.json.encode(outcome) + b"\n")
            await writer.drain()


def _attempt(order: Order) -> Attempt:
    registry: Registry = load(order.location).registry  # type: ignore[attr-defined]
    declaration = registry[order.lane.task]
    context = Context(
        order.job,
        order.lane,
        timeout=declaration.timeout,
        sql=load_queries("kept.jobs", order.schema),
        limit=order.limit,
    )
    return Attempt(order.job, order.lane, declaration, context)


def die_with_parent(sig: signal.Signals = signal.SIGKILL) -> None:
    """Ask the kernel (Linux) to end us when our parent ends."""
    with contextlib.suppress(OSError, AttributeError):
        prctl: Callable[[int, int], int] = ctypes.CDLL(None).prctl
        prctl(_PDEATHSIG, sig)


def main() -> None:
    """Entry point of the child."""
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sock = socket.socket(fileno=int(sys.argv[1]))
    os.set_inheritable(sock.fileno(), False)
    asyncio.run(_serve(sock))
    os._exit(0)

