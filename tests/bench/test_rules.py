"""Figures out of measurements: what is the middle, what grows, what is said."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from kept.bench.model import (
    AtOnce,
    Case,
    Drain,
    Enqueue,
    Growth,
    Idle,
    Latencies,
    Memory,
    Schedules,
    Server,
    Snapshot,
    Spread,
    Sustained,
    Tuning,
    Undue,
)
from kept.bench.rules import (
    drain_means,
    enqueue_means,
    fifths,
    grows,
    growth_means,
    idle_means,
    latencies,
    percentile,
    rate,
    ratios,
    schedules_means,
    server_means,
    slope,
    spread,
    sustained_means,
)

SECOND = 1_000_000_000
DURABLE = Server(
    version="18.1",
    embedded=True,
    in_memory=False,
    cpus=2,
    fsync="on",
    synchronous_commit="on",
    full_page_writes="on",
    shared_buffers="256MB",
)
ONE = Spread(1.0, 1.0, 1.0)
values = st.lists(st.floats(0.001, 1e6), min_size=1, max_size=50)


def test_a_spread_is_least_middle_and_most():
    assert spread([30.0, 10.0, 20.0]) == Spread(10.0, 20.0, 30.0)
    assert spread([10.0, 20.0]) == Spread(10.0, 15.0, 20.0)


def test_ratios_are_taken_round_by_round():
    # Both were slow in the second round: each round says a half, whatever the medians are.
    assert ratios([50.0, 5.0, 60.0], [100.0, 10.0, 120.0]) == Spread(0.5, 0.5, 0.5)


def test_rounds_that_do_not_match_are_an_error():
    with pytest.raises(ValueError, match="zip"):
        ratios([1.0], [1.0, 2.0])


def test_percentiles_of_a_hundred_are_the_numbers_themselves():
    hundred = list(range(100, 0, -1))
    assert [percentile(hundred, share) for share in (0.5, 0.9, 0.99, 1.0)] == [50, 90, 99, 100]
    assert percentile([7.0], 0.5) == 7.0


@given(values, st.floats(0.01, 1.0))
def test_at_least_that_share_does_not_exceed_a_percentile(found, share):
    limit = percentile(found, share)
    assert limit in found
    assert sum(each <= limit for each in found) >= share * len(found) - 1e-6
    assert sum(each < limit for each in found) < share * len(found) + 1e-6


def test_latencies_are_milliseconds():
    assert latencies([2_000_000, 1_000_000, 500_000, 9_000_000]) == Latencies(4, 1.0, 9.0, 9.0, 9.0)


def test_the_slope_of_a_line_is_its_rise():
    assert slope([(x, 3.0 * x + 7) for x in range(10)]) == pytest.approx(3.0)
    assert slope([(x, 5.0) for x in range(10)]) == 0.0
    assert slope([(1.0, 5.0)]) == slope([]) == slope([(1.0, 2.0), (1.0, 4.0)]) == 0.0


def test_a_backlog_grows_if_more_than_one_in_a_hundred_stays():
    assert grows(101.0, 10_000.0)
    assert not grows(99.0, 10_000.0)
    assert not grows(-500.0, 10_000.0)


def test_fifths_compare_the_beginning_with_the_end():
    # 1,000 jobs: the first fifth in 1 s, the last one in 2 s.
    curve = [(1 * SECOND, 0.2), (2 * SECOND, 0.5), (4 * SECOND, 0.8), (6 * SECOND, 1.0)]
    assert fifths(curve, 1000) == (pytest.approx(200.0), pytest.approx(100.0))


def test_fifths_of_so_few_jobs_that_one_batch_took_them_all():
    assert fifths([(SECOND, 1.0)], 100) == (pytest.approx(100.0), pytest.approx(100.0))


@pytest.mark.parametrize(
    ("value", "said"), [(48_312.7, "48,300 jobs/s"), (999.4, "999 jobs/s"), (7.2, "7 jobs/s"), (0.0, "0 jobs/s")]
)
def test_a_rate_has_no_more_digits_than_it_deserves(value, said):
    assert rate(value) == said


# --- sentences


def test_a_drain_says_how_near_the_limit_it_is_and_what_its_wal_holds():
    found = Drain(
        server=DURABLE,
        jobs=50_000,
        rounds=3,
        payload_bytes=98,
        tuned=Tuning(100, 500),
        default=Tuning(10, 500),
        jobs_per_s=Spread(1.0, 48_312.0, 1.0),
        limit_jobs_per_s=ONE,
        ratio_to_limit=Spread(0.1, 0.81, 1.0),
        default_jobs_per_s=ONE,
        default_to_tuned=Spread(0.1, 0.9, 1.0),
        wal_bytes_per_job=Spread(1.0, 683.2, 1.0),
        full_page_images=True,
        processes={},
    )
    said = drain_means(found)
    assert "48,300 jobs/s, 81% of what the same SQL reaches" in said
    assert "683 bytes of WAL (full-page images included)" in said


def test_enqueueing_says_what_a_job_costs_beside_a_plain_insert():
    found = Enqueue(
        server=DURABLE,
        jobs=2000,
        rounds=3,
        kept_per_s=ONE,
        bare_per_s=ONE,
        ratio_to_bare=Spread(0.1, 0.86, 1.0),
        kept_client_us=Spread(1.0, 180.0, 200.0),
        bare_client_us=Spread(1.0, 120.0, 200.0),
        clients=16,
        busy_kept_per_s=ONE,
        busy_bare_per_s=ONE,
        busy_ratio_to_bare=Spread(0.1, 0.82, 1.0),
        many=10_000,
        many_rows_per_s=Spread(1.0, 51_234.0, 1.0),
        copy_rows_per_s=ONE,
        many_to_copy=ONE,
    )
    said = enqueue_means(found)
    assert "86% as often as with a plain INSERT" in said
    assert "16 clients beside a busy worker 82% as often" in said
    assert "180 µs of processor time, against 120 µs" in said
    assert "51,200 jobs/s go in" in said


def test_a_server_that_does_not_wait_for_its_disk_is_named():
    assert server_means(DURABLE) == "Every commit was on disk before it was confirmed."
    for loose in (replace(DURABLE, synchronous_commit="off"), replace(DURABLE, fsync="off")):
        assert "production is slower" in server_means(loose)
    assert "in memory" in server_means(replace(DURABLE, in_memory=True))


@pytest.mark.parametrize(("growing", "verdict"), [(True, "the worker fell behind"), (False, "the worker kept up")])
def test_sustained_work_says_whether_the_worker_kept_up(growing, verdict):
    found = Sustained(
        server=DURABLE,
        seconds=60.0,
        drain_jobs_per_s=30_000.0,
        share=0.6,
        enqueued_per_s=18_000.0,
        settled_per_s=17_900.0,
        backlog_max=1200,
        backlog_slope=-3.0,
        growing=growing,
        pick_up=Latencies(1, 5.0, 8.0, 20.0, 30.0),
    )
    assert verdict in sustained_means(found)


def test_growth_names_the_worst_case():
    def case(ratio: float) -> Case:
        return Case(rows=1000, jobs_per_s=ONE, empty_jobs_per_s=ONE, ratio_to_empty=Spread(ratio, ratio, ratio))

    snapshot = Snapshot(jobs=200_000, first_fifth_jobs_per_s=ONE, last_fifth_jobs_per_s=ONE, last_to_first=ONE)
    cases = {"parked for later": case(0.98), "in history": case(0.93)}
    found = Growth(server=DURABLE, jobs=1, rounds=1, cases=cases, snapshot=snapshot)
    assert "1,000 in history: 93%" in growth_means(found)


def test_memory_is_only_spoken_of_where_it_was_looked_at():
    found = Idle(
        server=DURABLE, seconds=30.0, statements_per_s=1.5, cpu_percent=0.4, rss_mib={"worker": 49.0}, memory=None
    )
    assert "jobs" not in idle_means(found)
    memory = Memory(jobs=1_000_000, at_rest=49.0, after_a_tenth=60.0, after_all=58.5)
    grown = Idle(
        server=DURABLE, seconds=30.0, statements_per_s=1.5, cpu_percent=0.4, rss_mib={"worker": 49.0}, memory=memory
    )
    assert "1,000,000 jobs to the last its memory changed by -1.5 MiB" in idle_means(grown)


@pytest.mark.parametrize(("here", "whose"), [(True, "(with its server process)"), (False, "which is not here")])
def test_schedules_say_what_they_cost_and_how_fast_they_fire(here, whose):
    undue = Undue(
        seconds=30.0,
        cpu_percent=Spread(0.3, 0.41, 0.5),
        without_cpu_percent=ONE,
        added_percent=Spread(-0.1, -0.02, 0.1),
        server_process=here,
    )
    fired = AtOnce(
        first_ms=ONE,
        last_ms=ONE,
        enqueued_ms=Spread(800.0, 840.0, 900.0),
        done_ms=ONE,
        jobs_per_s=ONE,
        firings=ONE,
        statements=ONE,
    )
    found = Schedules(
        server=DURABLE,
        schedules=10_000,
        rounds=3,
        undue=undue,
        at_once={"1": fired, "2": replace(fired, enqueued_ms=Spread(1.0, 700.0, 900.0))},
        late=Latencies(60, 2.04, 3.0, 5.96, 7.0),
    )
    said = schedules_means(found)
    assert "Beside 10,000 schedules none of which is due, an idle worker takes 0.41 % of a core" in said
    assert whose in said
    assert "-0.02 against a worker with none" in said
    assert "within 0.84 s (one worker), 0.70 s (2 workers), each slot once" in said
    assert "a job starts 2.0 ms after its slot, 99 of 100 within 6.0 ms" in said
