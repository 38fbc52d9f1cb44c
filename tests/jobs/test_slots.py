"""Slots: side by side where attempts take time, one behind the other where they take none."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from uuid import UUID

import pytest

from kept.jobs.attempt import Attempt
from kept.jobs.context import Terms
from kept.jobs.model import NOTHING, Claimed, Lane, Raised
from kept.jobs.slots import Slots
from kernel import declared

NOON = datetime(2024, 5, 1, 12, tzinfo=UTC)
LANE = Lane(id=1, queue="mail", task="send", max_attempts=3, priority=0, retry_base=5.0, retry_max=120.0)


def job(id):
    return Claimed(id, 1, 0, 1, 0, False, NOON, NOON, NOON, None, None, None, "{}", UUID(int=1))


@pytest.fixture
def threads():
    with ThreadPoolExecutor(1) as threads:
        yield threads


class Watched:
    """Slots for one handler; keeps what they tell."""

    def __init__(self, handler, threads, *, count, quick):
        self.outcomes = {}
        self.most = 0
        self.declaration = declared(handler)
        self.slots = Slots(count, threads, self.begin, self.ended, lambda _: quick, lambda: None)

    def begin(self, job):
        return Attempt(job, self.declaration, Terms(LANE, 60.0, None, 1000))

    def ended(self, attempt, outcome, duration):
        assert attempt.job.id not in self.outcomes, "told twice"
        assert duration >= 0
        self.outcomes[attempt.job.id] = outcome

    async def work_off(self, count):
        self.slots.add([job(id) for id in range(count)])
        while len(self.outcomes) < count:
            self.most = max(self.most, len(self.slots.running))
            await asyncio.sleep(0)
        await self.slots.join(5.0)


@pytest.mark.parametrize("quick", [True, False])
async def test_every_job_runs_once_and_every_slot_is_free_afterwards(threads, quick):
    ran = []

    async def handler() -> None:
        ran.append(1)
        await asyncio.sleep(0)

    watched = Watched(handler, threads, count=7, quick=quick)
    await watched.work_off(500)
    assert (len(ran), set(watched.outcomes.values())) == (500, {NOTHING})
    assert (watched.slots.idle, watched.slots.running) == (7, {})


@pytest.mark.parametrize("quick", [True, False])
async def test_jobs_that_wait_for_something_run_side_by_side_on_every_slot(threads, quick):
    together = asyncio.Barrier(5)

    async def handler() -> None:
        await together.wait()

    watched = Watched(handler, threads, count=5, quick=quick)
    await asyncio.wait_for(watched.work_off(20), 10)
    assert len(watched.outcomes) == 20


async def test_jobs_that_take_no_time_need_one_consumer_and_leave_the_loop_to_others(threads):
    async def handler() -> None: ...

    watched = Watched(handler, threads, count=10, quick=True)
    turns = 0

    async def others():
        nonlocal turns
        while len(watched.outcomes) < 20_000:
            turns += 1
            await asyncio.sleep(0)

    await asyncio.gather(watched.work_off(20_000), others())
    assert turns > 10
    assert watched.most <= 1


async def test_a_fault_of_ours_ends_its_job_and_not_the_consumer(threads):
    async def handler() -> None: ...

    watched = Watched(handler, threads, count=1, quick=True)
    watched.declaration.signature.decode = None
    await watched.work_off(3)
    assert {type(outcome) for outcome in watched.outcomes.values()} == {Raised}
    assert {outcome.code for outcome in watched.outcomes.values()} == {"internal_error"}
    assert watched.slots.idle == 1
