"""The jobs runner over a real store: whatever cuts a step off, no claimed job is forgotten."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager

import pytest

from kept import App
from kept.jobs.attempt import timed_out
from kept.jobs.lanes import LaneBook
from kept.jobs.model import NOTHING, Died, Released
from kept.jobs.runner import LARGE, SUSPECTS, JobsRunner
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


async def at_once() -> None: ...


async def until_told() -> None:
    await asyncio.Event().wait()


def runner_of(store, worker, threads, handler=at_once):
    """A runner with one quick lane, the first of the database."""
    app = App("postgresql://nobody")
    app.task(name="send", queue="mail")(handler)
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
async def resting(database, handler=at_once):
    """A runner that found nothing to do, with claims made up for its own lane and one it does not serve."""
    async with stores(database) as [store]:
        worker = await live(store)
        with ThreadPoolExecutor(1) as threads:
            runner = runner_of(store, worker, threads, handler)
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


# --- a lease that is about to end


async def test_nothing_is_claimed_under_a_lease_that_is_not_secure(database, conn):
    async with resting(database) as runner:
        add(conn, 3)
        suspect(conn, add(conn))
        runner.secure = lambda: False
        runner.claim_early("1:0")
        assert not runner.has_early
        assert await runner.step() == await runner.claim_suspects() == 0
        runner.secure = lambda: True
        assert await runner.step() == 3
        await runner.join(5)


async def test_what_was_claimed_too_late_is_given_back_and_not_charged(database, conn):
    async with resting(database) as runner:
        add(conn, 3)
        runner.secure = iter([True, False, False]).__next__  # for the claim; when its answer is there; for the next
        assert await runner.step() == 3
        assert not runner.running
        assert runner.marks == set()
        await runner.step()
        found = rows(conn, "select worker, ready, attempt, uncharged from kept.job")
        assert found == [{"worker": None, "ready": True, "attempt": 1, "uncharged": 1}] * 3


# --- suspects


@pytest.mark.parametrize("verdict", [None, timed_out(1), Released()], ids=["none", "timeout", "released"])
async def test_nothing_of_a_lease_that_is_gone_stays_in_hand_whatever_its_handlers_were_told_before(
    database, conn, verdict
):
    """A settlement that stayed would be refused under the next lease, and take the mark of the job's next attempt."""
    async with resting(database, until_told) as runner:
        add(conn, 1)
        await runner.step()
        assert len(runner.running) == 1
        if verdict is not None:
            runner.interrupt_all(verdict)
        assert await runner.let_go(5) == 1
        assert not runner.in_hand
        assert not runner.has_settlements
        assert not runner.marks


def suspect(conn, jobs):
    conn.execute("update kept.job set suspect = true, ready = false, attempt = 1 where id = any(%s)", [jobs])


class Apart:
    """Where suspects run: one ends as soon as it is told how."""

    def __init__(self):
        self.ran = []
        self.at_once = self.most_at_once = 0
        self.outcomes = {}
        self.gate = None

    async def __call__(self, attempt):
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        self.ran.append(attempt.job.id)
        await asyncio.sleep(0)
        if self.gate is not None:
            await self.gate.wait()
        self.at_once -= 1
        return self.outcomes.get(attempt.job.id, NOTHING)


@asynccontextmanager
async def beside_suspects(database, conn, count):
    async with resting(database) as runner:
        jobs = add(conn, count)
        suspect(conn, jobs)
        runner.run_alone = Apart()
        yield runner, jobs


async def settle_suspects(runner):
    """Claim and settle until there are none; how many each claim brought."""
    claims = []
    while claimed := await runner.claim_suspects():
        claims.append(claimed)
        await runner.join(5)
        await runner.step()
    return claims


async def test_quick_suspects_are_claimed_in_ever_larger_groups_and_run_one_after_the_other(database, conn):
    async with beside_suspects(database, conn, 200) as (runner, jobs):
        claims = await settle_suspects(runner)
        assert claims[:4] == [1, 2, 4, 8]
        assert max(claims) <= SUSPECTS
        assert sorted(runner.run_alone.ran) == jobs
        assert runner.run_alone.most_at_once == 1
        assert rows(conn, "select id from kept.job") == []


async def test_behind_a_suspect_that_dies_the_others_are_given_back_uncharged(database, conn):
    async with beside_suspects(database, conn, 3) as (runner, jobs):
        await runner.claim_suspects()
        await runner.join(5)
        runner.run_alone.outcomes = dict.fromkeys(jobs, Died("gone"))
        assert await runner.claim_suspects() == 2
        await runner.join(5)
        await runner.step()
        one, other = rows(conn, "select suspect, worker, attempt, uncharged from kept.job order by uncharged")
        assert one == {"suspect": True, "worker": None, "attempt": 2, "uncharged": 0}
        assert other == {"suspect": True, "worker": None, "attempt": 2, "uncharged": 1}


async def test_suspects_behind_one_that_takes_its_time_are_given_back(database, conn, monkeypatch):
    async with beside_suspects(database, conn, 3) as (runner, _):
        await runner.claim_suspects()
        await runner.join(5)
        runner.run_alone.gate = asyncio.Event()
        monkeypatch.setattr("kept.jobs.running.STALE_AFTER", -1.0)
        assert await runner.claim_suspects() == 2
        assert len(runner.known()) == 3
        await runner.step()
        await runner.step()
        assert len(rows(conn, "select id from kept.job where worker is null and suspect and uncharged = 1")) == 1
        runner.run_alone.gate.set()
        await runner.join(5)
        assert len(runner.run_alone.ran) == 2
