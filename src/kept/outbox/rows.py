"""Events, subscriptions and sinks as the database knows them, for those who look. Pure."""

from __future__ import annotations

from datetime import datetime

from msgspec import Struct


class EventRow(Struct, frozen=True):
    """An event in a list."""

    seq: int
    event_id: str
    type: str
    version: int
    recorded_at: datetime
    occurred_at: datetime
    actor: str | None
    aggregate_type: str | None
    aggregate_id: str | None
    subscriptions: int  # to how many it was fanned out


class SubscriptionRow(Struct, frozen=True):
    """A subscription as the database knows it."""

    id: int
    name: str
    patterns: list[str]
    queue: str
    ordered: bool
    sink: str | None
    created_at: datetime
    declared_at: datetime
    retired_at: datetime | None
    types: int  # that match it
    declared: bool  # by a live worker
    anybody: bool  # whether any worker lives

    @property
    def abandoned(self) -> bool:
        """Workers live, and none of them declares it."""
        return self.anybody and not self.declared and self.retired_at is None


class SinkRow(Struct, frozen=True):
    """A sink as the database knows it."""

    name: str
    kind: str
    failures: int
    opened_at: datetime | None
    disabled_at: datetime | None
    last_code: str | None
    last_error: str | None
    last_error_at: datetime | None
    lanes: list[int]
    rate: float  # events a second, over the last minute

    @property
    def state(self) -> str:
        if self.disabled_at is not None:
            return "disabled"
        return "open" if self.opened_at is not None else "closed"
