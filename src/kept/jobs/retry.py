"""Retry policies: which failures get another attempt, how many, and after how long. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Literal, assert_never

from kept.durations import Duration, duration
from kept.errors import Refused

Shape = Literal["fixed", "linear", "exponential", "series"]
Classifier = type[BaseException] | str
MOST_ATTEMPTS = 1000


@dataclass(frozen=True, slots=True, init=False)
class Retry:
    """How a task's failures are retried.

    ``Retry(max_attempts=5)`` backs off exponentially from 5 s to 120 s. Other shapes: :meth:`fixed`,
    :meth:`linear`, :meth:`exponential`, :meth:`series`. *retry_on* and *fail_on* take exception classes and
    error codes; what neither names is retried, unless ``unknown="fail"``. An exception's own
    ``retryable = False`` wins, then *fail_on*. *max_total* ends retrying when the next attempt would start
    later than that after the enqueue.
    """

    max_attempts: int
    shape: Shape
    delays: tuple[float, ...]  # seconds; one for every shape but a series
    max_delay: float
    jitter: float
    max_total: float | None
    retry_on: frozenset[str]
    fail_on: frozenset[str]
    unknown: Literal["retry", "fail"]

    def __init__(
        self,
        *,
        max_attempts: int = 3,
        shape: Shape = "exponential",
        delay: Duration | Iterable[Duration] = "5s",
        max_delay: Duration = "120s",
        jitter: Duration = "500ms",
        max_total: Duration | None = None,
        retry_on: Iterable[Classifier] = (),
        fail_on: Iterable[Classifier] = (),
        unknown: Literal["retry", "fail"] = "retry",
    ) -> None:
        if isinstance(max_attempts, bool) or not isinstance(max_attempts, int):
            raise TypeError("max_attempts: expected a whole number")
        if not 1 <= max_attempts <= MOST_ATTEMPTS:
            raise Refused(f"max_attempts: {max_attempts} is not between 1 and {MOST_ATTEMPTS}", field="max_attempts")
        if unknown not in ("retry", "fail"):
            raise Refused(f"unknown: {unknown!r} is neither 'retry' nor 'fail'", field="unknown")
        if shape not in ("fixed", "linear", "exponential", "series"):
            raise Refused(f"shape: {shape!r} is not fixed, linear, exponential or series", field="shape")
        set_field = object.__setattr__  # frozen: the one place where fields are written
        set_field(self, "max_attempts", max_attempts)
        set_field(self, "shape", shape)
        set_field(self, "delays", _delays(delay, shape))
        set_field(self, "max_delay", _seconds(max_delay, "max_delay"))
        set_field(self, "jitter", _seconds(jitter, "jitter"))
        set_field(self, "max_total", None if max_total is None else _seconds(max_total, "max_total"))
        set_field(self, "retry_on", _names(retry_on))
        set_field(self, "fail_on", _names(fail_on))
        set_field(self, "unknown", unknown)

    @classmethod
    def fixed(cls, delay: Duration, *, max_attempts: int = 3, jitter: Duration = "500ms") -> Retry:
        """The same delay before every attempt."""
        return cls(shape="fixed", delay=delay, max_delay=delay, max_attempts=max_attempts, jitter=jitter)

    @classmethod
    def linear(cls, step: Duration, *, max_delay: Duration = "120s", max_attempts: int = 3) -> Retry:
        """One step, two steps, three steps, … up to *max_delay*."""
        return cls(shape="linear", delay=step, max_delay=max_delay, max_attempts=max_attempts)

    @classmethod
    def exponential(cls, base: Duration, *, max_delay: Duration = "120s", max_attempts: int = 3) -> Retry:
        """*base*, twice that, four times that, … up to *max_delay*."""
        return cls(shape="exponential", delay=base, max_delay=max_delay, max_attempts=max_attempts)

    @classmethod
    def series(cls, delays: Iterable[Duration], *, jitter: Duration = "500ms") -> Retry:
        """Exactly these delays; one attempt more than there are delays."""
        listed = tuple(delays)
        attempts = len(listed) + 1
        return cls(shape="series", delay=listed, max_delay="3650d", max_attempts=attempts, jitter=jitter)


def backoff(policy: Retry, charged: int, draw: float) -> float:
    """Seconds to wait after the attempt that was the *charged*-th; *draw* in [0, 1) picks the jitter."""
    return min(_before_jitter(policy, max(charged, 1)), policy.max_delay) + policy.jitter * draw


def _before_jitter(policy: Retry, charged: int) -> float:
    first = policy.delays[0]
    match policy.shape:
        case "fixed":
            return first
        case "linear":
            return first * charged
        case "exponential":
            return first * 2.0 ** min(charged - 1, 60)
        case "series":
            return policy.delays[min(charged, len(policy.delays)) - 1]
        case _:
            assert_never(policy.shape)


def retries(policy: Retry, *, code: str, types: Iterable[str], retryable: bool | None) -> bool:
    """Whether a failure is worth another attempt: the exception's word first, then the policy's lists."""
    if retryable is False:
        return False
    names = {code, *types}
    if names & policy.fail_on:
        return False
    if retryable is True or names & policy.retry_on:
        return True
    return policy.unknown == "retry"


def type_name(kind: type[BaseException]) -> str:
    """How an exception class is named in policies and outcomes."""
    return f"{kind.__module__}.{kind.__qualname__}"


def _seconds(value: Duration, field: str) -> float:
    return duration(value, field=field).total_seconds()


def _delays(delay: Duration | Iterable[Duration], shape: Shape) -> tuple[float, ...]:
    if isinstance(delay, int | float):
        raise TypeError("delay: expected a duration like '30s' or a timedelta; a bare number has no unit")
    listed = (delay,) if isinstance(delay, str | timedelta) else tuple(delay)
    if not listed or (shape != "series" and len(listed) != 1):
        raise Refused("delay: a series needs one at least, every other shape exactly one", field="delay")
    return tuple(_seconds(each, "delay") for each in listed)


def _names(classifiers: Iterable[Classifier]) -> frozenset[str]:
    if isinstance(classifiers, str | type):
        raise TypeError("retry_on and fail_on take a list of exception classes and codes")
    return frozenset(_name(each) for each in classifiers)


def _name(classifier: Classifier) -> str:
    if isinstance(classifier, str):
        return classifier
    if not (isinstance(classifier, type) and issubclass(classifier, BaseException)):
        raise TypeError(f"retry_on and fail_on: {classifier!r} is neither an exception class nor a code")
    return type_name(classifier)
