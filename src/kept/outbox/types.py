"""The event classes an App declares: how their data is written, read, and lifted from older versions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from kept.errors import Refused
from kept.jobs.payload import encode, read_foreign
from kept.outbox.model import Event
from kept.outbox.rules import check_type, check_version

C = TypeVar("C", bound=type[Any])
Upcaster = Callable[[dict[str, Any]], Mapping[str, Any]]
MOST_AGGREGATE_TYPE, MOST_AGGREGATE_ID = 200, 512


@dataclass(frozen=True, slots=True)
class Declared:
    """What ``@app.event`` wrote down."""

    cls: type[Any]
    type: str
    version: int
    aggregate_type: str | None
    aggregate_id: str | None  # the name of the field that holds it
    decoder: msgspec.json.Decoder[Any]

    def event(self, data: object) -> Event[Any]:
        """*data*, an instance of this class, as an event."""
        id = None if self.aggregate_id is None else getattr(data, self.aggregate_id)
        return Event(
            type=self.type,
            data=data,
            version=self.version,
            aggregate_type=None if id is None else self.aggregate_type,
            aggregate_id=None if id is None else str(id),
        )


class EventTypes:
    """Declared classes by type, and the upcasters between their versions."""

    def __init__(self) -> None:
        self._by_type: dict[str, Declared] = {}
        self._by_class: dict[type[Any], Declared] = {}
        self._upcasters: dict[tuple[str, int], Upcaster] = {}

    def __iter__(self) -> Any:
        return iter(self._by_type.values())

    def add(self, cls: C, type: str, version: int, aggregate_type: str | None, aggregate_id: str | None) -> C:
        """Declare that events of *type*, in this *version*, have the data of *cls*."""
        declared = Declared(
            cls,
            check_type(type),
            check_version(version),
            _aggregate_type(type, aggregate_type, aggregate_id),
            _field(cls, type, aggregate_id),
            _decoder(cls, type),
        )
        for taken in (self._by_type.get(type), self._by_class.get(cls)):
            if taken is not None:
                raise Refused(
                    f"event {type!r}: {taken.cls.__qualname__} is declared as {taken.type!r} already", field="type"
                )
        self._by_type[type] = self._by_class[cls] = declared
        return cls

    def add_upcaster(self, type: str, from_version: int, lift: Upcaster) -> Upcaster:
        """Declare how the data of version *from_version* becomes that of the next."""
        place = (check_type(type), check_version(from_version))
        if place in self._upcasters:
            raise Refused(f"event {type!r}: version {from_version} has an upcaster already", field="from_version")
        self._upcasters[place] = lift
        return lift

    def declared(self, type: str) -> Declared | None:
        return self._by_type.get(type)

    def event(self, given: object) -> Event[Any]:
        """What ``emit`` was given, as an event."""
        if isinstance(given, Event):
            return given
        declared = self._by_class.get(given.__class__)
        if declared is None:
            raise Refused(
                f"emit: {given.__class__.__qualname__} is not declared as an event; decorate the class with "
                "@app.event('invoice.created'), or call emit('invoice.created', {…})",
                field="event",
            )
        return declared.event(given)

    def encode(self, event: Event[Any], *, limit: int) -> str:
        """The data of *event* as JSON, such that a handler will be able to read it."""
        text = encode(event.data, what=f"event {event.type!r}", limit=limit, field="data")
        if not text.startswith("{"):
            raise Refused(f"event {event.type!r}: the data must be an object with named fields", field="data")
        declared = self._by_type.get(event.type)
        if declared is None:
            return text
        if event.version > declared.version:
            message = f"version {event.version} is unknown; {declared.cls.__qualname__} is version {declared.version}"
            raise Refused(f"event {event.type!r}: {message}", field="version")
        if event.version == declared.version:
            read(declared, text)
        for step in range(event.version, declared.version):
            self._upcaster(event.type, step)
        return text

    def lift(self, type: str, version: int, data: str) -> str:
        """*data* of an older *version* as the version that is declared now."""
        declared = self._by_type[type]
        lifted: Any = msgspec.json.decode(data)
        for step in range(version, declared.version):
            upcaster = self._upcaster(type, step)
            try:
                lifted = upcaster(lifted)
            except Exception as error:  # an upcaster is the user's own
                raise Refused(f"event {type!r}: its upcaster from version {step} failed: {error!r}") from error
        return encode(lifted, what=f"event {type!r}, lifted", limit=2**31)

    def _upcaster(self, type: str, step: int) -> Upcaster:
        found = self._upcasters.get((type, step))
        if found is None:
            known = self._by_type[type].version
            message = f"there is no upcaster from version {step}, and this code knows version {known}"
            raise Refused(f"event {type!r}: {message}", field="version")
        return found


def read(declared: Declared, data: str) -> Any:
    """*data* as an instance of the declared class, or :class:`Refused`."""
    try:
        return declared.decoder.decode(data)
    except Exception as error:  # noqa: BLE001  # a type's own validation may raise anything
        problem = " ".join(str(error).split())[:500]
        raise Refused(
            f"event {declared.type!r}: the data does not fit {declared.cls.__qualname__}: {problem}", field="data"
        ) from None


def _decoder(cls: type[Any], type: str) -> msgspec.json.Decoder[Any]:
    try:
        return msgspec.json.Decoder(cls, dec_hook=read_foreign)
    except TypeError as error:
        raise Refused(f"event {type!r}: {cls.__qualname__} cannot be read from JSON: {error}") from None


def _field(cls: type[Any], type: str, name: str | None) -> str | None:
    known = {*getattr(cls, "__annotations__", {}), *(n for base in cls.__mro__ for n in vars(base))}
    if name is not None and name not in known:
        raise Refused(f"event {type!r}: {cls.__qualname__} has no field {name!r}", field="aggregate_id")
    return name


def _aggregate_type(type: str, given: str | None, id: str | None) -> str | None:
    """By default the first word of the type: an ``invoice.created`` happens to an ``invoice``."""
    return type.partition(".")[0] if given is None and id is not None else given
