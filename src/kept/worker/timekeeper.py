"""The runner of schedules: turns slots that have come into jobs, and looks after what became of earlier ones."""

from __future__ import annotations

from time import monotonic

from kept.schedules.runner import BATCH, START, Fired, Firing, Position
from kept.signals import Warned
from kept.worker import pacing
from kept.worker.alarm import Alarm
from kept.worker.post import Post
from kept.worker.tick import Budget

LOOKS = 10  # batches in a row that somebody else may be at
LOOK_AFTER = 30.0  # seconds between looks, in the whole cluster, at what became of jobs


class Timekeeper:
    """What one worker does for schedules. Any worker may do it, for all of them."""

    def __init__(self, post: Post, alarm: Alarm, *, surveyed: bool) -> None:
        self._post = post
        self._alarm = alarm
        self._surveyed = surveyed  # surveys tell when something is due; without them we look every second
        self._looked_at = 0.0
        self._next_look_after = 0.0
        self._odd: dict[int, int] = {}  # schedules, by id and revision, that cannot be read on this machine
        self._position: Position | None = None  # how far we are in looking after what became of jobs, if we are at it

    @property
    def due(self) -> bool:
        return self._slot_due or self._look_after_due

    @property
    def moment(self) -> float | None:
        """When there is something to do."""
        return self._looked_at if self._position is not None else self._slot_at

    @property
    def _slot_at(self) -> float | None:
        return self._alarm.schedule_at if self._surveyed else self._looked_at + pacing.SCHEDULES_AGAIN

    @property
    def _slot_due(self) -> bool:
        return self._slot_at is not None and self._slot_at <= monotonic()

    @property
    def _look_after_due(self) -> bool:
        return self._position is not None or monotonic() >= self._next_look_after

    async def __call__(self, budget: Budget) -> int:
        """Decide on what is due: one batch, or in tick mode all that the budget allows."""
        post = self._post
        firing = Firing(post.link, post.signals, post.plan.settings.schema, odd=self._odd)
        decided = await self._fire_all(firing, budget) if post.plan.once else await self._fire_some(firing)
        if self._look_after_due:
            await self._look_after(firing)
        return decided

    async def _fire_some(self, firing: Firing) -> int:
        if not self._slot_due:
            return 0
        total, tried, fired = 0, list[int](), Fired()
        for _ in range(LOOKS):
            fired = await firing.fire(without=tried)
            total += fired.decided
            for each in fired.begun:
                self._alarm.point_at(each.lane, each.priority)
            if fired.decided == fired.looked:
                break
            tried += fired.ids  # somebody is at some of these: others must not wait for that
        self._looked_at = monotonic()
        self._alarm.fired(more=fired.looked == BATCH, decided=total)
        return total

    async def _fire_all(self, firing: Firing, budget: Budget) -> int:
        """Tick mode. What is fired here is claimed in the same tick."""
        left, total, tried = BATCH if budget.items is None else budget.items, 0, list[int]()
        while left > 0 and budget.seconds > 0:
            fired = await firing.fire(min(BATCH, left), without=tried)
            for each in fired.begun:
                self._post.book.hinted((each.lane, each.priority), deep=True)
            total, left = total + fired.decided, left - fired.decided
            tried += fired.ids
            if not fired.looked:
                break
        return total

    async def upkeep(self, keep: float) -> None:
        """Once an hour in the whole cluster: forget what is older than *keep* seconds."""
        await Firing(self._post.link, self._post.signals, self._post.plan.settings.schema).purge(keep)

    async def _look_after(self, firing: Firing) -> None:
        """One batch at a time: the connection is the one that jobs are claimed and settled on."""
        if self._position is None:
            self._next_look_after = monotonic() + LOOK_AFTER
            if not await self._post.store.turn("occurrences", self._post.lease.worker, LOOK_AFTER):
                return
            self._position = START
        self._position = await firing.close(self._position)
        if self._position is None:
            await self._retire(firing)

    async def _retire(self, firing: Firing) -> None:
        for name in await firing.retire(f"worker {self._post.name}"):
            message = f"schedule {name} is retired: no live worker declares it any more"
            self._post.signals.report(Warned(code="schedule_retired", message=message))
