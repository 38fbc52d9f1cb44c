"""Four workers, keys they all want, failures and deaths: no job of a key is ever begun before one that comes first."""

from __future__ import annotations

import asyncio
import random
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

from kept.jobs.model import Claimed, Close, Park
from kept.jobs.order import OrderBook
from kept.jobs.reclaim import reclaim_expired
from kept.jobs.rows import OrderWant
from kept.jobs.store import Store
from kernel import declare, live, row, rows, stores
from support import eventually

LEASE = 0.2
FAILS, DIES = 0.02, 0.01


class Claimer:
    """Claims runs of keys, does them in order and settles; now and then a job fails, or the worker dies in between."""

    def __init__(self, seed: int, lane: int, over: threading.Event) -> None:
        self.chance = random.Random(seed)
        self.lane = lane
        self.over = over
        self.deaths = self.failures = self.gaps = 0

    async def run(self, database: str) -> None:
        async with stores(database) as [store]:
            while not self.over.is_set():
                await self.live_once(store)

    async def live_once(self, store: Store) -> None:
        worker, book = await live(store, lease=LEASE), OrderBook()
        book.serve([self.lane])
        while not self.over.is_set():
            book.hint(self.lane)
            want = OrderWant(self.lane, 40, 40, self.chance.choice([1, 5, 20]), book.after(self.lane))
            brought = await store.claim_ordered(worker, 0, [want], 20)
            book.claimed([want], brought, 0.0, 0.0)
            suspects = [] if brought.claimed else await store.claim_suspects(worker, 0, [self.lane], 1)
            decisions = await self.work(store, brought.claimed or suspects, brought.gaps)
            if decisions is None:
                self.deaths += 1
                return
            lost = await store.settle(worker, decisions)
            if lost or not await store.renew(worker, LEASE):
                return

    async def work(self, store: Store, jobs: list[Claimed], gaps: dict) -> list | None:
        """Decisions on *jobs*; None: died before they were written."""
        decisions, blocked = [], set()
        for job in jobs:
            key = job.order_key or await self.key_of(store, job)
            if key in blocked or job.id > gaps.get((job.lane, key), job.id):
                self.gaps += key not in blocked
                decisions.append((job, Park(0, charged=False)))
            elif self.chance.random() < FAILS:
                self.failures += 1
                blocked.add(key)
                decisions.append((job, Park(0, charged=True)))
            else:
                # Under the lease, as far as one can know: an effect of one who lost it says nothing about order.
                query = (
                    "insert into public.effect (order_key, job, attempt) select %(key)s, id, attempt from kept.job"
                    " where id = %(id)s and attempt = %(attempt)s and worker = %(worker)s returning 1"
                )
                facts = {"key": key, "id": job.id, "attempt": job.attempt, "worker": job.worker}
                if not await store.link.rows(query, facts) or self.chance.random() < DIES:
                    return None
                decisions.append((job, Close("done")))
        return decisions

    async def key_of(self, store: Store, job: Claimed) -> str:
        return (await store.link.rows("select order_key from kept.job where id = %(id)s", {"id": job.id}))[0][0]


async def reclaim(database: str, over: threading.Event) -> None:
    async with stores(database) as [store]:
        while not over.is_set():
            await reclaim_expired(store)
            await asyncio.sleep(0.01)


def race(database, conn, count, keys, *, within):
    async def prepare():
        async with stores(database) as [store]:
            return await declare(store, ordered=True, max_attempts=1000, retry_base=0.0, retry_max=0.0)

    lane, over = asyncio.run(prepare()), threading.Event()
    conn.execute(
        "create table public.effect (n bigint generated always as identity, order_key text, job bigint, attempt int)"
    )
    conn.execute(
        "insert into kept.job (lane, priority, ready, due_at, created_at, payload, order_key)"
        " select %s, 0, true, kept.now(), kept.now(), '{}', 'k' || n %% %s from generate_series(1, %s) n",
        [lane, keys, count],
    )
    claimers = [Claimer(seed, lane, over) for seed in range(4)]
    with ThreadPoolExecutor(5) as threads:
        running = [threads.submit(asyncio.run, each.run(database)) for each in claimers]
        running.append(threads.submit(asyncio.run, reclaim(database, over)))
        try:
            eventually(
                lambda: any(each.done() for each in running) or not rows(conn, "select from kept.job limit 1"),
                timeout=within,
                what="an empty table",
            )
        finally:
            over.set()
    for each in running:
        each.result()
    return claimers


def overtaken(conn):
    """Jobs that were begun, for the first time, before a job of their key that comes first."""
    seen: Counter[str] = Counter()
    wrong = 0
    for each in rows(conn, "select order_key, job, min(n) n from public.effect group by 1, 2 order by 3"):
        wrong += each["job"] < seen[each["order_key"]]
        seen[each["order_key"]] = max(seen[each["order_key"]], each["job"])
    return wrong


def check(conn, count, claimers):
    assert overtaken(conn) == 0
    seen = row(conn, "select count(*) n, count(distinct job) jobs from public.effect")
    assert seen["jobs"] == count
    assert row(conn, "select count(*) n, count(distinct id) ids from kept.history") == {"n": count, "ids": count}
    # Twice only what a death left unsettled: never what was settled.
    twice = "select count(*) n from public.effect e join kept.history h on h.id = e.job and e.attempt > h.attempt"
    assert row(conn, twice)["n"] == 0
    assert sum(each.failures for each in claimers) > 0
    assert sum(each.deaths for each in claimers) > 0


def test_no_job_overtakes_another_of_its_key_whatever_fails_or_dies(database, conn):
    check(conn, 2_000, race(database, conn, 2_000, 20, within=100))


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_no_job_of_many_overtakes_another_of_its_key_whatever_fails_or_dies(database, conn):
    check(conn, 50_000, race(database, conn, 50_000, 500, within=1100))
