"""What counts, who may, how long. Pure."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import isfinite
from typing import assert_never

from kept.errors import Misconfigured, Refused
from kept.jobs.payload import check_name
from kept.runners.model import Counted, Counters, Ending, Failed, Lost, Outcome, Place, Postponed, Stopped

BUILT_IN = ("reclaim", "promote", "schedules", "upkeep", "jobs")
# Other systems' names for steps of ours.
STANDS_FOR = {"outbox": ("reclaim", "promote", "jobs")}
# The reader of figures is a runner where metrics are served; kept.runner has a row for who looks after occurrences.
RESERVED = {*BUILT_IN, *STANDS_FOR, "figures", "occurrences"}
MOST_NAME = 100
MOST_COUNTERS = 50
MOST_COUNTER = 100  # characters of a counter's name
EARLY = 0.1  # of the interval: a cron job that fires every minute is not always a minute after the last
LEAST_EVERY = 0.01  # seconds
LOOK = 30.0  # seconds between looks, at most: somebody may have died meanwhile


# --- declarations


def check_runner_name(name: object, taken: Iterable[str]) -> str:
    """A name of one's own: fit for a metric, and nobody else's."""
    checked = check_name(name, what="runner", most=MOST_NAME)
    if checked in RESERVED:
        raise Refused(f"runner: {checked!r} is the name of one of Kept's own", field="runner")
    if checked in taken:
        raise Refused(f"runner: {checked!r} is declared already", field="runner")
    return checked


def check_parameters(function: Callable[..., object], runner: str, *, takes_context: bool) -> None:
    """Refuse a function that wants more than a context: there is nobody to give it arguments."""
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    wanted = [
        p.name
        for p in list(inspect.signature(function).parameters.values())[int(takes_context) :]
        if p.default is p.empty and p.kind not in kinds
    ]
    if wanted:
        raise Refused(f"runner {runner!r}: is given a RunnerContext at most, but wants {wanted[0]!r}", field=wanted[0])


def chosen(order: Sequence[str] | None, known: Iterable[str]) -> list[str]:
    """The runners of a tick, in order: all that are *known*, or those asked for."""
    there = list(known)
    if order is None:
        return there
    names = [each for name in order for each in STANDS_FOR.get(name, (name,))]
    unknown = [name for name in names if name not in there]
    if unknown:
        raise Misconfigured(f"no runner is called {unknown[0]!r}; there are: {', '.join(there)}")
    return list(dict.fromkeys(names))


def place_of(name: str, *, singleton: bool, index: int | None, count: int | None) -> Place:
    """Where the passes of a runner are counted. A singleton has one place, whatever the shards."""
    key = f"worker:scheduler:{name}"
    if singleton or index is None or count is None:
        return Place(name, name, key)
    return Place(name, f"{name}#{index}/{count}", f"{key}#{index}/{count}", index, count)


def narrowed(given: float, own: float | None) -> int | float:
    """The smaller of what the settings allow and what the runner wants."""
    return given if own is None else min(given, own)


# --- time


def early(every: float, *, once: bool) -> float:
    """How many seconds before its time a pass may begin."""
    return EARLY * every if once else 0.0


def next_look(wait: float, *, held: bool, scan: float) -> float:
    """In how many seconds to ask again; who holds it may die, which is found out every *scan* seconds."""
    return max(LEAST_EVERY, min(wait if wait > 0 else scan, scan if held else LOOK))


# --- outcomes


def counters_of(returned: object, runner: str) -> dict[str, int | float]:
    """What a pass returned as counters; an error names the runner."""
    match returned:
        case None:
            return {}
        case bool():
            raise _not_counters(runner, "a bool")
        case int() | float():
            return {"items": _number(returned, "items", runner)}
        case Mapping():
            return _named(returned, runner)
        case _:
            raise _not_counters(runner, f"a {type(returned).__name__}")


def _named(returned: Mapping[object, object], runner: str) -> dict[str, int | float]:
    if len(returned) > MOST_COUNTERS:
        raise Refused(f"runner {runner!r}: returned {len(returned)} counters; at most {MOST_COUNTERS} are kept")
    return {_counter(name, runner): _number(value, str(name), runner) for name, value in returned.items()}


def _counter(name: object, runner: str) -> str:
    if not isinstance(name, str) or not 1 <= len(name) <= MOST_COUNTER or not name.isprintable():
        raise Refused(f"runner {runner!r}: {str(name)[:40]!r} is no name for a counter; write up to 100 letters")
    return name


def _number(value: object, name: str, runner: str) -> int | float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Refused(f"runner {runner!r}: the counter {name[:40]!r} is a {type(value).__name__}, not a number")
    if not isfinite(value) or abs(value) >= 2**63:
        raise Refused(f"runner {runner!r}: the counter {name[:40]!r} is too large to be kept")
    return value


def _not_counters(runner: str, what: str) -> Refused:
    return Refused(f"runner {runner!r}: returned {what}; return nothing, a number, or numbers by name")


def is_idle(counters: Counters) -> bool:
    """Whether a pass did nothing worth a record."""
    return not any(counters.values())


def ending(outcome: Outcome) -> Ending | None:
    """What is written about a pass; None: nothing, it is not ours any more."""
    match outcome:
        case Counted(counters):
            return Ending("idle") if is_idle(counters) else Ending("done", counters)
        case Postponed(after):
            return Ending("idle", after=after)
        case Failed(code, error, retryable, after):
            reason = None if retryable is None else "retryable" if retryable else "fatal"
            return Ending("failed", code=code, reason=reason, error=error, after=after)
        case Stopped(reason):
            return Ending("cancelled", reason=reason)
        case Lost():
            return None
        case _:
            assert_never(outcome)
