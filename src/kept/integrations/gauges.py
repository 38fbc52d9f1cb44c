"""Gauges of what was read from the database: how the whole cluster stands, as this worker last saw it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from time import monotonic
from typing import Generic, TypeVar

from prometheus_client.core import GaugeMetricFamily, Metric

from kept.integrations.tallies import MOST_LANES, OTHER
from kept.signals import Figures, RunFigures, ScheduleFigures, Signal, Waiting

FRESH = 300.0  # seconds: what is older than that is not shown, as Prometheus itself would have it

Told = TypeVar("Told", bound=Signal)


class Newest(Generic[Told]):
    """The newest signal of one source. A worker that cannot read it any more must not go on showing the last one."""

    def __init__(self) -> None:
        self._newest: Told | None = None
        self._taken_at = 0.0

    def take(self, signal: Told) -> None:
        """This is the newest."""
        self._newest, self._taken_at = signal, monotonic()

    def fresh(self) -> Told | None:
        """The newest, unless it is too old to be shown."""
        return self._newest if monotonic() - self._taken_at < FRESH else None


def figures_shown(figures: Figures | None) -> Iterator[Metric]:
    """The gauges of *figures*; families without a value if there are none."""
    due = GaugeMetricFamily("kept_jobs_due", "Jobs due and not claimed, in the whole cluster", labels=["queue", "task"])
    oldest = GaugeMetricFamily("kept_oldest_due_seconds", "How long the oldest has been due", labels=["queue", "task"])
    workers = GaugeMetricFamily("kept_workers", "Workers by the state of their lease", labels=["state"])
    if figures is not None:
        for lane in _bounded(figures.lanes):
            due.add_metric([lane.queue, lane.task], lane.due)
            oldest.add_metric([lane.queue, lane.task], lane.oldest or 0.0)
        workers.add_metric(["live"], figures.live)
        workers.add_metric(["expired"], figures.expired)
    yield from (due, oldest, workers)


def schedules_shown(figures: ScheduleFigures | None) -> Iterator[Metric]:
    """The gauges of schedules; families without a value if there are no figures."""
    count = GaugeMetricFamily("kept_schedules", "Schedules by state, in the whole cluster", labels=["state"])
    late = GaugeMetricFamily("kept_schedules_late", "Active schedules that nobody fired a minute after their slot")
    lateness = GaugeMetricFamily("kept_schedule_lateness_seconds", "How long the latest slot has waited to be fired")
    if figures is not None:
        count.add_metric(["active"], figures.active)
        count.add_metric(["paused"], figures.paused)
        count.add_metric(["retired"], figures.retired)
        late.add_metric([], figures.late)
        lateness.add_metric([], figures.lateness)
    yield from (count, late, lateness)


def successes_shown(figures: RunFigures | None, here: Mapping[str, float | None]) -> Metric:
    """When each runner and schedule last did well: by the database's word, or *here* since it was last asked."""
    family = GaugeMetricFamily(
        "kept_run_last_success_timestamp_seconds", "When a runner or schedule last did well", labels=["name"]
    )
    newest = dict(figures.succeeded) if figures is not None else {}
    for name, moment in here.items():
        newest[name] = max(moment or 0.0, newest.get(name, 0.0))
    for name, moment in newest.items():
        if moment:
            family.add_metric([name], moment)
    return family


def _bounded(lanes: Sequence[Waiting]) -> Iterable[Waiting]:
    """*lanes*, the oldest first; those past the limit as one: producers may name queues and tasks as they like."""
    shown: dict[tuple[str, str], Waiting] = {}
    for lane in lanes:
        key = (lane.queue, lane.task) if len(shown) < MOST_LANES else (OTHER, OTHER)
        shown[key] = _together(shown[key], lane) if key in shown else Waiting(*key, lane.due, lane.oldest)
    return shown.values()


def _together(one: Waiting, two: Waiting) -> Waiting:
    ages = [age for age in (one.oldest, two.oldest) if age is not None]
    return Waiting(one.queue, one.task, one.due + two.due, max(ages, default=None))
