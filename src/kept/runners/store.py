"""One typed function per statement on runners and runs: a worker's over its link, an operator's as steps."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime
from uuid import UUID

import msgspec
from msgspec import Struct

from kept.db.connect import Link, array
from kept.db.queries import DEFAULT_SCHEMA, Queries, load
from kept.db.tx import Steps
from kept.errors import NotFound
from kept.runners.model import Abandoned, Answer, Busy, Ending, Held, Lease, NotDue, Place, Taken

NEWEST = 2**63 - 1
BATCH = 1000


class RunnerStore:
    """The statements of a worker."""

    def __init__(self, link: Link, schema: str = DEFAULT_SCHEMA) -> None:
        self.link = link
        self.sql: Queries = load("kept.runners", schema)

    async def declare(self, place: Place, every: float, *, singleton: bool) -> None:
        """Have a row for *place*; it says what was declared last."""
        await self.link.rows(self.sql["declare"], {"row": place.row, "every": every, "singleton": singleton})

    async def take(
        self, place: Place, worker: UUID, name: str, *, every: float, early: float, singleton: bool
    ) -> Answer:
        """Begin a pass if one is due, nobody is at it who must be alone, and our lease is live."""
        rows = await self.link.rows(
            self.sql["take"],
            {
                "row": place.row,
                "key": place.key,
                "name": place.name,
                "worker": worker,
                "worker_name": name,
                "every": every,
                "early": early,
                "singleton": singleton,
            },
        )
        if not rows:
            return Busy()
        run, wait, holder, dead, late = rows[0]
        if run is not None:
            return Taken(run)
        if singleton and holder is not None:
            return Held(holder, wait, dead=dead, late=late)
        return NotDue(wait) if wait > early else Busy()

    async def finish(self, place: Place, lease: Lease, ending: Ending) -> str:
        """Write how a pass ended and free its slot: ``ended``, ``busy`` (try again) or ``lost``."""
        rows = await self.link.rows(
            self.sql["finish"],
            {
                "row": place.row,
                "run": lease.run,
                "worker": lease.worker,
                "state": ending.state,
                "counters": msgspec.json.encode(ending.counters).decode(),
                "code": ending.code,
                "reason": ending.reason,
                "error": ending.error,
                "after": ending.after,
            },
        )
        return str(rows[0][0])

    async def abandon(self) -> list[Abandoned]:
        """Close the runs that dead workers left open; each is told to one caller only."""
        return [Abandoned(*row) for row in await self.link.rows(self.sql["abandon"])]

    async def disown(self, worker: UUID, known: Collection[int]) -> None:
        """Give back passes that were begun in our name and that we never heard of."""
        await self.link.rows(self.sql["disown"], {"worker": worker, "known": array(list(known))})

    async def successes(self, most: int) -> list[tuple[str, float]]:
        """When passes of up to *most* runners last ended well, longest ago first, in seconds since 1970."""
        return [(row[0], row[1]) for row in await self.link.rows(self.sql["successes"], {"most": most})]

    async def purge(self, keep: float, *, batch: int = BATCH) -> int:
        """Delete the records of runs that began more than *keep* seconds ago, a batch at a time."""
        total = 0
        while True:
            gone = int((await self.link.rows(self.sql["purge"], {"keep": keep, "limit": batch}))[0][0])
            total += gone
            if gone < batch:
                return total


def fence(sql: Queries, lease: Lease) -> Steps[bool]:
    """Whether the pass still holds its slot; if so, it does until the caller's transaction ends."""
    rows = yield sql["fence"], {"run": lease.run, "worker": lease.worker}
    return bool(rows)


# --- what operators ask


class RunRow(Struct, frozen=True):
    """Something that ran, as the view ``kept.runs`` shows it."""

    id: int
    name: str
    kind: str
    worker: str | None
    slot: datetime | None
    started_at: datetime | None
    finished_at: datetime | None
    state: str
    counters: str | None
    code: str | None
    error: str | None
    job: int | None
    duration: float | None


class RunnerRow(Struct, frozen=True):
    """A runner as the database knows it."""

    name: str
    every: float
    singleton: bool
    holder: str | None
    next_at: datetime | None
    ran_at: datetime | None
    done_at: datetime | None
    last_state: str | None


def list_runs(sql: Queries, *, limit: int, before: int = NEWEST, **filters: object) -> Steps[list[RunRow]]:
    """The newest runs below *before*, by name, state, since, newer_than (seconds)."""
    nothing = dict.fromkeys(("name", "state", "since", "newer_than"))
    rows = yield sql["runs"], {**nothing, **filters, "limit": limit, "before": before}
    return [RunRow(*row) for row in rows]


def show_run(sql: Queries, id: int) -> Steps[RunRow]:
    """Everything about one run."""
    rows = yield sql["run"], {"id": id}
    if not rows:
        raise NotFound(f"there is no run {id}; it may have been purged, and idle ones are not recorded")
    return RunRow(*rows[0])


def list_runners(sql: Queries) -> Steps[list[RunnerRow]]:
    """Every runner that was ever declared."""
    rows = yield sql["runners"], {}
    return [RunnerRow(*row) for row in rows]
