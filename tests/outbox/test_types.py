"""Event classes: what may be declared, what is written and read, and how old versions are lifted."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
import pytest
from pydantic import BaseModel

from kept import Event, Refused
from kept.outbox.types import EventTypes, read


class Made(msgspec.Struct):
    id: int
    total: float = 0.0


@dataclass
class Paid:
    id: int


class Sent(BaseModel):
    id: int


@pytest.fixture
def types() -> EventTypes:
    return EventTypes()


def test_a_class_stays_the_class_it_was(types):
    assert types.add(Made, "invoice.made", 1, None, None) is Made


@pytest.mark.parametrize("cls", [Made, Paid, Sent])
def test_structs_dataclasses_and_models_are_written_and_read_back(types, cls):
    types.add(cls, "invoice.x", 2, None, "id")
    event = types.event(cls(id=7))
    assert (event.type, event.version, event.aggregate_type, event.aggregate_id) == ("invoice.x", 2, "invoice", "7")
    assert read(types.declared("invoice.x"), types.encode(event, limit=1000)) == cls(id=7)


def test_a_type_or_a_class_is_declared_once(types):
    types.add(Made, "invoice.made", 1, None, None)
    with pytest.raises(Refused, match=r"Made is declared as 'invoice\.made' already"):
        types.add(Paid, "invoice.made", 1, None, None)
    with pytest.raises(Refused, match="already"):
        types.add(Made, "invoice.other", 1, None, None)


def test_the_field_of_the_aggregate_must_exist(types):
    with pytest.raises(Refused, match="has no field 'number'") as refused:
        types.add(Made, "invoice.made", 1, None, "number")
    assert refused.value.field == "aggregate_id"


def test_an_inherited_field_or_a_property_is_a_field(types):
    class Child(Made):
        @property
        def place(self) -> str:
            return "here"

    types.add(Child, "invoice.child", 1, "thing", "place")
    assert types.event(Child(id=1)).aggregate_id == "here"


def test_a_class_that_json_cannot_be_read_into_is_refused(types):
    class Two(msgspec.Struct):
        either: dict[str, int] | Made

    with pytest.raises(Refused, match="cannot be read from JSON"):
        types.add(Two, "a.b", 1, None, None)


def test_an_undeclared_object_is_refused_with_what_to_do(types):
    with pytest.raises(Refused, match="Paid is not declared as an event"):
        types.event(Paid(1))


def test_data_must_have_named_fields(types):
    for data in ([1], "text", 7, None):
        with pytest.raises(Refused) as refused:
            types.encode(Event(type="a.b", data=data), limit=1000)
        assert refused.value.field == "data"


def test_data_that_does_not_fit_its_class_is_refused_when_it_is_written(types):
    types.add(Made, "invoice.made", 2, None, None)
    for data in ({"id": "seven"}, {}, Made(id="seven")):
        with pytest.raises(Refused, match="the data does not fit Made") as refused:
            types.encode(Event(type="invoice.made", version=2, data=data), limit=1000)
        assert refused.value.field == "data"


def test_a_version_newer_than_the_declared_one_is_refused(types):
    types.add(Made, "invoice.made", 2, None, None)
    with pytest.raises(Refused, match="version 3 is unknown; Made is version 2") as refused:
        types.encode(Event(type="invoice.made", version=3, data={"id": 1}), limit=1000)
    assert refused.value.field == "version"


def test_data_is_lifted_step_by_step(types):
    types.add(Made, "invoice.made", 3, None, None)
    types.add_upcaster("invoice.made", 1, lambda data: {"id": data["number"]})
    types.add_upcaster("invoice.made", 2, lambda data: {**data, "total": 1.5})
    assert read(types.declared("invoice.made"), types.lift("invoice.made", 1, '{"number": 7}')) == Made(7, 1.5)


def test_a_missing_step_is_named(types):
    types.add(Made, "invoice.made", 3, None, None)
    types.add_upcaster("invoice.made", 1, dict)
    with pytest.raises(Refused, match="no upcaster from version 2, and this code knows version 3"):
        types.lift("invoice.made", 1, "{}")


def test_a_version_has_one_upcaster(types):
    types.add_upcaster("invoice.made", 1, dict)
    with pytest.raises(Refused, match="has an upcaster already"):
        types.add_upcaster("invoice.made", 1, dict)
