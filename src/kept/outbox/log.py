"""The log of events and who got them: what operators ask, retire and replay (as steps; see :mod:`kept.db.tx`)."""

from __future__ import annotations

from datetime import datetime
from difflib import get_close_matches
from typing import Any, NamedTuple
from uuid import UUID

from msgspec import Struct, json

from kept.db.connect import array
from kept.db.queries import Queries
from kept.db.tx import Steps
from kept.errors import NotFound, Refused
from kept.outbox.model import Event
from kept.outbox.rows import EventRow, SinkRow, SubscriptionRow

NEWEST = 2**63 - 1
BATCH = 200  # events at a time; more aggregates than that are locked as a whole lane


class EventDetail(NamedTuple):
    """Everything about one event."""

    row: EventRow
    headers: str | None
    data: str
    told: list[str]  # the subscriptions it was fanned out to

    def event(self, data: object) -> Event[Any]:
        """The event itself, with its *data* as somebody has read it."""
        row = self.row
        return Event(
            type=row.type,
            data=data,
            version=row.version,
            event_id=row.event_id,
            occurred_at=row.occurred_at,
            actor=row.actor,
            aggregate_type=row.aggregate_type,
            aggregate_id=row.aggregate_id,
            headers=json.decode(self.headers) if self.headers else {},
        )


class Replay(Struct, frozen=True, kw_only=True):
    """Which recorded events go to a subscription. *again*: also those that went to it before."""

    ids: tuple[UUID, ...] | None = None
    pattern: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    again: bool = False
    rate: float | None = None  # jobs that come due in a second, at most


def list_events(sql: Queries, *, limit: int, before: int = NEWEST, **filters: object) -> Steps[list[EventRow]]:
    """The newest events below *before*, by pattern, aggregate_type, aggregate_id, newer_than (seconds)."""
    nothing = dict.fromkeys(("pattern", "aggregate_type", "aggregate_id", "newer_than"))
    rows = yield sql["events"], {**nothing, **filters, "limit": limit, "before": before}
    return [EventRow(*row) for row in rows]


def show_event(sql: Queries, id: UUID) -> Steps[EventDetail]:
    """Everything about one event."""
    rows = yield sql["event"], {"id": id}
    if not rows:
        raise NotFound(f"there is no event {id}; it may have been purged")
    size = len(EventRow.__struct_fields__)
    return EventDetail(EventRow(*rows[0][:size]), *rows[0][size:])


def list_subscriptions(sql: Queries) -> Steps[list[SubscriptionRow]]:
    """Every subscription, retired ones too."""
    rows = yield sql["subscriptions"], {}
    return [SubscriptionRow(*row) for row in rows]


def find_subscription(sql: Queries, name: str) -> Steps[SubscriptionRow]:
    """The subscription of this name, or an error that names near ones."""
    found = yield from list_subscriptions(sql)
    for each in found:
        if each.name == name:
            return each
    near = get_close_matches(name, [each.name for each in found], n=1)
    raise NotFound(f"there is no subscription {name!r}" + (f"; did you mean {near[0]!r}?" if near else ""))


def retire(sql: Queries, name: str) -> Steps[SubscriptionRow]:
    """Tell this subscription of no event from now on."""
    found = yield from find_subscription(sql, name)
    yield sql["lock_routes"], {}
    rows = yield sql["retire"], {"name": name}
    if not rows:
        raise Refused(f"subscription {name!r} is retired already", field="name")
    return found


def list_sinks(sql: Queries) -> Steps[list[SinkRow]]:
    """Every sink that was ever declared."""
    rows = yield sql["sinks"], {}
    return [SinkRow(*row) for row in rows]


def enable_sink(sql: Queries, name: str) -> Steps[int]:
    """Send to this sink again, whatever it said; how many lanes go on."""
    known = yield from list_sinks(sql)
    if name not in {each.name for each in known}:
        raise NotFound(f"there is no sink {name!r}")
    return len((yield sql["enable_sink"], {"sink": name}))


def count_replay(sql: Queries, to: SubscriptionRow, replay: Replay) -> Steps[tuple[int, int]]:
    """How many events *replay* means now, and the newest event of all."""
    rows = yield sql["newest_event"], {}
    newest = int(rows[0][0])
    rows = yield sql["replayable"], _params(to, replay) | {"upto": newest}
    return int(rows[0][0]), newest


def replay_batch(
    sql: Queries, to: SubscriptionRow, replay: Replay, *, after: int, upto: int, done: int
) -> Steps[tuple[int, int | None]]:
    """Tell *to* of the next events, when *done* were told already; how many, and where to go on."""
    rows = yield sql["next_events"], _params(to, replay) | {"after": after, "upto": upto, "limit": BATCH}
    if not rows:
        return 0, None
    seqs, keyed = [row[0] for row in rows], [row for row in rows if row[2] is not None]
    if keyed:
        yield sql["lock_keys"], {"lanes": array([row[1] for row in keyed]), "keys": array([row[2] for row in keyed])}
    pause = 0.0 if replay.rate is None else 1.0 / replay.rate
    told = yield (
        sql["replay"],
        {"subscription": to.id, "seqs": array(seqs), "pause": pause, "delay": done * pause},
    )
    yield sql["wake_lane"], {"subscription": to.id}
    return int(told[0][0]), seqs[-1]


def _params(to: SubscriptionRow, replay: Replay) -> dict[str, object]:
    return {
        "subscription": to.id,
        "patterns": array(to.patterns),
        "pattern": replay.pattern,
        "ids": None if replay.ids is None else array(replay.ids),
        "since": replay.since,
        "until": replay.until,
        "again": replay.again,
    }
