"""Taking jobs back from the dead: the reclaim runner, and what a keeper does when its worker is gone."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple
from uuid import UUID

from kept.jobs import rules
from kept.jobs.model import Close, Park
from kept.jobs.rows import Decision, Orphan
from kept.jobs.store import Store
from kept.signals import JobsReclaimed, ReclaimReason


class Reclaimed(NamedTuple):
    """What came of one dead worker's jobs."""

    worker: UUID
    name: str
    jobs: int
    failed: int
    reason: ReclaimReason

    def signal(self) -> JobsReclaimed:
        return JobsReclaimed(
            worker=str(self.worker), name=self.name, reason=self.reason, jobs=self.jobs, failed=self.failed
        )


async def reclaim_expired(store: Store) -> list[Reclaimed]:
    """Take back the jobs of every worker whose lease ran out. Safe for any number of reclaimers at once."""
    async with store.link.transaction("reclaim.expired"):
        lost = await store.lose_expired()
        return await _take_back(store, lost, "expired", started=None)


async def reclaim_abandoned(store: Store) -> list[Reclaimed]:
    """Take back jobs that name a worker which is not live. None are expected; this is the net below the net."""
    async with store.link.transaction("reclaim.abandoned"):
        abandoned = dict.fromkeys(await store.abandoned(), "unknown")
        return await _take_back(store, abandoned, "orphaned", started=None)


async def hand_back(store: Store, worker: UUID, started: Collection[int]) -> list[Reclaimed]:
    """Give back all that *worker*, which is gone, held; only jobs that had *started* are charged."""
    async with store.link.transaction("reclaim.hand_back"):
        return await _take_back(store, await store.lose(worker), "handed_back", started=frozenset(started))


async def hand_back_with_word(
    store: Store, worker: UUID, name: str, started: Collection[int], reason: ReclaimReason
) -> None:
    """:func:`hand_back` for who cannot report: leaves word of it, so that a live worker does.

    What had started comes first and by its id: it must not wait until the rest is found in a long backlog. The lease
    stands until then, so that nobody else takes the rest for started as well.
    """
    began = frozenset(started)
    async with store.link.transaction("reclaim.started"):
        told = await _put_back(store, {worker: name}, await store.held(worker, began), reason, began) if began else []
        for each in told:
            await store.leave_word(*each)
    async with store.link.transaction("reclaim.rest"):
        for each in await _take_back(store, await store.lose(worker), reason, started=began):
            if each.jobs or not told:
                await store.leave_word(*each)


async def take_word(store: Store) -> list[Reclaimed]:
    """What others took back and could not report. Whoever is given it reports it: nobody else will."""
    return [Reclaimed(*row) for row in await store.take_word()]


async def _take_back(
    store: Store, workers: Mapping[UUID, str], reason: ReclaimReason, *, started: frozenset[int] | None
) -> list[Reclaimed]:
    if not workers:
        return []
    reclaimed = await _put_back(store, workers, await store.orphans(workers), reason, started)
    await store.sweep(workers)
    return reclaimed


async def _put_back(
    store: Store,
    workers: Mapping[UUID, str],
    orphans: Iterable[Orphan],
    reason: ReclaimReason,
    started: frozenset[int] | None,
) -> list[Reclaimed]:
    """Settle *orphans* of dead *workers* and wake whoever can take them."""
    decisions: dict[UUID, list[Decision]] = {worker: [] for worker in workers}
    for job, lane in orphans:
        began = started is None or job.id in started  # nobody can tell what a dead host had started: all of it
        draw = random.random()  # noqa: S311  # jitter, not a secret
        decisions[job.worker].append((job, rules.reclaim(job, lane, started=began, draw=draw)))
    for worker, decided in decisions.items():
        if decided:
            await store.settle(worker, decided)
    for what in sorted({_wake_up(each) for decided in decisions.values() for each in decided} - {None}, key=str):
        await store.wake(str(what))
    return [
        Reclaimed(worker, workers[worker], len(decided), sum(isinstance(s, Close) for _, s in decided), reason)
        for worker, decided in decisions.items()
    ]


def _wake_up(decision: Decision) -> str | None:
    job, settlement = decision
    if not isinstance(settlement, Park):
        return None
    return "suspects" if settlement.suspect else f"{job.lane}:{job.priority}"
