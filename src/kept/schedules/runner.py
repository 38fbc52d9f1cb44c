"""Firing what is due, and looking after what was fired: any worker may, no leader is needed.

Every pass is statements that commit by themselves. A worker that dies between two of them has done nothing that
another would do again: a decision names the revision it was made for, and counts once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import accumulate
from typing import Any, NamedTuple

import msgspec

from kept.db.connect import Link, array
from kept.db.queries import DEFAULT_SCHEMA, load
from kept.jobs.text import message_of
from kept.schedules.declared import GRACE
from kept.schedules.model import Decision, Standing
from kept.schedules.rows import standing_of
from kept.schedules.rules import decide
from kept.signals import RunFinished, RunState, ScheduleFigures, Signals, Warned

BATCH = 200  # schedules decided on at a time
CLOSE_BATCH = 500
LATE = 60.0  # seconds after its slot, when nobody has decided on it: then it is late


class Position(NamedTuple):
    """How far those who copy what became of jobs have come."""

    schedule: int
    job: int


START = Position(0, 0)


class Begun(NamedTuple):
    """Where jobs came to be that are due."""

    lane: int
    priority: int
    jobs: int


@dataclass(slots=True)
class Fired:
    """What a pass did."""

    looked: int = 0  # schedules that were due
    decided: int = 0  # … and that we were the first to decide on
    begun: list[Begun] = field(default_factory=list)
    ids: tuple[int, ...] = ()  # of all that were looked at

    @property
    def jobs(self) -> int:
        """How many are due."""
        return sum(each.jobs for each in self.begun)


class Firing:
    """Fires schedules over one :class:`Link`."""

    def __init__(
        self, link: Link, signals: Signals, schema: str = DEFAULT_SCHEMA, *, odd: dict[int, int] | None = None
    ) -> None:
        self.link = link
        self._signals = signals
        self._sql = load("kept.schedules", schema)
        self._odd = (
            {} if odd is None else odd
        )  # what cannot be decided on here, by id and revision: others may know more

    async def fire(self, most: int = BATCH, *, without: Sequence[int] = ()) -> Fired:
        """Decide on up to *most* schedules that are due, *without* those just tried: somebody else is at them."""
        odd = {"odd": array(list(self._odd)), "odd_revisions": array(list(self._odd.values()))}
        rows = await self.link.rows(self._sql["due"], {"most": most, "without": array(without), **odd})
        ids = tuple(row[0] for row in rows)
        decided = [each for each in map(self._decided, rows) if each is not None]
        if not decided:
            return Fired(looked=len(rows), ids=ids)
        answer = await self.link.rows(self._sql["fire"], fire_params(decided))
        moved = next(row[2] for row in answer if row[0] is None)
        begun = [Begun(lane, priority, jobs) for lane, priority, jobs, _ in answer if lane is not None]
        return Fired(len(rows), moved, begun, ids)

    def _decided(self, row: Sequence[Any]) -> tuple[Standing, Decision] | None:
        """What is to become of one schedule. One that this machine cannot read must not stop the others."""
        try:
            standing, now = standing_of(row)
            return standing, decide(standing, now)
        except Exception as error:  # noqa: BLE001  # a zone or an expression that only others know
            self._odd[row[0]] = row[1]
            told = f"schedule {row[2]} cannot be decided on here: {type(error).__name__}: {message_of(error)}"
            self._signals.report(Warned(code="odd_schedule", message=told))
            return None

    async def close(self, after: Position = START) -> Position | None:
        """Copy what became of the next jobs that are settled, from *after* on; where to go on, None at the end."""
        schedule, job = after
        rows = await self.link.rows(self._sql["settled"], {"schedule": schedule, "job": job, "most": CLOSE_BATCH})
        if not rows:
            return None
        closed = await self.link.rows(self._sql["close"], {"ids": array([row[0] for row in rows])})
        for row in closed:
            self._signals.report(_finished(*row[:7]))
        await self._note_successes({row[7]: row[8] for row in closed if row[2] == "done"})
        return Position(*rows[-1][1:])

    async def _note_successes(self, moments: Mapping[int, datetime]) -> None:
        if moments:
            params = {"schedules": array(list(moments)), "moments": array(list(moments.values()))}
            await self.link.rows(self._sql["note_successes"], params)

    async def retire(self, who: str) -> list[str]:
        """Retire schedules that nobody declares any more, and name them."""
        rows = await self.link.rows(self._sql["undeclared"], {"grace": GRACE, "who": who})
        return [row[0] for row in rows]

    async def purge(self, keep: float) -> None:
        """Forget occurrences older than *keep* seconds."""
        while (await self.link.rows(self._sql["purge"], {"keep": keep, "most": CLOSE_BATCH}))[0][0]:
            pass

    async def figures(self) -> ScheduleFigures:
        """How all schedules stand."""
        rows = await self.link.rows(self._sql["figures"], {"late": LATE})
        active, paused, retired, late, lateness = rows[0]
        return ScheduleFigures(active=active, paused=paused, retired=retired, late=late, lateness=lateness)

    async def successes(self, most: int) -> list[tuple[str, float]]:
        """When jobs of up to *most* schedules last ended well, in seconds since 1970."""
        return [(row[0], row[1]) for row in await self.link.rows(self._sql["successes"], {"most": most})]


def _finished(
    id: int, name: str, state: RunState, duration: float, code: str | None, message: str | None, counters: str
) -> RunFinished:
    counted = msgspec.json.decode(counters, type=dict[str, int | float])
    return RunFinished(name=name, run=id, state=state, duration=duration, counters=counted, code=code, message=message)


def fire_params(decided: Sequence[tuple[Standing, Decision]]) -> dict[str, object]:
    """Decisions as the statement ``fire`` takes them."""
    slots = [slot for _, decision in decided for slot in decision.slots]
    lasts = list(accumulate(len(decision.slots) for _, decision in decided))  # where those of each schedule end
    return {
        "ids": array([standing.id for standing, _ in decided]),
        "revisions": array([standing.revision for standing, _ in decided]),
        "last_slots": array([decision.last_slot for _, decision in decided]),
        "next_slots": array([decision.next_slot for _, decision in decided]),
        "queued_slots": array([decision.queued_slot for _, decision in decided]),
        "looks": array([decision.look_at for _, decision in decided]),
        "firsts": array([end - len(decision.slots) + 1 for end, (_, decision) in zip(lasts, decided, strict=True)]),
        "lasts": array(lasts),
        "slots": array([slot.at for slot in slots]),
        "states": array([slot.state for slot in slots]),
        "reasons": array([slot.reason for slot in slots]),
        "missed": array([slot.missed for slot in slots]),
        "due_at": array([slot.due_at for slot in slots]),
    }
