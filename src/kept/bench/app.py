"""The App whose worker is measured: run by ``kept worker`` like anybody's, with a tally beside it."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from kept.app import App
from kept.bench.tally import Tally
from kept.signals import JobsSettled, Signal, WorkerStarted
from kept.worker.alone import die_with_parent

TALLY = "BENCH_TALLY"  # names the file of the tally
DRAIN, STAMPS, ASIDE = "drain", "stamps", "aside"  # queues

app = App()


@app.task(queue=DRAIN)
async def nothing(number: int, text: str) -> None:
    """A job that does nothing."""


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
