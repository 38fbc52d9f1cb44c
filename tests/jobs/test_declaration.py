"""Declarations and the registry: who takes the Context, what two workers must agree on, whose name it is."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from kept.errors import NotFound, Refused
from kept.jobs.context import Context
from kept.jobs.declaration import Declaration, wants_context
from kept.jobs.payload import Signature
from kept.jobs.registry import Registry
from kept.jobs.retry import Retry

MARK = object()


def handler(user_id: int, options=MARK) -> None: ...


def other(user_id: int) -> None: ...


def declared(name="send", *, function=handler, aliases=(), **facts):
    given = {"queue": "mail", "retry": Retry(), "timeout": 60.0, "priority": 0} | facts
    return Declaration(
        name=name,
        aliases=aliases,
        handler=function,
        is_async=False,
        takes_context=False,
        signature=Signature(function, task=name, takes_context=False),
        **given,
    )


# --- who takes the Context


def test_the_context_is_recognised_by_its_annotation_or_by_its_name():
    def annotated(context: Context, n: int) -> None: ...
    def named(ctx, n: int) -> None: ...
    def quoted(c: "Context") -> None: ...  # noqa: UP037
    def without(n: int, ctx_id: int) -> None: ...
    def otherwise(ctx: int) -> None: ...

    assert [wants_context(each, "t") for each in (annotated, named, quoted)] == [True] * 3
    assert [wants_context(each, "t") for each in (without, otherwise, lambda: None)] == [False] * 3


def test_a_context_anywhere_but_first_is_refused():
    def late(n: int, ctx: Context) -> None: ...

    with pytest.raises(Refused, match="first parameter"):
        wants_context(late, "send")


# --- digests


def test_a_digest_differs_when_workers_would_treat_a_job_differently():
    same = declared().digest()
    assert declared().digest() == same
    assert declared(aliases=("old",)).digest() == same
    different = [
        declared(queue="bulk"),
        declared(timeout=61.0),
        declared(priority=1),
        declared(retry=Retry(max_attempts=4)),
        declared(retry=Retry(fail_on=["a"])),
        declared(function=other),
    ]
    digests = [each.digest() for each in different]
    assert same not in digests
    assert len(set(digests)) == len(digests)


DIGEST = """
from kept.jobs.declaration import Declaration
from kept.jobs.payload import Signature
from kept.jobs.retry import Retry

class Marker:
    pass

def handler(n: int, options=Marker()) -> None: ...

print(Declaration(
    name="send", aliases=(), queue="mail", timeout=60.0, priority=0, handler=handler, is_async=False,
    takes_context=False, signature=Signature(handler, task="send", takes_context=False),
    retry=Retry(retry_on=["a", "b", "c", "d", OSError, KeyError], fail_on=["e", "f", "g", ValueError]),
).digest())
"""


def test_a_digest_is_the_same_in_every_process():
    told = {
        subprocess.run(
            [sys.executable, "-c", DIGEST],
            env=os.environ | {"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(told) == 1


def test_a_lane_takes_its_numbers_from_the_declaration():
    lane = declared(retry=Retry.series(["1s", "2s"]), priority=4).lane()
    assert (lane.queue, lane.task, lane.max_attempts, lane.priority) == ("mail", "send", 3, 4)
    assert lane.retry_base == 1.0
    assert lane.retry_max >= lane.retry_base
    assert declared(retry=Retry(delay="300s", max_delay="10s")).lane().retry_max == 300.0


# --- the registry


def test_a_task_is_found_by_its_name_and_by_its_former_names():
    registry = Registry()
    task = declared("send", aliases=("old", "older"))
    registry.add(task)
    assert registry["send"] is registry["old"] is registry.find("older") is task
    assert list(registry) == [task]
    assert len(registry) == 1
    assert registry.digests() == dict.fromkeys(["send", "old", "older"], task.digest())


def test_an_unknown_task_is_not_found():
    registry = Registry()
    assert registry.find("nobody") is None
    with pytest.raises(NotFound, match="nobody"):
        registry["nobody"]


@pytest.mark.parametrize("second", [declared("send"), declared("new", aliases=("send",)), declared("old")])
def test_a_name_declared_twice_is_refused_with_both_places(second):
    registry = Registry()
    registry.add(declared("send", aliases=("old",), function=other))
    with pytest.raises(Refused, match=r"declared twice.*other.*handler") as refused:
        registry.add(second)
    assert refused.value.field == "name"
    assert len(registry) == 1
