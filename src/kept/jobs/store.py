"""One typed function per statement on jobs, workers and leases. All that a worker says to the database."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any
from uuid import UUID

import psycopg

from kept.db.connect import Link, array
from kept.db.queries import DEFAULT_SCHEMA, Queries, load
from kept.db.wire import Ready
from kept.jobs.model import Claimed, Lane
from kept.jobs.rows import (
    Decision,
    Ordered,
    OrderWant,
    Orphan,
    Stepped,
    StepReply,
    Survey,
    Want,
    claim_params,
    figures_of,
    ordered_of,
    ordered_params,
    orphan,
    settle_params,
    survey_of,
    unrecordable,
)
from kept.signals import Figures

Unacceptable = (psycopg.DataError, psycopg.IntegrityError)  # a value the server will refuse again


class Store:
    """The statements of :mod:`kept.jobs` over one :class:`Link`."""

    def __init__(self, link: Link, schema: str = DEFAULT_SCHEMA) -> None:
        self.link = link
        self.sql: Queries = load("kept.jobs", schema)

    # --- the hot path

    async def step(
        self, worker: UUID, session: int, decisions: Sequence[Decision], wants: Sequence[Want], most: int
    ) -> Stepped:
        """Settle *decisions* and claim up to *most* of *wants*; rows others hold are skipped, not waited for."""
        return (await self.ask_step(worker, session, decisions, wants, most)).read()

    async def ask_step(
        self, worker: UUID, session: int, decisions: Sequence[Decision], wants: Sequence[Want], most: int
    ) -> StepReply:
        """:meth:`step`, to be read later."""
        params = claim_params(worker, session, wants, most)
        if not decisions:
            return StepReply(await self.link.ask(self.sql["claim"], params), worker, settles=False)
        try:
            return StepReply(await self.link.ask(self.sql["step"], params | settle_params(decisions)), worker)
        except UnicodeEncodeError as error:  # a lone surrogate: one more value the database does not take
            raise psycopg.DataError(str(error)) from None

    def made_up_claim(self, worker: UUID, session: int, wants: Sequence[Want], most: int) -> Ready | None:
        """A claim of up to *most* of *wants*, to be sent later."""
        return self.link.made_up(self.sql["claim"], claim_params(worker, session, wants, most))

    async def settle(self, worker: UUID, decisions: Sequence[Decision]) -> frozenset[int]:
        """Write *decisions*; returns the ids whose lease was gone. One bad value does not stop the others."""
        try:
            async with self.link.conn.transaction():  # so that a refusal leaves the caller's transaction usable
                return (await self.step(worker, -1, decisions, (), 0)).lost
        except Unacceptable:
            if len(decisions) == 1:
                return await self.settle(worker, [unrecordable(decisions[0])])
            middle = len(decisions) // 2
            first = await self.settle(worker, decisions[:middle])
            return first | await self.settle(worker, decisions[middle:])

    async def claim_suspects(self, worker: UUID, session: int, lanes: Sequence[int], most: int) -> list[Claimed]:
        """Claim up to *most* jobs whose process died; they are to run alone."""
        rows = await self.link.rows(
            self.sql["claim_suspects"],
            {"worker": worker, "session": session, "lanes": array(lanes), "most": most},
        )
        return [Claimed(*[*row, worker]) for row in rows]

    async def claim_ordered(self, worker: UUID, session: int, wants: Sequence[OrderWant], looks: int) -> Ordered:
        """Claim of ordered lanes: whole keys from their heads on, after a look at up to *looks* keys of each lane."""
        rows = await self.link.rows(self.sql["claim_ordered"], ordered_params(worker, session, wants, looks))
        return ordered_of(rows, worker)

    async def survey(self, lanes: Sequence[int], *, bottom: bool, most: int, worker: UUID | None = None) -> Survey:
        """Promote up to *most* due jobs per lane and look around; *bottom* also looks below the floors.

        *worker* wants to know its place among its peers: live workers of the same tasks and queues.
        """
        params = {"lanes": array(lanes), "bottom": bottom, "most": most, "worker": worker}
        return survey_of(await self.link.rows(self.sql["survey"], params))

    async def figures(self, most: int) -> Figures:
        """How the whole cluster stands; up to *most* due jobs of a lane are counted, so that it stays cheap."""
        return figures_of(await self.link.rows(self.sql["figures"], {"most": most}))

    # --- after a lost reply

    async def next_session(self, worker: UUID) -> int | None:
        """A new session number; no claim under the old one can succeed any more. None: the lease is gone."""
        rows = await self.link.rows(self.sql["next_session"], {"worker": worker})
        return int(rows[0][0]) if rows else None

    async def adopt(self, worker: UUID, known: Collection[int]) -> list[Claimed]:
        """Jobs claimed in our name whose claim we never heard the answer of."""
        rows = await self.link.rows(self.sql["adopt"], {"worker": worker, "known": array(list(known))})
        return [Claimed(*[*row[:13], worker, row[13]]) for row in rows]

    async def settled_by(self, worker: UUID, attempts: Iterable[tuple[int, int]]) -> frozenset[int]:
        """Of (id, attempt) pairs, the ids that history says this worker settled."""
        pairs = list(attempts)
        rows = await self.link.rows(
            self.sql["settled_by"],
            {"worker": worker, "ids": array([i for i, _ in pairs]), "attempts": array([a for _, a in pairs])},
        )
        return frozenset(row[0] for row in rows)

    async def present(self, worker: UUID, ids: Collection[int]) -> frozenset[int]:
        """Of *ids*, those still in our name."""
        rows = await self.link.rows(self.sql["present"], {"worker": worker, "ids": array(list(ids))})
        return frozenset(row[0] for row in rows)

    async def still_ours(self, worker: UUID, ids: Collection[int]) -> frozenset[int]:
        """Of *ids*, those still in our name that no open transaction is about to settle."""
        rows = await self.link.rows(self.sql["still_ours"], {"worker": worker, "ids": array(list(ids))})
        return frozenset(row[0] for row in rows)

    # --- workers and their leases

    async def register(
        self,
        worker: UUID,
        *,
        name: str,
        host: str,
        pid: int,
        version: str,
        queues: Sequence[str] | None,
        concurrency: int,
        declared: str,
        lease: float,
        schedules: str = "{}",
    ) -> None:
        """Begin to live under a new identity."""
        await self.link.rows(
            self.sql["register"],
            {
                "id": worker,
                "name": name,
                "host": host,
                "pid": pid,
                "version": version,
                "queues": None if queues is None else array(queues),
                "concurrency": concurrency,
                "declared": declared,
                "schedules": schedules,
                "lease": lease,
            },
        )

    async def renew(self, worker: UUID, lease: float) -> bool:
        """Extend the lease; False means fenced."""
        return bool(await self.link.rows(self.sql["renew"], {"id": worker, "lease": lease}))

    async def close(self, worker: UUID) -> bool:
        """End the identity; only when nothing is in its name any more."""
        return bool(await self.link.rows(self.sql["close"], {"id": worker}))

    async def lose_expired(self) -> dict[UUID, str]:
        """Take the lease from every worker whose time ran out; id to name."""
        return dict(await self.link.rows(self.sql["lose_expired"]))

    async def sweep(self, workers: Iterable[UUID]) -> None:
        """Be done with lost *workers* that no job names any more."""
        await self.link.rows(self.sql["sweep"], {"workers": array(list(workers))})

    async def lose(self, worker: UUID) -> dict[UUID, str]:
        """Take the lease from a worker known to be dead."""
        return dict(await self.link.rows(self.sql["lose"], {"id": worker}))

    async def abandoned(self) -> list[UUID]:
        """Workers named by jobs although they do not live."""
        return [row[0] for row in await self.link.rows(self.sql["abandoned"])]

    async def orphans(self, workers: Iterable[UUID]) -> list[Orphan]:
        """The jobs in the names of dead *workers*, locked; those being settled right now are left out."""
        rows = await self.link.rows(self.sql["orphans"], {"workers": array(list(workers))})
        return [orphan(row) for row in rows]

    async def held(self, worker: UUID, ids: Collection[int]) -> list[Orphan]:
        """Of *ids*, the jobs in the name of a dead *worker*, as :meth:`orphans` tells them."""
        rows = await self.link.rows(self.sql["held"], {"worker": worker, "ids": array(list(ids))})
        return [orphan(row) for row in rows]

    async def leave_word(self, worker: UUID, name: str, jobs: int, failed: int, reason: str) -> None:
        """Have a live worker tell that *worker*'s jobs were taken back."""
        params = {"worker": worker, "name": name, "jobs": jobs, "failed": failed, "reason": reason}
        await self.link.rows(self.sql["leave_word"], params)

    async def take_word(self) -> list[Sequence[Any]]:
        """(worker, name, jobs, failed, reason) of what was taken back and not told yet: from now on ours to tell."""
        return list(await self.link.rows(self.sql["take_word"]))

    # --- wake-ups

    async def wake(self, what: str) -> None:
        """Tell sleeping workers: ``lane:priority``, ``lanes`` or ``suspects``."""
        await self.link.rows(self.sql["wake"], {"what": what})

    async def sleep(self, worker: UUID, lanes: Sequence[int], seconds: float) -> None:
        """Ask to be woken for *lanes*; the wish expires by itself."""
        await self.link.rows(self.sql["sleep"], {"worker": worker, "lanes": array(lanes), "seconds": seconds})

    async def awake(self, worker: UUID) -> None:
        """No need to be woken: busy."""
        await self.link.rows(self.sql["awake"], {"worker": worker})

    # --- lanes

    async def lanes(self, queues: Sequence[str] | None) -> list[Lane]:
        """Every lane of *queues*, or of all."""
        rows = await self.link.rows(self.sql["lanes"], {"queues": None if queues is None else array(queues)})
        return [
            Lane(
                id=r[0],
                queue=r[1],
                task=r[2],
                max_attempts=r[3],
                priority=r[4],
                retry_base=r[5],
                retry_max=r[6],
                ordered=r[7],
            )
            for r in rows
        ]

    async def declare(self, lanes: Sequence[Lane], *, exact: bool = False) -> tuple[int, int]:
        """Make or update the lanes of declared tasks (their ids are ignored); (changed, added).

        Order is taken from a lane only by an *exact* declaration: an older version must not undo a newer one's.

        When one becomes ordered, what waits in it stands alone, and workers are told to look at their lanes.
        """
        numbers = {
            "queues": array([lane.queue for lane in lanes]),
            "tasks": array([lane.task for lane in lanes]),
            "attempts": array([lane.max_attempts for lane in lanes]),
            "priorities": array([lane.priority for lane in lanes]),
            "bases": array([lane.retry_base for lane in lanes]),
            "maxes": array([lane.retry_max for lane in lanes]),
            "ordered": array([lane.ordered for lane in lanes]),
            "exact": exact,
        }
        changed = added = turned = 0
        missed = True
        while missed:
            ((again, new, ordered, missed),) = await self.link.rows(self.sql["declare"], numbers)
            changed, added, turned = changed + again, added + new, turned + ordered
        if turned:
            await self.stand_alone()
            await self.wake("lanes")
        return int(changed), int(added)

    async def stand_alone(self) -> int:
        """Give jobs in ordered lanes that have no order key one of their own; how many there were."""
        return len(await self.link.rows(self.sql["stand_alone"]))

    async def waiting_tasks(self, lanes: Sequence[int]) -> list[tuple[str, str]]:
        """(queue, task) of those *lanes* in which jobs wait."""
        rows = await self.link.rows(self.sql["waiting_tasks"], {"lanes": array(lanes)})
        return [(row[0], row[1]) for row in rows]

    async def turn(self, runner: str, worker: UUID | None, seconds: float) -> bool:
        """Whether it is our turn: once per *seconds* in the whole cluster."""
        return bool(await self.link.rows(self.sql["turn"], {"name": runner, "worker": worker, "seconds": seconds}))
