"""Durations: what people write is what they get, and what has no unit is refused."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kept.durations import LONGEST, duration, parse, render
from kept.errors import Refused

valid = st.timedeltas(min_value=timedelta(), max_value=LONGEST)


@given(valid)
def test_what_is_rendered_parses_back_to_the_same_duration(value: timedelta) -> None:
    assert parse(render(value)) == value


@given(valid)
def test_a_rendered_duration_is_one_number_and_one_unit(value: timedelta) -> None:
    assert render(value).rstrip("abcdefghijklmnopqrstuvwxyz").isdigit()


@given(st.text(max_size=30))
def test_any_text_is_a_duration_within_limits_or_refused(text: str) -> None:
    try:
        value = parse(text)
    except Refused:
        return
    assert timedelta() <= value <= LONGEST


@given(st.integers(0, 50), st.integers(0, 50), st.integers(0, 50))
def test_several_parts_add_up(hours: int, minutes: int, seconds: int) -> None:
    wanted = timedelta(hours=hours, minutes=minutes, seconds=seconds)
    assert parse(f"{hours}h{minutes}m{seconds}s") == wanted
    assert parse(f" {hours} h {minutes} MIN {seconds} s ") == wanted


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("7us", timedelta(microseconds=7)),
        ("250ms", timedelta(milliseconds=250)),
        ("60s", timedelta(seconds=60)),
        ("10min", timedelta(minutes=10)),
        ("10m", timedelta(minutes=10)),
        ("24h", timedelta(hours=24)),
        ("7d", timedelta(days=7)),
        ("2w", timedelta(weeks=2)),
        ("0.3s", timedelta(milliseconds=300)),
        ("1.5h", timedelta(minutes=90)),
        ("0s", timedelta()),
    ],
)
def test_every_unit_is_read(text: str, wanted: timedelta) -> None:
    assert parse(text) == wanted


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        (timedelta(), "0s"),
        (timedelta(microseconds=1500), "1500us"),
        (timedelta(milliseconds=250), "250ms"),
        (timedelta(seconds=90), "90s"),
        (timedelta(minutes=10), "10min"),
        (timedelta(days=7), "7d"),
    ],
)
def test_rendering_chooses_the_largest_unit_without_a_rest(value: timedelta, wanted: str) -> None:
    assert render(value) == wanted


@pytest.mark.parametrize("text", ["60", "1.5", "", " ", "s", "-5s", "+5s", ".5s", "5.s", "1,5s", "\u0665s", "5s;"])
def test_a_text_without_number_and_unit_is_refused(text: str) -> None:
    with pytest.raises(Refused, match="write it like '250ms'") as refused:
        parse(text, field="lease")
    assert refused.value.field == "lease"


def test_an_unknown_unit_is_refused_by_name() -> None:
    with pytest.raises(Refused, match=r"'5 parsecs' has an unknown unit 'parsecs'; known: us, ms, s,"):
        parse("5 parsecs")


@pytest.mark.parametrize("text", ["3651d", "999999999d 999999999d", "9" * 400 + "s", "9" * 20 + "w 1s"])
def test_more_than_ten_years_is_refused(text: str) -> None:
    with pytest.raises(Refused, match="longer than ten years"):
        parse(text)


def test_a_long_text_is_cut_in_the_message() -> None:
    with pytest.raises(Refused) as refused:
        parse("x" * 10_000)
    assert len(str(refused.value)) < 200


@given(st.one_of(st.integers(), st.floats(), st.booleans(), st.none(), st.binary()))
def test_a_caller_who_gives_no_unit_gets_a_type_error(value: object) -> None:
    with pytest.raises(TypeError, match="timeout: expected a duration like '30s' or a timedelta"):
        duration(value, field="timeout")


@given(valid)
def test_a_timedelta_is_taken_as_it_is(value: timedelta) -> None:
    assert duration(value) is value


def test_a_string_is_parsed() -> None:
    assert duration("30s") == timedelta(seconds=30)


@given(st.timedeltas(max_value=timedelta(microseconds=-1)))
def test_a_negative_timedelta_is_refused(value: timedelta) -> None:
    with pytest.raises(Refused, match="must not be negative"):
        duration(value)


@given(st.timedeltas(min_value=LONGEST + timedelta(microseconds=1)))
def test_a_timedelta_of_more_than_ten_years_is_refused(value: timedelta) -> None:
    with pytest.raises(Refused, match="longer than ten years"):
        duration(value)
