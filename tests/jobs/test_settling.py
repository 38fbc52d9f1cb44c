"""What handlers say of their own transactions is checked, whenever they say it."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

import psycopg

from kept import App, Context
from kept.jobs.lanes import LaneBook
from kept.jobs.runner import JobsRunner
from kept.jobs.running import Options
from kept.jobs.settling import Identity
from kept.jobs.store import Store
from kept.signals import Signals
from kernel import add, job_row, live, record, stores
from support import aeventually


class Meanwhile(Store):
    """A store in which something happens before the answer to ``present`` is there."""

    meanwhile = None

    async def present(self, worker, ids):
        answer = await super().present(worker, ids)
        if self.meanwhile is not None:
            await self.meanwhile()
        return answer


def runner_of(database, store, worker, threads, rolls_back, may_end):
    app = App("postgresql://nobody")

    @app.task(queue="mail")
    async def send(ctx: Context) -> None:
        if ctx.job.id == rolls_back:
            await may_end.wait()
        async with await psycopg.AsyncConnection.connect(database, autocommit=True) as conn, conn.transaction():
            await ctx.acomplete(conn)
            if ctx.job.id == rolls_back:
                raise psycopg.Rollback

    (declaration,) = app.registry
    lane = declaration.lane()
    book = LaneBook()
    book.serve([(type(lane)(**{f: getattr(lane, f) for f in lane.__struct_fields__} | {"id": 1}), declaration)])
    return JobsRunner(
        store=store,
        book=book,
        identity=Identity(worker),
        options=Options(),
        marks=type("Marks", (set,), {"start": set.add, "end": set.discard})(),
        threads=threads,
        signals=Signals(),
        run_alone=None,
        wake=lambda: None,
    )


async def test_a_completion_that_was_rolled_back_while_another_is_confirmed_does_not_strand_its_job(database, conn):
    kept, rolled_back = add(conn, 2)
    may_end = asyncio.Event()
    async with stores(database) as [plain]:
        store, worker = Meanwhile(plain.link), await live(plain)
        with ThreadPoolExecutor(1) as threads:
            runner = runner_of(database, store, worker, threads, rolled_back, may_end)
            runner.book.hinted((1, 0), deep=True)
            assert await runner.step() == 2
            await aeventually(lambda: runner.has_settlements, what="the first completion")

            async def meanwhile():
                store.meanwhile = None
                may_end.set()
                await aeventually(lambda: not runner.running, what="the end of the other handler")

            store.meanwhile = meanwhile
            while runner.in_hand:
                await runner.step()
    assert record(conn, kept)["state"] == "done"
    assert job_row(conn, rolled_back)["worker"] is None
