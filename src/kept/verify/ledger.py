"""Files that only grow: what producers were told, what handlers did, what was broken when.

A line is one write to a file opened for appending, so processes that are killed leave whole lines and at most one torn
one, the last. The kernel keeps what was written when a process is killed; producers' lines are synced to disk as well.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from kept.errors import Error
from kept.verify.model import Effect, Hit, Line, What

T = TypeVar("T")
PRODUCER, LEDGER, FAULTS = "producer", "ledger", "faults"
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
_encode = msgspec.json.Encoder().encode


class Torn(Error):
    """A line in the middle of a file cannot be read: nothing can be said."""

    code = "verify_torn"


def clock() -> int:
    """Nanoseconds on a clock that all processes of this host share, whatever their calendars say."""
    return time.clock_gettime_ns(_CLOCK)


class Journal:
    """One file that is written to by one process."""

    def __init__(self, path: Path, *, synced: bool = False) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._synced = synced

    def write(self, line: object) -> None:
        """Append *line*; with *synced*, it is on disk when this returns."""
        os.write(self._fd, _encode(line) + b"\n")
        if self._synced:
            os.fdatasync(self._fd)

    def close(self) -> None:
        os.close(self._fd)


class Ledger:
    """What the handlers of this process did."""

    def __init__(self, folder: Path) -> None:
        self._pid, self._parent = os.getpid(), os.getppid()
        self._journal = Journal(folder / f"{LEDGER}-{self._pid}-{clock()}")

    def note(self, what: What, token: int, job: int, attempt: int) -> None:
        """Write down that this happened now."""
        self._journal.write((what, token, job, attempt, self._pid, clock(), self._parent))


def effects(folder: Path, pid: int | None = None) -> Iterator[Effect]:
    """What all handlers wrote down, or those of one process; in order within a process, in no order between them."""
    for path in sorted(folder.glob(f"{LEDGER}-*" if pid is None else f"{LEDGER}-{pid}-*")):
        yield from read(path, Effect)


def told(folder: Path) -> Iterator[Line]:
    """What all producers wrote down, one after the other; an outcome comes after its intent."""
    for path in sorted(folder.glob(f"{PRODUCER}-*")):
        yield from read(path, Line)


def hits(folder: Path) -> list[Hit]:
    """What the injector wrote down."""
    path = folder / FAULTS
    return list(read(path, Hit)) if path.exists() else []


def read(path: Path, type: Any) -> Iterator[Any]:
    """The lines of a file as *type*; a torn one is tolerated at the end only."""
    decode = msgspec.json.Decoder(type).decode
    with path.open("rb") as file:
        yield from whole(file, decode, path.name)


def whole(lines: Iterable[bytes], decode: Any, name: str) -> Iterator[Any]:
    """Each of *lines* decoded; the last may lack its end, and is then left out."""
    for number, line in enumerate(lines, 1):
        if not line.endswith(b"\n"):
            return
        try:
            yield decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise Torn(f"{name}, line {number}: {error}") from None
