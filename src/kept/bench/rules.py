"""Figures out of measurements, and sentences out of figures. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from kept.bench.model import (
    Drain,
    Enqueue,
    Growth,
    Idle,
    Latencies,
    Latency,
    Outbox,
    Schedules,
    Server,
    Spread,
    Sustained,
)

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


def slope(points: Sequence[tuple[float, float]]) -> float:
    """How fast y rises with x: the line nearest to all points (least squares)."""
    if len(points) < 2:
        return 0.0
    middle_x = sum(x for x, _ in points) / len(points)
    middle_y = sum(y for _, y in points) / len(points)
    above = sum((x - middle_x) * (y - middle_y) for x, y in points)
    below = sum((x - middle_x) ** 2 for x, _ in points)
    return above / below if below else 0.0


def grows(backlog_slope: float, rate: float) -> bool:
    """Whether a backlog grows: by more than one in a hundred of what comes in."""
    return backlog_slope > 0.01 * rate


def fifths(curve: Sequence[tuple[int, float]], jobs: int) -> tuple[float, float]:
    """Jobs per second in the first and in the last fifth; *curve* is (nanoseconds, share of the jobs settled)."""
    first = next(at for at in curve if at[1] >= 0.2)
    last = next(at for at in curve if at[1] >= 0.8)
    end = curve[-1]
    if end == last:  # so few jobs that one batch settled the last fifth
        return _rate(first[1], first[0], jobs), _rate(end[1], end[0], jobs)
    return _rate(first[1], first[0], jobs), _rate(end[1] - last[1], end[0] - last[0], jobs)


def _rate(share: float, nanoseconds: int, jobs: int) -> float:
    return share * jobs / (max(1, nanoseconds) / 1000 / MS)


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


def enqueue_means(found: Enqueue) -> str:
    """What enqueueing says in words."""
    return (
        f"With a job in the transaction, one client commits {percent(found.ratio_to_bare.median)} as often as with a "
        f"plain INSERT of the same row, {found.clients} clients beside a busy worker "
        f"{percent(found.busy_ratio_to_bare.median)} as often. In Python a transaction takes "
        f"{found.kept_client_us.median:.0f} µs of processor time, against {found.bare_client_us.median:.0f} µs. "
        f"In bulk, {rate(found.many_rows_per_s.median)} go in. {server_means(found.server)}"
    )


def outbox_means(found: Outbox) -> str:
    """What emitting says in words."""
    shares = [f"{percent(each.ratio_to_bare.median)} with {name}" for name, each in found.emit.items()]
    return (
        f"With an event in the transaction, one client commits this often, compared to a plain INSERT of the same row, "
        f"by the number of subscriptions: {', '.join(shares)}. {_delivery_means(found)} {server_means(found.server)}"
    )


def _delivery_means(found: Outbox) -> str:
    ordered = found.ordered
    wrong = "none" if not ordered.violations else str(ordered.violations)
    told = f"In order, {ordered.per_s.median:,.0f} events/s are handled, {wrong} of them out of order."
    if found.published is None:
        return f"{told} To measure publishing, name a NATS server with --nats, or install nats-server."
    share = percent(found.published.ratio_to_bare.median)
    return (
        f"{told} To NATS JetStream go {found.published.per_s.median:,.0f} events/s, each acknowledged: {share} of what "
        f"the client library alone publishes."
    )


def sustained_means(found: Sustained) -> str:
    """Whether the worker kept up, in words."""
    verdict = "fell behind" if found.growing else "kept up"
    return (
        f"At {percent(found.share)} of its own speed, {rate(found.enqueued_per_s)} for {found.seconds:.0f} s, the "
        f"worker {verdict}: the backlog changed by {found.backlog_slope:+.1f} jobs/s and was {found.backlog_max:,} at "
        f"most. Half of the jobs were picked up within {found.pick_up.p50:.1f} ms, 99 of 100 within "
        f"{found.pick_up.p99:.1f} ms. {server_means(found.server)}"
    )


def growth_means(found: Growth) -> str:
    """What large tables cost, in words."""
    name, worst = min(found.cases.items(), key=lambda each: each[1].ratio_to_empty.median)
    return (
        f"The worst case for a worker is {worst.rows:,} {name}: {percent(worst.ratio_to_empty.median)} of the rate on "
        f"an empty table. While a transaction stays open, the last of {found.snapshot.jobs:,} jobs go at "
        f"{percent(found.snapshot.last_to_first.median)} of the speed of the first. {server_means(found.server)}"
    )


def idle_means(found: Idle) -> str:
    """What an idle worker costs, in words."""
    said = (
        f"An idle worker sends {found.statements_per_s:.1f} statements a second, takes {found.cpu_percent:.1f} % of "
        f"a core and {sum(found.rss_mib.values()):.0f} MiB of memory in {len(found.rss_mib)} processes."
    )
    if found.memory is None:
        return said
    grown = found.memory.after_all - found.memory.after_a_tenth
    return (
        f"{said} From the first tenth of {found.memory.jobs:,} jobs to the last its memory changed by {grown:+.1f} MiB."
    )


def schedules_means(found: Schedules) -> str:
    """What schedules say in words."""
    undue = found.undue
    whose = "with its server process" if undue.server_process else "without its server process, which is not here"
    times = ", ".join(f"{each.enqueued_ms.median / 1000:.2f} s ({_crew(name)})" for name, each in found.at_once.items())
    return (
        f"Beside {found.schedules:,} schedules none of which is due, an idle worker takes "
        f"{undue.cpu_percent.median:.2f} % of a core ({whose}): {undue.added_percent.median:+.2f} against a worker "
        f"with none. Due all at once, they are enqueued within {times}, each slot once. On an idle worker a job starts "
        f"{found.late.p50:.1f} ms after its slot, 99 of 100 within {found.late.p99:.1f} ms. "
        f"{server_means(found.server)}"
    )


def _crew(workers: str) -> str:
    return "one worker" if workers == "1" else f"{workers} workers"


def server_means(server: Server) -> str:
    """Whether the figures are those of a server that keeps its commits."""
    if server.durable:
        return "Every commit was on disk before it was confirmed."
    if server.in_memory:
        return "The server's files were in memory, where fsync costs nothing: let TMPDIR name a folder on a disk."
    return "Commits were not waited for (fsync or synchronous_commit is off): a server in production is slower."
