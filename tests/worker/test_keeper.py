"""A keeper ends a worker whose loop stands still, and only that: time in which nobody could move does not count."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic

import psycopg
import pytest

from kernel import rows
from support import eventually, freeze

STALL = 1.5
WORKER = """
import asyncio, os, sys, time
from kept.db.connect import Link
from kept.jobs.store import Store
from kept.worker.lease import Lease

async def main():
    link = await Link.open({database!r})
    lease = Lease(database={database!r}, schema="kept", name="one", declared={{}}, queues=None, concurrency=1, batch=1,
                  seconds=600.0, renew=0.2, stall={stall})
    await lease.begin(Store(link))
    while not lease.board.renewals:
        lease.board.beat()
        time.sleep(0.01)
    for line in sys.stdin:  # which nobody beats beside
        lease.board.beat()
        print("beat", flush=True)
    lease.end(closed=True)

asyncio.run(main())
"""


@contextmanager
def worker(database: str) -> Iterator[subprocess.Popen[str]]:
    """A process that holds a lease, and whose loop moves when it is told to; it has moved now."""
    code = WORKER.format(database=database, stall=STALL)
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        beat(process)
        try:
            yield process
        finally:
            process.kill()


def beat(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("\n")
    process.stdin.flush()
    assert process.stdout.readline() == "beat\n"


@pytest.fixture
def renewed(conn: psycopg.Connection) -> Callable[[], object]:
    """When the lease was last renewed."""
    return lambda: rows(conn, "select lease_until from kept.worker")[0]["lease_until"]


def test_a_worker_whose_loop_stands_still_is_ended(database: str) -> None:
    with worker(database) as process:
        assert process.wait(30) == -signal.SIGKILL


def test_a_worker_that_was_stopped_for_long_is_not_ended_when_it_goes_on(database: str, renewed) -> None:
    with worker(database) as process:
        freeze(process.pid)
        over = monotonic() + 1.2 * STALL
        eventually(lambda: monotonic() > over, what="longer than a loop may stand still")
        before = renewed()
        process.send_signal(signal.SIGCONT)
        eventually(lambda: renewed() > before, what="a keeper that goes on for it")
        beat(process)


def test_a_worker_that_was_stopped_with_its_keeper_is_not_ended_when_they_go_on(database: str, renewed) -> None:
    with worker(database) as process:
        keeper = int(Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text())
        freeze(keeper, process.pid)
        over = monotonic() + 1.2 * STALL
        eventually(lambda: monotonic() > over, what="longer than a loop may stand still")
        before = renewed()
        process.send_signal(signal.SIGCONT)
        os.kill(keeper, signal.SIGCONT)
        eventually(lambda: renewed() > before, what="a keeper that goes on for it")
        beat(process)
