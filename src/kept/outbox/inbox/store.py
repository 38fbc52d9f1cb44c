"""One typed function for each statement, as steps over any connection (see :mod:`kept.db.tx`)."""

from __future__ import annotations

from typing import NamedTuple

from kept.db.queries import Queries
from kept.db.tx import Steps
from kept.outbox.inbox.model import ConsumerRow, Marked

MOST_COUNTED = 100_000  # markers of one consumer that are counted one by one


class Event(NamedTuple):
    """One event as one consumer sees it."""

    consumer: str
    event_id: str

    def params(self) -> dict[str, object]:
        return self._asdict()


def mark(sql: Queries, event: Event, *, ttl: float, identify: bool) -> Steps[Marked]:
    """Mark *event* as handled by the transaction this runs in, unless it was before; a marker under way is awaited."""
    rows = yield sql["mark"], event.params() | {"ttl": ttl, "identify": identify}
    return Marked(*rows[0])


def take_back(sql: Queries, event: Event) -> Steps[None]:
    """Remove the marker again, if it is of this very transaction."""
    yield sql["take_back"], event.params()


def forget(sql: Queries, event: Event) -> Steps[tuple[bool, str]]:
    """Remove a marker, so that the event counts as new; whether there was one, and the identity of its table."""
    rows = yield sql["forget"], event.params()
    return rows[0][0], rows[0][1]


def consumers(sql: Queries) -> Steps[list[ConsumerRow]]:
    """Every consumer that has markers, in the order of names."""
    rows = yield sql["consumers"], {"most": MOST_COUNTED}
    return [ConsumerRow(*row) for row in rows]
