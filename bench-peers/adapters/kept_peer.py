"""Kept: prepare | fill QUEUE N | one N | bulk N. Its worker is ``kept worker kept_app:app``."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import psycopg

from kept_app import app, bench, other
from tally import PAYLOAD, WARM, answer, chunks

TASKS = {"bench": bench, "other": other}


def prepare() -> None:
    kept = str(Path(sys.executable).with_name("kept"))
    subprocess.run([kept, "migrate"], check=True, stdout=subprocess.DEVNULL)
    subprocess.run([kept, "sync", "kept_app:app"], check=True, stdout=subprocess.DEVNULL)
    answer(ok=True)


def fill(queue: str, total: str) -> None:
    enqueue_all(queue, int(total))
    answer(ok=True)


def one(total: str) -> None:
    with psycopg.connect(os.environ["BENCH_URL"], autocommit=True) as conn:
        start = time.monotonic()
        for n in range(int(total)):
            with conn.transaction():
                conn.execute("insert into bench_order (note) values (%s)", ["an order"])
                bench.using(tx=conn).enqueue(n=n, text=PAYLOAD)
        answer(seconds=time.monotonic() - start)


def bulk(total: str) -> None:
    enqueue_all("bench", WARM)
    start = time.monotonic()
    enqueue_all("bench", int(total))
    answer(seconds=time.monotonic() - start)


def enqueue_all(queue: str, total: int) -> None:
    for numbers in chunks(total):
        app.enqueue_many([TASKS[queue].bind(n=n, text=PAYLOAD) for n in numbers])


if __name__ == "__main__":
    verb, *args = sys.argv[1:]
    {"prepare": prepare, "fill": fill, "one": one, "bulk": bulk}[verb](*args)
    app.close()
