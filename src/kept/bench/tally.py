"""A few numbers that processes share through a file in memory: telling costs a worker no system call."""

from __future__ import annotations

import mmap
import time
from collections.abc import Callable
from pathlib import Path

_READY, _GO, _STARTED, _LAST, _COUNT, _TARGET, _MODE = range(7)
_DONE_IN = 8  # what was done in each mode
_CURVE = 16
PARTS = 100  # of the way to the target whose times are written down
_STAMPS = _CURVE + PARTS + 1
_WORD = 8
PAUSE = 0.0005  # seconds between looks at the start


class Tally:
    """What one process has done so far; times are of the monotonic clock, which all processes share."""

    def __init__(self, path: Path) -> None:
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), 0)
        self._words = memoryview(self._map).cast("q")

    @classmethod
    def create(cls, path: Path, *, target: int, stamps: int = 0) -> Tally:
        """A new one for *target* jobs, with room for *stamps* moments."""
        path.write_bytes(bytes((_STAMPS + stamps) * _WORD))
        tally = cls(path)
        tally._words[_TARGET] = max(1, target)
        return tally

    # --- told by the worker

    def start(self, meanwhile: Callable[[], None] = lambda: None) -> None:
        """Say that we are ready, wait until all are, and go; *meanwhile* is called again and again."""
        self._words[_READY] = 1
        while not self._words[_GO]:
            meanwhile()
            time.sleep(PAUSE)
        self._words[_STARTED] = time.monotonic_ns()

    def settled(self, jobs: int) -> None:
        """So many more jobs are settled."""
        words = self._words
        now = time.monotonic_ns()
        count = words[_COUNT] + jobs
        part = min(PARTS, count * PARTS // words[_TARGET])
        if not words[_CURVE + part]:
            words[_CURVE + part] = now
        words[_LAST] = now
        words[_COUNT] = count

    def stamp(self, number: int) -> None:
        """Moment *number* is now."""
        self._words[_STAMPS + number] = time.monotonic_ns()

    def done_in(self, mode: int) -> None:
        """One more thing was done in *mode*."""
        self._words[_DONE_IN + mode] += 1

    # --- read by whoever measures

    @property
    def ready(self) -> bool:
        return bool(self._words[_READY])

    def go(self) -> None:
        """Let the worker start."""
        self._words[_GO] = 1

    @property
    def started(self) -> int:
        return self._words[_STARTED]

    @property
    def last(self) -> int:
        return self._words[_LAST]

    @property
    def count(self) -> int:
        return self._words[_COUNT]

    @property
    def mode(self) -> int:
        """What is to be done now, told by whoever measures."""
        return self._words[_MODE]

    @mode.setter
    def mode(self, mode: int) -> None:
        self._words[_MODE] = mode

    def done(self, mode: int) -> int:
        """How often something was done in *mode*."""
        return self._words[_DONE_IN + mode]

    def stamped(self, number: int) -> int:
        """When moment *number* was; 0: not yet."""
        return self._words[_STAMPS + number]

    def curve(self) -> list[tuple[int, float]]:
        """(nanoseconds since the start, share of the target), wherever a part was first reached."""
        words = self._words
        return [
            (words[_CURVE + part] - self.started, part / PARTS) for part in range(PARTS + 1) if words[_CURVE + part]
        ]

    def close(self) -> None:
        self._words.release()
        self._map.close()
