"""arq: prepare | fill QUEUE N | work."""

from __future__ import annotations

import os
import sys

import uvloop
from arq import create_pool
from arq.connections import RedisSettings
from arq.worker import Worker

from tally import PAYLOAD, Tally, answer

SETTINGS = RedisSettings.from_dsn(os.environ["BENCH_REDIS"])
tally = Tally()


async def bench(_ctx: dict[str, object], n: int, text: str) -> None:
    tally.note(n)


async def fill(_queue: str, total: str) -> None:
    pool = await create_pool(SETTINGS)
    for n in range(int(total)):
        await pool.enqueue_job("bench", n=n, text=PAYLOAD)
    answer(ok=True)


async def work() -> None:
    worker = Worker([bench], redis_settings=SETTINGS, max_jobs=100, poll_delay=0.001, keep_result=0)
    await worker.main()


async def prepare() -> None:
    answer(ok=True)


if __name__ == "__main__":
    verb, *args = sys.argv[1:]
    uvloop.run({"prepare": prepare, "fill": fill, "work": work}[verb](*args))
