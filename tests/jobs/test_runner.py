"""The jobs runner over a real store: whatever cuts a step off, no claimed job is forgotten."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

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
