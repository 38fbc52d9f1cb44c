"""Who takes what of a deep backlog: peers do not meet, and nothing that was passed over stays."""

from __future__ import annotations

import asyncio
import random
from bisect import bisect_left
from collections import Counter
from datetime import UTC, datetime
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from kept import App
from kept.config import Settings
from kept.jobs.lanes import LATE, LaneBook
from kept.jobs.model import Claimed, Lane
from kept.jobs.rows import Survey
from kept.jobs.strides import BLOCK, DEEP, Strides
from kept.signals import JobsSettled
from kernel import declared

ENTRY = (1, 0)
BATCH = 500
NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
LANE = Lane(id=1, queue="mail", task="send", max_attempts=3, priority=0, retry_base=5.0, retry_max=120.0)


def handler() -> None: ...


def job(id):
    return Claimed(id, 1, 0, 1, 0, False, NOON, NOON, NOON, None, None, None, "{}", UUID(int=1))


def striding(place=0, peers=2, at=1):
    strides = Strides()
    strides.stand(place, peers)
    strides.gave_all(ENTRY, BATCH, at - 1)
    return strides


def starts(strides, count, take=BATCH):
    return [strides.next(ENTRY, take, BATCH) for _ in range(count)]


def test_a_worker_alone_claims_from_the_floor():
    assert striding(peers=1).next(ENTRY, BATCH, BATCH) is None


def test_peers_take_blocks_in_turn():
    one, two = striding(0), striding(1)
    block = [n * BATCH + 1 for n in range(2 * BLOCK)]
    assert starts(one, BLOCK) == block[:BLOCK]
    assert starts(two, BLOCK) == block[BLOCK:]
    assert one.next(ENTRY, BATCH, BATCH) == 2 * BLOCK * BATCH + 1


def test_a_few_jobs_are_no_backlog():
    strides = Strides()
    strides.stand(0, 2)
    strides.gave_all(ENTRY, DEEP - 1, 99)
    assert strides.next(ENTRY, BATCH, BATCH) is None


def test_a_claim_that_reached_further_than_expected_is_gone_on_from():
    strides = striding()
    strides.next(ENTRY, BATCH, BATCH)
    strides.gave_all(ENTRY, BATCH, 1200)
    assert strides.next(ENTRY, BATCH, BATCH) == 1201


def test_what_is_not_likely_to_be_taken_is_asked_for_again():
    assert starts(striding(), 2, take=0) == [1, 1]


def test_after_a_stop_what_was_passed_over_comes_before_the_next_stride():
    strides = striding()
    starts(strides, BLOCK + 1)
    strides.stop(ENTRY)
    strides.gave_all(ENTRY, BATCH, BLOCK * BATCH + BATCH)
    assert strides.next(ENTRY, BATCH, BATCH) is None
    strides.gave_all(ENTRY, BATCH, 2 * BLOCK * BATCH + BATCH + 1)
    assert strides.next(ENTRY, BATCH, BATCH) is not None


def test_a_peer_that_comes_or_goes_ends_the_strides():
    strides = striding()
    strides.stand(0, 2)
    assert strides.next(ENTRY, BATCH, BATCH) is not None
    strides.stand(0, 3)
    assert strides.next(ENTRY, BATCH, BATCH) is None


def test_what_a_survey_finds_is_left_to_the_peers_until_the_next_one():
    strides = striding()
    starts(strides, BLOCK + 1)
    passed = BLOCK * BATCH + 1
    assert not strides.are_left(ENTRY, passed)
    assert strides.are_left(ENTRY, passed)


def test_lanes_that_are_not_served_are_forgotten():
    strides = striding()
    strides.serve([2])
    assert strides.next(ENTRY, BATCH, BATCH) is None


# --- workers with their books


class Backlog:
    """Jobs of one lane, claimed as the database would."""

    def __init__(self, jobs):
        self.ids = sorted(jobs)

    def claim(self, want, most):
        begin = bisect_left(self.ids, want.floor)
        taken = self.ids[begin : begin + min(want.want, most)]
        del self.ids[begin : begin + len(taken)]
        return [job(id) for id in taken]


def worker_of(place, peers):
    book = LaneBook()
    book.serve([(LANE, declared(handler))])
    book.surveyed(Survey(ready={ENTRY: 1}, promoted={}, peers=(place, peers)), bottom=True)
    book.finished(1, [0.00001] * 1000)
    return book


def claim(book, backlog, batch, now):
    wants = book.wants(0, concurrency=10, batch=batch)
    jobs = [each for want in wants for each in backlog.claim(want, batch)]
    book.claimed(wants, jobs, now, batch)
    return jobs


def test_two_workers_with_a_backlog_claim_what_is_contiguous():
    backlog, books = Backlog(range(1, 20_001)), [worker_of(0, 2), worker_of(1, 2)]
    for turn in range(8):
        brought = [[each.id for each in claim(book, backlog, BATCH, turn * LATE)] for book in books]
    assert brought == [[*range(brought[0][0], brought[0][0] + BATCH)], [*range(brought[1][0], brought[1][0] + BATCH)]]
    assert brought[0][0] // (BLOCK * BATCH) != brought[1][0] // (BLOCK * BATCH)


@given(
    peers=st.integers(1, 5),
    silent=st.integers(0, 4),
    batch=st.integers(50, 300),
    ids=st.sets(st.integers(1, 5000), max_size=3000) | st.integers(0, 5000).map(lambda n: set(range(1, n))),
    seed=st.integers(0, 1000),
)
def test_whoever_says_that_nothing_is_left_is_right_even_if_peers_stand_still(peers, silent, batch, ids, seed):
    backlog, chance, now = Backlog(ids), random.Random(seed), 0.0
    books = [worker_of(place, peers) for place in range(peers)][min(silent, peers - 1) :]
    for _ in range(4 * len(ids) + 20):
        now += chance.random() * LATE
        book = chance.choice(books)
        if not claim(book, backlog, batch, now) and book.exhausted:
            break
    else:
        raise AssertionError("nobody came to an end")
    assert backlog.ids == []


def test_what_silent_peers_leave_is_claimed_while_the_backlog_lasts():
    backlog, book = Backlog(range(1, 1_000_001)), worker_of(0, 2)
    for turn in range(100):
        claim(book, backlog, BATCH, turn * LATE)
        if turn % 10 == 0:
            book.surveyed(Survey(ready={ENTRY: backlog.ids[0]}, promoted={}, peers=(0, 2)), bottom=True)
    assert backlog.ids[0] > 50 * BATCH


# --- in a database


def test_workers_that_stride_run_each_job_once_and_leave_none(database, conn):
    app, jobs = App(database, settings=Settings(batch=DEEP)), 60 * DEEP
    settled, over = Counter(), asyncio.Event()

    @app.task()
    async def work(number: int) -> None: ...

    def note(signal):
        if isinstance(signal, JobsSettled):
            settled["jobs"] += len(signal.jobs)
            if settled["jobs"] == jobs:
                over.set()

    async def drain():
        async with app, app.worker(), app.worker():
            await asyncio.wait_for(over.wait(), 60)

    app.signals.subscribe(note)
    app.enqueue_many([work.bind(n) for n in range(jobs)])
    asyncio.run(drain())
    found = conn.execute("select count(*), count(distinct id), max(attempt) from kept.history").fetchone()
    assert found == (jobs, jobs, 1)
    assert conn.execute("select count(*) from kept.job").fetchone() == (0,)
