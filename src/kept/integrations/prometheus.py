"""Metrics for Prometheus: signals tallied per batch, shown when someone scrapes."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import product
from math import inf
from typing import get_args

from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from kept import signals
from kept.integrations.gauges import Newest, figures_shown, schedules_shown, successes_shown
from kept.integrations.tallies import Codes, Histogram, Lane, Lanes, Run, Runs, Sink
from kept.signals import Signal


class Metrics(Collector):
    """A subscriber that tallies signals and shows them in its *registry*.

    The registry is its own unless given, so that two workers in one process do not clash. *running* tells how
    many jobs run now; it may be set later, and until then the gauge has no value.
    """

    def __init__(self, running: Callable[[], int] | None = None, *, registry: CollectorRegistry | None = None) -> None:
        self.running = running
        self.registry = CollectorRegistry() if registry is None else registry
        self._lock = threading.Lock()  # the scrape comes from another thread
        self._lanes = Lanes()
        self._codes = Codes()
        self._workers: dict[str, str] = {}
        self._counts: dict[str, int] = dict.fromkeys(_COUNTERS, 0)
        # By reason and state, from zero: of a counter that begins with its first event, no alert sees that event.
        self._reclaimed = dict.fromkeys(product(get_args(signals.ReclaimReason), ("pending", "failed")), 0)
        self._runner_failures: defaultdict[str, int] = defaultdict(int)
        self._sinks: dict[str, Sink] = {}
        self._seen: defaultdict[tuple[str, str], int] = defaultdict(int)  # by consumer and answer
        self._figures = Newest[signals.Figures]()
        self._schedules = Newest[signals.ScheduleFigures]()
        self._succeeded = Newest[signals.RunFigures]()
        self._runs = Runs()
        self._tick = Histogram()
        self.registry.register(self)

    def __call__(self, signal: Signal) -> None:
        """Add *signal* to the tallies."""
        with self._lock:
            match signal:
                case signals.JobsSettled():
                    self._settled(signal.jobs)
                case signals.JobsClaimed():
                    self._claimed(signal.jobs)
                case signals.TickDone():
                    self._tick.observe((signal.duration,))
                    self._counts["kept_tick_items"] += signal.items
                case signals.WorkerStarted() | signals.WorkerStopped() | signals.WorkerFenced():
                    self._worker(signal)
                case _:
                    self._rare(signal)

    def _claimed(self, jobs: Iterable[signals.PickUp]) -> None:
        waits: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
        for job in jobs:
            waits[job.queue, job.task].append(job.waited)
        for key, values in waits.items():
            lane = self._lanes[key]
            lane.claimed += len(values)
            lane.waited.observe(values)

    def _settled(self, jobs: Iterable[signals.Settled]) -> None:
        done: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
        for job in jobs:
            if job.state == "done":
                done[job.queue, job.task].append(job.duration)
            else:
                self._not_done(job)
        for key, values in done.items():
            lane = self._lanes[key]
            lane.settled["done", ""] += len(values)
            lane.duration.observe(values)

    def _not_done(self, job: signals.Settled) -> None:
        lane, code = self._lanes[job.queue, job.task], self._codes[job.code]
        lane.settled[job.state, code] += 1
        lane.duration.observe((job.duration,))
        if job.state == "pending" and job.charged:
            lane.retried[code] += 1

    def _worker(self, signal: signals.WorkerStarted | signals.WorkerStopped | signals.WorkerFenced) -> None:
        match signal:
            case signals.WorkerStarted():
                self._workers[signal.worker] = signal.name
            case signals.WorkerFenced():
                self._workers.pop(signal.old, None)
                self._workers[signal.new] = signal.name
            case signals.WorkerStopped():
                self._workers.pop(signal.worker, None)

    def _rare(self, signal: Signal) -> None:
        match signal:
            case signals.LeaseRenewed():
                self._counts["kept_lease_renewals"] += signal.count
            case signals.RenewalFailed():
                self._counts["kept_lease_renewal_failures"] += signal.count
            case signals.JobLeaseLost():
                self._counts["kept_leases_lost"] += 1
            case signals.ConnectionLost():
                self._counts["kept_connection_losses"] += 1
            case signals.JobsReclaimed():
                self._reclaimed[signal.reason, "pending"] += signal.jobs - signal.failed
                self._reclaimed[signal.reason, "failed"] += signal.failed
            case signals.RunnerFailed():
                self._runner_failures[signal.runner] += 1
            case signals.RunFinished():
                self._runs[signal.name].finished(signal, time.time())
            case _:
                self._outbox(signal)

    def _outbox(self, signal: Signal) -> None:
        match signal:
            case signals.EventsSent():
                self._sink(signal.sink).sent(signal)
            case signals.SinkOpened():
                self._sink(signal.sink).rests(signal.pause)
            case signals.SinkDisabled():
                self._sink(signal.sink).rests(inf)
            case signals.SinkClosed():
                self._sink(signal.sink).open_until = 0.0
            case signals.EventSeen():
                self._seen[signal.consumer, signal.answer] += 1
            case signals.Figures():
                self._figures.take(signal)
            case signals.ScheduleFigures():
                self._schedules.take(signal)
            case signals.RunFigures():
                self._succeeded.take(signal)

    def _sink(self, name: str) -> Sink:
        return self._sinks.setdefault(name, Sink())

    def collect(self) -> Iterator[Metric]:
        """Everything as it stood at one moment."""
        with self._lock:  # only for the copies: rendering takes longer than a batch should wait
            lanes = [(key, lane.copy()) for key, lane in self._lanes.items()]
            tick, counts, workers = self._tick.copy(), dict(self._counts), dict(self._workers)
            runs = [(name, run.copy()) for name, run in self._runs.items()]
            sinks = [(name, sink.copy()) for name, sink in self._sinks.items()]
            reclaimed, failures, seen = dict(self._reclaimed), dict(self._runner_failures), dict(self._seen)
            figures, schedules = self._figures.fresh(), self._schedules.fresh()
            succeeded = self._succeeded.fresh()
        yield from _lane_metrics(lanes)
        yield self._running_now()
        yield from (_counter(name, text, (), [((), counts[name])]) for name, text in _COUNTERS.items())
        yield _counter(
            "kept_jobs_reclaimed",
            "Jobs taken back from dead workers",
            ("reason", "state"),
            reclaimed.items(),
        )
        yield _counter(
            "kept_runner_failures",
            "Runners that raised",
            ("runner",),
            (((runner,), count) for runner, count in failures.items()),
        )
        yield from _run_metrics(runs)
        yield from _sink_metrics(sinks)
        yield _counter(
            "kept_inbox_events", "Events that an inbox was asked about", ("consumer", "answer"), seen.items()
        )
        yield _histogram("kept_tick_duration_seconds", "Duration of a tick that did something", (), [((), tick)])
        yield _worker_info(workers)
        yield from figures_shown(figures)
        yield from schedules_shown(schedules)
        yield successes_shown(succeeded, {name: run.succeeded_at for name, run in runs})

    def _running_now(self) -> Metric:
        family = GaugeMetricFamily("kept_jobs_running", "Jobs running now")
        if self.running is not None:
            family.add_metric([], self.running())
        return family


_COUNTERS = {
    "kept_lease_renewals": "Renewals of the worker's lease",
    "kept_lease_renewal_failures": "Renewals of the worker's lease that failed",
    "kept_leases_lost": "Attempts whose lease was gone when they settled",
    "kept_tick_items": "Items handled by ticks",
    "kept_connection_losses": "Times the database did not answer",
}

_LANE = ("queue", "task")


def _lane_metrics(lanes: Sequence[tuple[tuple[str, str], Lane]]) -> Iterator[Metric]:
    yield _counter(
        "kept_jobs_claimed",
        "Jobs claimed",
        _LANE,
        ((key, lane.claimed) for key, lane in lanes if lane.claimed),
    )
    yield _counter(
        "kept_jobs_settled",
        "Attempts settled, by what became of the job",
        (*_LANE, "state", "code"),
        (((*key, *kind), count) for key, lane in lanes for kind, count in lane.settled.items()),
    )
    yield _counter(
        "kept_retries",
        "Attempts that failed and come back",
        (*_LANE, "code"),
        (((*key, code), count) for key, lane in lanes for code, count in lane.retried.items()),
    )
    yield _histogram(
        "kept_attempt_duration_seconds",
        "Duration of an attempt",
        _LANE,
        ((key, lane.duration) for key, lane in lanes),
    )
    yield _histogram(
        "kept_pickup_latency_seconds",
        "Time from due to claimed",
        _LANE,
        ((key, lane.waited) for key, lane in lanes),
    )


def _run_metrics(runs: Sequence[tuple[str, Run]]) -> Iterator[Metric]:
    yield _counter(
        "kept_runs",
        "Passes of runners and jobs of schedules, by how they ended",
        ("name", "state"),
        (((name, state), count) for name, run in runs for state, count in run.states.items()),
    )
    yield _counter(
        "kept_run_counter",
        "What runners and schedules' jobs counted",
        ("name", "counter"),
        (((name, counter), count) for name, run in runs for counter, count in run.counters.items()),
    )
    yield _histogram(
        "kept_run_duration_seconds",
        "Duration of a runner's pass, or of a schedule's job",
        ("name",),
        (((name,), run.duration) for name, run in runs),
    )


def _sink_metrics(sinks: Sequence[tuple[str, Sink]]) -> Iterator[Metric]:
    outcomes = (((name, outcome), n) for name, sink in sinks for outcome, n in sink.outcomes.items())
    yield _counter("kept_events_sent", "Events handed to a sink, by what became of them", ("sink", "outcome"), outcomes)
    family = GaugeMetricFamily("kept_sink_open", "Whether a sink rests because its broker is away", labels=["sink"])
    for name, sink in sinks:
        family.add_metric([name], sink.open)
    yield family
    durations = (((name,), sink.duration) for name, sink in sinks)
    yield _histogram("kept_sink_batch_duration_seconds", "Time until a sink answered for a batch", ("sink",), durations)


def _counter(
    name: str, text: str, labels: Sequence[str], values: Iterable[tuple[Sequence[str], float]]
) -> CounterMetricFamily:
    family = CounterMetricFamily(name, text, labels=labels)
    for names, value in values:
        family.add_metric(names, value)
    return family


def _histogram(
    name: str, text: str, labels: Sequence[str], values: Iterable[tuple[Sequence[str], Histogram]]
) -> HistogramMetricFamily:
    family = HistogramMetricFamily(name, text, labels=labels)
    for names, histogram in values:
        family.add_metric(names, histogram.buckets(), histogram.sum)
    return family


def _worker_info(workers: dict[str, str]) -> InfoMetricFamily:
    family = InfoMetricFamily("kept_worker", "The workers of this process", labels=["worker", "name"])
    for worker, name in workers.items():
        family.add_metric([worker, name], {})
    return family
