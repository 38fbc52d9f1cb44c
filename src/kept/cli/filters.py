"""Which jobs are meant: the options that ``kept jobs`` commands share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import click

from kept.admin import store
from kept.admin.model import Filter
from kept.cli.main import Desk
from kept.cli.show import as_duration, as_text
from kept.jobs.model import STATES, State

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """The filters as they were written."""

    queue: str | None
    task: str | None
    states: tuple[State, ...]
    older_than: timedelta | None
    newer_than: timedelta | None
    code: str | None
    key: str | None

    def __bool__(self) -> bool:
        return self != NOTHING

    def filter(self, desk: Desk, ids: tuple[int, ...] | None = None) -> Filter:
        """The filter they make; an unknown queue or task is an error that names near ones."""
        return Filter(
            lanes=desk.ask(store.lanes_of(desk.sql, self.queue, self.task)),
            states=self.states or STATES,
            older_than=_seconds(self.older_than),
            newer_than=_seconds(self.newer_than),
            code=self.code,
            key=self.key,
            ids=ids,
        )


NOTHING = Given(queue=None, task=None, states=(), older_than=None, newer_than=None, code=None, key=None)


def filter_options(command: F) -> F:
    """The options of :class:`Given`."""
    for option in reversed(
        (
            click.option("--queue", callback=as_text, metavar="NAME", help="Jobs of this queue."),
            click.option("--task", callback=as_text, metavar="NAME", help="Jobs of this task."),
            click.option(
                "--state", "states", type=click.Choice(STATES), multiple=True, help="May be given several times."
            ),
            click.option(
                "--older-than",
                callback=as_duration,
                metavar="1h",
                help="Settled, or enqueued if still live, longer ago than this.",
            ),
            click.option("--newer-than", callback=as_duration, metavar="1h", help="The same, within this time."),
            click.option("--code", callback=as_text, metavar="CODE", help="Settled jobs with this error code."),
            click.option("--key", callback=as_text, metavar="KEY", help="Jobs with exactly this key."),
        )
    ):
        command = option(command)
    return command


def _seconds(value: timedelta | None) -> float | None:
    return None if value is None else value.total_seconds()
