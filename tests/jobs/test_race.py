"""Claimers whose leases keep running out, and a reclaimer at their heels: no job is stranded, none is done twice."""

from __future__ import annotations

import asyncio
import random
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

from kept.jobs.model import Close, Park
from kept.jobs.reclaim import reclaim_abandoned, reclaim_expired
from kept.jobs.rows import Want
from kept.jobs.store import Store
from kernel import declare, live, row, rows, stores
from support import aeventually, eventually

LEASE = 0.05
BATCH = 25


class Claimer:
    """Claims, settles and renews on a connection of its own, in a thread of its own; now and then far too late."""

    def __init__(self, seed: int, lane: int, over: threading.Event) -> None:
        self.chance = random.Random(seed)
        self.lane = lane
        self.over = over
        self.closed: Counter[int] = Counter()
        self.lost = 0
        self.identities = 0

    async def run(self, database: str) -> None:
        async with stores(database) as [store]:
            while not self.over.is_set():
                self.identities += 1
                await self.live_once(store)

    async def live_once(self, store: Store) -> None:
        worker = await live(store, lease=LEASE)
        decisions = []
        while not self.over.is_set():
            stepped = await store.step(worker, 0, decisions, [Want(self.lane, 0, BATCH, 0)], BATCH)
            self.count(decisions, stepped.lost)
            jobs = stepped.claimed or await store.claim_suspects(worker, 0, [self.lane], BATCH)
            decisions = [
                (job, Park(0, charged=False) if self.chance.random() < 0.05 else Close("done")) for job in jobs
            ]
            if self.chance.random() < 0.1:
                await self.oversleep(store, worker)
            if not await store.renew(worker, LEASE):
                self.count(decisions, await store.settle(worker, decisions))
                return

    async def oversleep(self, store: Store, worker) -> None:
        query = "select 1 from kept.worker where id = %(id)s and lease_until <= kept.now()"
        await aeventually(lambda: store.link.rows(query, {"id": worker}), what="the end of the lease")

    def count(self, decisions, lost) -> None:
        self.lost += len(lost)
        self.closed.update(job.id for job, what in decisions if isinstance(what, Close) and job.id not in lost)


async def reclaim(database: str, over: threading.Event) -> int:
    back = 0
    async with stores(database) as [store]:
        while not over.is_set():
            back += sum(each.jobs for each in await reclaim_expired(store))
    return back


def race(database, conn, count, *, within):
    async def prepare():
        async with stores(database) as [store]:
            return await declare(store, max_attempts=1000, retry_base=0.0, retry_max=0.0)

    lane, over = asyncio.run(prepare()), threading.Event()
    conn.execute(
        "insert into kept.job (lane, priority, ready, due_at, created_at, payload)"
        " select %s, 0, true, kept.now(), kept.now(), '{}' from generate_series(1, %s)",
        [lane, count],
    )
    claimers = [Claimer(seed, lane, over) for seed in range(4)]
    with ThreadPoolExecutor(6) as threads:
        running = [threads.submit(asyncio.run, each.run(database)) for each in claimers]
        running += [threads.submit(asyncio.run, reclaim(database, over)) for _ in range(2)]
        try:
            eventually(
                lambda: any(each.done() for each in running) or not rows(conn, "select from kept.job limit 1"),
                timeout=within,
                what="an empty table",
            )
        finally:
            over.set()
    return claimers, sum(each.result() or 0 for each in running)


def check(database, conn, count, claimers, reclaimed):
    async def rest():
        async with stores(database) as [store]:
            return await reclaim_abandoned(store)

    assert asyncio.run(rest()) == []
    assert row(conn, "select count(*) n from kept.job")["n"] == 0
    seen = row(conn, "select count(*) n, count(distinct id) ids, min(state) state from kept.history")
    assert (seen["n"], seen["ids"], seen["state"]) == (count, count, "done")
    settled = sum((each.closed for each in claimers), Counter())
    assert len(settled) == count
    assert set(settled.values()) == {1}  # what was told to be settled was settled by that very attempt
    assert reclaimed > 0
    assert sum(each.lost for each in claimers) > 0
    assert sum(each.identities for each in claimers) > 4


def test_no_job_is_stranded_or_settled_twice_when_leases_keep_running_out(database, conn):
    claimers, reclaimed = race(database, conn, 3_000, within=60)
    check(database, conn, 3_000, claimers, reclaimed)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_no_job_of_many_is_stranded_or_settled_twice_when_leases_keep_running_out(database, conn):
    claimers, reclaimed = race(database, conn, 300_000, within=1100)
    check(database, conn, 300_000, claimers, reclaimed)
