"""The runners of a worker's tick: Kept's own, then the user's. Each sees whether its time has come."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from math import inf
from time import monotonic
from uuid import UUID

from kept.archive.rules import Retention
from kept.archive.runner import upkeep
from kept.jobs.reclaim import reclaim_abandoned, reclaim_expired, take_word
from kept.jobs.rows import Survey
from kept.runners.rules import BUILT_IN, chosen
from kept.worker import pacing
from kept.worker.alarm import LONG_AGO, Alarm
from kept.worker.figures import FigureReader
from kept.worker.listener import Listener
from kept.worker.post import Post
from kept.worker.tick import Answer, Budget, Limits, Runner, Tick
from kept.worker.timekeeper import Timekeeper

UPKEEP_EVERY = 3600.0  # seconds, in the whole cluster
UPKEEP_LOOK = 60.0  # seconds between looks whether it is our turn
WATCH = 0.1  # seconds between looks at what else there is while handlers run


class Rounds:
    """What one worker does in a tick."""

    def __init__(self, post: Post, alarm: Alarm) -> None:
        self.post = post
        self.alarm = alarm
        self.listener: Listener | None = None
        self.stopped = False  # a shutdown has begun
        self._chosen = chosen(post.plan.settings.tick_runners, (*BUILT_IN, *post.own.declared))
        self.schedules = Timekeeper(post, alarm, surveyed=self._does("promote"))
        self._survey = Survey(ready={}, promoted={})
        self._surveyed_at = self._bottom_at = LONG_AGO
        self._bottom_cost = 0.0
        self._looked_below = False  # the last survey did
        self._next_reclaim = self._next_upkeep = 0.0
        self._look_at: float | None = None  # when a survey is due at the latest
        self._flag_until = 0.0  # until when our wish to be woken stands
        self._ask_from = 0.0  # not before may it be expressed again

    def tick(self) -> Tick:
        """The pass over these runners, within the plan's budgets."""
        plan = self.post.plan
        settings = plan.settings
        runners: dict[str, Runner] = {
            "reclaim": self.reclaim,
            "promote": self.promote,
            "schedules": self.schedules,
            "upkeep": self.upkeep,
            "jobs": self.drain_jobs if plan.once else self.step_jobs,
        }
        own = self.post.own.declared
        runners |= {name: partial(self._once if plan.once else self._step, name) for name in own}
        limits = Limits(
            overall=settings.tick_overall.total_seconds(),
            runner=settings.tick_runner.total_seconds(),
            items=settings.tick_items if plan.once else None,
        )
        if plan.once:
            return Tick(
                runners,
                self.post.signals,
                limits,
                settings.tick_runners,
                patient={"jobs", *own},
                stopped=lambda: self.stopped,
            )
        due = {"reclaim": self._reclaim_due, "promote": self._survey_due, "upkeep": self._upkeep_due}
        due["schedules"] = lambda: self.schedules.due
        order = settings.tick_runners
        if settings.metrics_port is not None:  # whoever serves metrics, whatever runners were chosen
            figures = FigureReader(self.post)
            runners["figures"], due["figures"] = figures.read, figures.due
            order = None if order is None else (*order, "figures")
        due |= {name: partial(self.post.own.due, name) for name in own}
        due = {name: self._unless_claiming(is_due) for name, is_due in due.items()}
        return Tick(runners, self.post.signals, limits, order, due=due)

    def _unless_claiming(self, is_due: Callable[[], bool]) -> Callable[[], bool]:
        """A claim on its way comes first: nobody else can use the connection before its answer is read."""
        return lambda: not self.post.runner.has_early and is_due()

    def reconnected(self) -> None:
        """A server that crashed has forgotten who sleeps; and workers cut off as we were come first.

        What they hold is not a dead worker's: they get the time to say so before anybody takes it from them.
        """
        self._flag_until = 0.0
        self._next_reclaim = monotonic() + min(self.post.lease.seconds, 2 * pacing.RECONNECT_MAX)

    def moments(self) -> list[float | None]:
        """When there is something to do: a job is due, or a suspect that we could start; a lease ran out; a look."""
        suspect = self.alarm.suspect_at if self._does("jobs") and self._can_run_alone else None
        reclaim = self._next_reclaim if self._does("reclaim") and self._survey.expired else None
        stale = self.post.runner.stale_at if self._does("jobs") else None
        schedule = self.schedules.moment if self._does("schedules") else None
        return [self.alarm.due_at, suspect, schedule, reclaim, stale, self._look_at, self.post.own.moment()]

    def _does(self, runner: str) -> bool:
        return runner in self._chosen

    # --- reclaim

    def _reclaim_due(self) -> bool:
        return self._survey.expired and monotonic() >= self._next_reclaim

    async def reclaim(self, _budget: Budget) -> int:
        """Take jobs back from workers whose lease ran out; tell what keepers took back."""
        if not self._reclaim_due():
            return 0
        scan = self.post.plan.settings.reclaim_scan.total_seconds()
        self._next_reclaim = monotonic() + scan * (0.9 + 0.2 * random.random())  # noqa: S311
        reclaimed = await reclaim_expired(self.post.store)
        for each in (*reclaimed, *await take_word(self.post.store)):
            self.post.signals.report(each.signal())
        await self.post.own.abandon()
        self._survey.expired = False
        self._surveyed_at = LONG_AGO
        return sum(each.jobs for each in reclaimed)

    # --- promote

    async def promote(self, _budget: Budget) -> int:
        """Look around when it is time to: what came due, what lies below the floors, who died."""
        if not self._survey_due():
            return 0
        now = monotonic()
        bottom = pacing.bottom_allowed(now, self._bottom_at, self._bottom_cost)
        most = self.post.plan.settings.batch
        survey = await self.post.store.survey(self.post.book.ids, bottom=bottom, most=most, worker=self._among_peers)
        self._surveyed_at, self._look_at = monotonic(), None
        if bottom:
            self._bottom_at, self._bottom_cost = self._surveyed_at, self._surveyed_at - now
        self._looked_below = bottom
        await self._take_survey(survey, bottom=bottom)
        return survey.count

    @property
    def _among_peers(self) -> UUID | None:
        """Who we are, if there may be others that claim what we claim, and for as long."""
        alone = self.post.plan.once or self.post.plan.settings.shard_count is not None
        return None if alone else self.post.lease.worker

    def _survey_due(self) -> bool:
        now = monotonic()
        if self.alarm.look_for_lanes or self.alarm.look_again or pacing.until(*self.moments(), now=now) == 0.0:
            return True
        # A hint comes first: whoever wakes us wants the job started, not the surroundings explored.
        every = pacing.SURVEY_LATEST if self.alarm.hinted else 0.0 if self.alarm.resting else pacing.SURVEY_BUSY
        return now - self._surveyed_at >= every

    async def _take_survey(self, survey: Survey, *, bottom: bool) -> None:
        self._survey = survey
        self.alarm.surveyed(survey)
        self.post.runner.surveyed(survey, bottom=bottom)
        if self.alarm.look_for_lanes or survey.newest_lane > self.post.newest_lane:
            self.alarm.look_for_lanes = False
            await self._refresh_lanes()
            self.post.newest_lane = max(self.post.newest_lane, survey.newest_lane)
            self._surveyed_at = LONG_AGO
            self.alarm.ring()
        if self._flag_until and (self.alarm.overwhelmed or monotonic() - self.alarm.slept_at > pacing.BUSY_AFTER):
            self._flag_until, self._ask_from = 0.0, monotonic() + pacing.BUSY_AFTER
            await self.post.store.awake(self.post.lease.worker)

    async def _refresh_lanes(self) -> None:
        before = set(self.post.book.ids)
        await self.post.refresh_lanes()
        if set(self.post.book.ids) != before:
            self._flag_until = 0.0  # our wish to be woken does not name the new ones
            self.alarm.hint(self.post.book)

    @property
    def will_be_woken(self) -> bool:
        """Whether our wish to be woken stands and somebody listens for it."""
        return self.listener is not None and monotonic() < self._flag_until - pacing.FLAG_LEFT

    @property
    def may_ask(self) -> bool:
        """Whether it is time to wish to be woken: not just after we had enough of it."""
        return self.listener is None or monotonic() >= self._ask_from

    @property
    def nothing_left(self) -> bool:
        """Whether the last claim took all there was and whoever brings more will wake us."""
        runner = self.post.runner
        return self.will_be_woken and runner.exhausted and not runner.has_settlements

    async def ask_to_be_woken(self) -> bool:
        """Make sure our wish to be woken stands; False if it was just expressed, so that one more look is due."""
        now = monotonic()
        if self.listener is None or self.will_be_woken or not self.post.runner.has_room:
            return True
        fresh = now >= self._flag_until
        await self.post.store.sleep(self.post.lease.worker, self.post.book.ids, pacing.FLAG_FOR)
        self._flag_until = now + pacing.FLAG_FOR
        self.alarm.slept_at = now  # we are about to; else the wish would be withdrawn for want of sleep
        if fresh:
            self.alarm.hint(self.post.book)
        return not fresh

    # --- upkeep

    def _upkeep_due(self) -> bool:
        return monotonic() >= self._next_upkeep

    async def upkeep(self, _budget: Budget) -> int:
        """Partitions and purges: once an hour in the whole cluster."""
        if not self._upkeep_due():
            return 0
        self._next_upkeep = monotonic() + UPKEEP_LOOK
        await self._refresh_lanes()
        await self.post.synchronise()
        if not await self.post.store.turn("upkeep", self.post.lease.worker, UPKEEP_EVERY):
            return 0
        settings = self.post.plan.settings
        keep = Retention(
            settings.retention_done, settings.retention_failed, settings.retention_log, settings.retention_events
        )
        await upkeep(self.post.link.conn, settings.schema, keep)
        await self.schedules.upkeep(settings.retention_runs.total_seconds())
        for each in await reclaim_abandoned(self.post.store):
            self.post.signals.report(each.signal())
        await self.post.own.abandon()
        await self.post.own.store.purge(settings.retention_runs.total_seconds())
        await self.post.store.stand_alone()
        return 0

    # --- jobs

    def make_up_claims(self, delay: float) -> None:
        """Before a long sleep: make up the claims for wake-ups that may come, so that they can be answered at once."""
        worth_it = delay >= pacing.LONG and self._does("jobs") and not self.post.lease.gone
        self.post.runner.make_up(self.alarm.lately if worth_it else (), deep=self._deep)

    @property
    def _deep(self) -> bool:
        """Whether a look below the floors costs little."""
        return pacing.BOTTOM_COST * self._bottom_cost < pacing.BOTTOM_EVERY

    async def step_jobs(self, _budget: Budget) -> int:
        """Background mode: settle, claim, go on; running jobs stay across ticks."""
        took = await self._take_suspects()
        hinted = self.alarm.take_hints(self.post.book, deep=self._deep)
        runner = self.post.runner
        waits = runner.has_settlements or runner.stale_at is not None or runner.looking
        if self.alarm.resting and self._looked_below and not hinted and not waits:
            return took  # the survey has just looked, and there was nothing
        claimed = await runner.step()
        if self._does("promote"):
            if hinted and runner.has_room:  # what we were woken for may be due in a moment only
                self._look_by(monotonic() + pacing.SURVEY_HINTED)
            self._look_by(runner.park_until)
            runner.park_until = None
        return took + claimed

    def _look_by(self, moment: float | None) -> None:
        if moment is not None:
            self._look_at = min(self._look_at or inf, moment)

    async def drain_jobs(self, budget: Budget) -> int:
        """Tick mode: claim within the budget and wait for what was started; at a shutdown, it is the worker's to."""
        runner = self.post.runner
        runner.limit(budget.items)
        total = 0
        while not self.stopped:
            claimed = await runner.step() + await self._take_suspects()
            total += claimed
            if not claimed and not runner.in_hand and not runner.looking:
                break
            if budget.seconds < 1 and runner.claiming:
                runner.claiming = False
                runner.release_waiting()
            if not claimed and not runner.has_settlements:
                await self.alarm.sleep(WATCH)
        return total

    async def _take_suspects(self) -> int:
        """Run jobs whose process died, in a child; without a child, when nothing else runs here."""
        runner, due = self.post.runner, self.alarm.suspect_due
        if self.post.alone is None:
            runner.reserved = due or runner.runs_alone
        if not due or not self._can_run_alone:
            return 0
        took = await runner.claim_suspects()
        self.alarm.took_suspect(took=took > 0)
        return took

    @property
    def _can_run_alone(self) -> bool:
        """Whether a suspect could start now: in the child, or here when nothing else is in hand."""
        runner = self.post.runner
        return not (runner.runs_alone or (self.post.alone is None and runner.in_hand))

    # --- the user's own

    async def _step(self, name: str, _budget: Budget) -> int:
        """Background mode: a pass goes on across ticks, as jobs do."""
        own = self.post.own
        await own.step(name)
        if own.late:  # a worker without a lease is at it: once its jobs are taken back, so is this
            own.late, self._survey.expired = False, True
        return 0

    async def _once(self, name: str, budget: Budget) -> Answer:
        """Tick mode: a pass is waited for."""
        told = await self.post.own.once(name, budget.seconds)
        return Answer(told.counters, told.note, told.error)
