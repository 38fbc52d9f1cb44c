"""``kept bench sustained``: enqueueing and working at once, for a while."""

from __future__ import annotations

import time

from kept.bench import crew
from kept.bench.crew import Crew
from kept.bench.drain import DEFAULT, Say, rate, warm_up
from kept.bench.model import Latencies, Sustained
from kept.bench.place import Place
from kept.bench.rules import grows, slope

EVERY = 0.010  # seconds between two chunks
LOOK = 0.5  # seconds between two looks at the backlog
WAL = 0.0013  # MB for a job, from its INSERT to history
STARTING = 0.1  # of the time does not count: the worker has just begun

Backlog = list[tuple[float, float]]


def measure(place: Place, *, jobs: int, seconds: float, share: float, say: Say) -> Sustained:
    """Measure the drain rate, then enqueue at a *share* of it while a worker works."""
    lane = warm_up(place)
    say("measuring the drain rate")
    place.empty()
    place.fill(lane, jobs)
    place.settle_down()
    alone = rate(place, DEFAULT, jobs)
    place.empty()
    say("having WAL files made")
    place.have_wal(int(alone * share * seconds * WAL))
    place.settle_down()
    with crew.workers(place, DEFAULT, jobs=max(1, int(alone * share * seconds))) as worker:
        worker.start()
        began = time.monotonic()
        sent, backlog = _trickle(place, worker, lane, alone * share, seconds, say)
        took = time.monotonic() - began
        settled = worker.count
        worker.wait_for(sent)
    steady = [each for each in backlog if each[0] >= STARTING * seconds]
    change = slope(steady)
    return Sustained(
        server=place.server,
        seconds=round(took, 1),
        drain_jobs_per_s=round(alone, 1),
        share=share,
        enqueued_per_s=round(sent / took, 1),
        settled_per_s=round(settled / took, 1),
        backlog_max=int(max((waiting for _, waiting in steady), default=0)),
        backlog_slope=round(change, 1),
        growing=grows(change, sent / took),
        pick_up=_pick_up(place),
    )


def _trickle(place: Place, worker: Crew, lane: int, per_second: float, seconds: float, say: Say) -> tuple[int, Backlog]:
    """Enqueue *per_second* jobs in small chunks; how many that were, and how many waited when."""
    began = time.monotonic()
    sent, backlog = 0, list[tuple[float, float]]()
    look_at = LOOK
    while (now := time.monotonic() - began) < seconds:
        chunk = int(per_second * now) - sent
        if chunk > 0:
            place.conn.execute(place.sql["trickle"], {"lane": lane, "jobs": chunk})
            sent += chunk
        if now >= look_at:
            worker.check()
            waiting = max(0, sent - worker.count)
            backlog.append((now, waiting))
            say(f"{now:.0f} of {seconds:.0f} s, {waiting} jobs wait")
            look_at = now + LOOK
        time.sleep(EVERY)
    return sent, backlog


def _pick_up(place: Place) -> Latencies:
    row = place.conn.execute(place.sql["pick_ups"]).fetchone()
    assert row is not None
    return Latencies(row[0], *(round(each, 3) for each in row[1]))
