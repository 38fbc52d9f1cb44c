"""SAQ on Redis: prepare | fill QUEUE N | work."""

from __future__ import annotations

import os
import sys

import uvloop
from saq import Queue, Worker

from tally import PAYLOAD, Tally, answer

tally = Tally()


async def bench(_ctx: dict[str, object], *, n: int, text: str) -> None:
    tally.note(n)


async def fill(queue: Queue, _name: str, total: str) -> None:
    for n in range(int(total)):
        await queue.enqueue("bench", n=n, text=PAYLOAD, ttl=-1)
    answer(ok=True)


async def work(queue: Queue) -> None:
    await Worker(queue, functions=[bench], concurrency=100).start()


async def prepare(_queue: Queue) -> None:
    answer(ok=True)


async def main(verb: str, *args: str) -> None:
    queue = Queue.from_url(os.environ["BENCH_REDIS"], name="bench")
    await queue.connect()
    await {"prepare": prepare, "fill": fill, "work": work}[verb](queue, *args)
    await queue.disconnect()


if __name__ == "__main__":
    uvloop.run(main(*sys.argv[1:]))
