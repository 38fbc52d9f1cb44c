"""The proxy of `kept verify`: a calm network changes nothing, and every condition does what it says."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from random import Random

import psycopg
import pytest

from kept.verify.conditions import Blackhole, HalfOpen, ResetAfterCommit, ResetBeforeCommit, Slow, Trickle
from kept.verify.proxy import Proxy, proxy_before
from support import eventually


@pytest.fixture
def proxy(database: str) -> Iterator[Proxy]:
    with proxy_before(database) as proxy:
        yield proxy


@pytest.fixture
def client(proxy: Proxy, conn: psycopg.Connection) -> Iterator[psycopg.Connection]:
    """A connection through the proxy, and a table to write to."""
    conn.execute("create table note (text text)")
    with psycopg.connect(proxy.url, autocommit=True, prepare_threshold=0) as client:
        yield client


def notes(conn: psycopg.Connection) -> list[str]:
    return [row[0] for row in conn.execute("select text from note order by text")]


def note(client: psycopg.Connection, text: str) -> None:
    client.execute("insert into note values (%s)", [text])


def refused(client: psycopg.Connection, text: str) -> None:
    with pytest.raises(psycopg.OperationalError):
        note(client, text)


def test_a_calm_network_carries_large_things_both_ways(client: psycopg.Connection) -> None:
    text = "x" * 5_000_000
    found = client.execute("select length(%s), repeat('y', 3000000)", [text]).fetchone()
    assert found == (5_000_000, "y" * 3_000_000)


def test_a_slow_network_is_slow_each_way_until_it_is_calm_again(proxy: Proxy, client: psycopg.Connection) -> None:
    with proxy.under(Slow(0.2)):
        began = time.monotonic()
        client.execute("select 1")
        assert time.monotonic() - began >= 0.4
    began = time.monotonic()
    client.execute("select 1")
    assert time.monotonic() - began < 0.2


def test_a_trickle_arrives_whole(proxy: Proxy, client: psycopg.Connection) -> None:
    trickle = Trickle(pause=0.001)
    with proxy.under(trickle):
        began = time.monotonic()
        assert client.execute("select 'short'").fetchone() == ("short",)
        assert time.monotonic() - began > 0.02
        timer = threading.Timer(0.2, trickle.stop)
        timer.start()
        assert client.execute("select repeat('y', 100000)").fetchone() == ("y" * 100_000,)
        timer.join()


def test_a_connection_that_breaks_before_its_commit_leaves_nothing(
    proxy: Proxy, client: psycopg.Connection, conn: psycopg.Connection
) -> None:
    condition = ResetBeforeCommit(Random(0), every=1)
    client.autocommit = False
    note(client, "in a transaction")
    with proxy.under(condition):
        with pytest.raises(psycopg.OperationalError):
            client.commit()
        assert notes(conn) == []
    with psycopg.connect(proxy.url, autocommit=True) as another:
        note(another, "calm")
        with proxy.under(condition):
            refused(another, "by itself")
    assert notes(conn) == ["calm"]
    assert condition.hits == 2


def test_a_connection_that_breaks_after_its_commit_has_left_everything(
    proxy: Proxy, client: psycopg.Connection, conn: psycopg.Connection
) -> None:
    condition = ResetAfterCommit(Random(0), every=1)
    client.autocommit = False
    with proxy.under(condition):
        note(client, "in a transaction")  # neither BEGIN nor what follows commits anything
        assert notes(conn) == []
        with pytest.raises(psycopg.OperationalError):
            client.commit()
    assert notes(conn) == ["in a transaction"]
    with psycopg.connect(proxy.url, autocommit=True) as another:
        note(another, "calm")
        with proxy.under(condition):
            refused(another, "by itself")
    assert notes(conn) == ["by itself", "calm", "in a transaction"]
    assert condition.hits == 2


@pytest.mark.parametrize("condition", [Blackhole(), HalfOpen()], ids=["blackhole", "half-open"])
def test_a_request_that_vanished_has_no_reply_until_the_connection_breaks(
    proxy: Proxy, client: psycopg.Connection, conn: psycopg.Connection, condition: Blackhole | HalfOpen
) -> None:
    failed = threading.Event()

    def ask() -> None:
        with pytest.raises(psycopg.OperationalError):
            note(client, "into the void")
        failed.set()

    with proxy.under(condition):
        asking = threading.Thread(target=ask)
        asking.start()
        gone = "select count(*) = 0 from pg_stat_activity where pid = %s"
        pid = [client.info.backend_pid]
        if isinstance(condition, HalfOpen):
            eventually(lambda: (conn.execute(gone, pid).fetchone() or [0])[0], what="the server to see it gone")
        assert not failed.wait(0.3)
    assert failed.wait(5)
    asking.join()
    assert notes(conn) == []
    with psycopg.connect(proxy.url) as another:
        assert another.execute("select 1").fetchone() == (1,)


def test_who_was_not_used_meanwhile_is_not_harmed(proxy: Proxy, client: psycopg.Connection) -> None:
    with proxy.under(Blackhole()):
        pass
    assert client.execute("select 1").fetchone() == (1,)


def test_a_proxy_turned_to_another_server_breaks_what_there_was(
    proxy: Proxy, client: psycopg.Connection, database: str
) -> None:
    away = "postgresql://postgres@127.0.0.1:1/nowhere"
    proxy.turn_to(away)
    refused(client, "x")
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(proxy.url)
    proxy.turn_to(database)
    with psycopg.connect(proxy.url) as another:
        assert another.execute("select current_database()").fetchone() == (another.info.dbname,)
    eventually(lambda: proxy.connections == 0, what="no connection left")


def test_a_closed_proxy_leaves_no_thread(database: str) -> None:
    with proxy_before(database) as proxy:
        client = psycopg.connect(proxy.url, autocommit=True)
        with proxy.under(Slow(60)):
            waiting = threading.Thread(target=lambda: refused(client, "never"))
            waiting.start()
            eventually(lambda: proxy.connections == 1)
            proxy.close()
        waiting.join()
        client.close()
    assert not [each for each in threading.enumerate() if each.name == "kept verify proxy"]
