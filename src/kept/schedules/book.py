"""The schedules of the database as a program sees them: ``app.schedules``."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import date, datetime
from typing import Any, Protocol, TypedDict, TypeVar, Unpack

from msgspec import structs

from kept.db.queries import Queries
from kept.db.tx import Steps
from kept.durations import Duration
from kept.errors import Refused
from kept.jobs.door import Request
from kept.jobs.payload import check_name, check_text
from kept.schedules import catalogue
from kept.schedules.model import Cron, Definition, Every, Rule, Target, Terms
from kept.schedules.rows import OccurrenceRow, ScheduleRow
from kept.schedules.rules import check_terms

T = TypeVar("T")
MOST_NAME = 200
MOST_OWNER = 200
MOST_DESCRIPTION = 2000
TEXTS = ("owner", "description")
CLEARABLE = {"start": None, "end": None, "blackout": (), "jitter": None, "within": None, "most": None}
_PLAIN = Request("", "", "")


class Asked(TypedDict, total=False):
    """When a schedule fires besides its rule; see docs/schedules.md."""

    start: datetime
    end: datetime
    blackout: Iterable[date | str]
    jitter: Duration
    misfire: str
    most: int
    within: Duration
    overlap: str


class HasRequest(Protocol):
    """A task with its arguments: ``task.bind(…)``."""

    @property
    def request(self) -> Request: ...


class Runs(Protocol):
    """Who runs steps in a transaction: the App."""

    def run(self, steps: Steps[T], tx: object | None) -> T: ...
    async def arun(self, steps: Steps[T], tx: object | None) -> T: ...


def define(
    name: object,
    rule: object,
    call: HasRequest,
    *,
    owner: str | None = None,
    description: str | None = None,
    **asked: Unpack[Asked],
) -> Definition:
    """A definition, checked, or :class:`Refused` with the field that is wrong."""
    if not isinstance(rule, Every | Cron):
        raise TypeError(f"rule: expected every(…) or cron(…), got {type(rule).__name__}")
    return Definition(
        name=check_name(name, what="schedule", most=MOST_NAME),
        rule=rule,
        terms=check_terms(**asked),
        target=target_of(call),
        owner=_text(owner, "owner", MOST_OWNER),
        description=_text(description, "description", MOST_DESCRIPTION),
    )


def target_of(call: object) -> Target:
    """The job that every slot becomes."""
    request = getattr(call, "request", None)
    if not isinstance(request, Request):
        raise TypeError(f"call: expected task.bind(…), got {type(call).__name__}")
    for option in ("due_at", "delay", "key", "headers", "order_key"):
        if getattr(request, option) != getattr(_PLAIN, option):
            raise Refused(f"call: {option} is not for schedules; queue and priority are", field=option)
    return Target(task=request.task, queue=request.queue, payload=request.payload, priority=request.priority)


def _text(value: object, what: str, most: int) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str):
        raise TypeError(f"{what}: expected a text, got {type(value).__name__}")
    if len(value) > most:
        raise Refused(f"{what}: has {len(value)} characters; at most {most} are taken", field=what)
    check_text(value, what)
    return value


def _asked(terms: Terms) -> dict[str, Any]:
    """Terms as they were asked for."""
    return {
        "start": terms.starts_at,
        "end": terms.ends_at,
        "blackout": terms.blackout,
        "jitter": terms.jitter,
        "misfire": terms.misfire,
        "most": terms.most if terms.misfire == "all" else None,
        "within": terms.within,
        "overlap": terms.overlap,
    }


def changed(
    definition: Definition,
    rule: Rule | None,
    call: HasRequest | None,
    owner: str | None,
    description: str | None,
    clear: Iterable[str],
    asked: Asked,
) -> Definition:
    """*definition* with what is given put in its place; *clear* names what shall hold no more."""
    cleared = list(clear)
    for name in cleared:
        if name not in CLEARABLE and name not in TEXTS:
            known = ", ".join((*CLEARABLE, *TEXTS))
            raise Refused(f"clear: {name[:40]!r} is none of {known}", field="clear")
    gone = {name: CLEARABLE[name] for name in cleared if name in CLEARABLE}
    terms: dict[str, Any] = _asked(definition.terms) | gone | dict(asked)
    if terms["misfire"] != "all" and "most" not in asked:
        terms["most"] = None
    if terms["misfire"] == "skip" and "within" not in asked:
        terms["within"] = None
    return structs.replace(
        definition,
        rule=rule or definition.rule,
        terms=check_terms(**terms),
        target=definition.target if call is None else target_of(call),
        owner=_text(owner, "owner", MOST_OWNER) or (None if "owner" in cleared else definition.owner),
        description=_text(description, "description", MOST_DESCRIPTION)
        or (None if "description" in cleared else definition.description),
    )


class Schedules:
    """Schedules made and changed at run time. Every call takes part in your transaction if you give it one."""

    def __init__(self, app: Runs, sql: Callable[[], Queries]) -> None:
        self._app = app
        self._sql = sql

    def add(
        self,
        name: str,
        rule: Rule,
        call: HasRequest,
        *,
        owner: str | None = None,
        description: str | None = None,
        by: str = "app",
        tx: object | None = None,
        **asked: Unpack[Asked],
    ) -> ScheduleRow:
        """A new schedule: ``app.schedules.add("report-7", cron("0 6 * * 1"), report.bind(7))``."""
        definition = define(name, rule, call, owner=owner, description=description, **asked)
        return self._app.run(catalogue.add(self._sql(), definition, who=by), tx)

    async def aadd(
        self,
        name: str,
        rule: Rule,
        call: HasRequest,
        *,
        owner: str | None = None,
        description: str | None = None,
        by: str = "app",
        tx: object | None = None,
        **asked: Unpack[Asked],
    ) -> ScheduleRow:
        """:meth:`add` for async code."""
        definition = define(name, rule, call, owner=owner, description=description, **asked)
        return await self._app.arun(catalogue.add(self._sql(), definition, who=by), tx)

    def edit(
        self,
        name: str,
        *,
        rule: Rule | None = None,
        call: HasRequest | None = None,
        owner: str | None = None,
        description: str | None = None,
        clear: Iterable[str] = (),
        by: str = "app",
        tx: object | None = None,
        **asked: Unpack[Asked],
    ) -> ScheduleRow:
        """Change what is given of a schedule that was added; *clear* names terms that shall hold no more."""
        steps = self._edit(name, rule, call, owner, description, clear, by, asked)
        return self._app.run(steps, tx)

    async def aedit(
        self,
        name: str,
        *,
        rule: Rule | None = None,
        call: HasRequest | None = None,
        owner: str | None = None,
        description: str | None = None,
        clear: Iterable[str] = (),
        by: str = "app",
        tx: object | None = None,
        **asked: Unpack[Asked],
    ) -> ScheduleRow:
        """:meth:`edit` for async code."""
        steps = self._edit(name, rule, call, owner, description, clear, by, asked)
        return await self._app.arun(steps, tx)

    def _edit(
        self,
        name: str,
        rule: Rule | None,
        call: HasRequest | None,
        owner: str | None,
        description: str | None,
        clear: Iterable[str],
        by: str,
        asked: Asked,
    ) -> Steps[ScheduleRow]:
        def change(old: Definition) -> Definition:
            return changed(old, rule, call, owner, description, clear, asked)

        return catalogue.edit(self._sql(), name, change, who=by)

    def pause(self, name: str, *, by: str = "app", tx: object | None = None) -> bool:
        """Fire nothing until it is resumed; False if it was paused already. Declared ones can be paused too."""
        return self._app.run(catalogue.pause(self._sql(), name, who=by), tx)

    async def apause(self, name: str, *, by: str = "app", tx: object | None = None) -> bool:
        """:meth:`pause` for async code."""
        return await self._app.arun(catalogue.pause(self._sql(), name, who=by), tx)

    def resume(self, name: str, *, by: str = "app", tx: object | None = None) -> bool:
        """Fire again from the next slot on; False if it was not paused."""
        return self._app.run(catalogue.resume(self._sql(), name, who=by), tx)

    async def aresume(self, name: str, *, by: str = "app", tx: object | None = None) -> bool:
        """:meth:`resume` for async code."""
        return await self._app.arun(catalogue.resume(self._sql(), name, who=by), tx)

    def run_now(self, name: str, *, by: str = "app", tx: object | None = None) -> int:
        """A job at once, beside the schedule's own slots; its id."""
        return self._app.run(catalogue.run_now(self._sql(), name, who=by), tx)

    async def arun_now(self, name: str, *, by: str = "app", tx: object | None = None) -> int:
        """:meth:`run_now` for async code."""
        return await self._app.arun(catalogue.run_now(self._sql(), name, who=by), tx)

    def remove(self, name: str, *, by: str = "app", tx: object | None = None) -> None:
        """Delete a schedule that was added, and what is on record of its slots. Jobs that it has become stay."""
        self._app.run(catalogue.remove(self._sql(), name, who=by), tx)

    async def aremove(self, name: str, *, by: str = "app", tx: object | None = None) -> None:
        """:meth:`remove` for async code."""
        await self._app.arun(catalogue.remove(self._sql(), name, who=by), tx)

    def get(self, name: str, *, tx: object | None = None) -> ScheduleRow:
        """The schedule of this name, or :class:`NotFound`."""
        return self._app.run(catalogue.find(self._sql(), name), tx)

    async def aget(self, name: str, *, tx: object | None = None) -> ScheduleRow:
        """:meth:`get` for async code."""
        return await self._app.arun(catalogue.find(self._sql(), name), tx)

    def all(self, *, tx: object | None = None) -> list[ScheduleRow]:
        """Every schedule, by name."""
        return self._app.run(catalogue.list_schedules(self._sql()), tx)

    async def aall(self, *, tx: object | None = None) -> list[ScheduleRow]:
        """:meth:`all` for async code."""
        return await self._app.arun(catalogue.list_schedules(self._sql()), tx)

    def occurrences(self, name: str, *, limit: int = 20, tx: object | None = None) -> list[OccurrenceRow]:
        """The newest slots that came, and what became of them."""
        return self._app.run(self._occurrences(name, limit), tx)

    async def aoccurrences(self, name: str, *, limit: int = 20, tx: object | None = None) -> list[OccurrenceRow]:
        """:meth:`occurrences` for async code."""
        return await self._app.arun(self._occurrences(name, limit), tx)

    def _occurrences(self, name: str, limit: int) -> Steps[list[OccurrenceRow]]:
        found = yield from catalogue.find(self._sql(), name)
        return (yield from catalogue.occurrences(self._sql(), found, limit))
