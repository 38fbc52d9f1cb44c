"""Arguments at the door: what fits comes back as it was, what does not is refused with its name (promise 17)."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from enum import Enum, IntEnum
from typing import Annotated, Any, Literal, NamedTuple, TypedDict
from uuid import UUID

import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kept.errors import Refused
from kept.jobs.payload import (
    MOST_DEPTH,
    MOST_HEADERS,
    MOST_KEY,
    Signature,
    check_key,
    check_name,
    decode_result,
    encode,
    encode_headers,
    encode_result,
)

LIMIT = 1024**2


def signature(handler, *, takes_context=False):
    return Signature(handler, task="send", takes_context=takes_context)


def refused(handler, *args, limit=LIMIT, **kwargs):
    with pytest.raises(Refused) as caught:
        signature(handler).encode(args, kwargs, limit=limit)
    assert "send" in str(caught.value)
    return caught.value


def round_trip(handler, *args, **kwargs):
    bound = signature(handler)
    return bound.decode(bound.encode(args, kwargs, limit=LIMIT))


# --- what does not fit the signature


def greet(user_id: int, *, locale: str = "en", score: float = 0.0, tags: list[str] | None = None) -> None: ...


@pytest.mark.parametrize(
    ("args", "kwargs", "named"),
    [
        ((), {}, "user_id"),
        ((1, 2), {}, "too many positional"),
        ((1,), {"lokale": "de"}, "lokale"),
        ((1,), {"user_id": 2}, "user_id"),
        (("7",), {}, "user_id"),
        ((None,), {}, "user_id"),
        ((True,), {}, "user_id"),
        ((1,), {"locale": 5}, "locale"),
        ((1,), {"score": "high"}, "score"),
        ((1,), {"tags": ["a", 5]}, "tags"),
        ((1,), {"tags": "abc"}, "tags"),
    ],
)
def test_a_wrong_or_missing_argument_is_refused_by_name(args, kwargs, named):
    assert named in str(refused(greet, *args, **kwargs))


def anyhow(value=None, other=None) -> None: ...


def nested(depth):
    value: list[Any] = []
    for _ in range(depth - 1):
        value = [value]
    return value


class Unwritable:
    pass


class Stubborn:
    def model_dump(self, *, mode: str) -> object:
        raise LookupError("not today")


class Reading(pydantic.BaseModel):
    value: float | None = None


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (Unwritable(), "Unwritable is not JSON"),
        (Unwritable, "type is not JSON"),
        ((n for n in range(3)), "generator is not JSON"),
        (lambda: None, "function is not JSON"),
        (Stubborn(), "LookupError: 'not today'|LookupError: not today"),
        ({(1, 2): 3}, "keys"),
        ({None: 3}, "keys"),
        (math.nan, "NaN"),
        (math.inf, "NaN"),
        (-math.inf, "NaN"),
        ([1.0, [None, {"deep": [math.nan]}]], "NaN"),
        ({"a": {"b": math.inf}}, "NaN"),
        ((1, math.nan), "NaN"),
        ({math.inf}, "NaN"),
        (Reading(value=math.nan), "NaN"),
        ("a\0b", "NUL"),
        ({"a\0b": 1}, "NUL"),
        (["\\\0"], "NUL"),
        ("\ud800", "surrogate"),
        ({"\udfff": 1}, "surrogate"),
        ([["ab\ud83d"]], "surrogate"),
        (nested(MOST_DEPTH), f"deeper than {MOST_DEPTH}"),
        (nested(5_000), f"deeper than {MOST_DEPTH}"),
        (nested(100_000), f"deeper than {MOST_DEPTH}"),
        ("x" * LIMIT, f"bytes exceed the limit of {LIMIT}"),
        (msgspec.Raw(b"{oops"), "do not fit"),
        (msgspec.Raw(b'"\\ud800"'), "do not fit"),
    ],
)
def test_a_value_that_cannot_be_stored_is_refused_with_its_problem(value, problem):
    with pytest.raises(Refused, match=problem):
        signature(anyhow).encode((1,), {"other": value}, limit=LIMIT)


@pytest.mark.parametrize("value", [Unwritable(), math.nan, "\0", "\ud800", "x" * LIMIT, nested(MOST_DEPTH + 1)])
def test_the_argument_to_blame_is_named(value):
    error = refused(anyhow, 1, other=value)
    assert error.field == "other"
    assert "argument 'other'" in str(error)


def test_arguments_that_are_too_large_together_are_refused_although_each_would_fit():
    assert "exceed the limit of 100" in str(refused(anyhow, "x" * 60, "y" * 60, limit=100))


def test_nan_hides_nowhere_in_an_optional():
    def measure(value: float | None = None, readings: list[float | None] | None = None) -> None: ...

    assert refused(measure, math.nan).field == "value"
    assert refused(measure, readings=[None, math.inf]).field == "readings"
    assert round_trip(measure, None, readings=[None, 1.5]) == {"value": None, "readings": [None, 1.5]}


def test_a_null_next_to_ordinary_floats_is_fine():
    assert round_trip(anyhow, {"a": None, "b": 1.5}) == {"value": {"a": None, "b": 1.5}}


@pytest.mark.parametrize(
    "text", ["\\u0000", "\\\\u0000", "a \\u0000 b", "u0000", "\\ud800", '"', "\\", "null", "NaN", "é😀\u2028\x01"]
)
def test_text_that_only_looks_dangerous_is_fine(text):
    assert round_trip(anyhow, text, {text: [text]}) == {"value": text, "other": {text: [text]}}


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(alphabet="ab\\u0"), inner, max_size=4),
    max_leaves=20,
)


@given(json_values)
def test_every_json_value_comes_back_as_it_was(value):
    assert round_trip(anyhow, value) == {"value": value}


@given(st.text(st.characters(exclude_categories=())) | st.lists(st.text(st.characters(exclude_categories=()))))
def test_text_is_either_refused_or_comes_back_as_it_was(value):
    try:
        assert round_trip(anyhow, value) == {"value": value}
    except Refused:
        assert re.search("[\0\ud800-\udfff]", "".join(value))


@given(json_values)
def test_equal_arguments_make_equal_payloads(value):
    first = signature(anyhow).encode((1,), {"other": value}, limit=LIMIT)
    second = signature(anyhow).encode((), {"other": value, "value": 1}, limit=LIMIT)
    assert first == second


def test_the_deepest_allowed_nesting_is_allowed():
    assert round_trip(anyhow, nested(MOST_DEPTH - 1))["value"] == nested(MOST_DEPTH - 1)


def test_many_flat_brackets_are_not_depth():
    assert round_trip(anyhow, [[] for _ in range(1000)])["value"] == [[]] * 1000


# --- types that come back


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Size(IntEnum):
    SMALL = 1


@dataclass
class Address:
    street: str
    number: int = 1


class Invoice(msgspec.Struct):
    id: int
    lines: list[Address] = []


class Person(TypedDict, total=False):
    name: str
    age: int


class Point(NamedTuple):
    x: int
    y: int


class Order(pydantic.BaseModel):
    id: int
    ordered_at: datetime
    total: Decimal
    address: Reading | None = None


STAMP = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (Address, Address("Elm", 4)),
        (list[Address], [Address("Elm"), Address("Oak", 2)]),
        (Invoice, Invoice(7, [Address("Elm")])),
        (Invoice | None, None),
        (dict[str, Invoice], {"a": Invoice(7)}),
        (Person, {"name": "Ada"}),
        (Point, Point(1, 2)),
        (Order, Order(id=1, ordered_at=STAMP, total=Decimal("9.90"), address=Reading(value=1.5))),
        (Order | None, Order(id=1, ordered_at=STAMP, total=Decimal(3))),
        (list[Order], [Order(id=1, ordered_at=STAMP, total=Decimal(3))]),
        (datetime, STAMP),
        (datetime, STAMP.astimezone(timezone(timedelta(hours=5, minutes=30)))),
        (datetime, STAMP.replace(tzinfo=None)),
        (date, date(2026, 2, 28)),
        (timedelta, timedelta(days=3, microseconds=7)),
        (UUID, UUID(int=2**127 + 5)),
        (Decimal, Decimal("12345678901234567890.123456789")),
        (Colour, Colour.BLUE),
        (Size, Size.SMALL),
        (Literal["a", "b"], "b"),
        (bytes, b"\0\xff"),
        (set[int], {1, 2}),
        (tuple[int, str], (1, "a")),
        (dict[int, str], {1: "a", 10: "b"}),
        (dict[UUID, int], {UUID(int=1): 1}),
        (int, 2**200),
        (float, 5e-324),
        (Any, {"a": [1]}),
        (object, {"a": [1]}),
        (Annotated[int, msgspec.Meta(ge=1)], 4),
    ],
)
def test_an_argument_comes_back_as_the_type_its_handler_declares(kind, value):
    def required(thing) -> None: ...
    def optional(thing=None) -> None: ...

    required.__annotations__["thing"] = optional.__annotations__["thing"] = kind
    for handler in (required, optional):
        thing = round_trip(handler, value)["thing"]
        assert thing == value
        assert type(thing) is type(value)


class Positive(pydantic.BaseModel):
    value: int = pydantic.Field(gt=0)


class Moody(msgspec.Struct):
    value: int

    def __post_init__(self) -> None:
        raise LookupError("not today")


def test_a_models_own_validation_refuses_at_the_door():
    def take(model: Positive) -> None: ...

    assert "greater than 0" in str(refused(take, {"value": -1}))


def test_a_validation_that_raises_whatever_it_likes_is_a_refusal():
    def take(moody: Moody) -> None: ...

    assert "LookupError: not today" in str(refused(take, {"value": -1}))


@pytest.mark.parametrize("payload", ["", "{", "[]", "null", '{"user_id":1e999}', '{"user_id":"\\ud800"}', "[" * 10_000])
def test_a_payload_from_elsewhere_that_does_not_fit_is_refused(payload):
    with pytest.raises(Refused, match="the arguments do not fit"):
        signature(greet).decode(payload)


# --- signatures


def test_arguments_are_stored_by_name_wherever_they_stood():
    assert signature(greet).encode((7,), {"locale": "de"}, limit=LIMIT) == '{"locale":"de","user_id":7}'


def test_defaults_are_the_handlers_own_when_the_job_runs():
    def before(user_id: int) -> None: ...
    def after(user_id: int, locale: str = "de", *, tone: Colour = Colour.RED) -> None: ...

    payload = signature(before).encode((7,), {}, limit=LIMIT)
    assert signature(after).decode(payload) == {"user_id": 7}


def test_an_argument_the_handler_no_longer_takes_is_refused():
    with pytest.raises(Refused, match="user_id"):
        signature(anyhow).decode('{"user_id":7}')


def test_a_required_parameter_may_stand_behind_one_with_a_default():
    def handler(*, first: int = 1, second: int) -> None: ...

    assert round_trip(handler, second=2) == {"second": 2}


def test_further_keywords_are_taken_and_come_back():
    def handler(user_id: int, **more) -> None: ...

    assert round_trip(handler, 1, a=[1], more="x", b=None) == {"user_id": 1, "a": [1], "more": "x", "b": None}
    assert round_trip(handler, 1) == {"user_id": 1}


def test_further_keywords_have_the_type_they_are_declared_with():
    def handler(**addresses: Address) -> None: ...

    assert round_trip(handler, home=Address("Elm")) == {"home": Address("Elm")}
    assert "argument `work`" in str(refused(handler, home=Address("Elm"), work=5))


def test_a_further_keyword_cannot_take_the_contexts_place():
    def handler(ctx, **more) -> None: ...

    with pytest.raises(Refused, match="name of the Context"):
        signature(handler, takes_context=True).encode((), {"ctx": 1}, limit=LIMIT)


def test_the_context_is_not_an_argument():
    def handler(ctx, user_id: int) -> None: ...

    taking = signature(handler, takes_context=True)
    assert taking.decode(taking.encode((7,), {}, limit=LIMIT)) == {"user_id": 7}


def test_an_unresolvable_annotation_is_refused_at_the_declaration():
    def handler(thing) -> None: ...

    handler.__annotations__["thing"] = "NoSuchThing"
    with pytest.raises(Refused, match="NoSuchThing"):
        signature(handler)


def test_a_type_json_cannot_tell_apart_is_refused_at_the_declaration():
    @dataclass
    class Other:
        street: str

    def handler(thing) -> None: ...

    handler.__annotations__["thing"] = Address | Other
    with pytest.raises(Refused, match="send"):
        signature(handler)


@pytest.mark.parametrize(
    "handler", [lambda *args: None, eval("lambda x, /: None")], ids=["star-args", "positional-only"]
)
def test_parameters_without_a_name_in_the_payload_are_refused_at_the_declaration(handler):
    with pytest.raises(Refused, match="stored by name"):
        signature(handler)


# --- results


def test_a_plain_none_costs_nothing():
    assert encode_result(None, limit=LIMIT) is None
    assert decode_result(None, int) is None


def test_a_result_comes_back_as_the_type_the_handler_promised():
    text = encode_result(Address("Elm", 3), limit=LIMIT)
    assert decode_result(text, Address) == Address("Elm", 3)


@pytest.mark.parametrize("kind", [int, Invoice, Address | Invoice | Point, Unwritable])
def test_a_result_that_no_longer_fits_comes_back_as_plain_data(kind):
    assert decode_result('{"street":"Elm"}', kind) == {"street": "Elm"}


@pytest.mark.parametrize("value", [Unwritable(), Stubborn(), math.nan, "\0", "x" * LIMIT])
def test_a_result_that_cannot_be_stored_is_refused(value):
    with pytest.raises(Refused, match="the result"):
        encode_result(value, limit=LIMIT)


def test_a_limit_is_inclusive():
    assert encode("x" * 98, what="it", limit=100) == '"' + "x" * 98 + '"'
    with pytest.raises(Refused, match="101 bytes exceed the limit of 100"):
        encode("x" * 99, what="it", limit=100)


# --- names, keys, headers


@pytest.mark.parametrize("name", ["send", "a", "0", "_x", "mail.send", "a:b/c-d_e.f", "x" * 200])
def test_a_name_is_accepted(name):
    assert check_name(name, what="task", most=200) == name


@pytest.mark.parametrize(
    "name", ["", " ", ".a", "-a", "a b", "a\n", "é", "a\0", "send;drop", "\ud800", "x" * 201, "a'b", "%s"]
)
def test_an_odd_name_is_refused_with_the_field(name):
    with pytest.raises(Refused, match="task: ") as error:
        check_name(name, what="task", most=200)
    assert error.value.field == "task"
    assert len(str(error.value)) < 300


@pytest.mark.parametrize("value", [None, 5, b"send", ["send"]])
def test_names_and_keys_are_strings(value):
    with pytest.raises(TypeError, match="expected a string"):
        check_name(value, what="task", most=200)
    with pytest.raises(TypeError, match="expected a string"):
        check_key(value)


@pytest.mark.parametrize("key", ["k", "x" * MOST_KEY, "é" * (MOST_KEY // 2), "two words", "\\u0000"])
def test_a_key_is_accepted(key):
    assert check_key(key) == key


@pytest.mark.parametrize("key", ["", "x" * (MOST_KEY + 1), "é" * (MOST_KEY // 2 + 1), "a\0", "\ud800"])
def test_an_odd_key_is_refused(key):
    with pytest.raises(Refused, match="key: ") as error:
        check_key(key)
    assert error.value.field == "key"


def test_headers_come_out_as_json_and_none_as_nothing():
    assert encode_headers({"trace": "a", "b": "é"}) == '{"b":"é","trace":"a"}'
    assert encode_headers({}) is None
    assert encode_headers(None) is None


@pytest.mark.parametrize(
    "headers", [{"a": "\0"}, {"\0": "a"}, {"a": "\ud800"}, {"a": "x" * MOST_HEADERS}, {str(n): "" for n in range(5000)}]
)
def test_odd_headers_are_refused(headers):
    with pytest.raises(Refused, match="headers") as error:
        encode_headers(headers)
    assert error.value.field == "headers"


@pytest.mark.parametrize("headers", [{"a": 1}, {1: "a"}, {"a": None}, ["a"], "a=b"])
def test_headers_are_a_mapping_of_strings(headers):
    with pytest.raises(TypeError, match="headers"):
        encode_headers(headers)
