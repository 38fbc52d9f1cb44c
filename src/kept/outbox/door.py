"""Emitting: events as one statement that runs in anybody's transaction (see :mod:`kept.db.tx`)."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from msgspec import Struct, structs

from kept.db.connect import array
from kept.db.queries import Queries
from kept.db.tx import Steps
from kept.durations import moment
from kept.errors import Refused
from kept.jobs.payload import check_key, check_text, encode_headers
from kept.outbox.model import Event
from kept.outbox.rules import check_type, check_version
from kept.outbox.types import MOST_AGGREGATE_ID, MOST_AGGREGATE_TYPE, EventTypes

MOST_ACTOR = 512


class Emission(Struct, frozen=True, kw_only=True):
    """One event to be: checked, encoded, ready to be written."""

    type: str
    version: int
    data: str
    occurred_at: datetime | None
    actor: str | None
    aggregate_type: str | None
    aggregate_id: str | None
    headers: str | None
    key: str | None


def emission(types: EventTypes, event: Event[Any], key: str | None, *, limit: int) -> Emission:
    """*event*, checked, or :class:`Refused` with the field that is wrong."""
    check_type(event.type)
    check_version(event.version)
    if event.event_id:
        raise Refused(
            "event_id: the database gives it; give a key to emit an event once however often you try", field="event_id"
        )
    if (event.aggregate_type is None) != (event.aggregate_id is None):
        raise Refused("aggregate_type and aggregate_id: give both or neither", field="aggregate_id")
    return Emission(
        type=event.type,
        version=event.version,
        data=types.encode(event, limit=limit),
        occurred_at=None if event.occurred_at is None else moment(event.occurred_at, field="occurred_at"),
        actor=_text(event.actor, "actor", MOST_ACTOR),
        aggregate_type=_text(event.aggregate_type, "aggregate_type", MOST_AGGREGATE_TYPE),
        aggregate_id=_text(event.aggregate_id, "aggregate_id", MOST_AGGREGATE_ID),
        headers=encode_headers(event.headers),
        key=None if key is None else check_key(key),
    )


def emit(sql: Queries, emission: Emission, unique_for: float) -> Steps[str]:
    """Record an event and fan it out; its id, or that of the event that holds its key."""
    rows = yield sql["emit"], structs.asdict(emission) | {"unique_for": unique_for}
    id: str = rows[0][0]
    return id


def emit_many(sql: Queries, emissions: Sequence[Emission]) -> Steps[list[str]]:
    """Record events without keys and fan them out, in order; the id of each."""
    if not emissions:
        return []
    rows = yield (
        sql["emit_many"],
        {
            "types": array([e.type for e in emissions]),
            "versions": array([e.version for e in emissions]),
            "occurred": array([e.occurred_at for e in emissions]),
            "actors": array([e.actor for e in emissions]),
            "aggregate_types": array([e.aggregate_type for e in emissions]),
            "aggregate_ids": array([e.aggregate_id for e in emissions]),
            "headers": array([e.headers for e in emissions]),
            "data": array([e.data for e in emissions]),
        },
    )
    ids: str = rows[0][0]
    return ids[1:-1].split(",")


def _text(value: object, field: str, most: int) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str):
        raise TypeError(f"{field}: expected a string, got {type(value).__name__}")
    size = len(value.encode("utf-8", "surrogatepass"))
    if not 1 <= size <= most:
        raise Refused(f"{field}: has {size} bytes; allowed are 1 to {most}", field=field)
    check_text(value, field)
    return value
