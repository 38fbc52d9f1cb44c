"""The breaker of a sink, in the database: one worker meets a broker that is away, and the cluster lets it rest."""

from __future__ import annotations

from typing import NamedTuple

from kept.db.queries import Queries
from kept.db.tx import Steps
from kept.outbox.rules import Rest, pause


class Rested(NamedTuple):
    """A rest that began: after so many failures in a row, for so many seconds."""

    failures: int
    seconds: float


def rests(
    sql: Queries, sink: str, code: str, error: str, rest: Rest, after: float | None, draw: float
) -> Steps[Rested | None]:
    """Pause the sink's lanes, longer with every failure in a row; None if somebody has just done so.

    *after* is what the broker itself asks for, in seconds.
    """
    rows = yield sql["sink_failed"], {"sink": sink, "code": code, "error": error}
    if not rows:
        return None
    failures = int(rows[0][0])
    seconds = max(pause(rest, failures, draw), after or 0.0)
    yield sql["rest_sink"], {"sink": sink, "seconds": seconds}
    return Rested(failures, seconds)


def works(sql: Queries, sink: str) -> Steps[bool]:
    """The broker took something: True if it had failed before."""
    rows = yield sql["sink_works"], {"sink": sink}
    return bool(rows[0][0])


def disable(sql: Queries, sink: str, code: str, error: str) -> Steps[None]:
    """Send nothing there until an operator enables it again."""
    yield sql["disable_sink"], {"sink": sink, "code": code, "error": error}
