"""Schedules as a whole, for those who watch over them (as steps; see :mod:`kept.db.tx`)."""

from __future__ import annotations

from typing import NamedTuple

from kept.db.queries import Queries
from kept.db.tx import Steps
from kept.schedules.rows import Failing, Summary


class Home(NamedTuple):
    """Where a task's jobs go unless told otherwise, and whether any code ever declared it."""

    queue: str
    declared: bool


def home_of(sql: Queries, task: str) -> Steps[Home]:
    """The queue that a job of *task* goes to, as ``kept.enqueue`` in SQL chooses it."""
    rows = yield sql["home"], {"task": task}
    return Home(*rows[0]) if rows else Home("default", False)


def summary(sql: Queries) -> Steps[Summary]:
    """How many schedules there are, by state, and which one comes next."""
    rows = yield sql["summary"], {}
    return Summary(*rows[0])


def failing(sql: Queries, times: int) -> Steps[list[Failing]]:
    """Schedules whose last *times* jobs all failed."""
    rows = yield sql["failing"], {"times": times}
    return [Failing(*row) for row in rows]
