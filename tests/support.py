"""What tests share: waiting for a fact with a deadline, never for a moment to pass."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import TypeVar

import psycopg

from kept.durations import duration

T = TypeVar("T")
_PAUSE = 0.01


def eventually(fn: Callable[[], T], timeout: float = 10, *, what: str | None = None) -> T:
    """The first true value of *fn*; fails with a sentence if there is none within *timeout* seconds."""
    deadline = time.monotonic() + timeout
    while not (value := fn()):
        assert time.monotonic() < deadline, f"waited {timeout} s in vain for {what or _name(fn)}; last: {value!r}"
        time.sleep(_PAUSE)
    return value


async def aeventually(fn: Callable[[], Awaitable[T] | T], timeout: float = 10, *, what: str | None = None) -> T:
    """:func:`eventually` for async tests; *fn* may be a plain or an async function."""
    deadline = asyncio.get_running_loop().time() + timeout
    while True:
        answer = fn()
        value = await answer if isinstance(answer, Awaitable) else answer
        if value:
            return value
        late = asyncio.get_running_loop().time() >= deadline
        assert not late, f"waited {timeout} s in vain for {what or _name(fn)}; last: {value!r}"
        await asyncio.sleep(_PAUSE)


def freeze(*pids: int) -> None:
    """Stop processes where they stand; returns when no thread of theirs moves any more."""
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    eventually(lambda: all(map(is_frozen, pids)), what="every thread to stand still")


def is_frozen(pid: int) -> bool:
    """Whether every thread of *pid* is stopped, as the kernel says; the name before it may hold anything."""
    threads = Path(f"/proc/{pid}/task").iterdir()
    return all((each / "stat").read_text().rpartition(")")[2].split()[0] == "T" for each in threads)


class Clock:
    """The database's clock, for all its sessions: what ``kept.now()`` answers is moved, nothing else."""

    def __init__(self, conn: psycopg.Connection) -> None:
        self._conn = conn

    def advance(self, by: str | timedelta) -> None:
        """Move the clock forward, for every session of this database."""
        self._shift(duration(by))

    def set_back(self, by: str | timedelta) -> None:
        """Move the clock back, for every session of this database."""
        self._shift(-duration(by))

    def _shift(self, by: timedelta) -> None:
        self._conn.execute("update kept.test_clock set shift = shift + %s", [by])


def _name(fn: Callable[..., object]) -> str:
    return getattr(fn, "__name__", repr(fn))
