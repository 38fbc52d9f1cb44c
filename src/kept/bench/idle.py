"""``kept bench idle``: what a worker costs that has nothing to do, and what it keeps after much work."""

from __future__ import annotations

import time

from kept.bench import crew
from kept.bench.crew import Crew
from kept.bench.drain import DEFAULT, Say, warm_up
from kept.bench.model import Idle, Memory
from kept.bench.place import Place
from kept.bench.proc import cpu_seconds, family, rss_mib

CHUNK = 50_000  # jobs put in at once


def measure(place: Place, *, jobs: int, seconds: float, settling: float, say: Say) -> Idle:
    """Watch one idle worker from aside; then, if asked to, let it run *jobs* jobs and look at its memory."""
    lane = warm_up(place)
    place.empty()
    place.settle_down()
    with place.without_autovacuum():
        say("the server without a worker")
        time.sleep(settling)  # a server tells its counts some seconds late
        background = _transactions_per_s(place, min(10.0, seconds))
        return _watch(place, lane, background, jobs=jobs, seconds=seconds, settling=settling, say=say)


def _watch(place: Place, lane: int, background: float, *, jobs: int, seconds: float, settling: float, say: Say) -> Idle:
    with crew.workers(place, DEFAULT, jobs=max(1, jobs)) as worker:
        worker.start()
        say("the worker settles down")
        time.sleep(settling)
        processes = family(worker.members[0].process.pid)
        say(f"watching it for {seconds:.0f} s")
        before, began = _cpu(processes), time.monotonic()
        sent = _transactions_per_s(place, seconds)
        cpu = (_cpu(processes) - before) / (time.monotonic() - began)
        worker.check()
        memory = {name: rss_mib(pid) for name, pid in processes.items()}
        return Idle(
            server=place.server,
            seconds=seconds,
            statements_per_s=round(max(0.0, sent - background), 2),
            cpu_percent=round(100 * cpu, 2),
            rss_mib=memory,
            memory=_memory(place, worker, lane, jobs, say) if jobs else None,
        )


def _transactions_per_s(place: Place, seconds: float) -> float:
    """In autocommit mode, as workers are, each statement is a transaction."""
    before, began = int(str(place.one(place.sql["transactions"]))), time.monotonic()
    time.sleep(seconds)
    after = int(str(place.one(place.sql["transactions"])))
    return (after - before - 1) / (time.monotonic() - began)  # but the one that asked


def _cpu(processes: dict[str, int]) -> float:
    return sum(cpu_seconds(pid) for pid in processes.values())


def _memory(place: Place, worker: Crew, lane: int, jobs: int, say: Say) -> Memory:
    pid = worker.members[0].process.pid
    at_rest = rss_mib(pid)
    tenth, done = 0.0, 0
    while done < jobs:
        chunk = min(CHUNK, max(1, jobs // 10), jobs - done)
        place.conn.execute(place.sql["trickle"], {"lane": lane, "jobs": chunk})
        done += chunk
        say(f"{done:,} of {jobs:,} jobs")
        worker.wait_for(done)
        if not tenth and done * 10 >= jobs:
            tenth = rss_mib(pid)
    return Memory(jobs=jobs, at_rest=at_rest, after_a_tenth=tenth, after_all=rss_mib(pid))
