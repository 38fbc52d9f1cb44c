"""What was measured as tables of texts. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from kept.bench.model import Drain, Enqueue, Growth, Idle, Latencies, Latency, Outbox, Schedules, Spread, Sustained


class Table(NamedTuple):
    """Column titles and rows; all but the first column are numbers."""

    columns: tuple[str, ...]
    rows: list[tuple[str, ...]]


def of_drain(found: Drain) -> Table:
    return _spreads(
        [
            ("worker, jobs/s", found.jobs_per_s),
            ("limit, jobs/s", found.limit_jobs_per_s),
            ("worker to limit", found.ratio_to_limit),
            ("default settings, jobs/s", found.default_jobs_per_s),
            ("default to tuned", found.default_to_tuned),
            *((f"{number} workers, jobs/s", each) for number, each in found.processes.items()),
            ("WAL, bytes/job", found.wal_bytes_per_job),
        ]
    )


def of_enqueue(found: Enqueue) -> Table:
    beside = f"{found.clients} clients"
    return _spreads(
        [
            ("one by one, transactions/s", found.kept_per_s),
            ("… with a plain INSERT", found.bare_per_s),
            ("… ratio", found.ratio_to_bare),
            ("client's processor time, µs", found.kept_client_us),
            ("… with a plain INSERT", found.bare_client_us),
            (f"{beside}, transactions/s", found.busy_kept_per_s),
            ("… with a plain INSERT", found.busy_bare_per_s),
            ("… ratio", found.busy_ratio_to_bare),
            (f"enqueue_many of {found.many:,}, jobs/s", found.many_rows_per_s),
            ("… with COPY", found.copy_rows_per_s),
            ("… ratio", found.many_to_copy),
        ]
    )


def of_outbox(found: Outbox) -> Table:
    rows = [("with a plain INSERT, transactions/s", found.bare_per_s)]
    for name, each in found.emit.items():
        told = f"{name} subscription{'' if name == '1' else 's'}"
        rows += [
            (f"{told}, transactions/s", each.per_s),
            ("… ratio", each.ratio_to_bare),
            (f"… emit_many of {found.many:,}, events/s", each.many_per_s),
        ]
    rows.append((f"in order, {found.ordered.aggregates} aggregates, events/s", found.ordered.per_s))
    if found.published is not None:
        rows += [
            ("to NATS JetStream, acknowledged events/s", found.published.per_s),
            ("… the client in a bare loop", found.published.bare_per_s),
            ("… ratio", found.published.ratio_to_bare),
        ]
    return _spreads(rows)


def of_latency(found: Latency) -> Table:
    return _latencies([("after COMMIT returned", found.from_commit), ("with the COMMIT", found.with_commit)])


def of_sustained(found: Sustained) -> Table:
    return Table(
        ("", "value"),
        [
            ("drain rate alone, jobs/s", _number(found.drain_jobs_per_s)),
            ("enqueued, jobs/s", _number(found.enqueued_per_s)),
            ("settled, jobs/s", _number(found.settled_per_s)),
            ("backlog at most, jobs", f"{found.backlog_max:,}"),
            ("backlog's change, jobs/s", f"{found.backlog_slope:+.1f}"),
            ("pick-up p50, ms", f"{found.pick_up.p50:.1f}"),
            ("pick-up p99, ms", f"{found.pick_up.p99:.1f}"),
            ("pick-up max, ms", f"{found.pick_up.max:.1f}"),
        ],
    )


def of_growth(found: Growth) -> Table:
    rows: list[tuple[str, ...]] = [
        (
            f"{case.rows:,} {name}",
            _number(case.empty_jobs_per_s.median),
            _number(case.jobs_per_s.median),
            f"{case.ratio_to_empty.median:.2f}",
            f"{case.ratio_to_empty.min:.2f} to {case.ratio_to_empty.max:.2f}",
        )
        for name, case in found.cases.items()
    ]
    open_for = found.snapshot
    rows.append(
        (
            f"open transaction, last fifth of {open_for.jobs:,} to first",
            _number(open_for.first_fifth_jobs_per_s.median),
            _number(open_for.last_fifth_jobs_per_s.median),
            f"{open_for.last_to_first.median:.2f}",
            f"{open_for.last_to_first.min:.2f} to {open_for.last_to_first.max:.2f}",
        )
    )
    return Table(("beside it", "without, jobs/s", "with, jobs/s", "ratio", "spread"), rows)


def of_idle(found: Idle) -> Table:
    rows: list[tuple[str, ...]] = [
        ("statements/s", f"{found.statements_per_s:.2f}"),
        ("processor, % of a core", f"{found.cpu_percent:.2f}"),
        *((f"memory of the {name}, MiB", f"{size:.1f}") for name, size in found.rss_mib.items()),
    ]
    if found.memory is not None:
        jobs = found.memory.jobs
        rows += [
            (f"memory after {max(1, jobs // 10):,} jobs, MiB", f"{found.memory.after_a_tenth:.1f}"),
            (f"memory after {jobs:,} jobs, MiB", f"{found.memory.after_all:.1f}"),
        ]
    return Table(("", "value"), rows)


def of_schedules(found: Schedules) -> Table:
    late, undue = found.late, found.undue
    rows = [
        ("none due: processor, % of a core", undue.cpu_percent),
        ("… with no schedules", undue.without_cpu_percent),
        ("… difference", undue.added_percent),
    ]
    for name, each in found.at_once.items():
        rows += [
            (f"due at once, {name} worker{'' if name == '1' else 's'}: all enqueued, ms", each.enqueued_ms),
            ("… jobs/s", each.jobs_per_s),
            ("… first late by, ms", each.first_ms),
            ("… last late by, ms", each.last_ms),
            ("… all done, ms", each.done_ms),
            ("… statements that fire", each.firings),
            ("… statements in all", each.statements),
        ]
    rows.append(("start after a slot, ms (p50, p99, max)", Spread(late.p50, late.p99, late.max)))
    return _spreads(rows)


def _spreads(rows: Sequence[tuple[str, Spread]]) -> Table:
    return Table(
        ("", "min", "median", "max"), [(name, _number(s.min), _number(s.median), _number(s.max)) for name, s in rows]
    )


def _latencies(rows: Sequence[tuple[str, Latencies]]) -> Table:
    cells = [(name, *(f"{value:.2f}" for value in (s.p50, s.p90, s.p99, s.max))) for name, s in rows]
    return Table(("ms", "p50", "p90", "p99", "max"), cells)


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.2f}"
