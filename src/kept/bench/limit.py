"""Our own limit: the worker's statement sent from Python, one after the other, and nothing run.

The only place that calls into the kernel: whatever changes there is followed here.
"""

from __future__ import annotations

import asyncio
import os
import platform
from uuid import uuid4

from kept.bench import child
from kept.bench.app import DRAIN
from kept.bench.tally import Tally
from kept.config import Settings
from kept.db.connect import Link
from kept.jobs.model import DONE
from kept.jobs.rows import Decision, Want
from kept.jobs.store import Store
from kept.worker.lease import own_version

LEASE = 3600.0  # seconds: longer than any round


async def drain(settings: Settings, tally: Tally) -> None:
    """Settle and claim until nothing is left."""
    link = await Link.open(settings.require_database(), name="kept bench limit")
    try:
        await _loop(Store(link, settings.schema), settings.batch, tally)
    finally:
        await link.close()


async def _loop(store: Store, batch: int, tally: Tally) -> None:
    worker = uuid4()
    await store.register(
        worker,
        name="limit",
        host=platform.node(),
        pid=os.getpid(),
        version=own_version(),
        queues=[DRAIN],
        concurrency=batch,
        declared="{}",
        lease=LEASE,
    )
    lane = next(iter(await store.lanes([DRAIN])))
    decisions: list[Decision] = []
    floor = 0
    child.start(tally)
    while True:
        wants = [Want(lane.id, lane.priority, batch, floor)]
        claimed = (await store.step(worker, 0, decisions, wants, batch)).claimed
        tally.settled(len(decisions))
        if not claimed:
            break
        decisions = [(job, DONE) for job in claimed]
        floor = max(job.id for job in claimed) + 1
    await store.close(worker)


def main() -> None:
    """Run in a process of its own, as a worker does."""
    tally = child.begin()
    assert tally is not None, "started by a measurement only"
    asyncio.run(drain(Settings.from_env(os.environ), tally))


if __name__ == "__main__":
    main()
