"""The jobs runner over a real store: whatever cuts a step off, no claimed job is forgotten."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager

import pytest

from kept import App
from kept.jobs.lanes import LaneBook
from kept.jobs.runner import LARGE, JobsRunner
from kept.jobs.running import Options
from kept.jobs.settling import Identity
from kept.jobs.store import Store
from kept.signals import Signals
from kernel import add, live, rows, stores

BATCH = 2 * LARGE


class Marked(set):
    """Marks that can be looked at."""

    start = set.add
    end = set.discard


def runner_of(store, worker, threads):
    """A runner with one quick lane, the first of the database."""
    app = App("postgresql://nobody")

    @app.task(queue="mail")
    async def send() -> None: ...

    (declaration,) = app.registry
    book = LaneBook()
    lane = declaration.lane()
    book.serve([(type(lane)(**{f: getattr(lane, f) for f in lane.__struct_fields__} | {"id": 1}), declaration)])
    book.finished(1, [0.000_01] * 1000)
    options = Options(concurrency=10, batch=BATCH)
    return JobsRunner(
        store=store,
        book=book,
        identity=Identity(worker),
        options=options,
        marks=Marked(),
        threads=threads,
        signals=Signals(),
        run_alone=None,
        wake=lambda: None,
    )


class Cutting(Store):
    """A store that has its caller cut off when an answer has come: at once, or so many turns of the loop later."""

    def __init__(self, link, at, turns):
        super().__init__(link)
        self.at, self.turns = at, turns
        self.caller = None

    async def ask_step(self, *args):
        reply = await super().ask_step(*args)
        self.at -= 1
        if self.at == 0:
            self.cut(self.turns)
        return reply

    def cut(self, turns):
        if turns:
            asyncio.get_running_loop().call_soon(self.cut, turns - 1)
        else:
            self.caller.cancel()


@pytest.mark.parametrize("turns", range(1, 8))
@pytest.mark.parametrize("at", range(1, 6))
async def test_a_step_that_is_cut_off_forgets_no_job_or_says_so(database, conn, at, turns):
    add(conn, 8 * BATCH)
    async with stores(database) as [plain]:
        worker = await live(plain)
        store = Cutting(plain.link, at, turns)
        with ThreadPoolExecutor(1) as threads:
            runner = runner_of(store, worker, threads)
            store.caller = asyncio.create_task(work(runner))
            await asyncio.wait([store.caller])
            assert store.caller.cancelled()
            await runner.join(5)
            known = set(runner.known())
            ours = {row["id"] for row in rows(conn, "select id from kept.job where worker = %s", worker)}
            assert ours == known or runner.unsure
            assert runner.marks <= known


async def work(runner):
    while True:
        await runner.step()


# --- claims made up before they are needed


@asynccontextmanager
async def resting(database):
    """A runner that found nothing to do, with claims made up for its own lane and one it does not serve."""
    async with stores(database) as [store]:
        worker = await live(store)
        with ThreadPoolExecutor(1) as threads:
            runner = runner_of(store, worker, threads)
            await runner.step()
            runner.make_up([(1, 0), (77, 0)], deep=True)
            yield runner
            await runner.join(5)


async def test_a_claim_made_up_for_a_hint_is_taken_in_by_the_next_step(database, conn):
    async with resting(database) as runner:
        (job,) = add(conn)
        runner.claim_early("1:0")
        assert runner.has_early
        assert runner.in_hand == 1
        assert await runner.step() == 1
        assert not runner.has_early
        await runner.join(5)
        assert runner.known() == [job]


async def test_what_nobody_made_up_a_claim_for_is_left_to_the_next_step(database, conn):
    async with resting(database) as runner:
        add(conn)
        for hint in ("1:5", "77:0", "lanes", ""):
            runner.claim_early(hint)
        assert not runner.has_early
        assert await runner.step() == 1
        await runner.join(5)


async def test_nothing_is_claimed_early_by_a_runner_that_must_not_claim_or_lost_its_connection(database, conn):
    async with resting(database) as runner:
        add(conn)
        runner.claiming = False
        runner.claim_early("1:0")
        runner.claiming = True
        runner.forget_early()
        runner.claim_early("1:0")
        assert not runner.has_early


@pytest.mark.parametrize("turns", range(4))
async def test_a_step_that_is_cut_off_while_an_early_claim_is_on_its_way_says_so(database, conn, turns):
    async with resting(database) as runner:
        add(conn, 3)
        runner.claim_early("1:0")
        step = asyncio.create_task(runner.step())
        for _ in range(turns):
            await asyncio.sleep(0)
        step.cancel()
        await asyncio.wait([step])
        await runner.join(5)
        ours = {row["id"] for row in rows(conn, "select id from kept.job where worker = %s", runner.identity.worker)}
        assert ours == set(runner.known()) or runner.unsure or runner.has_early
