"""Figures out of measurements, and sentences out of figures. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from kept.bench.model import Drain, Latencies, Latency, Server, Spread

MS = 1_000_000  # nanoseconds


def spread(values: Sequence[float], digits: int = 1) -> Spread:
    """The least, the middle and the most of *values*."""
    return Spread(round(min(values), digits), round(median(values), digits), round(max(values), digits))


def ratios(these: Sequence[float], those: Sequence[float]) -> Spread:
    """*these* to *those*, round by round: what slowed a round down slowed both."""
    return spread([this / that for this, that in zip(these, those, strict=True)], 3)


def percentile(values: Sequence[float], share: float) -> float:
    """The least value that at least *share* of all values do not exceed."""
    ordered = sorted(values)
    at = max(0, -int(-share * len(ordered) // 1) - 1)
    return ordered[min(at, len(ordered) - 1)]


def latencies(nanoseconds: Sequence[int]) -> Latencies:
    """Durations in nanoseconds as percentiles in milliseconds."""
    shown = [round(percentile(nanoseconds, share) / MS, 3) for share in (0.5, 0.9, 0.99, 1.0)]
    return Latencies(len(nanoseconds), *shown)


# --- sentences


def rate(value: float) -> str:
    """``48,300 jobs/s``: no more digits than the figure has."""
    step = 10 ** max(0, len(str(int(value))) - 3)
    return f"{round(value / step) * step:,} jobs/s"


def percent(value: float) -> str:
    return f"{value:.0%}"


def drain_means(found: Drain) -> str:
    """What a drain says in words."""
    images = " (full-page images included)" if found.full_page_images else ""
    return (
        f"One worker process works off {rate(found.jobs_per_s.median)}, {percent(found.ratio_to_limit.median)} of what "
        f"the same SQL reaches from Python when nothing is run; with default settings "
        f"{percent(found.default_to_tuned.median)} of that. A job writes {found.wal_bytes_per_job.median:.0f} bytes of "
        f"WAL{images}. {server_means(found.server)}"
    )


def latency_means(found: Latency) -> str:
    """What latencies say in words."""
    seen = found.from_commit
    return (
        f"On an idle worker a job starts {seen.p50:.2f} ms after its commit, 99 of 100 within {seen.p99:.2f} ms. "
        f"{server_means(found.server)}"
    )


def server_means(server: Server) -> str:
    """Whether the figures are those of a server that keeps its commits."""
    if server.durable:
        return "Every commit was on disk before it was confirmed."
    return "Commits were not waited for (fsync or synchronous_commit is off): a server in production is slower."
