"""The outbox as a program sees it: declare events and handlers, emit in its own transaction."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any, TypedDict, TypeVar, Unpack

from msgspec import structs

from kept.client import Client
from kept.config import Settings
from kept.db.queries import Queries
from kept.db.queries import load as load_queries
from kept.errors import Refused
from kept.outbox import door
from kept.outbox.door import Emission
from kept.outbox.model import Event
from kept.outbox.subscriptions import Subscriptions
from kept.outbox.types import EventTypes, Upcaster

C = TypeVar("C", bound=type[Any])


class About(TypedDict, total=False):
    """What can be said of an event besides its data; see :class:`Event`."""

    version: int
    occurred_at: datetime
    actor: str
    aggregate_type: str
    aggregate_id: str
    headers: Mapping[str, str]


class Events(Client):
    """A client that emits."""

    def __init__(
        self,
        database: str | None,
        settings: Settings | None,
        default_tx: Callable[[], object | None] | None,
    ) -> None:
        super().__init__(database, settings, default_tx)
        self.event_types = EventTypes()
        self.subscriptions = Subscriptions()

    @property
    def outbox_sql(self) -> Queries:
        return load_queries("kept.outbox", self.settings.schema)

    # --- declaring

    def event(
        self, type: str, *, version: int = 1, aggregate_type: str | None = None, aggregate_id: str | None = None
    ) -> Callable[[C], C]:
        """Declare the data of an event: ``@app.event("invoice.created", version=2, aggregate_id="id")`` on a class.

        The class is a msgspec Struct, a dataclass or a pydantic model. *aggregate_id* names the field that says what
        it happened to; *aggregate_type* is the first word of the type unless given.
        """

        def declare(cls: C) -> C:
            return self.event_types.add(cls, type, version, aggregate_type, aggregate_id)

        return declare

    def upcast(self, type: str, *, from_version: int) -> Callable[[Upcaster], Upcaster]:
        """Declare how data of an older version becomes that of the next: plain dict in, plain dict out."""

        def declare(lift: Upcaster) -> Upcaster:
            return self.event_types.add_upcaster(type, from_version, lift)

        return declare

    # --- emitting

    def emit(
        self,
        event: object,
        data: object = None,
        *,
        tx: object | None = None,
        key: str | None = None,
        **about: Unpack[About],
    ) -> str:
        """Emit an event in your own transaction; its id. It is recorded, and told to whoever subscribed, if you commit.

        *event* is an instance of a class declared with ``@app.event``, an :class:`Event`, or a type with its *data*:
        ``emit("invoice.created", {"id": 7}, actor="user:7", aggregate_type="invoice", aggregate_id="7")``. With a *key*
        a second emit returns the first one's id and does nothing.
        """
        emission = self._emission(event, data, key, about)
        return self.run(door.emit(self.outbox_sql, emission, self.unique_for), tx)

    async def aemit(
        self,
        event: object,
        data: object = None,
        *,
        tx: object | None = None,
        key: str | None = None,
        **about: Unpack[About],
    ) -> str:
        """:meth:`emit` for async code."""
        emission = self._emission(event, data, key, about)
        return await self.arun(door.emit(self.outbox_sql, emission, self.unique_for), tx)

    def emit_many(self, events: Iterable[object], *, tx: object | None = None) -> list[str]:
        """Emit many events in one statement, in order: all of them or none."""
        emissions = [self._emission(event, None, None, About()) for event in events]
        return self.run(door.emit_many(self.outbox_sql, emissions), tx)

    async def aemit_many(self, events: Iterable[object], *, tx: object | None = None) -> list[str]:
        """:meth:`emit_many` for async code."""
        emissions = [self._emission(event, None, None, About()) for event in events]
        return await self.arun(door.emit_many(self.outbox_sql, emissions), tx)

    def _emission(self, given: object, data: object, key: str | None, about: About) -> Emission:
        if isinstance(given, str):
            declared = self.event_types.declared(given)
            about = {"version": 1 if declared is None else declared.version, **about}
            event: Event[Any] = Event(type=given, data={} if data is None else data, **about)
        elif data is not None:
            raise Refused("emit: data goes with a type, emit('invoice.created', {…}), not with an event", field="data")
        else:
            event = self.event_types.event(given)
            event = structs.replace(event, **about) if about else event
        return door.emission(self.event_types, event, key, limit=self.payload_limit)
