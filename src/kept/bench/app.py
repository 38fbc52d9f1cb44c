"""The App whose worker is measured: run by ``kept worker`` like anybody's, with a tally beside it."""

from __future__ import annotations

import asyncio

from kept.app import App
from kept.bench import child
from kept.bench.tally import Tally
from kept.signals import JobsSettled, Signal, Subscriber, WorkerStarted

DRAIN, STAMPS, BUSY, ASIDE, HALTED = "drain", "stamps", "busy", "aside", "halted"  # queues
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
