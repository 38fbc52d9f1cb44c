"""A database that cannot serve a call of the library: one clear error of ours, and nothing is stored."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import closing

import psycopg
import pytest

from kept import App
from kept.config import Settings
from kept.db import migrate
from kept.db.connect import connect_sync
from kept.errors import Error, SchemaMismatch, Unavailable
from kept.tasks import SyncTask
from old_server import OldServer

Greet = SyncTask[[str], None]
CALLS: dict[str, Callable[[App, Greet], object]] = {
    "enqueue": lambda _, greet: greet.enqueue("you"),
    "enqueue with a key": lambda _, greet: greet.using(key="k").enqueue("you"),
    "aenqueue": lambda _, greet: asyncio.run(greet.aenqueue("you")),
    "enqueue_many": lambda app, greet: app.enqueue_many([greet.bind("you")]),
    "aenqueue_many": lambda app, greet: asyncio.run(app.aenqueue_many([greet.bind("you")])),
}
LOOKS: dict[str, Callable[[App, Greet], object]] = {
    "job": lambda app, _: app.job(7),
    "ajob": lambda app, _: asyncio.run(app.ajob(7)),
}


def refusal(database: str, call: Callable[[App, Greet], object], **settings: str) -> Error:
    """What *call* raises, on an App of its own."""
    app = App(database, settings=Settings(**settings))

    @app.task()
    def greet(whom: str) -> None: ...

    with closing(app), pytest.raises(Error) as raised:
        call(app, greet)
    return raised.value


# --- no schema


@pytest.mark.parametrize("how", [*CALLS, *LOOKS])
def test_a_missing_schema_says_how_to_make_it(empty_database: str, how: str) -> None:
    error = refusal(empty_database, {**CALLS, **LOOKS}[how])
    assert type(error) is SchemaMismatch and error.code == "schema_mismatch"
    assert str(error).startswith("the schema is not set up in this database, or older than this code needs (")
    assert '"kept.' in str(error) and str(error).endswith("; run `kept migrate`")
    assert isinstance(error.__cause__, psycopg.Error)


def test_a_schema_by_another_name_is_named(database: str) -> None:
    error = refusal(database, CALLS["enqueue"], schema="elsewhere")
    assert type(error) is SchemaMismatch
    assert '"elsewhere.' in str(error)


def test_a_missing_schema_in_the_callers_own_transaction_leaves_their_data_to_them(empty_database: str) -> None:
    with psycopg.connect(empty_database) as conn:
        conn.execute("create table users (id int)")
        conn.commit()
        conn.execute("insert into users values (7)")
        error = refusal(empty_database, lambda _, greet: greet.using(tx=conn).enqueue("you"))
        assert type(error) is SchemaMismatch
        assert conn.info.transaction_status == psycopg.pq.TransactionStatus.INERROR
        conn.rollback()
        assert conn.execute("select count(*) from users").fetchone() == (0,)


def test_once_the_schema_is_there_the_same_app_works(empty_database: str) -> None:
    app = App(empty_database, settings=Settings())

    @app.task()
    def greet(whom: str) -> None: ...

    with closing(app):
        with pytest.raises(SchemaMismatch):
            greet.enqueue("you")
        with connect_sync(empty_database) as conn:
            migrate.apply(conn)
        assert greet.enqueue("you").created


# --- read-only


@pytest.mark.parametrize("how", CALLS)
def test_an_enqueue_on_a_read_only_connection_is_something_to_try_later(
    database: str, conn: psycopg.Connection, how: str
) -> None:
    conn.execute(f"alter database {conn.info.dbname} set default_transaction_read_only = on")
    error = refusal(database, CALLS[how])
    assert type(error) is Unavailable and error.code == "unavailable"
    assert str(error) == "this connection is read-only, as on a standby; Kept needs the primary"
    assert conn.execute("select count(*) from kept.job").fetchone() == (0,)


# --- too old


@pytest.fixture
def old() -> Iterator[OldServer]:
    with closing(OldServer()) as old:
        yield old


@pytest.mark.parametrize("how", [*CALLS, *LOOKS])
def test_a_server_too_old_is_named_as_such(old: OldServer, how: str) -> None:
    error = refusal(old.url, {**CALLS, **LOOKS}[how])
    assert type(error) is SchemaMismatch
    assert str(error) == "Kept needs PostgreSQL 15 or newer, this is 14"


async def test_a_worker_does_not_start_on_a_server_too_old(old: OldServer) -> None:
    app = App(old.url, settings=Settings())
    with pytest.raises(SchemaMismatch, match="Kept needs PostgreSQL 15 or newer, this is 14"):
        async with app.worker():
            pass
    assert old.refused == []
