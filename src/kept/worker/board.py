"""A few numbers shared by a worker and its keeper, in memory that outlives either of them.

The worker writes which jobs have started and that its loop moves; the keeper writes when it renewed. Every field is
one aligned 64-bit number with one writer, so nobody needs a lock, and a reader sees the old value or the new one.
"""

from __future__ import annotations

import mmap
import os
import time
from typing import Self

_BEAT, _RENEWED, _FENCED, _RENEWALS, _FAILURES, _CLOSED, _LEFT, _CALM, _HEADER = range(9)


def clock() -> int:
    """Nanoseconds on a clock that both processes share and that runs while the machine is suspended."""
    if hasattr(time, "CLOCK_BOOTTIME"):
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    return time.monotonic_ns()


class Board:
    """One worker identity's board, with a place for each job that can be started and not yet settled."""

    def __init__(self, fd: int, slots: int) -> None:
        self.fd = fd
        self.slots = slots
        self._map = mmap.mmap(fd, 8 * (_HEADER + slots))
        self._numbers = memoryview(self._map).cast("q")
        self._free = list(range(_HEADER + slots - 1, _HEADER - 1, -1))
        self._places: dict[int, int] = {}

    @classmethod
    def create(cls, slots: int) -> Self:
        if hasattr(os, "memfd_create"):
            fd = os.memfd_create("kept-board", os.MFD_CLOEXEC)
        else:
            import tempfile  # only here: a keeper begins without it

            fd, path = tempfile.mkstemp(prefix="kept-board-")
            os.unlink(path)  # noqa: PTH108  # only the descriptor is wanted
        os.ftruncate(fd, 8 * (_HEADER + slots))
        board = cls(fd, slots)
        board._numbers[_BEAT] = board._numbers[_RENEWED] = clock()
        return board

    def close(self) -> None:
        """Let go of it; once, since the number of the descriptor may be somebody else's the next time."""
        if not self._map.closed:
            self._numbers.release()
            self._map.close()
            os.close(self.fd)

    # --- the worker writes

    def start(self, job: int) -> None:
        """A job begins to run."""
        if self._free:
            place = self._places[job] = self._free.pop()
            self._numbers[place] = job

    def end(self, job: int) -> None:
        """Its settlement is written, or no longer ours to write."""
        place = self._places.pop(job, None)
        if place is not None:
            self._numbers[place] = 0
            self._free.append(place)

    def beat(self) -> None:
        """The event loop moves."""
        self._numbers[_BEAT] = clock()

    def say_calm(self) -> None:
        """The backlog that the worker found is worked off: who wants to load something does it now."""
        self._numbers[_CALM] = 1

    def say_closed(self) -> None:
        """Nothing is in this worker's name any more: there is nothing to give back."""
        self._numbers[_CLOSED] = 1

    def say_left(self) -> None:
        """The worker has ended and could not give everything back: the keeper is to do it."""
        self._numbers[_LEFT] = 1

    def held(self, sent_at: int) -> None:
        """The worker renewed by itself, at *sent_at*: as long as the keeper has not."""
        if not self.renewals:
            self._numbers[_RENEWED] = sent_at

    # --- the keeper writes

    def renewed(self, sent_at: int) -> None:
        """A renewal that was sent at *sent_at* succeeded."""
        self._numbers[_RENEWED] = sent_at
        self._numbers[_RENEWALS] += 1

    def failed(self) -> None:
        """A renewal did not get through."""
        self._numbers[_FAILURES] += 1

    def say_fenced(self) -> None:
        """The lease is gone; this identity never lives again."""
        self._numbers[_FENCED] = 1

    # --- both read

    @property
    def started(self) -> list[int]:
        return [job for job in self._numbers[_HEADER:] if job]

    @property
    def beat_age(self) -> float:
        return (clock() - self._numbers[_BEAT]) / 1e9

    @property
    def renewed_age(self) -> float:
        """Seconds since the last renewal that got through was *sent*: the lease lasts at least from then."""
        return (clock() - self._numbers[_RENEWED]) / 1e9

    @property
    def fenced(self) -> bool:
        return bool(self._numbers[_FENCED])

    @property
    def calm(self) -> bool:
        return bool(self._numbers[_CALM])

    @property
    def closed(self) -> bool:
        return bool(self._numbers[_CLOSED])

    @property
    def left(self) -> bool:
        return bool(self._numbers[_LEFT])

    @property
    def renewals(self) -> int:
        return self._numbers[_RENEWALS]

    @property
    def failures(self) -> int:
        return self._numbers[_FAILURES]
