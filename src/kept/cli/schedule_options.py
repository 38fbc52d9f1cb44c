"""What ``kept schedules add`` and ``edit`` are told: the options they share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from typing import Any, TypeVar, cast

import click

from kept.cli.show import as_duration, as_text
from kept.errors import Refused
from kept.schedules.book import Asked
from kept.schedules.cron import cron, every
from kept.schedules.model import Cron, Every, Rule
from kept.showable import escape

F = TypeVar("F", bound=Callable[..., Any])
TERMS = ("start", "end", "blackout", "jitter", "misfire", "most", "within", "overlap")


def as_zoned(_ctx: click.Context, _param: click.Parameter, value: str | None) -> datetime | None:
    """For a moment that has to say its time zone."""
    if value is None:
        return None
    try:
        given = datetime.fromisoformat(value)
    except ValueError:
        raise click.BadParameter(f"'{escape(value[:40])}' is not a time; write 2026-12-01T08:00+01:00") from None
    if given.utcoffset() is None:
        raise click.BadParameter(f"'{escape(value[:40])}' has no time zone; write 2026-12-01T08:00Z or …+01:00")
    return given


def as_texts(ctx: click.Context, param: click.Parameter, value: tuple[str, ...]) -> tuple[str, ...]:
    """:func:`as_text` for what may be given several times."""
    return tuple(as_text(ctx, param, each) or "" for each in value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """The options of ``add`` and ``edit`` as they were written; what was left out is None."""

    expression: str | None
    zone: str | None
    period: str | None
    task: str | None
    arguments: str | None
    queue: str | None
    priority: int | None
    owner: str | None
    description: str | None
    start: datetime | None
    end: datetime | None
    blackout: tuple[str, ...]
    jitter: timedelta | None
    misfire: str | None
    most: int | None
    within: timedelta | None
    overlap: str | None
    app: str | None

    def __bool__(self) -> bool:
        return any(getattr(self, each.name) not in (None, ()) for each in fields(self) if each.name != "app")

    @property
    def asked(self) -> Asked:
        """The terms among them."""
        return cast("Asked", {name: getattr(self, name) for name in TERMS if getattr(self, name) not in (None, ())})

    def rule(self, before: Rule | None = None) -> Rule | None:
        """The rule they make, over the one there was; None if they say nothing of it."""
        if self.expression is not None and self.period is not None:
            raise Refused("--cron and --every exclude each other", field="cron")
        zone = self.zone or (before.zone if before else "UTC")
        if self.expression is not None:
            return cron(self.expression, tz=zone)
        if self.period is not None:
            return every(self.period, tz=zone)
        match before if self.zone is not None else None:
            case Cron(expression, _):
                return cron(expression, tz=zone)
            case Every(period, _):
                return every(period, tz=zone)
            case None:
                return None


def given_options(command: F) -> F:
    """The options of :class:`Given`."""
    misfire, overlap = click.Choice(("skip", "once", "all")), click.Choice(("allow", "skip", "queue"))
    for option in reversed(
        (
            click.option("--cron", "expression", callback=as_text, metavar="EXPR", help="'17 3 * * *', or @daily."),
            click.option("--tz", "zone", callback=as_text, metavar="ZONE", help="Whose clocks; Europe/Berlin. [UTC]"),
            click.option("--every", "period", callback=as_text, metavar="5m", help="So often, whatever clocks show."),
            click.option("--task", callback=as_text, metavar="NAME", help="Which task each slot becomes a job of."),
            click.option("--args", "arguments", callback=as_text, metavar="JSON", help="Its arguments, an object."),
            click.option("--queue", callback=as_text, metavar="NAME", help="Instead of the task's own."),
            click.option("--priority", type=int, metavar="N", help="Instead of the task's own."),
            click.option("--owner", callback=as_text, metavar="TEXT", help="Whom to ask about it."),
            click.option("--description", callback=as_text, metavar="TEXT", help="What it is for."),
            click.option("--start", callback=as_zoned, metavar="TIME", help="No slot before; with a zone."),
            click.option("--end", callback=as_zoned, metavar="TIME", help="No slot after; with a zone."),
            click.option("--blackout", multiple=True, callback=as_texts, metavar="DAY", help="No slot on 2026-12-24, "
                         "2026-12-24..2026-12-31, 12-25; several times."),
            click.option("--jitter", callback=as_duration, metavar="1m", help="Jobs are due up to so much later."),
            click.option("--misfire", type=misfire, help="What becomes of slots nobody fired. [once]"),
            click.option("--most", type=int, metavar="N", help="With --misfire all: at most so many."),
            click.option("--within", callback=as_duration, metavar="1h", help="Older slots are left out."),
            click.option("--overlap", type=overlap, help="If the job before still lives. [skip]"),
            click.option("--app", metavar="MODULE:APP", help="Check the arguments against its task."),
        )
    ):  # fmt: skip
        command = option(command)
    return command
