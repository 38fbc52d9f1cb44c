"""Procrastinate: prepare | fill QUEUE N | one N | bulk N | work."""

from __future__ import annotations

import asyncio
import os
import sys
import time

import psycopg
from procrastinate import App, PsycopgConnector, SyncPsycopgConnector

from tally import PAYLOAD, WARM, Tally, answer, chunks

CONCURRENCY = int(os.environ["BENCH_CONCURRENCY"])
URL = os.environ["BENCH_URL"]
tally = Tally()
asynchronous = App(connector=PsycopgConnector(conninfo=URL, min_size=2, max_size=CONCURRENCY + 2))
synchronous = App(connector=SyncPsycopgConnector(conninfo=URL))


@asynchronous.task(name="bench", queue="bench")
async def bench(n: int, text: str) -> None:
    tally.note(n)


@synchronous.task(name="bench", queue="bench")
def add(n: int, text: str) -> None:
    """The same task, for a producer that is not asynchronous."""


def prepare() -> None:
    with synchronous.open():
        synchronous.schema_manager.apply_schema()
    answer(ok=True)


def fill(queue: str, total: str) -> None:
    with synchronous.open():
        defer_all(queue, int(total))
    answer(ok=True)


def one(total: str) -> None:
    with synchronous.open(), psycopg.connect(URL, autocommit=True) as conn:
        start = time.monotonic()
        for n in range(int(total)):
            with conn.transaction():
                conn.execute("insert into bench_order (note) values (%s)", ["an order"])
                add.configure(connection=conn).defer(n=n, text=PAYLOAD)
        answer(seconds=time.monotonic() - start)


def bulk(total: str) -> None:
    with synchronous.open():
        defer_all("bench", WARM)
        start = time.monotonic()
        defer_all("bench", int(total))
        answer(seconds=time.monotonic() - start)


def defer_all(queue: str, total: int) -> None:
    for numbers in chunks(total):
        add.configure(queue=queue).batch_defer(*({"n": n, "text": PAYLOAD} for n in numbers))


def work() -> None:
    async def serve() -> None:
        async with asynchronous.open_async():
            await asynchronous.run_worker_async(queues=["bench"], concurrency=CONCURRENCY)

    asyncio.run(serve())


if __name__ == "__main__":
    verb, *args = sys.argv[1:]
    {"prepare": prepare, "fill": fill, "one": one, "bulk": bulk, "work": work}[verb](*args)
