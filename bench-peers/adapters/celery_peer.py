"""Celery: prepare | fill QUEUE N. Its worker is ``celery -A celery_peer worker``."""

from __future__ import annotations

import os
import sys

from celery import Celery

from tally import PAYLOAD, Tally, answer

app = Celery("celery_peer", broker=os.environ["BENCH_REDIS"])
app.conf.update(
    task_ignore_result=True,
    worker_prefetch_multiplier=128,
    worker_send_task_events=False,
    worker_enable_remote_control=False,
    broker_connection_retry_on_startup=True,
    task_default_queue="bench",
)
tally = Tally()


@app.task(name="bench")
def bench(n: int, text: str) -> None:
    tally.note(n)


def fill(queue: str, total: str) -> None:
    with app.producer_pool.acquire(block=True) as producer:
        for n in range(int(total)):
            bench.apply_async(kwargs={"n": n, "text": PAYLOAD}, queue=queue, producer=producer)


if __name__ == "__main__":
    verb, *args = sys.argv[1:]
    if verb == "fill":
        fill(*args)
    answer(ok=True)
