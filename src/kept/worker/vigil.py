"""The first moments of a keeper: it watches its worker, and has loaded nothing that it needs for more.

To load what a lease is renewed with takes a tenth of a second of processor time. Workers that begin with a backlog need
that themselves, and a lease that has just begun needs no renewal. A worker that dies meanwhile is noticed all the same.
"""

from __future__ import annotations

import os
import select
import signal
from time import monotonic

from kept.worker.board import Board

LOOK = 0.05  # seconds between looks at the board; and at the parent, where the kernel does not tell of its end


def keep_vigil(parent: int, board: int, seconds: float) -> None:
    """Return when *parent* is gone, has ended, or has worked off its backlog; after *seconds* at the latest.

    From here on the keeper is deaf to the terminal: Ctrl-C is for the worker, and the keeper ends when that has ended.
    """
    for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(each, signal.SIG_IGN)
    until, seen, end = monotonic() + seconds, Board(board, slots=0), _end_of(parent)
    while os.getppid() == parent and not (seen.calm or seen.left or seen.closed) and monotonic() < until:
        if select.select(end, [], [], LOOK)[0]:
            break
    for descriptor in end:
        os.close(descriptor)


def _end_of(pid: int) -> list[int]:
    """What to wait for, for the end of process *pid*; nothing where the kernel cannot tell."""
    try:
        return [os.pidfd_open(pid)]
    except (AttributeError, OSError):
        return []
