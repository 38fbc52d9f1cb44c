"""What metrics count: plain numbers in plain dicts, added to by the batch.

A locked ``observe`` per job would cost more than running a small job.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from time import monotonic

from kept import signals
from kept.showable import clean

SECONDS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 600, 3600)
_EDGES = (*(f"{edge:g}" for edge in SECONDS), "+Inf")

MOST_CODES = 100
MOST_LANES = 1000
TRIED_WITHIN = 30.0  # seconds after its rest in which a sink with events is tried again
OTHER = "other"


class Histogram:
    """How many values fell under each edge of ``SECONDS``, and their sum."""

    __slots__ = ("counts", "sum")

    def __init__(self, counts: Sequence[int] = (0,) * len(_EDGES), sum: float = 0.0) -> None:
        self.counts = list(counts)
        self.sum = sum

    def observe(self, values: Iterable[float]) -> None:
        """Count durations. A negative one (or NaN) counts as 0: a sum that falls would read as a restart."""
        ordered = sorted([value if value > 0 else 0.0 for value in values])
        below = 0
        for bucket, edge in enumerate(SECONDS):
            upto = bisect_right(ordered, edge, below)
            self.counts[bucket] += upto - below
            below = upto
        self.counts[-1] += len(ordered) - below
        self.sum += sum(ordered)

    def copy(self) -> Histogram:
        """The same numbers, which no longer move."""
        return Histogram(self.counts, self.sum)

    def buckets(self) -> list[tuple[str, float]]:
        """Cumulative counts by upper edge, as Prometheus wants them."""
        total = 0
        return [(edge, total := total + count) for edge, count in zip(_EDGES, self.counts, strict=True)]


class Lane:
    """The tallies of one task in one queue."""

    __slots__ = ("claimed", "duration", "retried", "settled", "waited")

    def __init__(self) -> None:
        self.claimed = 0
        self.waited = Histogram()
        self.duration = Histogram()
        self.settled: defaultdict[tuple[str, str], int] = defaultdict(int)
        self.retried: defaultdict[str, int] = defaultdict(int)

    def copy(self) -> Lane:
        """The same numbers, which no longer move."""
        twin = Lane()
        twin.claimed = self.claimed
        twin.waited = self.waited.copy()
        twin.duration = self.duration.copy()
        twin.settled = self.settled.copy()
        twin.retried = self.retried.copy()
        return twin


class Sink:
    """The tallies of one sink."""

    __slots__ = ("duration", "open_until", "outcomes")

    def __init__(self) -> None:
        self.open_until = 0.0  # by the monotonic clock
        self.outcomes: defaultdict[str, int] = defaultdict(int)
        self.duration = Histogram()

    def sent(self, signal: signals.EventsSent) -> None:
        """Count a batch. Whoever publishes is not open."""
        for event in signal.events:
            self.outcomes[event.outcome] += 1
        self.duration.observe((signal.duration,))
        if all(event.outcome == "published" for event in signal.events):
            self.open_until = 0.0

    def rests(self, seconds: float) -> None:
        """Be open for this long. After it somebody tries again, and tells if it is in vain: another worker perhaps."""
        self.open_until = monotonic() + seconds + TRIED_WITHIN

    @property
    def open(self) -> bool:
        return monotonic() < self.open_until

    def copy(self) -> Sink:
        """The same numbers, which no longer move."""
        twin = Sink()
        twin.open_until = self.open_until
        twin.outcomes = self.outcomes.copy()
        twin.duration = self.duration.copy()
        return twin


class Run:
    """The tallies of one runner's passes."""

    __slots__ = ("counters", "duration", "states", "succeeded_at")

    def __init__(self) -> None:
        self.states: defaultdict[str, int] = defaultdict(int)
        self.counters: defaultdict[str, float] = defaultdict(float)
        self.duration = Histogram()
        self.succeeded_at: float | None = None  # by the wall clock

    def finished(self, signal: signals.RunFinished, now: float) -> None:
        """Count a pass; a counter's label may be free text: past the limit they share one, and none may fall."""
        self.states[signal.state] += 1
        self.duration.observe((signal.duration,))
        if signal.state in ("done", "idle"):
            self.succeeded_at = now
        for name, value in signal.counters.items():
            label = clean(name, limit=100)
            known = label in self.counters or len(self.counters) < MOST_CODES
            self.counters[label if known else OTHER] += max(0.0, value)

    def copy(self) -> Run:
        """The same numbers, which no longer move."""
        twin = Run()
        twin.states, twin.counters = self.states.copy(), self.counters.copy()
        twin.duration, twin.succeeded_at = self.duration.copy(), self.succeeded_at
        return twin


class Runs(dict[str, Run]):
    """The tallies by name. Abandoned runs of others are counted too: past the limit names share one label."""

    def __missing__(self, name: str) -> Run:
        if len(self) >= MOST_LANES and name != OTHER:
            return self[OTHER]
        self[name] = run = Run()
        return run


class Codes(dict[str | None, str]):
    """The label of a code. Codes may be names of exception classes: past the limit they share one label."""

    def __missing__(self, code: str | None) -> str:
        if len(self) >= MOST_CODES:
            return OTHER
        self[code] = label = clean(code or "", limit=100)
        return label


class Lanes(dict[tuple[str, str], Lane]):
    """The tallies by queue and task. Producers may name queues: past the limit a task's share one label."""

    def __missing__(self, key: tuple[str, str]) -> Lane:
        if len(self) >= MOST_LANES and key[0] != OTHER:
            return self[OTHER, key[1]]
        self[key] = lane = Lane()
        return lane
