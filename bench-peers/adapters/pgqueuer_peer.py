"""PgQueuer: prepare | fill QUEUE N | one N | bulk N | work."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from datetime import timedelta

import asyncpg
import uvloop
from pgqueuer import AsyncpgDriver, Job, PgQueuer, Queries

from tally import PAYLOAD, WARM, Tally, answer, chunks


def payload(n: int) -> bytes:
    return json.dumps({"n": n, "text": PAYLOAD}).encode()


async def prepare(conn: asyncpg.Connection) -> None:
    await Queries(AsyncpgDriver(conn)).install()
    answer(ok=True)


async def fill(conn: asyncpg.Connection, queue: str, total: str) -> None:
    await enqueue_all(conn, queue, int(total))
    answer(ok=True)


async def one(conn: asyncpg.Connection, total: str) -> None:
    queries = Queries(AsyncpgDriver(conn))
    start = time.monotonic()
    for n in range(int(total)):
        async with conn.transaction():
            await conn.execute("insert into bench_order (note) values ($1)", "an order")
            await queries.enqueue("bench", payload(n))
    answer(seconds=time.monotonic() - start)


async def bulk(conn: asyncpg.Connection, total: str) -> None:
    await enqueue_all(conn, "bench", WARM)
    start = time.monotonic()
    await enqueue_all(conn, "bench", int(total))
    answer(seconds=time.monotonic() - start)


async def enqueue_all(conn: asyncpg.Connection, queue: str, total: int) -> None:
    queries = Queries(AsyncpgDriver(conn))
    for numbers in chunks(total):
        await queries.enqueue([queue] * len(numbers), [payload(n) for n in numbers], [0] * len(numbers))


async def work(conn: asyncpg.Connection) -> None:
    tally = Tally()
    pgq = PgQueuer(AsyncpgDriver(conn))

    @pgq.entrypoint("bench")
    async def bench(job: Job) -> None:
        tally.note(json.loads(job.payload or b"")["n"])

    signal.signal(signal.SIGTERM, lambda *_: pgq.shutdown.set())
    await pgq.run(dequeue_timeout=timedelta(seconds=30), batch_size=500)


async def main(verb: str, *args: str) -> None:
    conn = await asyncpg.connect(os.environ["BENCH_URL"])
    verbs = {"prepare": prepare, "fill": fill, "one": one, "bulk": bulk, "work": work}
    await verbs[verb](conn, *args)


if __name__ == "__main__":
    uvloop.run(main(*sys.argv[1:]))
