"""Whatever a handler's exception says can be recorded (promise 16)."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kept.errors import Failure
from kept.jobs.text import MOST_DETAIL, MOST_MESSAGE, attribute_of, clean, code_of, detail_of, message_of

anything = st.text(st.characters(exclude_categories=()))  # surrogates and NUL included


class Mute(Exception):
    """Cannot be told."""

    def __str__(self):
        raise RuntimeError("no")

    __repr__ = __str__


class Hostile(Exception):
    """Every attribute anybody might ask for raises."""

    @property
    def code(self):
        raise KeyError("code")

    retryable = after = code


def raised(error):
    try:
        raise error
    except BaseException as caught:
        return caught


@given(anything, st.integers(1, 200))
def test_clean_text_never_exceeds_its_limit_and_can_always_be_stored(text, most):
    cleaned = clean(text, most)
    assert len(cleaned) <= most
    assert "\0" not in cleaned
    assert cleaned.encode() == cleaned.encode("utf-8", "surrogatepass")


@given(st.text(st.characters(categories=["L", "N"])), st.integers(200, 400))
def test_text_that_fits_stays_as_it_is(text, most):
    assert clean(text, most) == text


@given(st.integers(41, 500), st.integers(1, 10_000))
def test_of_a_long_text_head_and_tail_stay_and_the_gap_is_counted(most, more):
    text = "".join(f"{number:07}\n" for number in range((most + more) // 8 + 2))
    cleaned = clean(text, most)
    gap = re.search(r"\n… (\d+) more characters …\n", cleaned)
    assert gap is not None
    head, tail = cleaned[: gap.start()], cleaned[gap.end() :]
    assert text.startswith(head)
    assert text.endswith(tail)
    assert int(gap[1]) == len(text) - most


def test_a_message_of_ten_megabytes_is_cut():
    message = message_of(ValueError("x" * 10_000_000))
    assert len(message) == MOST_MESSAGE
    assert "more characters" in message


def test_a_traceback_of_ten_megabytes_is_cut():
    assert len(detail_of(raised(ValueError("x" * 10_000_000)))) <= MOST_DETAIL


def test_nul_and_lone_surrogates_are_replaced_and_the_rest_stays():
    assert message_of(ValueError("a\0b\ud800c😀")) == "a\ufffdb\ufffdc😀"


@pytest.mark.parametrize(
    "text",
    [
        "could not connect to postgresql://ada:s3cret@db/app",
        "connection string: host=db user=ada password=s3cret dbname=app",
        "password='s3cret' host=db",
    ],
)
def test_a_password_in_a_connection_string_is_never_recorded(text):
    error = raised(RuntimeError(text))
    assert "s3cret" not in message_of(error)
    assert "s3cret" not in detail_of(error)
    assert "s3cret" not in clean("y" * 50_000 + " " + text, MOST_MESSAGE)
    assert "s3cret" not in clean(text + " " + "y" * 50_000, MOST_MESSAGE)


@given(st.integers(0, 400))
def test_cutting_a_long_text_cannot_bare_a_part_of_a_password(shift):
    text = ("password=s3cret " * 40 + "z" * shift + " ") * 20
    assert "s3cret" not in clean(text, 100)


def test_an_exception_that_cannot_be_told_is_told_of():
    error = raised(Mute())
    assert message_of(error) == "<the message of Mute could not be read: RuntimeError>"
    assert "Mute" in detail_of(error)


def test_an_exception_whose_text_ends_the_process_does_not_end_the_process():
    class Exiting(Exception):
        def __str__(self):
            raise SystemExit(3)

    error = raised(Exiting())
    assert "Exiting" in message_of(error)
    assert "Exiting" in detail_of(error)


def test_a_traceback_says_where():
    assert "in raised" in detail_of(raised(ValueError("here")))
    assert "ValueError: here" in detail_of(raised(ValueError("here")))


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (Failure("declined", code="card_declined"), "card_declined"),
        (ValueError(), "value_error"),
        (type("HTTPError", (Exception,), {})(), "http_error"),
        (type("Überlauf", (Exception,), {})(), "_berlauf"),
        (type("E", (Exception,), {"code": 404})(), "e"),
        (type("E", (Exception,), {"code": "NOT A CODE"})(), "e"),
        (type("E" * 300, (Exception,), {})(), "e" * 100),
        (Hostile(), "hostile"),
    ],
)
def test_a_code_is_the_exceptions_own_or_its_class_in_lower_snake(error, code):
    assert code_of(error) == code


def test_an_attribute_that_cannot_be_read_is_as_good_as_none():
    assert attribute_of(Hostile(), "after") is None
    assert attribute_of(Hostile(), "absent") is None
    assert attribute_of(Failure("x", code="y"), "retryable") is True
