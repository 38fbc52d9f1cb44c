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
    cpus: int
    fsync: str
    synchronous_commit: str
    full_page_writes: str
    shared_buffers: str

    @property
    def durable(self) -> bool:
        """Whether a commit was on disk when it was confirmed."""
        return self.fsync == "on" and self.synchronous_commit != "off"


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
