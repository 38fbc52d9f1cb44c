"""What every handler does: count. Adapters in Python share it; it needs nothing but the standard library.

Two lines go to the named pipe BENCH_REPORT: one when the first job starts, one when the last of BENCH_JOBS was run.
"""

from __future__ import annotations

import itertools
import json
import os
import time

PAYLOAD = "x" * 80  # with its names and the number, a payload of about 100 bytes
MARKS = 10  # how often the time is noted on the way
CHUNK = 10_000  # jobs in one bulk call
WARM = 1_000  # jobs in a bulk call before the one that is timed


class Tally:
    """Counts jobs and reports; handlers may call it from several threads."""

    def __init__(self) -> None:
        self._wanted = int(os.environ.get("BENCH_JOBS", "0"))
        self._keep_starts = os.environ.get("BENCH_STARTS") == "1"
        self._step = max(1, self._wanted // MARKS)
        self._numbers = itertools.count(1)
        self._starts: dict[int, int] = {}
        self._marks: list[int] = []

    def note(self, n: int) -> None:
        """Job *n* is being run."""
        if self._keep_starts:
            self._starts[n] = time.monotonic_ns()
        done = next(self._numbers)
        if done == 1:
            self._report({"first": time.monotonic_ns()})
        if done % self._step == 0:
            self._marks.append(time.monotonic_ns())
        if done == self._wanted:
            self._report({"last": time.monotonic_ns(), "marks": self._marks, "starts": self._starts})

    def _report(self, facts: dict[str, object]) -> None:
        with open(os.environ["BENCH_REPORT"], "w", encoding="utf-8") as pipe:  # noqa: PTH123 - on the hot path
            pipe.write(json.dumps(facts) + "\n")


def chunks(total: int) -> list[range]:
    """Numbers from 0 to *total*, cut for bulk calls."""
    return [range(start, min(start + CHUNK, total)) for start in range(0, total, CHUNK)]


def answer(**facts: object) -> None:
    """The one line an adapter prints."""
    print(json.dumps(facts), flush=True)
