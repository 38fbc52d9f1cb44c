"""``kept bench latency``: from the commit of an enqueue to the first line of its handler."""

from __future__ import annotations

import random
import time

from kept.bench import app as measured
from kept.bench import crew
from kept.bench.app import STAMPS
from kept.bench.drain import DEFAULT, Say, warm_up
from kept.bench.model import Latency
from kept.bench.place import Place
from kept.bench.rules import latencies
from kept.config import Settings
from kept.db.connect import connect_sync

WARM_UP = 10  # samples that do not count
GAPS = (0.020, 0.300)  # seconds: the worker is idle again, and not in step with us


def measure(place: Place, *, samples: int, say: Say) -> Latency:
    """Enqueue one job at a time through the public API and wait for its stamp."""
    warm_up(place)
    place.empty()
    total = samples + WARM_UP
    measured.app.configure(Settings(database=place.url, schema=place.schema))
    waits: list[int] = []
    whole: list[int] = []
    with (
        crew.workers(place, DEFAULT, jobs=total, queue=STAMPS, stamps=total) as idle,
        connect_sync(place.url, name="kept bench") as conn,
    ):
        idle.start()
        for number in range(total):
            say(f"job {number + 1} of {total}")
            time.sleep(random.uniform(*GAPS))  # noqa: S311  # not a secret
            conn.execute("begin")
            measured.stamp.using(tx=conn).enqueue(number)
            before = time.monotonic_ns()
            conn.execute("commit")
            after = time.monotonic_ns()
            started = idle.wait_for_stamp(number)
            waits.append(max(0, started - after))
            whole.append(started - before)
    return Latency(server=place.server, from_commit=latencies(waits[WARM_UP:]), with_commit=latencies(whole[WARM_UP:]))
