"""Nothing is lost (promise 2): a random life of the kernel, every job accounted for after every step."""

from __future__ import annotations

import random
from collections import Counter
from uuid import UUID

import psycopg
import pytest

from kept.db.tx import run
from kept.jobs import door, rules
from kept.jobs.model import Claimed, Deferred, Died, Raised, Released, Returned, Skipped
from kept.jobs.reclaim import hand_back, reclaim_abandoned, reclaim_expired
from kept.jobs.retry import Retry
from kept.jobs.store import Store
from kernel import SQL, claim, live, rows, stores
from support import Clock

POLICY = Retry(max_attempts=3, delay="5s", max_delay="20s")
OUTCOMES = [Returned('{"n":1}'), Returned(), Raised("boom", "it broke"), Raised("fatal", "", retryable=False)]
OUTCOMES += [Deferred(7.0), Skipped("not wanted"), Released(), Released(started=True), Died()]


class World:
    """Producers, workers that die, reclaimers and a purge, in random order."""

    def __init__(self, seed: int, conn: psycopg.Connection, clock: Clock, all_stores: list[Store]) -> None:
        self.chance = random.Random(seed)
        self.conn = conn
        self.clock = clock
        self.stores = all_stores
        self.accepted: set[int] = set()
        self.purged = 0
        self.workers: dict[UUID, list[Claimed]] = {}
        self.dead: list[tuple[UUID, list[Claimed]]] = []

    async def step(self) -> None:
        store = self.chance.choice(self.stores)
        actions = {self.produce: 5, self.work: 6, self.settle: 6, self.promote: 3, self.cancel: 1}
        actions |= {self.die: 1, self.reclaim: 2, self.pass_time: 2, self.settle_late: 1, self.purge: 1}
        [action] = self.chance.choices(list(actions), list(actions.values()))
        await action(store)

    async def produce(self, _: Store) -> None:
        requests = [
            door.Request(
                queue="mail",
                task=self.chance.choice(["one", "two"]),
                payload="{}",
                priority=self.chance.choice([None, 0, 5]),
                delay=self.chance.choice([0.0, 0.0, 10.0]),
                key=self.chance.choice([None] * 4 + [*"abcd"]),
                unique_for=30.0,
            )
            for _ in range(self.chance.randint(1, 6))
        ]
        with self.conn.transaction(force_rollback=self.chance.random() < 0.2) as tx:
            tickets = run(self.conn, door.enqueue_many(SQL, requests))
            if not tx.force_rollback:
                self.accepted |= {ticket.id for ticket in tickets if ticket.created}
            assert all(ticket.created or ticket.id in self.accepted for ticket in tickets) or tx.force_rollback

    async def work(self, store: Store) -> None:
        if len(self.workers) < 3:
            self.workers[await live(store, lease=60)] = []
        worker = self.chance.choice(list(self.workers))
        taken = await claim(store, worker, self.chance.randint(1, 8), lanes=[1, 2], priorities=[5, 0])
        taken += await store.claim_suspects(worker, 0, [1, 2], 1)
        self.workers[worker] += taken

    async def settle(self, store: Store) -> None:
        if not self.workers:
            return
        worker = self.chance.choice(list(self.workers))
        held = self.workers[worker]
        self.chance.shuffle(held)
        done = [held.pop() for _ in range(self.chance.randint(0, len(held)))]
        lost = await store.settle(worker, [self.decide(job) for job in done])
        if lost:  # it was reclaimed from us: all of it, and this identity is over
            del self.workers[worker]

    def decide(self, job: Claimed):
        return job, rules.settle(job, self.chance.choice(OUTCOMES), POLICY, self.chance.random())

    async def settle_late(self, store: Store) -> None:
        """A worker given up for dead comes back and settles what is no longer its own."""
        if self.dead:
            worker, held = self.dead.pop()
            before = rows(self.conn, "select count(*) n from kept.history")
            assert await store.settle(worker, [self.decide(job) for job in held]) == {job.id for job in held}
            assert rows(self.conn, "select count(*) n from kept.history") == before

    async def die(self, store: Store) -> None:
        if self.workers:
            worker = self.chance.choice(list(self.workers))
            held = self.workers.pop(worker)
            started = [job.id for job in held if self.chance.random() < 0.5]
            await hand_back(store, worker, started)
            self.dead.append((worker, held))

    async def reclaim(self, store: Store) -> None:
        for back in await reclaim_expired(store):
            self.workers.pop(back.worker, None)
        assert await reclaim_abandoned(store) == []

    async def pass_time(self, store: Store) -> None:
        self.clock.advance(f"{self.chance.randint(1, 25)}s")
        for worker in self.workers:
            if self.chance.random() < 0.8:
                await store.renew(worker, 60)

    async def promote(self, store: Store) -> None:
        await store.survey([1, 2], bottom=self.chance.random() < 0.5, most=self.chance.randint(1, 9))

    async def cancel(self, _: Store) -> None:
        if self.accepted:
            run(self.conn, door.cancel(SQL, self.chance.choice(sorted(self.accepted))))

    async def purge(self, _: Store) -> None:
        gone = self.conn.execute(
            "delete from kept.history where id = any(array(select id from kept.history limit 3)) returning id"
        ).fetchall()
        self.purged += len(gone)

    def check(self) -> None:
        living = rows(self.conn, "select * from kept.job")
        history = rows(self.conn, "select * from kept.history")
        found = Counter(each["id"] for each in living + history)
        assert set(found.values()) <= {1}
        assert set(found) <= self.accepted
        assert len(self.accepted) == len(living) + len(history) + self.purged
        names = {each["worker"] for each in living} - {None}
        alive = rows(self.conn, "select id from kept.worker where state in ('live', 'lost')")
        assert names <= {each["id"] for each in alive}
        for each in living + history:
            assert 0 <= each["uncharged"] <= each["attempt"]
            assert each["attempt"] - each["uncharged"] <= POLICY.max_attempts + 1


@pytest.mark.parametrize("seed", range(4))
async def test_every_accepted_job_is_live_settled_or_purged_after_every_step(seed, database, conn, clock):
    conn.execute("select kept.lane_id('one', 'mail'), kept.lane_id('two', 'mail')")
    async with stores(database, 3) as some:
        world = World(seed, conn, clock, some)
        for _ in range(400):
            await world.step()
            world.check()
        states = {each["state"] for each in rows(conn, "select distinct state from kept.history")}
    assert len(world.accepted) > 50
    assert {"done", "failed"} <= states
