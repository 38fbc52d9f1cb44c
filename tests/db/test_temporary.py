"""A schema that is there for a while takes with it all that came with it, and nothing that others have or use."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest
from psycopg.sql import SQL, Identifier

from kept.db import migrate, temporary
from kept.db.embedded import Embedded

PREFIX = "kept_trial"


@pytest.fixture(scope="module")
def untouched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server that never had Kept: roles belong to a whole server."""
    with Embedded(tmp_path_factory.mktemp("untouched") / "pg", options={"fsync": "off"}) as server:
        yield server.url()


@pytest.fixture
def conn(untouched: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(untouched, autocommit=True) as conn:
        before = roles(conn)
        yield conn
        for (schema,) in conn.execute("select nspname from pg_namespace where nspname ~ '^kept'").fetchall():
            conn.execute(SQL("drop schema {} cascade").format(Identifier(schema)))
        for role in sorted(roles(conn) - before, reverse=True):
            conn.execute(SQL("drop role {}").format(Identifier(role)))


def roles(conn: psycopg.Connection) -> set[str]:
    return {name for (name,) in conn.execute("select rolname from pg_roles").fetchall()}


def has_role(conn: psycopg.Connection) -> bool:
    return "kept_producer" in roles(conn)


def built(conn: psycopg.Connection) -> str:
    schema = temporary.new_name(PREFIX)
    temporary.build(conn, schema)
    return schema


def test_it_is_all_that_kept_has_in_a_schema(conn: psycopg.Connection) -> None:
    schema = built(conn)
    assert migrate.pending(conn, schema) == []
    assert has_role(conn)


def test_a_role_that_came_with_it_goes_with_it(conn: psycopg.Connection) -> None:
    temporary.drop(conn, built(conn))
    assert not has_role(conn)


def test_a_role_that_was_there_before_stays(conn: psycopg.Connection) -> None:
    conn.execute("create role kept_producer")
    temporary.drop(conn, built(conn))
    assert has_role(conn)


def test_of_two_at_once_the_last_one_takes_the_role_with_it(
    conn: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = temporary.new_name(PREFIX), temporary.new_name(PREFIX)
    with monkeypatch.context() as both:
        both.setattr(temporary.migrate, "apply", lambda *_: [])  # both look before either has made it
        temporary.build(conn, first)
        temporary.build(conn, second)
    migrate.apply(conn, first)
    migrate.apply(conn, second)
    temporary.drop(conn, first)
    assert has_role(conn)
    temporary.drop(conn, second)
    assert not has_role(conn)


@pytest.mark.parametrize(
    "use",
    [
        "create role somebody; grant kept_producer to somebody",
        "create role somebody; grant somebody to kept_producer",
        "alter role kept_producer login",
    ],
)
def test_a_role_that_somebody_uses_meanwhile_stays(conn: psycopg.Connection, use: str) -> None:
    schema = built(conn)
    conn.execute(use)
    temporary.drop(conn, schema)
    assert has_role(conn)
    assert schema not in {name for (name,) in conn.execute("select nspname from pg_namespace").fetchall()}


def test_a_role_that_kept_in_another_database_lets_in_stays(conn: psycopg.Connection, untouched: str) -> None:
    schema = built(conn)
    conn.execute("create database another")
    try:
        with psycopg.connect(untouched, dbname="another", autocommit=True) as other:
            migrate.apply(other)
        temporary.drop(conn, schema)
        assert has_role(conn)
    finally:
        conn.execute("drop database another with (force)")


def test_whoever_may_make_roles_without_being_superuser_leaves_none(conn: psycopg.Connection, untouched: str) -> None:
    conn.execute("create role visitor login createrole")
    conn.execute("grant create on database postgres to visitor")
    try:
        with psycopg.connect(untouched, user="visitor", autocommit=True) as visitor:
            schema = built(visitor)
            assert has_role(visitor)
            temporary.drop(visitor, schema)
            assert not has_role(visitor)
    finally:
        conn.execute("revoke create on database postgres from visitor")


def test_what_a_killed_run_left_goes_with_the_next_unless_it_is_held(conn: psycopg.Connection, untouched: str) -> None:
    schema = built(conn)
    migrate.apply(conn, "kept_trial_not_ours")
    with psycopg.connect(untouched, autocommit=True) as user:
        assert temporary.hold(user, schema)
        assert not temporary.hold(conn, schema)
        assert temporary.sweep(conn, PREFIX) == []
    conn.execute('drop schema "kept_trial_not_ours" cascade')
    assert temporary.sweep(conn, PREFIX) == [schema]
    assert not has_role(conn)
    assert temporary.sweep(conn, PREFIX) == []
