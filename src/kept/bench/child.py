"""What every measured process does first: find its tally, and see to it that it ends with whoever measures."""

from __future__ import annotations

import os
import signal
from functools import cache
from pathlib import Path

from kept.bench.tally import Tally
from kept.worker.alone import die_with_parent

TALLY, PARENT = "BENCH_TALLY", "BENCH_PARENT"  # the tally's file, and the process that measures


@cache
def begin() -> Tally | None:
    """Our tally, if this process is measured; from here on it does not outlive whoever measures.

    Children of ours are not measured.
    """
    path = os.environ.pop(TALLY, None)
    if path is None:
        return None
    die_with_parent(signal.SIGTERM)
    end_if_orphaned()  # it may have died before we asked
    return Tally(Path(path))


def start(tally: Tally) -> None:
    """Wait for the start; nothing else is heard meanwhile, so we have to look whether somebody is still there."""
    tally.start(end_if_orphaned)


def end_if_orphaned() -> None:
    """Leave at once if whoever measured is gone."""
    if os.getppid() != int(os.environ[PARENT]):
        os._exit(1)
