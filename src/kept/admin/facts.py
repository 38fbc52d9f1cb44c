"""What the doctor looks at, frozen. Pure."""

from __future__ import annotations

from datetime import datetime

from msgspec import Struct

from kept.admin.model import LaneRow, WorkerRow
from kept.archive.rules import Make
from kept.outbox.inbox.model import ConsumerRow
from kept.outbox.rows import SinkRow, SubscriptionRow
from kept.schedules.rows import Failing, ScheduleRow


class Server(Struct, frozen=True):
    """The server's word on itself; *backend_pid* differs from what greeted us if a pooler stands between."""

    version: str
    fsync: bool
    full_page_writes: bool
    synchronous_commit: str
    backend_pid: int


class Clock(Struct, frozen=True):
    """Seconds by which the database's clock is ahead of ours, and how long it took to ask."""

    offset: float
    round_trip: float


class Session(Struct, frozen=True):
    """An open transaction of somebody."""

    pid: int
    name: str
    state: str
    seconds: float


class Facts(Struct, frozen=True, kw_only=True):
    """Everything a judgement is made of."""

    server: Server
    pooled: bool
    now: datetime
    clock: Clock
    migrations: int
    dead_rows: int
    live_rows: int
    sessions: tuple[Session, ...]
    hidden_sessions: int
    strays: tuple[str, ...]
    missing: tuple[Make, ...]
    lanes: tuple[LaneRow, ...]
    workers: tuple[WorkerRow, ...]
    subscriptions: tuple[SubscriptionRow, ...] = ()
    sinks: tuple[SinkRow, ...] = ()
    consumers: tuple[ConsumerRow, ...]
    schedules: tuple[ScheduleRow, ...] = ()
    failing: tuple[Failing, ...] = ()  # schedules whose last jobs failed
