"""One attempt comes to exactly one outcome, whatever the handler does, and harms nobody after it."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from time import monotonic
from uuid import UUID

import pytest

from kept.errors import Defer, Failure, LeaseLost, Skip
from kept.jobs.attempt import AGAIN_AFTER, Attempt, outcome_of, timed_out
from kept.jobs.context import Context, Terms
from kept.jobs.model import (
    Claimed,
    Completed,
    Deferred,
    Lane,
    LostLease,
    Raised,
    Released,
    Returned,
    Skipped,
)
from kept.jobs.retry import Retry, retries
from kernel import declared

CLAIMED_AT = datetime(2020, 5, 1, 12, tzinfo=UTC)  # the database's clock is years behind ours
LANE = Lane(id=1, queue="mail", task="send", max_attempts=3, priority=0, retry_base=5.0, retry_max=120.0)
STOP = Released(started=True, reason="aborted:shutdown")


@pytest.fixture
def threads():
    with ThreadPoolExecutor(4) as threads:
        yield threads


def attempt_at(handler, payload="{}"):
    job = Claimed(1, 1, 0, 1, 0, False, CLAIMED_AT, CLAIMED_AT, CLAIMED_AT, None, None, None, payload, UUID(int=1))
    return Attempt(job, declared(handler), Terms(LANE, timeout=60.0, sql=None, limit=1000))


async def run_here(attempt, threads):
    return await attempt.run(threads, asyncio.current_task(), monotonic())


async def run(handler, threads, payload="{}"):
    return await run_here(attempt_at(handler, payload), threads)


def raising(error):
    async def handler() -> None:
        raise error

    def in_a_thread() -> None:
        raise error

    return handler, in_a_thread


async def test_a_return_value_is_the_result(threads):
    async def double(number: int) -> int:
        return number * 2

    def triple(number: int) -> int:
        return number * 3

    assert await run(double, threads, '{"number":4}') == Returned("8")
    assert await run(triple, threads, '{"number":4}') == Returned("12")


async def test_a_plain_none_is_no_result(threads):
    async def handler() -> None: ...

    assert await run(handler, threads) == Returned(None)


async def test_arguments_that_do_not_fit_fail_without_another_attempt(threads):
    async def handler(number: int) -> None: ...

    outcome = await run(handler, threads, '{"number":"four"}')
    assert isinstance(outcome, Raised)
    assert (outcome.code, outcome.retryable) == ("invalid_arguments", False)
    assert "number" in outcome.message


async def test_a_result_that_cannot_be_stored_is_a_failure(threads):
    class Odd:
        def model_dump(self, *, mode):
            raise LookupError("not today")

    for value in (object(), "x" * 2000, Odd(), float("nan")):

        async def handler(value=value):
            return value

        outcome = await run(handler, threads)
        assert isinstance(outcome, Raised)
        assert outcome.code == "unserialisable_result"


@pytest.mark.parametrize(
    "error",
    [
        ValueError("no"),
        SystemExit(3),
        KeyboardInterrupt(),
        GeneratorExit(),
        StopIteration(),
        BaseExceptionGroup("both", [ValueError(), SystemExit()]),
        asyncio.CancelledError(),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_whatever_leaves_a_handler_is_an_outcome(error, threads):
    for handler in raising(error):
        assert isinstance(await run(handler, threads), Raised)


async def test_an_exception_that_fights_back_is_an_outcome(threads):
    class Hostile(Exception):
        def __str__(self):
            raise RuntimeError("no")

        @property
        def code(self):
            raise RuntimeError("no")

        retryable = after = code

    for handler in raising(Hostile()):
        outcome = await run(handler, threads)
        assert isinstance(outcome, Raised)
        assert outcome.code == "hostile"


async def test_a_failure_says_how_it_wants_to_be_treated(threads):
    for handler in raising(Failure("declined", code="card_declined", retryable=False, after="90s")):
        outcome = await run(handler, threads)
        assert isinstance(outcome, Raised)
        assert (outcome.code, outcome.message) == ("card_declined", "declined")
        assert (outcome.retryable, outcome.after) == (False, 90.0)


async def test_another_librarys_attributes_of_the_same_names_are_not_misread(threads):
    error = ValueError("x")
    error.after, error.retryable, error.code = 5, "maybe", 404
    outcome = outcome_of(error, now=CLAIMED_AT)
    assert isinstance(outcome, Raised)
    assert (outcome.code, outcome.retryable, outcome.after) == ("value_error", None, None)


async def test_a_policy_may_name_any_base_class_of_what_was_raised():
    class Mixed(ConnectionResetError, LookupError):
        pass

    outcome = outcome_of(Mixed(), now=CLAIMED_AT)
    assert isinstance(outcome, Raised)
    for kind in (Mixed, OSError, LookupError, Exception, BaseException):
        policy = Retry(fail_on=[kind])
        assert not retries(policy, code="x", types=outcome.types, retryable=None)


def test_a_timeout_is_an_os_error_as_it_is_in_python():
    for kind in (TimeoutError, OSError, Exception):
        verdict = timed_out(3)
        assert not retries(Retry(fail_on=[kind]), code=verdict.code, types=verdict.types, retryable=None)


# --- intent


async def test_defer_and_skip_are_intent_and_not_failure(threads):
    for handler in raising(Defer("30s", "rate limited")):
        assert await run(handler, threads) == Deferred(30.0, "rate limited")
    for handler in raising(Skip("gone")):
        assert await run(handler, threads) == Skipped("gone")


async def test_a_defer_until_a_time_is_measured_on_the_databases_clock(threads):
    for handler in raising(Defer(CLAIMED_AT + timedelta(hours=1))):
        outcome = await run(handler, threads)
        assert isinstance(outcome, Deferred)
        assert 3590 < outcome.delay <= 3600


async def test_a_defer_to_the_past_waits_a_moment_so_that_it_cannot_spin(threads):
    for delay in ("0s", CLAIMED_AT - timedelta(days=1)):
        assert outcome_of(Defer(delay), now=CLAIMED_AT) == Deferred(0.1)


@pytest.mark.parametrize(
    "delay",
    [5, "soon", None, CLAIMED_AT.replace(tzinfo=None), timedelta(seconds=-5), CLAIMED_AT.replace(year=9998), "11y"],
)
async def test_a_defer_that_makes_no_sense_is_a_failure_that_says_so(delay):
    outcome = outcome_of(Defer(delay), now=CLAIMED_AT)
    assert isinstance(outcome, Raised)
    assert outcome.code == "invalid_defer"


async def test_intent_that_was_never_set_up_is_an_outcome_too():
    class Silent(Defer):
        def __init__(self): ...

    class Shy(Skip):
        def __init__(self): ...

    assert isinstance(outcome_of(Silent(), now=CLAIMED_AT), Raised)
    assert outcome_of(Shy(), now=CLAIMED_AT) == Skipped("")


async def test_a_reason_is_cleaned_like_any_message():
    assert outcome_of(Skip("a\0b"), now=CLAIMED_AT) == Skipped("a\ufffdb")
    skipped = outcome_of(Skip("x" * 100_000), now=CLAIMED_AT)
    assert isinstance(skipped, Skipped)
    assert len(skipped.reason) == 4000


async def test_a_handler_that_lets_lease_lost_through_lost_its_lease(threads):
    for handler in raising(LeaseLost(job_id=1, attempt=1, worker="w")):
        assert await run(handler, threads) == LostLease()


async def test_a_handler_that_completed_its_job_is_completed(threads):
    async def handler(ctx: Context) -> str:
        await ctx.acomplete(None)
        return "ignored"

    assert await run(handler, threads) == Completed()


# --- interruption


async def interrupted(handler, threads, verdict, started):
    attempt = attempt_at(handler)
    task = asyncio.create_task(run_here(attempt, threads))
    await asyncio.to_thread(started.wait, 10)
    attempt.interrupt(verdict)
    return attempt, task


async def test_an_interruption_ends_a_handler_with_our_verdict(threads):
    started = threading.Event()

    async def handler() -> None:
        started.set()
        await asyncio.Event().wait()

    _, task = await interrupted(handler, threads, STOP, started)
    assert await task == STOP


@pytest.mark.parametrize("reaction", ["returns", "raises"])
async def test_a_handler_that_swallows_the_interruption_does_not_change_the_verdict(reaction, threads):
    started = threading.Event()

    async def handler() -> str:
        started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            if reaction == "raises":
                raise ValueError("in the way out") from None
        return "done after all"

    attempt = attempt_at(handler)
    left = []

    async def consumer():
        outcome = await run_here(attempt, threads)
        left.append(asyncio.current_task().cancelling())
        return outcome

    task = asyncio.create_task(consumer())
    await asyncio.to_thread(started.wait, 10)
    attempt.interrupt(STOP)
    attempt.interrupt(timed_out(1))
    assert await task == STOP
    assert left == [0]  # or a task group in the next handler on this task would think itself cancelled


async def test_a_thread_that_does_not_stop_is_handed_over_as_a_leftover(threads):
    started, let_go = threading.Event(), threading.Event()

    def handler() -> None:
        started.set()
        let_go.wait(10)

    attempt, task = await interrupted(handler, threads, timed_out(1), started)
    outcome = await task
    assert isinstance(outcome, Raised)
    assert outcome.code == "timeout"
    assert attempt.leftover is not None
    assert not attempt.leftover.done()
    let_go.set()
    attempt.leftover.result(10)


async def test_an_attempt_interrupted_before_it_starts_never_starts(threads):
    async def handler() -> None:
        raise AssertionError("started")

    attempt = attempt_at(handler)
    attempt.interrupt(STOP)
    assert await run_here(attempt, threads) == STOP


async def test_a_job_that_could_not_be_started_elsewhere_comes_back_uncharged():
    stopped = []

    async def elsewhere():
        raise OSError("no more processes")

    attempt = attempt_at(lambda: None)
    outcome = await attempt.run_elsewhere(elsewhere(), stop=lambda: stopped.append(True))
    assert outcome == Deferred(AGAIN_AFTER, "no more processes")
    assert stopped == [True]


async def test_an_interruption_elsewhere_stops_it_there():
    stopped = []
    started = asyncio.Event()

    async def elsewhere():
        started.set()
        await asyncio.Event().wait()

    attempt = attempt_at(lambda: None)
    task = asyncio.create_task(attempt.run_elsewhere(elsewhere(), stop=lambda: stopped.append(True)))
    await started.wait()
    attempt.interrupt(STOP)
    assert await task == STOP
    assert stopped == [True]
