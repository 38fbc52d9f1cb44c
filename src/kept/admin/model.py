"""What an operator looks at, frozen. Pure."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from msgspec import Struct

from kept.jobs.model import STATES, State

Action = Literal["retry", "cancel", "delete"]
Level = Literal["ok", "warning", "problem"]


class Filter(Struct, frozen=True, kw_only=True):
    """Which jobs are meant. Ages, in seconds, count from the settlement, or from the enqueue while a job lives."""

    lanes: tuple[int, ...] | None = None
    states: tuple[State, ...] = STATES
    older_than: float | None = None
    newer_than: float | None = None
    code: str | None = None
    key: str | None = None
    ids: tuple[int, ...] | None = None


class JobRow(Struct, frozen=True):
    """A job in a list, live or settled."""

    id: int
    queue: str
    task: str
    state: State
    key: str | None
    priority: int
    attempt: int
    charged: int
    max_attempts: int
    suspect: bool
    created_at: datetime
    due_at: datetime | None
    claimed_at: datetime | None
    settled_at: datetime | None
    locked_by: str | None
    locked_until: datetime | None
    code: str | None
    reason: str | None
    message: str | None
    retry_of: int | None
    age: float  # seconds, as a Filter counts them


class Page(Struct, frozen=True):
    """Some jobs, newest first; *more* says that older ones were left out."""

    jobs: tuple[JobRow, ...]
    more: bool


class LogLine(Struct, frozen=True):
    """One line of a job's log."""

    at: datetime
    attempt: int
    event: str
    code: str | None
    message: str | None
    detail: str | None
    worker: str | None


class Detail(Struct, frozen=True):
    """Everything about a job. Its documents are JSON texts; *retries* are the jobs that it was retried as."""

    job: JobRow
    headers: str | None
    payload: str
    result: str | None
    log: tuple[LogLine, ...]
    retries: tuple[int, ...]


class LaneRow(Struct, frozen=True):
    """A lane and what waits in it. *paused* without *paused_until*: until resumed."""

    id: int
    queue: str
    task: str
    due: int
    parked: int
    running: int
    oldest_due: float | None  # seconds
    paused: bool
    paused_until: datetime | None
    declared: bool

    @property
    def name(self) -> str:
        return f"{self.queue}/{self.task}"


class WorkerRow(Struct, frozen=True):
    """A worker; *lease_left* in seconds, negative when the lease has run out."""

    id: str
    name: str
    host: str
    pid: int
    version: str
    queues: tuple[str, ...] | None
    state: str
    lease_left: float
    started_at: datetime
    running: int
    declared: dict[str, str]

    @property
    def alive(self) -> bool:
        return self.state == "live" and self.lease_left > 0


class Recent(Struct, frozen=True):
    """What was settled in a lane lately; *attempts* are the charged attempts of the jobs that are done."""

    done: int = 0
    failed: int = 0
    attempts: int = 0

    def __add__(self, other: Recent) -> Recent:
        return Recent(self.done + other.done, self.failed + other.failed, self.attempts + other.attempts)

    @property
    def failure_rate(self) -> float | None:
        """The share that failed, if anything was settled."""
        settled = self.done + self.failed
        return self.failed / settled if settled else None

    @property
    def churn(self) -> float | None:
        """Attempts per done job: 1.0 where nothing had to be retried."""
        return self.attempts / self.done if self.done else None


class Status(Struct, frozen=True):
    """How the whole is doing: every lane with what was settled in it within the last hour."""

    lanes: tuple[tuple[LaneRow, Recent], ...]

    @property
    def due(self) -> int:
        return sum(lane.due for lane, _ in self.lanes)

    @property
    def parked(self) -> int:
        return sum(lane.parked for lane, _ in self.lanes)

    @property
    def running(self) -> int:
        return sum(lane.running for lane, _ in self.lanes)

    @property
    def recent(self) -> Recent:
        return sum((recent for _, recent in self.lanes), Recent())

    @property
    def oldest(self) -> LaneRow | None:
        """The lane whose oldest due job waits longest; paused lanes wait on purpose and do not count."""
        waiting = [lane for lane, _ in self.lanes if lane.oldest_due is not None and not lane.paused]
        return max(waiting, key=lambda lane: lane.oldest_due or 0.0, default=None)


class Finding(Struct, frozen=True):
    """What the doctor says: one sentence on what is, one on what to do about it."""

    level: Level
    code: str
    message: str
    advice: str = ""
