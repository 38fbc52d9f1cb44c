"""Dramatiq: prepare | fill QUEUE N. Its worker is ``dramatiq dramatiq_peer``."""

from __future__ import annotations

import os
import sys

import dramatiq
from dramatiq.brokers.redis import RedisBroker

from tally import PAYLOAD, Tally, answer

dramatiq.set_broker(RedisBroker(url=os.environ["BENCH_REDIS"]))
tally = Tally()


@dramatiq.actor(actor_name="bench", queue_name="bench")
def bench(n: int, text: str) -> None:
    tally.note(n)


def fill(_queue: str, total: str) -> None:
    for n in range(int(total)):
        bench.send(n=n, text=PAYLOAD)


if __name__ == "__main__":
    verb, *args = sys.argv[1:]
    if verb == "fill":
        fill(*args)
    answer(ok=True)
