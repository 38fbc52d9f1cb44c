"""Connections: what goes wrong becomes one sentence without a password, and a worker's session has its settings."""

from __future__ import annotations

import socket
from datetime import UTC, datetime
from urllib.parse import urlsplit

import psycopg
import pytest

from kept.db.connect import Link, array, connect, connect_sync, conninfo, is_pooled, numbered, numbers, unavailable
from kept.db.embedded import Embedded
from kept.errors import Misconfigured, Unavailable
from support import eventually

SECRET = "s3cret"


@pytest.fixture(scope="module")
def guarded(tmp_path_factory):
    """The URL of a server that asks the role ada for a password; nobody else."""
    with Embedded(tmp_path_factory.mktemp("guarded")) as server, psycopg.connect(server.url(), autocommit=True) as conn:
        conn.execute(f"create role ada login password '{SECRET}'")
        hba = conn.execute("show hba_file").fetchone()[0]
        lines = ["local all ada scram-sha-256", "local all all trust"]
        conn.execute(f"copy (select unnest(%s::text[])) to '{hba}'".replace("%s", f"'{array(lines)}'"))
        conn.execute("select pg_reload_conf()")
        url = urlsplit(server.url())
        assert eventually(lambda: not _opens(_as(url, "ada", "")), what="the new rules to hold")
        yield lambda password: _as(url, "ada", password)


def _as(url, user, password):
    return url._replace(netloc=f"{user}:{password}@").geturl()


def _opens(url):
    try:
        psycopg.connect(url).close()
    except psycopg.OperationalError:
        return False
    return True


async def refusals(database):
    """What every way to connect says."""
    said = []
    for way in (connect, Link.open):
        with pytest.raises((Unavailable, Misconfigured)) as caught:
            await way(database)
        said.append(caught.value)
    with pytest.raises((Unavailable, Misconfigured)) as caught:
        connect_sync(database)
    said.append(caught.value)
    for error in said:
        assert SECRET not in str(error)
        assert "\n" not in str(error)
        assert error.__cause__ is None
        assert error.__suppress_context__  # the driver's own error may quote the password
    return said


async def test_the_right_password_opens(guarded):
    conn = await connect(guarded(SECRET))
    assert conn.autocommit
    await conn.close()
    with connect_sync(guarded(SECRET)) as sync:
        assert sync.autocommit


async def test_a_wrong_password_is_one_sentence_that_does_not_repeat_it(guarded):
    for error in await refusals(guarded(SECRET + "x")):
        assert isinstance(error, Unavailable)
        assert "password authentication failed" in str(error)


async def test_a_server_that_is_not_there_is_unavailable():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound and not listening: nobody answers, and nobody else can
        for error in await refusals(f"postgresql://ada:{SECRET}@127.0.0.1:{taken.getsockname()[1]}/app"):
            assert isinstance(error, Unavailable)
            assert "refused" in str(error)


async def test_a_server_that_never_answers_is_given_up_on():
    with socket.socket() as mute:
        mute.bind(("127.0.0.1", 0))
        mute.listen()
        url = f"postgresql://ada:{SECRET}@127.0.0.1:{mute.getsockname()[1]}/app?connect_timeout=2"
        with pytest.raises(Unavailable, match="timeout"):
            await connect(url)


async def test_a_database_that_is_not_there_is_unavailable(database):
    for error in await refusals(urlsplit(database)._replace(path="/nowhere").geturl()):
        assert '"nowhere" does not exist' in str(error)


@pytest.mark.parametrize(
    "url",
    [
        f"postgresql://ada:{SECRET}%zz@db/app",
        f"postgresql://ada:my {SECRET}@db/app",
        f"host=db password=my {SECRET}",
        f"host=db password='{SECRET}",
        f"postgresql://ada:{SECRET}@[::1/app",
        f"postgresql://ada:{SECRET}@db/app?shards={SECRET}",
        f"{SECRET}",
        f"postgresql://ada:{SECRET}@db/app?connect_timeout={SECRET}",
    ],
)
async def test_an_unreadable_url_is_a_misconfiguration_that_does_not_quote_it(url):
    for error in await refusals(url):
        assert isinstance(error, Misconfigured)
        assert str(error).startswith("the database URL is not readable: ")


def test_whatever_the_driver_says_is_shown_without_a_password_and_not_for_pages():
    error = unavailable(psycopg.OperationalError(f"no route\nto postgresql://ada:{SECRET}@db/app " + "x" * 9000))
    assert SECRET not in str(error)
    assert "no route to postgresql://ada:***@db/app" in str(error)
    assert len(str(error)) < 600


def test_our_timeouts_are_added_and_the_urls_own_stay():
    given = psycopg.conninfo.conninfo_to_dict(conninfo("postgresql://db/app?connect_timeout=3", name="kept worker"))
    assert given["connect_timeout"] == "3"
    assert given["application_name"] == "kept worker"
    assert given["tcp_user_timeout"] == "30000"
    named = conninfo("dbname=app application_name=theirs")
    assert psycopg.conninfo.conninfo_to_dict(named)["application_name"] == "theirs"


# --- a worker's session


async def settings(link):
    names = [
        "enable_seqscan",
        "enable_hashjoin",
        "plan_cache_mode",
        "jit",
        "TimeZone",
        "statement_timeout",
        "backend_flush_after",
    ]
    return (await link.rows(f"select {', '.join(f'current_setting({n!r})' for n in names)}"))[0]


async def test_a_workers_session_has_the_settings_its_plans_need(database):
    link = await Link.open(database, name="kept test")
    assert not link.pooled
    assert await settings(link) == ("off", "off", "force_generic_plan", "off", "UTC", "30s", "1MB")
    [[name]] = await link.rows("select current_setting('application_name')")
    assert name == "kept test"
    await link.close()
    assert link.conn.closed


async def test_behind_a_pooler_each_statement_brings_its_settings_and_leaves_nothing_behind(database):
    conn = await connect(database)
    conn.prepare_threshold = None
    link = Link(conn, pooled=True)
    assert await settings(link) == ("off", "off", "force_generic_plan", "off", "UTC", "30s", "1MB")
    left = await (await conn.execute("select current_setting('enable_seqscan')")).fetchone()
    assert left == ("on",)
    assert await (await conn.execute("select count(*) from pg_prepared_statements")).fetchone() == (0,)
    await link.close()


async def test_a_server_that_greets_with_its_own_process_id_is_no_pooler(database):
    conn = await connect(database)
    assert not await is_pooled(conn)
    await conn.close()


async def test_statements_without_rows_return_none(database):
    link = await Link.open(database)
    assert await link.rows("create temporary table t (n int)") == []
    assert await link.rows("insert into t values (%(n)s) returning n", {"n": 7}) == [(7,)]
    await link.close()


# --- arrays as text


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (
            "text",
            ["", "a", None, "null", "NULL", 'qu"ote', "back\\slash", "{brace}", "a,b", " x ", "é😀", "line\nbreak"],
        ),
        ("bigint", [1, -(2**63), 2**63 - 1, None]),
        ("float8", [0.1, 1e300, -0.0, 5e-324, None, 3.0]),
        ("boolean", [True, False, None]),
        ("timestamptz", [datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC), None]),
        ("text", []),
    ],
)
async def test_an_array_comes_to_the_server_as_it_was(kind, values, database):
    link = await Link.open(database)
    [[came]] = await link.rows(f"select %(values)s::{kind}[]", {"values": array(values)})
    await link.close()
    assert came == values


def test_named_parameters_are_numbered_once_each_and_percent_signs_are_plain():
    query = "select %(b)s::int, %(a)s::text, %(b)s::int, 7 %% 2"
    assert numbered(query) == ("select $1::int, $2::text, $1::int, 7 % 2", ("b", "a"))
    assert numbered("select 1") == ("select 1", ())


def test_whole_numbers_are_written_as_an_array():
    assert [numbers(values) for values in ([], [1], [1, -2, 3])] == ["{}", "{1}", "{1, -2, 3}"]


async def test_a_server_that_refuses_to_pin_the_path_is_not_taken_for_an_unreadable_url(role, database, conn):
    conn.execute("revoke execute on function pg_catalog.set_config(text, text, boolean) from public")
    conn.execute(psycopg.sql.SQL("alter role {} login").format(psycopg.sql.Identifier(role)))
    parts = urlsplit(database)
    url = parts._replace(netloc=f"{role}@{parts.netloc.partition('@')[2]}").geturl()
    with pytest.raises(Unavailable, match="set_config"):
        connect_sync(url)
    with pytest.raises(Unavailable, match="set_config"):
        await connect(url)
