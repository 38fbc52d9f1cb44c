"""What a program declares to be done again and again: runners of its own, and calls of its API."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar, get_type_hints

from kept.config import Settings
from kept.declaring import Declaring
from kept.durations import Duration, duration
from kept.errors import Refused
from kept.runners import http, rules
from kept.runners.context import RunnerContext
from kept.runners.model import RunnerDeclaration
from kept.tasks import is_async

F = TypeVar("F", bound=Callable[..., Any])


class Recurring(Declaring):
    """Where runners are declared and found again."""

    def __init__(
        self,
        database: str | None,
        settings: Settings | None,
        default_tx: Callable[[], object | None] | None,
    ) -> None:
        super().__init__(database, settings, default_tx)
        self.runners: dict[str, RunnerDeclaration] = {}

    def runner(
        self,
        name: str,
        *,
        every: Duration = "1m",
        singleton: bool = False,
        max_items: int | None = None,
        max_time: Duration | None = None,
    ) -> Callable[[F], F]:
        """Declare a runner: ``@app.runner("invoiceReminders", singleton=True, every="1m", max_items=200)``.

        The function runs at most once in *every* interval in the whole cluster, in a worker or in ``kept tick``, and
        returns counters: nothing, a number, or numbers by name. A *singleton* is never run twice at a time. A
        :class:`RunnerContext`, if wanted, is its first parameter. The function stays as it is.
        """

        def decorate(function: F) -> F:
            self._add_runner(name, function, every, singleton, max_items, max_time)
            return function

        return decorate

    def call(
        self,
        name: str,
        method: str,
        path: str,
        *,
        every: Duration = "1m",
        singleton: bool = True,
        max_time: Duration | None = None,
    ) -> None:
        """Declare a runner that calls your API: ``app.call("invoiceReminders", "POST", "/internal/reminders")``.

        KEPT_API_URL says where it is, KEPT_API_TOKEN is shown to it as ``x-service-token``. What it answers with, a
        whole number or an object of numbers, are the counters.
        """
        asked = http.Request(http.check_method(method), http.check_path(path))

        async def call(ctx: RunnerContext) -> object:
            return await http.call(asked, self.settings.api_url, self.settings.api_token, ctx.budget.seconds)

        check = partial(http.check_settings, name)
        self._add_runner(name, call, every, singleton, None, max_time, check=check)

    def _add_runner(
        self,
        name: str,
        function: Callable[..., Any],
        every: Duration,
        singleton: bool,  # noqa: FBT001
        max_items: int | None,
        max_time: Duration | None,
        check: Callable[[Settings], None] | None = None,
    ) -> None:
        called = rules.check_runner_name(name, self.runners)
        if not callable(function):
            raise TypeError(f"runner {called!r}: expected a function, got {type(function).__name__}")
        takes_context = _wants_context(function)
        rules.check_parameters(function, called, takes_context=takes_context)
        self.runners[called] = RunnerDeclaration(
            name=called,
            function=function,
            is_async=is_async(function),
            takes_context=takes_context,
            singleton=bool(singleton),
            every=_positive(every, called, "every"),
            max_items=_items(max_items, called),
            max_time=None if max_time is None else _positive(max_time, called, "max_time"),
            check=check,
        )


def _wants_context(function: Callable[..., Any]) -> bool:
    """Whether the first parameter is for the RunnerContext: by annotation, or by the name ``ctx``."""
    first = next(iter(inspect.signature(function).parameters.values()), None)
    if first is None:
        return False
    try:
        hint = get_type_hints(function).get(first.name)
    except (NameError, TypeError):
        hint = None
    return hint is RunnerContext or first.name == "ctx"


def _positive(value: Duration, runner: str, field: str) -> float:
    seconds = duration(value, field=field).total_seconds()
    if seconds < rules.LEAST_EVERY:
        raise Refused(f"runner {runner!r}: {field} must be at least 10ms", field=field)
    return seconds


def _items(value: object, runner: str) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"runner {runner!r}: max_items: expected a whole number, got {type(value).__name__}")
    if value < 1:
        raise Refused(f"runner {runner!r}: max_items must be at least 1", field="max_items")
    return value
