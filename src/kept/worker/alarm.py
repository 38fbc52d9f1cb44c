"""What makes a worker get up: a wake-up, a finished handler, a job that comes due, or the time it meant to sleep."""

from __future__ import annotations

import asyncio
import random
from time import monotonic

from kept.jobs.lanes import LaneBook
from kept.jobs.model import MOST_PRIORITY
from kept.jobs.rows import Survey
from kept.worker import pacing
from kept.worker.pacing import Pacing

LONG_AGO = -1e9
MADE_UP = 10  # lanes and priorities that claims are made up for
RESTED = 40  # passes: more than it takes to get to the longest sleep


class Alarm:
    """Sleeping and waking of one worker. All moments are monotonic."""

    def __init__(self, rhythm: Pacing) -> None:
        self.rhythm = rhythm
        self.due_at: float | None = None
        self.suspect_at: float | None = None
        self.schedule_at: float | None = None
        self.look_again = False  # when the next one is due, only a survey knows
        self.slept_at = LONG_AGO  # when the last long sleep ended
        self.look_for_lanes = False
        self.lately: tuple[tuple[int, int], ...] = ()  # where the last hints pointed, the newest first
        self._streak = 0  # passes in a row that found nothing
        self._no_suspect_before = self._no_schedule_before = 0.0
        self._in_vain = 0  # looks at schedules in a row that somebody else is at
        self._hints: set[tuple[int, int]] = set()
        self._heard, self._counted_from = 0, LONG_AGO  # wake-ups within about a second
        self._rung = False
        self._sleeper: asyncio.Future[None] | None = None

    # --- being woken

    def ring(self) -> None:
        """Something happened."""
        self._rung = True
        if self._sleeper is not None and not self._sleeper.done():
            self._sleeper.set_result(None)

    def hear(self, payload: str) -> None:
        """A wake-up from the database: ``lane:priority``, ``lanes`` or ``suspects``."""
        if payload == "lanes":
            self.look_for_lanes = True
        elif payload == "suspects":
            self.suspect_at = monotonic()
        elif payload:
            self._hints.update(_hint(payload))
            self._count()
        self.ring()

    def _count(self) -> None:
        now = monotonic()
        if now > self._counted_from + 1.0:
            self._heard, self._counted_from = 0, now
        self._heard += 1

    @property
    def overwhelmed(self) -> bool:
        """Whether wake-ups come so often that looking by ourselves is cheaper for everybody."""
        return self._heard > pacing.MANY and monotonic() <= self._counted_from + 1.0

    def hint(self, book: LaneBook) -> None:
        """Look at every lane once more before going to sleep."""
        self._hints.update((id, book.lane(id).priority) for id in book.ids)

    @property
    def hinted(self) -> bool:
        return bool(self._hints)

    def take_hints(self, book: LaneBook, *, deep: bool) -> bool:
        """Tell *book* where somebody says there is work; *deep*: also below the floors, for late commits."""
        hints, self._hints = self._hints, set()
        for entry in hints:
            book.hinted(entry, deep=deep)
        if hints:
            self._streak = 0
            self.lately = (*hints, *(each for each in self.lately if each not in hints))[:MADE_UP]
        return bool(hints)

    # --- what is coming

    def surveyed(self, survey: Survey) -> None:
        """Set by what a survey saw."""
        now = monotonic()
        self.due_at = None if survey.due_in is None else now + survey.due_in
        suspect_at = None if survey.suspect_in is None else now + survey.suspect_in
        self.suspect_at = None if suspect_at is None else max(suspect_at, self._no_suspect_before)
        self.look_again = False
        schedule_at = None if survey.schedule_in is None else now + survey.schedule_in
        self.schedule_at = None if schedule_at is None else max(schedule_at, self._no_schedule_before)
        if survey.ready or survey.promoted:
            self._streak = 0

    @property
    def suspect_due(self) -> bool:
        return self.suspect_at is not None and self.suspect_at <= monotonic()

    def took_suspect(self, *, took: bool) -> None:
        """After one there may be more. Without luck it is locked by somebody: not again before a while."""
        self.suspect_at = monotonic() if took else None
        if not took:
            self._no_suspect_before = monotonic() + pacing.SURVEY_BUSY

    def point_at(self, lane: int, priority: int) -> None:
        """We have made jobs here ourselves."""
        self._hints.add((lane, priority))

    def fired(self, *, more: bool, decided: int) -> None:
        """What was due is decided on. If it was not by us, somebody else is at it: not again before a while."""
        self.schedule_at = monotonic() if more and decided else None
        self.look_again = True
        self._in_vain = 0 if decided else self._in_vain + 1
        if not decided:
            self._no_schedule_before = monotonic() + pacing.schedules_again(self._in_vain)

    # --- sleeping

    @property
    def resting(self) -> bool:
        """Whether there was nothing to do for long enough that only surveys look."""
        return pacing.idle_delay(self.rhythm, self._streak, 0.0) >= pacing.LONG

    def worked(self) -> None:
        """The pass found something to do."""
        self._streak = 0

    def settle_down(self) -> None:
        """There is nothing more to do, and whoever brings something will wake us: no need to look in between."""
        self._streak = RESTED

    def next_idle(self) -> float:
        """How long to sleep after another pass that found nothing."""
        delay = pacing.idle_delay(self.rhythm, self._streak, random.random())  # noqa: S311
        self._streak += 1
        return delay

    async def pause(self, delay: float, *moments: float | None) -> None:
        """Sleep, but never past one of *moments*."""
        due = pacing.until(*moments, now=monotonic())
        if due is not None:
            delay = min(delay, due)
        if delay <= 0 or self._rung:
            self._rung = False
            await asyncio.sleep(0)
            return
        await self.sleep(delay)
        if delay >= pacing.LONG:
            self.slept_at = monotonic()

    async def sleep(self, delay: float) -> None:
        """Sleep until the time is over or something happened."""
        if not self._rung:
            loop = asyncio.get_running_loop()
            self._sleeper = loop.create_future()
            over = loop.call_later(delay, self.ring)
            try:
                await self._sleeper
            finally:
                over.cancel()
                self._sleeper = None
        self._rung = False

    async def sleep_off_error(self) -> None:
        """Sleep after a pass that failed for a reason we do not understand."""
        await self.sleep(pacing.error_delay(self.rhythm, random.random()))  # noqa: S311


def _hint(payload: str) -> list[tuple[int, int]]:
    """The lane and priority that a wake-up names, if it does: anybody may NOTIFY, and a claim takes no other number."""
    lane, _, priority = payload.partition(":")
    try:
        hint = int(lane), int(priority)
    except ValueError:
        return []
    return [hint] if abs(hint[1]) <= MOST_PRIORITY else []
