"""SQL files are loaded once, with the schema's name put in."""

from __future__ import annotations

import pytest

from kept.db.queries import in_schema, load, wake_channel


def test_every_mention_of_the_schema_is_replaced_and_quoted():
    text = "select kept.now() from kept.job; create schema kept; notify 'kept:wake'"
    assert in_schema(text, "order") == (
        'select "order".now() from "order".job; create schema "order"; notify \'order:wake\''
    )


@pytest.mark.parametrize("text", ["kept_producer", "is kept.", "Kept.", "in kept", "unkept.job"])
def test_what_is_not_the_schema_stays(text):
    assert in_schema(text, "other") == text


def test_the_default_schema_is_quoted_too_and_means_the_same():
    assert in_schema("select kept.now()", "kept") == 'select "kept".now()'


def test_a_quote_in_a_schema_name_cannot_end_the_identifier():
    assert in_schema("kept.job", 'a"; drop') == '"a""; drop".job'


def test_two_schemas_have_channels_of_their_own():
    assert wake_channel("one") != wake_channel("two")


def test_a_package_s_statements_are_known_by_name():
    queries = load("kept.archive")
    assert "make_partition" in list(queries)
    assert queries["clock"] == 'select "kept".now()'


def test_a_statement_may_include_another():
    queries = load("kept.jobs")
    assert "-- include" not in queries["step"]
    assert queries["claim"] in queries["step"]


def test_an_unknown_statement_is_a_key_error():
    with pytest.raises(KeyError):
        load("kept.archive")["no_such_statement"]


def test_statements_are_read_once_per_schema():
    assert load("kept.archive", "a") is load("kept.archive", "a")
    assert load("kept.archive", "a") is not load("kept.archive", "b")
