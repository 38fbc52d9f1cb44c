"""An event's job on its way into a handler: the envelope read, its data lifted to the version this code knows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Raw, Struct

from kept.errors import Defer, Refused
from kept.jobs.payload import Signature, read_foreign
from kept.outbox.model import Event
from kept.outbox.types import Declared, EventTypes, read

NEWER_AGAIN = "60s"  # until an event that is newer than this code is looked at again: another worker may know it


class Envelope(Struct, frozen=True):
    """The payload of an event's job."""

    event_id: str
    type: str
    version: int
    occurred_at: datetime
    data: Raw
    actor: str | None = None
    aggregate_type: str | None = None
    aggregate_id: str | None = None
    headers: Mapping[str, str] = msgspec.field(default_factory=dict)

    def event(self, data: Any, version: int) -> Event[Any]:
        """The event, with its *data* in this *version*."""
        return Event(
            type=self.type,
            data=data,
            version=version,
            event_id=self.event_id,
            occurred_at=self.occurred_at,
            actor=self.actor,
            aggregate_type=self.aggregate_type,
            aggregate_id=self.aggregate_id,
            headers=self.headers,
        )


_ENVELOPE = msgspec.json.Decoder(Envelope)


def read_envelope(payload: str) -> Envelope:
    """The envelope in a job's payload, or :class:`Refused`."""
    try:
        return _ENVELOPE.decode(payload)
    except (msgspec.DecodeError, RecursionError) as error:  # SQL takes deeper nesting than we can read
        raise Refused(f"the payload is not the envelope of an event: {error}") from None


class EventSignature(Signature):
    """The one parameter of an event handler after its Context."""

    def __init__(
        self,
        handler: Callable[..., object],
        *,
        task: str,
        takes_context: bool,
        types: EventTypes,
        warn: Callable[[str], None],
    ) -> None:
        super().__init__(handler, task=task, takes_context=takes_context)
        if len(self._places) != 1 or len(self._names) != 1:
            raise Refused(f"handler {task!r}: must take one event, as in `event: Event[InvoiceCreated]`", field="event")
        (self._name,) = self._places
        self._types = types
        self._warn = warn
        self._warned: set[tuple[str, int]] = set()
        self._read: msgspec.json.Decoder[Any] = msgspec.json.Decoder(
            _data_type(handler, self._name, task), dec_hook=read_foreign
        )

    def decode(self, payload: str) -> dict[str, Any]:
        """The event for the handler. Data of an older version is lifted; a newer one waits, uncharged."""
        envelope = read_envelope(payload)
        declared = self._types.declared(envelope.type)
        if declared is None:
            return {self._name: envelope.event(self._plain(envelope), envelope.version)}
        return {self._name: envelope.event(self._lifted(envelope, declared), declared.version)}

    def _lifted(self, envelope: Envelope, declared: Declared) -> Any:
        text = bytes(envelope.data).decode()
        if envelope.version > declared.version:
            raise Defer(NEWER_AGAIN, self._newer(envelope, declared))
        if envelope.version < declared.version:
            text = self._types.lift(envelope.type, envelope.version, text)
        return read(declared, text)

    def _newer(self, envelope: Envelope, declared: Declared) -> str:
        told = f"{envelope.type} version {envelope.version} is newer than this code, which knows {declared.version}"
        if (envelope.type, envelope.version) not in self._warned:
            self._warned.add((envelope.type, envelope.version))
            self._warn(f"{self.task}: {told}; such events wait for a worker that knows it")
        return told

    def _plain(self, envelope: Envelope) -> Any:
        try:
            return self._read.decode(bytes(envelope.data))
        except Exception as error:  # noqa: BLE001  # a type's own validation may raise anything
            problem = " ".join(str(error).split())[:500]
            raise Refused(f"event {envelope.type!r}: the data does not fit: {problem}", field="data") from None


def _data_type(handler: Callable[..., object], name: str, task: str) -> Any:
    """What the handler says its event's data is."""
    hint = get_type_hints(handler).get(name, Event)
    if hint is Event or hint is Any:
        return Any
    if get_origin(hint) is Event:
        return get_args(hint)[0]
    raise Refused(f"handler {task!r}: parameter {name!r} must be an Event, as in `Event[InvoiceCreated]`", field=name)
