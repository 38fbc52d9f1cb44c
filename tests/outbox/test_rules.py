"""Types, patterns and versions: what is one, what matches, and that SQL sees it as Python does."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kept import Refused
from kept.outbox.rules import Rest, check_pattern, check_type, check_version, matches, pause

words = st.text("abAB0_-", min_size=1, max_size=3)
types = st.lists(words, min_size=1, max_size=4).map(".".join)
patterns = types | types.map("{}.*".format) | st.just("*")


@given(types)
def test_words_with_dots_between_are_a_type_and_a_pattern(type):
    assert check_type(type) == check_pattern(type) == type
    assert check_pattern(f"{type}.*") == f"{type}.*"


@pytest.mark.parametrize(
    "type",
    ["", ".", "a.", ".a", "a..b", "a b", "a\n", "ä", "a.*", "*", "a'b", 'a"b', "a\\b", "a\0", "\ud800", "a" * 201],
)
def test_anything_else_is_not_a_type(type):
    with pytest.raises(Refused) as refused:
        check_type(type)
    assert refused.value.field == "type"


@pytest.mark.parametrize("pattern", ["a*", "*.a", "a.*.b", "**", ".*", "a..*", "*a", "a.**", "a' or 1=1 --.*"])
def test_a_star_stands_at_the_end_behind_a_dot_or_alone(pattern):
    with pytest.raises(Refused) as refused:
        check_pattern(pattern)
    assert refused.value.field == "pattern"


@pytest.mark.parametrize("wrong", [None, 7, b"a", ["a"]])
def test_a_type_that_is_no_text_is_a_type_error(wrong):
    for check in (check_type, check_pattern):
        with pytest.raises(TypeError, match="expected a string"):
            check(wrong)


def test_versions_are_whole_numbers_from_one():
    assert check_version(1) == 1
    for wrong in (0, -1, 1_000_001):
        with pytest.raises(Refused, match="version"):
            check_version(wrong)
    for odd in (True, "1", 1.0, None):
        with pytest.raises(TypeError, match="version"):
            check_version(odd)


def test_a_pattern_matches_its_type_or_what_begins_with_its_words():
    assert matches("invoice.created", ["invoice.created"])
    assert matches("invoice.created", ["order.*", "invoice.*"])
    assert matches("invoice.line.added", ["invoice.*"])
    assert matches("invoice", ["*"])
    assert not matches("invoice", ["invoice.*"])
    assert not matches("invoices.created", ["invoice.*"])
    assert not matches("invoice.created", [])


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(types, st.lists(patterns, max_size=3))
def test_sql_matches_as_python_does(conn, type, wanted):
    found = conn.execute("select kept.type_matches(%s, %s::text[])", [type, wanted]).fetchone()
    assert found == (matches(type, wanted),)


@given(st.integers(1, 10_000), st.floats(0, 1))
def test_a_broker_rests_longer_each_time_up_to_the_most(failures, draw):
    rest = Rest(0.5, 10.0)
    seconds = pause(rest, failures, draw)
    assert 0.4 <= seconds <= 10.0
    assert pause(rest, failures + 1, draw) >= seconds
