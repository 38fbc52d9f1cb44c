"""Typed facts about the runtime. One signal feeds logs, metrics, traces and tests.

The hot path reports once per batch, never once per job: a signal there carries what happened to each.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Literal

from msgspec import Struct


class Signal(Struct, frozen=True, kw_only=True):
    """Something happened. Subclasses say what."""


class WorkerStarted(Signal, frozen=True, kw_only=True):
    """A worker has its lease and begins to claim."""

    worker: str
    name: str
    queues: tuple[str, ...] | None
    tasks: tuple[str, ...]
    concurrency: int


class WorkerStopped(Signal, frozen=True, kw_only=True):
    """A worker has drained or released everything and given its lease back."""

    worker: str
    name: str
    released: int


class WorkerDraining(Signal, frozen=True, kw_only=True):
    """Shutdown began: nothing more is claimed; what runs may finish within the grace."""

    name: str
    running: int
    grace: float


class WorkerFenced(Signal, frozen=True, kw_only=True):
    """A worker found its lease gone; it cancelled its handlers and goes on under a new identity."""

    name: str
    old: str
    new: str
    cancelled: int


class PickUp(Struct, frozen=True):
    """One claimed job: how long it was due before the claim (seconds)."""

    job_id: int
    queue: str
    task: str
    attempt: int
    waited: float


class JobsClaimed(Signal, frozen=True, kw_only=True):
    """A step claimed these jobs."""

    jobs: Sequence[PickUp]


class Settled(Struct, frozen=True):
    """One settled attempt. *state* is final, or ``pending`` for a job that comes back."""

    job_id: int
    queue: str
    task: str
    attempt: int
    state: Literal["done", "failed", "cancelled", "skipped", "pending"]
    code: str | None
    reason: str | None
    message: str | None
    charged: bool
    duration: float
    delay: float | None  # seconds until it comes back, for pending


class JobsSettled(Signal, frozen=True, kw_only=True):
    """A step wrote these settlements; each was still ours."""

    jobs: Sequence[Settled]


class JobLeaseLost(Signal, frozen=True, kw_only=True):
    """An attempt's settlement changed nothing: the lease was gone."""

    job_id: int
    queue: str
    task: str
    attempt: int


class LeaseRenewed(Signal, frozen=True, kw_only=True):
    """The keeper renewed the lease *count* times since the last report."""

    name: str
    count: int


class RenewalFailed(Signal, frozen=True, kw_only=True):
    """The keeper could not renew *count* times since the last report."""

    name: str
    count: int


class KeeperRestarted(Signal, frozen=True, kw_only=True):
    """The keeper process ended on its own and was started again."""

    name: str
    exit_code: int | None


class SpareReady(Signal, frozen=True, kw_only=True):
    """A child process stands by, with the App loaded, to run suspects alone; loading took *duration* seconds."""

    name: str
    pid: int
    duration: float


# A keeper found its worker dead · a lease ran out · a worker gave up its lease · jobs of nobody we know: must not be.
ReclaimReason = Literal["worker_died", "expired", "handed_back", "orphaned"]


class JobsReclaimed(Signal, frozen=True, kw_only=True):
    """A dead worker's jobs were taken back: *failed* of them had no attempt left, the others are pending."""

    worker: str
    name: str
    reason: ReclaimReason
    jobs: int
    failed: int


class TickDone(Signal, frozen=True, kw_only=True):
    """One pass over the runners that did something."""

    duration: float
    items: int


class RunnerFailed(Signal, frozen=True, kw_only=True):
    """A runner raised; the tick went on without it."""

    runner: str
    error: str


RunState = Literal["done", "idle", "failed", "cancelled", "abandoned", "skipped", "unknown"]


class RunFinished(Signal, frozen=True, kw_only=True):
    """A pass of a runner of the user's own is over; an idle one is not on record.

    Or a job that a schedule became, told by whoever notices that it is settled.
    """

    name: str
    run: int
    state: RunState
    duration: float
    counters: dict[str, int | float]
    code: str | None
    message: str | None


class RunLeaseLost(Signal, frozen=True, kw_only=True):
    """A pass ended after its worker's lease was gone: what it says changes nothing."""

    name: str
    run: int


class RunnerSkipped(Signal, frozen=True, kw_only=True):
    """A runner that must be alone was left to *holder*, which is at it."""

    name: str
    holder: str


class ConnectionLost(Signal, frozen=True, kw_only=True):
    """The database did not answer; the worker tries again after *delay* seconds."""

    error: str
    delay: float


class ConnectionRestored(Signal, frozen=True, kw_only=True):
    """The database answers again."""

    down_for: float


class Sending(Struct, frozen=True):
    """What became of one event that was handed to a sink."""

    event_id: str
    event_type: str
    aggregate_type: str | None
    aggregate_id: str | None
    outcome: str  # published, rejected, unreachable, gone, held
    code: str | None
    message: str | None


class EventsSent(Signal, frozen=True, kw_only=True):
    """A sink was handed these events, in one batch."""

    sink: str
    subscription: str
    batch_size: int
    duration: float
    events: Sequence[Sending]


class SinkOpened(Signal, frozen=True, kw_only=True):
    """A broker does not answer, or refuses us: its sink rests for *pause* seconds, in the whole cluster."""

    sink: str
    code: str
    message: str
    failures: int
    pause: float


class SinkClosed(Signal, frozen=True, kw_only=True):
    """A broker that had failed takes events again."""

    sink: str


class SinkDisabled(Signal, frozen=True, kw_only=True):
    """A receiver said that it is gone for good: nothing is sent there until somebody enables it."""

    sink: str
    code: str
    message: str


class TaskUnknown(Signal, frozen=True, kw_only=True):
    """Jobs wait for a task this worker does not know; they stay pending."""

    queue: str
    task: str


class EventSeen(Signal, frozen=True, kw_only=True):
    """An inbox was asked about an event: new, handled before, or known to Redis as handled before."""

    consumer: str
    answer: Literal["first", "duplicate", "cached"]


class Waiting(Struct, frozen=True):
    """What is due in one lane: how many jobs, counted up to a limit, and for how long the oldest (seconds)."""

    queue: str
    task: str
    due: int
    oldest: float | None


class Figures(Signal, frozen=True, kw_only=True):
    """How the whole cluster stands: what is due in each lane; workers that live, and those whose lease ran out."""

    lanes: Sequence[Waiting]
    live: int
    expired: int

    @property
    def due(self) -> int:
        """Jobs that are due, in all lanes together."""
        return sum(lane.due for lane in self.lanes)


class ScheduleFigures(Signal, frozen=True, kw_only=True):
    """How schedules stand: how many of which kind, how many of the active are late, and the latest by how much."""

    active: int
    paused: int
    retired: int
    late: int
    lateness: float


class RunFigures(Signal, frozen=True, kw_only=True):
    """When runners and schedules last did well, in the whole cluster: name and seconds since 1970."""

    succeeded: Sequence[tuple[str, float]]

    @property
    def names(self) -> int:
        """Of how many it is known."""
        return len(self.succeeded)


class Warned(Signal, frozen=True, kw_only=True):
    """Something the operator should know; *code* is stable."""

    code: str
    message: str


Subscriber = Callable[[Signal], None]
_log = logging.getLogger("kept.signals")


class Signals:
    """Hands each reported signal to every subscriber, in order, on the caller's thread."""

    def __init__(self, *subscribers: Subscriber) -> None:
        self._subscribers = list(subscribers)

    def subscribe(self, subscriber: Subscriber) -> Callable[[], None]:
        """Add *subscriber*; the returned call removes it."""
        self._subscribers.append(subscriber)
        return lambda: self._subscribers.remove(subscriber)

    def report(self, signal: Signal) -> None:
        """Tell everyone. A subscriber that raises is logged and harms nobody: telling must not stop the work."""
        for subscriber in tuple(self._subscribers):
            try:
                subscriber(signal)
            except Exception:  # noqa: BLE001  # whatever it is, it is logged
                _log.exception("a subscriber failed on %s", type(signal).__name__)
