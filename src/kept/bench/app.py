"""The App whose worker is measured: run by ``kept worker`` like anybody's, with a tally beside it."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

from kept.app import App
from kept.bench.tally import Tally
from kept.signals import JobsSettled, Signal, WorkerStarted
from kept.worker.alone import die_with_parent

TALLY = "BENCH_TALLY"  # names the file of the tally
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


def _tell(signal: Signal) -> None:
    if isinstance(signal, JobsSettled):
        tally.settled(len(signal.jobs))
    elif isinstance(signal, WorkerStarted):
        tally.start()


_tally: Tally | None = None
if TALLY in os.environ:
    die_with_parent(signal.SIGTERM)
    _tally = tally = Tally(Path(os.environ[TALLY]))
    app.signals.subscribe(_tell)
