"""The App whose worker is measured: run by ``kept worker`` like anybody's, with a tally beside it."""

from __future__ import annotations

import asyncio
import os
from typing import Any

from kept.app import App
from kept.bench import child
from kept.bench.tally import Tally
from kept.jobs.context import Context
from kept.outbox.model import Event
from kept.signals import JobsSettled, Signal, Subscriber, WorkerStarted

DRAIN, STAMPS, BUSY, ASIDE, HALTED = "drain", "stamps", "busy", "aside", "halted"  # queues
SLOTS = "slots"
ORDERED, PUBLISHED = "ordered", "published"  # queues, and the types of the events behind them
NATS = "BENCH_NATS"  # the URL of the broker that events are published to
VIOLATION = 0  # a mode of the tally: counts events that came out of order
MOMENT = 0.005  # seconds

app = App()


@app.task(queue=DRAIN)
async def nothing(number: int, text: str) -> None:
    """A job that does nothing."""


@app.task(queue=BUSY)
async def wait(number: int, text: str) -> None:  # noqa: ARG001  # a payload like the others'
    """A job that takes a moment and no computing."""
    await asyncio.sleep(MOMENT)


@app.task(queue=HALTED)
async def halted(number: int, text: str) -> None:
    """A job of a paused lane."""


@app.task(queue=STAMPS)
async def stamp(number: int) -> None:
    """Write down when the handler began."""
    if _tally is not None:
        _tally.stamp(number)


@app.task(queue=SLOTS)
async def beat(ctx: Context, first: int) -> None:
    """Write down when the job of a slot began, by the seconds since the *first* one."""
    if _tally is not None and ctx.slot is not None:
        _tally.stamp(int(ctx.slot.timestamp()) - first)


_last: dict[str | None, int] = {}


@app.on(ORDERED, name=ORDERED, queue=ORDERED, ordered=True)
async def in_order(event: Event[Any]) -> None:
    """Count what comes out of order, and do nothing else."""
    number = event.data["number"]
    if _tally is not None and number <= _last.get(event.aggregate_id, 0):
        _tally.done_in(VIOLATION)
    _last[event.aggregate_id] = number


if NATS in os.environ:
    from kept.outbox.sinks.nats import NatsSink

    sink = NatsSink(os.environ[NATS], topic="bench.{type}", stream="BENCH", create_stream=True)
    app.publish(PUBLISHED, to=sink, name=PUBLISHED, queue=PUBLISHED)


def _telling(tally: Tally) -> Subscriber:
    def tell(signal: Signal) -> None:
        if isinstance(signal, JobsSettled):
            tally.settled(len(signal.jobs))
        elif isinstance(signal, WorkerStarted):
            child.start(tally)

    return tell


_tally = child.begin()
if _tally is not None:
    app.signals.subscribe(_telling(_tally))
