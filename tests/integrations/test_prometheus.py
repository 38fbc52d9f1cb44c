"""Metrics: every number is right, no label grows without bound, and the documentation tells the truth."""

from __future__ import annotations

import math
import time
from bisect import bisect_left
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from kept import signals
from kept.integrations import gauges
from kept.integrations.prometheus import Metrics
from kept.integrations.tallies import MOST_CODES, MOST_LANES, SECONDS
from kept.showable import clean
from kept.signals import JobsClaimed, JobsSettled, PickUp, Settled, Signal

KINDS = [kind for kind in Signal.__subclasses__() if kind.__module__ == signals.__name__]
DONE = Settled(
    job_id=7,
    queue="mail",
    task="send",
    attempt=1,
    state="done",
    code=None,
    reason=None,
    message=None,
    charged=True,
    duration=0.2,
    delay=None,
)


FIGURES = signals.Figures(lanes=[signals.Waiting("mail", "send", 3, 90.0)], live=2, expired=1)


def settled(**changes: object) -> Settled:
    return Settled(**({name: getattr(DONE, name) for name in DONE.__struct_fields__} | changes))


def value(metrics: Metrics, metric: str, /, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(metric, labels)


def test_claims_are_counted_by_queue_and_task_with_how_long_they_waited() -> None:
    metrics = Metrics()
    metrics(JobsClaimed(jobs=[PickUp(1, "mail", "send", 1, 0.02), PickUp(2, "mail", "send", 1, 4.0)]))
    metrics(JobsClaimed(jobs=[PickUp(3, "mail", "bounce", 2, 0.5)]))

    assert value(metrics, "kept_jobs_claimed_total", queue="mail", task="send") == 2
    assert value(metrics, "kept_jobs_claimed_total", queue="mail", task="bounce") == 1
    lane = {"queue": "mail", "task": "send"}
    assert value(metrics, "kept_pickup_latency_seconds_count", **lane) == 2
    assert value(metrics, "kept_pickup_latency_seconds_sum", **lane) == pytest.approx(4.02)
    assert value(metrics, "kept_pickup_latency_seconds_bucket", le="0.01", **lane) == 0
    assert value(metrics, "kept_pickup_latency_seconds_bucket", le="0.025", **lane) == 1
    assert value(metrics, "kept_pickup_latency_seconds_bucket", le="+Inf", **lane) == 2


def test_settlements_are_counted_by_state_and_code() -> None:
    metrics = Metrics()
    failed = settled(state="failed", code="card_declined")
    metrics(JobsSettled(jobs=[DONE, DONE, failed, settled(state="skipped")]))

    def count(state: str, code: str = "") -> float | None:
        labels = {"queue": "mail", "task": "send", "state": state, "code": code}
        return value(metrics, "kept_jobs_settled_total", **labels)

    assert count("done") == 2
    assert count("failed", "card_declined") == 1
    assert count("skipped") == 1
    assert value(metrics, "kept_attempt_duration_seconds_count", queue="mail", task="send") == 4
    assert value(metrics, "kept_attempt_duration_seconds_sum", queue="mail", task="send") == pytest.approx(0.8)


def test_a_retry_is_what_comes_back_charged_and_nothing_else() -> None:
    metrics = Metrics()
    retry = settled(state="pending", code="timeout", delay=5.0)
    defer = settled(state="pending", charged=False, delay=5.0)
    final = settled(state="failed", code="timeout")
    metrics(JobsSettled(jobs=[DONE, retry, defer, final]))

    assert value(metrics, "kept_retries_total", queue="mail", task="send", code="timeout") == 1
    assert value(metrics, "kept_retries_total", queue="mail", task="send", code="") is None


@pytest.mark.parametrize(
    ("signal", "name", "labels", "expected"),
    [
        (signals.LeaseRenewed(name="w", count=4), "kept_lease_renewals_total", {}, 8),
        (signals.RenewalFailed(name="w", count=2), "kept_lease_renewal_failures_total", {}, 4),
        (signals.JobLeaseLost(job_id=1, queue="q", task="t", attempt=1), "kept_leases_lost_total", {}, 2),
        (signals.TickDone(duration=0.5, items=30), "kept_tick_items_total", {}, 60),
        (signals.TickDone(duration=0.5, items=30), "kept_tick_duration_seconds_sum", {}, 1),
        (signals.ConnectionLost(error="gone", delay=1.0), "kept_connection_losses_total", {}, 2),
        (
            signals.RunnerFailed(runner="schedules", error="x"),
            "kept_runner_failures_total",
            {"runner": "schedules"},
            2,
        ),
        (
            signals.RunFinished(
                name="sweep", run=7, state="done", duration=0.5, counters={"swept": 3}, code=None, message=None
            ),
            "kept_run_counter_total",
            {"name": "sweep", "counter": "swept"},
            6,
        ),
        (
            signals.RunFinished(
                name="sweep", run=7, state="failed", duration=0.5, counters={}, code="timeout", message="slow"
            ),
            "kept_runs_total",
            {"name": "sweep", "state": "failed"},
            2,
        ),
        (
            signals.EventSeen(consumer="mailer", answer="cached"),
            "kept_inbox_events_total",
            {"consumer": "mailer", "answer": "cached"},
            2,
        ),
        (
            signals.JobsReclaimed(worker="u", name="w", reason="expired", jobs=5, failed=1),
            "kept_jobs_reclaimed_total",
            {"reason": "expired", "state": "pending"},
            8,
        ),
        (
            signals.JobsReclaimed(worker="u", name="w", reason="worker_died", jobs=5, failed=1),
            "kept_jobs_reclaimed_total",
            {"reason": "worker_died", "state": "failed"},
            2,
        ),
    ],
)
def test_a_signal_told_twice_counts_twice(signal: Signal, name: str, labels: dict[str, str], expected: float) -> None:
    metrics = Metrics()
    metrics(signal)
    metrics(signal)

    assert value(metrics, name, **labels) == expected


def test_counters_without_labels_start_at_zero() -> None:
    assert value(Metrics(), "kept_lease_renewal_failures_total") == 0


def test_the_first_job_that_is_reclaimed_is_a_rise_from_zero() -> None:
    assert value(Metrics(), "kept_jobs_reclaimed_total", reason="expired", state="failed") == 0


def test_running_is_asked_at_the_scrape_and_may_be_set_later() -> None:
    metrics = Metrics()
    assert value(metrics, "kept_jobs_running") is None

    running = [1, 2, 3]
    metrics.running = lambda: len(running)
    assert value(metrics, "kept_jobs_running") == 3
    running.clear()
    assert value(metrics, "kept_jobs_running") == 0


def test_the_info_follows_the_workers_identity() -> None:
    metrics = Metrics()
    start = signals.WorkerStarted(worker="a", name="w1", queues=None, tasks=("send",), concurrency=10)
    metrics(start)
    assert value(metrics, "kept_worker_info", worker="a", name="w1") == 1

    metrics(signals.WorkerFenced(name="w1", old="a", new="b", cancelled=2))
    assert value(metrics, "kept_worker_info", worker="a", name="w1") is None
    assert value(metrics, "kept_worker_info", worker="b", name="w1") == 1

    metrics(signals.WorkerStopped(worker="b", name="w1", released=0))
    assert value(metrics, "kept_worker_info", worker="b", name="w1") is None


def test_codes_past_the_limit_share_a_label() -> None:
    metrics = Metrics()
    many = [settled(state="failed", code=f"Error{number}") for number in range(3 * MOST_CODES)]
    metrics(JobsSettled(jobs=many))

    series = {
        sample.labels["code"]: sample.value
        for family in metrics.registry.collect()
        for sample in family.samples
        if sample.name == "kept_jobs_settled_total"
    }
    assert len(series) == MOST_CODES + 1
    assert series["other"] == 2 * MOST_CODES
    assert sum(series.values()) == len(many)


def test_queues_past_the_limit_share_a_label_and_keep_their_task() -> None:
    metrics = Metrics()
    many = [PickUp(number, f"tenant{number}", "send", 1, 0.0) for number in range(MOST_LANES + 50)]
    metrics(JobsClaimed(jobs=many))
    metrics(JobsClaimed(jobs=many))

    assert value(metrics, "kept_jobs_claimed_total", queue="tenant0", task="send") == 2
    assert value(metrics, "kept_jobs_claimed_total", queue="other", task="send") == 100


def test_a_code_that_no_encoder_takes_does_not_break_the_scrape() -> None:
    metrics = Metrics()
    metrics(JobsSettled(jobs=[settled(state="failed", code="x\ud800\n" + "y" * 5000)]))

    lines = [line for line in generate_latest(metrics.registry).decode().splitlines() if "yyy" in line]
    assert len(lines) == 1
    assert len(lines[0]) < 300


def test_two_workers_in_one_process_do_not_clash() -> None:
    one, two = Metrics(), Metrics()
    one(signals.LeaseRenewed(name="one", count=1))

    assert value(one, "kept_lease_renewals_total") == 1
    assert value(two, "kept_lease_renewals_total") == 0


def test_a_registry_of_the_applications_own_is_used() -> None:
    registry = CollectorRegistry()

    assert Metrics(registry=registry).registry is registry
    assert registry.get_sample_value("kept_leases_lost_total") == 0


def test_the_newest_figures_are_shown_and_nothing_of_those_before() -> None:
    metrics = Metrics()
    assert value(metrics, "kept_workers", state="live") is None

    metrics(signals.Figures(lanes=[signals.Waiting("mail", "old", 7, 5.0)], live=9, expired=0))
    metrics(FIGURES)

    assert value(metrics, "kept_jobs_due", queue="mail", task="send") == 3
    assert value(metrics, "kept_oldest_due_seconds", queue="mail", task="send") == 90
    assert value(metrics, "kept_jobs_due", queue="mail", task="old") is None
    assert value(metrics, "kept_workers", state="live") == 2
    assert value(metrics, "kept_workers", state="expired") == 1


def test_a_lane_in_which_nothing_is_due_is_shown_with_zeros() -> None:
    metrics = Metrics()
    metrics(signals.Figures(lanes=[signals.Waiting("mail", "send", 0, None)], live=1, expired=0))

    assert value(metrics, "kept_jobs_due", queue="mail", task="send") == 0
    assert value(metrics, "kept_oldest_due_seconds", queue="mail", task="send") == 0


def test_figures_that_are_too_old_are_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    metrics = Metrics()
    metrics(FIGURES)
    monkeypatch.setattr(gauges, "FRESH", 0.0)

    assert value(metrics, "kept_jobs_due", queue="mail", task="send") is None
    assert value(metrics, "kept_workers", state="live") is None


def test_lanes_past_the_limit_are_shown_as_one_even_if_one_has_that_name() -> None:
    many = [signals.Waiting(f"tenant{number}", "send", 1, float(number)) for number in range(MOST_LANES + 50)]
    metrics = Metrics()
    metrics(signals.Figures(lanes=[signals.Waiting("other", "other", 5, None), *many], live=1, expired=0))

    samples = [s for family in metrics.registry.collect() for s in family.samples if s.name == "kept_jobs_due"]
    assert len(samples) == MOST_LANES
    assert value(metrics, "kept_jobs_due", queue="other", task="other") == 5 + 51
    assert value(metrics, "kept_oldest_due_seconds", queue="other", task="other") == MOST_LANES + 49


@given(st.lists(st.lists(st.floats(min_value=-10, max_value=1e6) | st.sampled_from([*SECONDS, math.nan]))))
def test_every_duration_is_in_the_bucket_it_belongs_to(batches: list[list[float]]) -> None:
    metrics = Metrics()
    for batch in batches:
        metrics(JobsSettled(jobs=[settled(duration=duration) for duration in batch]))

    seconds = [duration if duration > 0 else 0.0 for batch in batches for duration in batch]
    lane = {"queue": "mail", "task": "send"}
    for bucket, edge in enumerate(SECONDS):
        under = sum(bisect_left(SECONDS, duration) <= bucket for duration in seconds)
        shown = value(metrics, "kept_attempt_duration_seconds_bucket", le=f"{edge:g}", **lane)
        assert (shown or 0) == under
    assert (value(metrics, "kept_attempt_duration_seconds_sum", **lane) or 0) == pytest.approx(sum(seconds))


@given(st.lists(st.one_of([st.from_type(kind) for kind in KINDS]), max_size=5))
def test_whatever_is_reported_can_be_scraped(reported: list[Signal]) -> None:
    metrics = Metrics()
    for signal in reported:
        metrics(signal)

    families = text_string_to_metric_families(generate_latest(metrics.registry).decode())
    assert "kept_worker_info" in {family.name for family in families}


def test_the_documented_table_is_what_is_exposed(documented: Callable[[str], list[dict[str, str]]]) -> None:
    metrics = Metrics(running=lambda: 1)
    for signal in (
        JobsClaimed(jobs=[PickUp(1, "mail", "send", 1, 0.02)]),
        JobsSettled(jobs=[DONE, settled(state="pending", code="timeout", delay=5.0)]),
        signals.EventSeen(consumer="mailer", answer="first"),
        signals.RunnerFailed(runner="schedules", error="x"),
        ran("sweep", swept=1),
        signals.JobsReclaimed(worker="u", name="w", reason="expired", jobs=5, failed=1),
        signals.WorkerStarted(worker="a", name="w1", queues=None, tasks=("send",), concurrency=10),
        FIGURES,
        signals.ScheduleFigures(active=3, paused=1, retired=0, late=1, lateness=90.5),
        signals.RunFigures(succeeded=[("nightly", 1.7e9)]),
        signals.EventsSent(
            sink="nats",
            subscription="publish",
            batch_size=1,
            duration=0.1,
            events=[signals.Sending("0190-7", "invoice.made", None, None, "published", None, None)],
        ),
    ):
        metrics(signal)

    exposed = {}
    for family in metrics.registry.collect():
        assert family.samples, f"{family.name}: this test must make it show a sample"
        suffix = {"counter": "_total", "info": "_info"}.get(family.type, "")
        labels = {label for sample in family.samples for label in sample.labels} - {"le"}
        exposed[family.name + suffix] = (family.type, labels)

    told = {
        row["metric"]: (row["type"], {label for label in row["labels"].split(", ") if label})
        for row in documented("metrics")
    }
    assert told == exposed


def ran(name: str, state: str = "done", **counters: float) -> Signal:
    return signals.RunFinished(name=name, run=1, state=state, duration=0.1, counters=counters, code=None, message=None)


@pytest.mark.parametrize(
    ("state", "success"), [("done", True), ("idle", True), ("failed", False), ("abandoned", False)]
)
def test_only_a_pass_that_ended_well_is_a_success(state: str, success: bool) -> None:
    metrics, before = Metrics(), time.time()
    metrics(ran("sweep", state))
    at = value(metrics, "kept_run_last_success_timestamp_seconds", name="sweep")
    assert (at is not None and at >= before) == success


def test_names_of_runs_and_counters_do_not_grow_without_bound() -> None:
    metrics = Metrics()
    for n in range(1200):
        metrics(ran(f"sweep{n}"))
        metrics(ran("sweep0", **{f"counter{n}": 1}))
    found = list(metrics.collect())
    runs = next(family for family in found if family.name == "kept_runs")
    counters = next(family for family in found if family.name == "kept_run_counter")
    assert len(runs.samples) <= 1001
    assert len(counters.samples) <= 101
    assert value(metrics, "kept_run_counter_total", name="sweep0", counter="other") == 1100


def test_a_counter_keeps_its_label_however_many_come_after_it() -> None:
    metrics, odd = Metrics(), "password=abc"
    for counter in (odd, *(f"counter{n}" for n in range(100)), odd):
        metrics(ran("sweep", **{counter: 1}))
    label = clean(odd, limit=100)
    assert label != odd
    assert value(metrics, "kept_run_counter_total", name="sweep", counter=label) == 2


def test_a_counter_never_falls() -> None:
    metrics = Metrics()
    metrics(ran("sweep", swept=5))
    metrics(ran("sweep", swept=-3))
    assert value(metrics, "kept_run_counter_total", name="sweep", counter="swept") == 5


def test_schedules_are_shown_by_state_with_how_late_they_are() -> None:
    metrics = Metrics()
    assert value(metrics, "kept_schedules_late") is None
    metrics(signals.ScheduleFigures(active=3, paused=1, retired=2, late=1, lateness=90.5))

    assert [value(metrics, "kept_schedules", state=state) for state in ("active", "paused", "retired")] == [3, 1, 2]
    assert value(metrics, "kept_schedules_late") == 1
    assert value(metrics, "kept_schedule_lateness_seconds") == 90.5


def test_the_last_success_is_the_newest_that_the_database_or_this_process_knows() -> None:
    metrics = Metrics()
    metrics(signals.RunFigures(succeeded=[("nightly", 1.7e9), ("sweep", 9e9)]))
    for name in ("nightly", "sweep"):
        metrics(signals.RunFinished(name=name, run=1, state="done", duration=0.1, counters={}, code=None, message=None))

    assert value(metrics, "kept_run_last_success_timestamp_seconds", name="sweep") == 9e9
    assert value(metrics, "kept_run_last_success_timestamp_seconds", name="nightly") > 1.7e9
