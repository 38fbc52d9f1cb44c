"""A small world in which months pass: a database with a clock of its own, workers that die at any statement, and an
oracle that knows by plain means which slots there are.

Everything is drawn from one seed. A world that fails says which, and is the same again when it gets it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import groupby
from random import Random
from typing import NamedTuple
from zoneinfo import ZoneInfo

import psycopg
from cronsim import CronSim

from kept import cron, every
from kept.db.connect import Link
from kept.db.tx import run
from kept.schedules import catalogue
from kept.schedules.model import Cron, Every, Rule
from kept.schedules.runner import Firing
from kept.signals import Signals
from simulation_stage import end_session
from timetables import SQL, add, edit, look_after

# Before the clocks change in Berlin, Santiago and at Lord Howe, the one way and the other.
BEGINNINGS = [datetime(2026, 3, 20, tzinfo=UTC), datetime(2026, 8, 30, tzinfo=UTC)]
SECOND, QUARTER, DAY = timedelta(seconds=1), timedelta(minutes=15), timedelta(days=1)
MOST_COUNTED = 100
RULES = [
    cron("30 2 * * *", tz="Europe/Berlin"),
    cron("*/30 1-3 * * *", tz="Europe/Berlin"),
    cron("0 0 * * *", tz="America/Santiago"),
    cron("30 23 * * 6,0", tz="America/Santiago"),
    cron("45 1,2 * * *", tz="Australia/Lord_Howe"),
    cron("15 * * * *", tz="Australia/Lord_Howe"),
    cron("0 */2 * * *", tz="Australia/Lord_Howe"),
    cron("0 6 * * 1-5"),
    every("3h"),
    every("47m"),
]
POLICIES: list[dict[str, object]] = [
    {"misfire": "once", "overlap": "allow"},
    {"misfire": "once", "overlap": "skip"},
    {"misfire": "once", "overlap": "queue"},
    {"misfire": "skip", "overlap": "allow"},
    {"misfire": "all", "most": 3, "overlap": "allow"},
    {"misfire": "all", "most": 5, "within": "2d", "overlap": "allow"},
    {"misfire": "once", "within": "6h", "overlap": "skip"},
]


TABLES = (
    "create table kept.world (at timestamptz not null)",
    "create table kept.ended (id bigint, headers json)",
    "alter table kept.occurrence add decision xid8 default pg_current_xact_id()",  # what was decided together
    "create or replace function kept.now() returns timestamptz language sql stable as 'select at from kept.world'",
)
JOBS = "(select id, headers from kept.job union all select id, headers from kept.ended) j"


class Died(Exception):
    """A worker ended here."""


# --- the oracle


def slots(rule: Rule, anchor: datetime, after: datetime, upto: datetime) -> list[datetime]:
    """The slots of *rule* after *after* and not after *upto*."""
    match rule:
        case Every(period):
            first = (after - anchor) // period + 1
            last = (upto - anchor) // period
            return [anchor + n * period for n in range(first, last + 1)]
        case Cron(expression, zone):
            minute, hour = expression.split()[:2]
            shown = not minute.startswith("*") and not hour.startswith("*")
            found = _named(expression, ZoneInfo(zone), after, upto) if shown else _shown(expression, zone, after, upto)
            return sorted({at for at in found if after < at <= upto})


def _named(expression: str, zone: ZoneInfo, after: datetime, upto: datetime) -> list[datetime]:
    """Times of the day: cronsim gets its start a day early, so that no change of the clocks lies just behind it."""
    found = []
    for at in CronSim(expression, (after - DAY).astimezone(zone)):
        if at.astimezone(UTC) > upto:
            return found
        found.append(at.astimezone(UTC))
    return found


def _shown(expression: str, zone: str, after: datetime, upto: datetime) -> list[datetime]:
    """Real time: every quarter of an hour (no rule here is finer) is looked at on the clocks of *zone*."""
    times = CronSim(expression, after.replace(tzinfo=None))
    found, at = [], after.replace(minute=0, second=0, microsecond=0)
    while (at := at + QUARTER) <= upto:
        shown = at.astimezone(ZoneInfo(zone))
        if shown.minute in times.minutes and shown.hour in times.hours and times.match_day(shown.date()):
            found.append(at)
    return found


# --- the world


@dataclass
class Era:
    """A stretch in which a schedule had one rule and was not paused: slots in it must be accounted for."""

    rule: Rule
    policy: dict[str, object]
    anchor: datetime
    since: datetime
    until: datetime | None = None


@dataclass
class Watched:
    """What the world knows of one schedule."""

    name: str
    eras: list[Era]
    last_slot: datetime
    paused: bool = False


@dataclass
class World:
    """One database, its schedules, its workers, and the draw of what happens next."""

    database: str
    seed: int
    conn: psycopg.Connection
    crashes: int = 0
    workers: list[Firing | None] = field(default_factory=lambda: [None] * 3)
    busy: set[int] = field(default_factory=set)  # workers between two statements

    def __post_init__(self) -> None:
        self.random = Random(self.seed)
        self.now = self.furthest = self.random.choice(BEGINNINGS)
        for statement in TABLES:
            self.conn.execute(statement)
        self.conn.execute("insert into kept.world values (%s)", [self.now])
        self.watched = [self._schedule(n) for n in range(4)]

    def _schedule(self, n: int) -> Watched:
        rule, policy = self.random.choice(RULES), self.random.choice(POLICIES)
        added = add(self.conn, f"s{n}", rule, **policy)
        return Watched(f"s{n}", [Era(rule, policy, added.anchor, since=self.now)], added.last_slot)

    # --- time

    def turn(self, by: timedelta) -> None:
        self.now += by
        self.furthest = max(self.now, self.furthest)
        self.conn.execute("update kept.world set at = %s", [self.now])

    # --- what happens

    async def step(self) -> None:
        """One thing, drawn by chance."""
        draw = self.random.random()
        if draw < 0.50:
            await self.work()
        elif draw < 0.86:
            self.pass_time()
        elif draw < 0.91:
            self.turn(-self.random.choice([SECOND, 3600 * SECOND, 5400 * SECOND, DAY]))
        elif draw < 0.94:
            self.change(self.random.choice(self.watched))
        elif draw < 0.97:
            self.pause_or_resume(self.random.choice(self.watched))
        else:
            self.end_jobs()

    def pass_time(self) -> None:
        longest = self.random.choice([60, 1800, 7200, 7200, 86400, 3 * 86400])
        self.turn(self.random.randint(1, longest) * SECOND)

    async def work(self) -> None:
        """One worker looks, and may die before or after any of its statements."""
        number = self.random.choice([n for n in range(len(self.workers)) if n not in self.busy])
        worker = self.workers[number] or await self._start(number)
        self.busy.add(number)
        try:
            await (look_after(worker, "world") if self.random.random() < 0.2 else worker.fire())
        except (Died, psycopg.OperationalError):
            self.crashes += 1
            self.workers[number] = None
            await worker.link.close()
        finally:
            self.busy.discard(number)

    async def _start(self, number: int) -> Firing:
        link = await Link.open(self.database, name=f"simulated {number}")
        ask = link.rows

        async def rows(query, params=None):
            if self.random.random() < 0.4:
                await self._meanwhile()
            fate = self.random.random()
            if fate < 0.05:
                raise Died("before it")
            if fate < 0.06:  # the server ends it: the statement comes to nothing
                end_session(self.conn, link.conn.info.backend_pid)
            found = await ask(query, params)
            if fate > 0.95:
                raise Died("after it, or the reply was lost")
            return found

        link.rows = rows
        self.workers[number] = worker = Firing(link, Signals())
        return worker

    async def _meanwhile(self) -> None:
        """Between two statements of a worker the others go on, and so does time."""
        draw = self.random.random()
        if draw < 0.3:
            self.turn(self.random.choice([1, 60, 3600]) * SECOND)
        elif draw < 0.4:
            self.pause_or_resume(self.random.choice(self.watched))
        elif draw < 0.5:
            self.change(self.random.choice(self.watched))
        elif len(self.busy) < len(self.workers):
            await self.work()

    def end_jobs(self) -> None:
        self.conn.execute(
            "with gone as (delete from kept.job returning id, headers) insert into kept.ended select * from gone"
        )

    def change(self, it: Watched) -> None:
        rule, policy, before = self.random.choice(RULES), self.random.choice(POLICIES), it.eras[-1]
        if rule == before.rule:
            return
        self._era_ends(it)
        edit(self.conn, it.name, rule, **policy)
        since = self._last_slot(it)
        assert since >= self.now, f"{it.name}: slots from before its rule was changed would fire"
        it.eras.append(Era(rule, policy, before.anchor, since, since if it.paused else None))

    def pause_or_resume(self, it: Watched) -> None:
        verb, before = (catalogue.resume if it.paused else catalogue.pause), it.eras[-1]
        self._era_ends(it)
        with self.conn.transaction():
            assert run(self.conn, verb(SQL, it.name, who="world"))
        it.paused = not it.paused
        if not it.paused:
            assert self._last_slot(it) >= self.now, f"{it.name}: what went by while it was paused would fire"
            it.eras.append(Era(before.rule, before.policy, before.anchor, self._last_slot(it)))

    def _era_ends(self, it: Watched) -> None:
        # What had come by then and was not decided on is left out by the change: nobody has to account for it.
        if it.eras[-1].until is None:
            it.eras[-1].until = self._last_slot(it)

    def _last_slot(self, it: Watched) -> datetime:
        return self.conn.execute("select last_slot from kept.schedule where name = %s", [it.name]).fetchone()[0]

    # --- what must hold

    def check(self) -> None:
        """No slot has two jobs, none is of the future, and where a schedule stands never falls."""
        for it in self.watched:
            last = self._last_slot(it)
            assert it.last_slot <= last <= self.furthest, f"{it.name}: last_slot went from {it.last_slot} to {last}"
            it.last_slot = last
        slot = "headers ->> 'kept-schedule', headers ->> 'kept-slot'"
        twice = self.conn.execute(f"select {slot} from {JOBS} group by {slot} having count(*) > 1").fetchall()
        assert not twice, f"fired twice: {twice}"

    async def finish(self) -> None:
        """Everybody catches up; then every slot of every era is accounted for."""
        for worker in self.workers:
            if worker is not None:
                await worker.link.close()
        self.turn(self.furthest - self.now + SECOND)
        for it in self.watched:
            if it.paused:
                self.pause_or_resume(it)
        self.turn(4 * DAY)
        link = await Link.open(self.database)
        self.end_jobs()
        while (await Firing(link, Signals()).fire()).decided:
            self.end_jobs()
            self.turn(SECOND)
        await link.close()
        self.check()
        for it in self.watched:
            self._account(it)

    def _account(self, it: Watched) -> None:
        found = [Recorded(*row) for row in self.conn.execute(RECORDED, [it.name]).fetchall()]
        query = f"select id from {JOBS} where headers ->> 'kept-schedule' = %s"
        jobs = {row[0] for row in self.conn.execute(query, [it.name]).fetchall()}
        assert {each.job for each in found if each.job} == jobs, f"{it.name}: a slot without its job, or the reverse"
        assert "queued" not in {each.state for each in found}, f"{it.name}: a slot waits for ever"
        left = set(found)
        for era in it.eras:
            until = max(self.furthest, era.since) if era.until is None else era.until
            inside = [each for each in found if era.since < each.slot <= until]
            left -= set(inside)
            try:
                account(era, until, inside)
            except AssertionError as error:
                raise AssertionError(f"{it.name} in {era}: {error}") from None
        assert not left, f"{it.name}: {left} are in no era"


RECORDED = """
select o.slot, o.state, o.missed, o.job, o.decision::text
  from kept.occurrence o join kept.schedule s on s.id = o.schedule
 where s.name = %s and not o.by_hand order by o.slot
"""


class Recorded(NamedTuple):
    """An occurrence."""

    slot: datetime
    state: str
    missed: int
    job: int | None
    decision: str


def account(era: Era, until: datetime, found: list[Recorded]) -> None:
    """Every slot that the oracle knows of is on record, or counted by the one after it, as its policy says."""
    expected = slots(era.rule, era.anchor, era.since, until)
    assert {each.slot for each in found} <= set(expected), "something that is no slot"
    known = [era.since, *(each.slot for each in found)]
    for before, each in zip(known, found, strict=False):
        between = sum(1 for at in expected if before < at < each.slot)
        unfired = between + (each.state == "missed")
        assert each.missed == min(unfired, MOST_COUNTED), f"{each}: it counts {each.missed}, there are {unfired}"
    assert [at for at in expected if at > known[-1]] == [], "they came and nobody decided on them"
    for _, group in groupby(found, key=lambda each: each.decision):
        _by_policy(era.policy, list(group))


def _by_policy(policy: dict[str, object], decided: list[Recorded]) -> None:
    """What one decision may hold."""
    states = [each.state for each in decided]
    assert len(decided) <= policy.get("most", 1), f"too many at once: {decided}"
    assert "skipped" not in states or policy["overlap"] != "allow", decided
    if "within" in policy or policy["misfire"] == "skip":
        return
    assert "missed" not in states, decided
    if decided[0].missed:
        assert len(decided) == policy.get("most", 1), f"fewer than it may make up for: {decided}"
