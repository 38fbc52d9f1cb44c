"""What was measured, frozen."""

from __future__ import annotations

from msgspec import Struct


class Spread(Struct, frozen=True):
    """One figure over all rounds."""

    min: float
    median: float
    max: float


class Latencies(Struct, frozen=True):
    """How long something took, in milliseconds."""

    samples: int
    p50: float
    p90: float
    p99: float
    max: float


class Server(Struct, frozen=True, kw_only=True):
    """What was measured on; the settings that a figure depends on."""

    version: str
    embedded: bool
    in_memory: bool  # a file system that forgets: fsync costs nothing there
    cpus: int
    fsync: str
    synchronous_commit: str
    full_page_writes: str
    shared_buffers: str

    @property
    def durable(self) -> bool:
        """Whether a commit was on disk when it was confirmed."""
        return self.fsync == "on" and self.synchronous_commit != "off" and not self.in_memory


class Tuning(Struct, frozen=True):
    """The settings of a worker that a rate depends on."""

    concurrency: int
    batch: int


class Drain(Struct, frozen=True, kw_only=True):
    """How fast a backlog of jobs that do nothing is worked off."""

    server: Server
    jobs: int
    rounds: int
    payload_bytes: int
    tuned: Tuning
    default: Tuning
    jobs_per_s: Spread
    limit_jobs_per_s: Spread
    ratio_to_limit: Spread
    default_jobs_per_s: Spread
    default_to_tuned: Spread
    wal_bytes_per_job: Spread
    full_page_images: bool  # whether they are in wal_bytes_per_job, for want of a way to tell them apart
    processes: dict[str, Spread]  # jobs/s in all, by the number of worker processes


class Latency(Struct, frozen=True, kw_only=True):
    """From the commit of an enqueue to the first line of its handler, on an idle worker."""

    server: Server
    from_commit: Latencies  # from when COMMIT returned to the producer
    with_commit: Latencies  # from right before COMMIT was sent


class Enqueue(Struct, frozen=True, kw_only=True):
    """A row of yours and a job in one transaction, against the same with a plain INSERT."""

    server: Server
    jobs: int
    rounds: int
    kept_per_s: Spread  # transactions, one by one
    bare_per_s: Spread
    ratio_to_bare: Spread
    kept_client_us: Spread  # processor time of the client for a transaction, microseconds
    bare_client_us: Spread
    clients: int
    busy_kept_per_s: Spread  # of all clients together, while a worker is busy
    busy_bare_per_s: Spread
    busy_ratio_to_bare: Spread
    many: int
    many_rows_per_s: Spread
    copy_rows_per_s: Spread
    many_to_copy: Spread


class Emit(Struct, frozen=True, kw_only=True):
    """Events with so many subscriptions."""

    per_s: Spread  # transactions, one by one
    ratio_to_bare: Spread
    many_per_s: Spread  # events, with emit_many


class Ordered(Struct, frozen=True, kw_only=True):
    """Events in order for each aggregate, to a handler that does nothing: most of them of one aggregate."""

    events: int
    aggregates: int
    per_s: Spread
    violations: int


class Published(Struct, frozen=True, kw_only=True):
    """Events to NATS JetStream, each acknowledged, against the client library in a bare loop."""

    events: int
    per_s: Spread
    bare_per_s: Spread
    ratio_to_bare: Spread


class Outbox(Struct, frozen=True, kw_only=True):
    """A row of yours and an event in one transaction, against the same with a plain INSERT."""

    server: Server
    events: int
    rounds: int
    bare_per_s: Spread
    emit: dict[str, Emit]  # by the number of subscriptions
    many: int
    ordered: Ordered
    published: Published | None  # None: there is no NATS to publish to


class Sustained(Struct, frozen=True, kw_only=True):
    """Enqueueing and working at once, at a share of what the worker can do."""

    server: Server
    seconds: float
    drain_jobs_per_s: float
    share: float
    enqueued_per_s: float
    settled_per_s: float
    backlog_max: int
    backlog_slope: float  # jobs per second
    growing: bool
    pick_up: Latencies


class Case(Struct, frozen=True, kw_only=True):
    """A drain with something large beside it, against a drain with nothing beside it."""

    rows: int
    jobs_per_s: Spread
    empty_jobs_per_s: Spread
    ratio_to_empty: Spread


class Snapshot(Struct, frozen=True, kw_only=True):
    """A drain while somebody's transaction stays open."""

    jobs: int
    first_fifth_jobs_per_s: Spread
    last_fifth_jobs_per_s: Spread
    last_to_first: Spread


class Growth(Struct, frozen=True, kw_only=True):
    """What large tables cost."""

    server: Server
    jobs: int
    rounds: int
    cases: dict[str, Case]
    snapshot: Snapshot


class Memory(Struct, frozen=True, kw_only=True):
    """The worker process's memory over many jobs, in MiB."""

    jobs: int
    at_rest: float
    after_a_tenth: float
    after_all: float


class Idle(Struct, frozen=True, kw_only=True):
    """What a worker costs that has nothing to do."""

    server: Server
    seconds: float
    statements_per_s: float
    cpu_percent: float  # of one core, all processes together
    rss_mib: dict[str, float]  # by process
    memory: Memory | None


class Undue(Struct, frozen=True, kw_only=True):
    """A worker beside schedules none of which is due, against the same worker with none at all."""

    seconds: float
    cpu_percent: Spread  # of one core: the worker, its keeper and its server process
    without_cpu_percent: Spread
    added_percent: Spread  # round by round
    server_process: bool  # whether it is in: not if the server is on another machine


class AtOnce(Struct, frozen=True, kw_only=True):
    """All schedules due at the same moment; times in milliseconds from that moment on."""

    first_ms: Spread  # when the statement began that enqueued the first
    last_ms: Spread  # … the last
    enqueued_ms: Spread  # when all were enqueued and committed
    done_ms: Spread  # when all jobs were done
    jobs_per_s: Spread  # enqueued
    firings: Spread  # statements that enqueued something
    statements: Spread  # all that the workers sent until they ended, claims and settlements included


class Schedules(Struct, frozen=True, kw_only=True):
    """What schedules cost while none is due, and how fast and how precisely they fire."""

    server: Server
    schedules: int
    rounds: int
    undue: Undue
    at_once: dict[str, AtOnce]  # by the number of workers
    late: Latencies  # from a slot to the first line of its handler, on an idle worker
