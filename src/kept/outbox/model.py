"""An event as handlers and callers see it, and as CloudEvents see it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Generic, TypeVar

from msgspec import Struct, field

T = TypeVar("T")


class Event(Struct, Generic[T], frozen=True, kw_only=True):
    """Something that happened: a fact that was committed together with your data.

    A handler declared with ``@app.on`` is given one. To emit, hand your own event class to ``app.emit``, or make an
    Event for what needs more than its data: ``Event(type="invoice.created", data={"id": 7}, actor="user:7")``.
    """

    type: str
    data: T
    version: int = 1
    event_id: str = ""  # the database's to give: version 7, so it sorts by time
    occurred_at: datetime | None = None  # when it happened; by default, when it was emitted
    actor: str | None = None  # who did it: "user:7"
    aggregate_type: str | None = None  # what it happened to, and the key of its order
    aggregate_id: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)  # trace context and the like


def cloudevent(event: Event[Any], source: str) -> dict[str, Any]:
    """*event* in the JSON format of CloudEvents 1.0; what they have no name for becomes an extension."""
    subject = None if event.aggregate_id is None else f"{event.aggregate_type}/{event.aggregate_id}"
    fields = {
        "specversion": "1.0",
        "id": event.event_id,
        "source": source,
        "type": event.type,
        "subject": subject,
        "time": event.occurred_at,
        "datacontenttype": "application/json",
        "dataversion": str(event.version),
        "actor": event.actor,
        "aggregatetype": event.aggregate_type,
        "aggregateid": event.aggregate_id,
        "traceparent": event.headers.get("traceparent"),
        "data": event.data,
    }
    return {name: value for name, value in fields.items() if value is not None}
