"""The breaker of a sink, in the database: one worker meets a broker that is away, and the cluster lets it rest."""

from __future__ import annotations

from typing import NamedTuple

from kept.db.queries import Queries
from kept.db.tx import Steps
from kept.errors import NotFound
from kept.outbox.rules import Rest, pause


class Met(NamedTuple):
    """What a broker said to a batch: of which sink, in which lane; *took*: it acknowledged some of it all the same."""

    sink: str
    lane: int
    code: str
    error: str
    took: bool


class Rested(NamedTuple):
    """A rest that began: after so many failures in a row, for so many seconds."""

    failures: int
    seconds: float


def rests(sql: Queries, met: Met, rest: Rest, after: float | None, draw: float) -> Steps[Rested | None]:
    """Pause the sink's lanes, longer with every failure in a row; None if somebody has just done so.

    *after* is what the broker itself asks for, in seconds.
    """
    if not (yield sql["lock_sink"], {"sink": met.sink}):
        raise NotFound(f"there is no sink {met.sink!r}; `kept sync` makes it")
    rows = yield sql["sink_failed"], met._asdict()
    if not rows:
        return None
    failures = int(rows[0][0])
    seconds = max(pause(rest, failures, draw), after or 0.0)
    yield sql["rest_sink"], {"sink": met.sink, "lane": met.lane, "seconds": seconds}
    return Rested(failures, seconds)


def works(sql: Queries, sink: str) -> Steps[bool]:
    """The broker took something: True if it had failed before."""
    rows = yield sql["sink_works"], {"sink": sink}
    return bool(rows[0][0])


def disable(sql: Queries, met: Met) -> Steps[bool]:
    """Send nothing there until an operator enables it again; True if it was enabled until now."""
    rows = yield sql["lock_sink"], {"sink": met.sink}
    yield sql["disable_sink"], met._asdict()
    return bool(rows and rows[0][0])
