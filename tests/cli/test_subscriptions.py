"""``kept subscriptions`` and ``retire``."""

from __future__ import annotations

import pytest

from planted import enqueue, worker


@pytest.fixture
def mailer(conn):
    enqueue(conn, "mailer")
    conn.execute(
        """insert into kept.event_type (type) values ('a.b');
           insert into kept.subscription (name, patterns, lane) select 'mailer', '{a.*,c}', id from kept.lane;
           insert into kept.route select 'a.b', s.id, s.lane from kept.subscription s"""
    )


def test_none_is_said(kept):
    assert kept("subscriptions").out.startswith("there are no subscriptions yet")


def test_they_are_listed_with_what_waits(kept, mailer):
    head, row = kept("subscriptions").out.splitlines()
    assert head.split()[:4] == ["subscription", "events", "to", "types"]
    assert row.split() == ["mailer", "a.*", "c", "mailer", "1", "1", "0", "0", "0s", "active"]


def test_one_that_no_live_worker_declares_is_reported(kept, conn, mailer):
    worker(conn)
    assert "declared by no live worker" in kept("subscriptions").out
    (found,) = kept("subscriptions", "--json").json["subscriptions"]
    assert (found["declared"], found["due"], found["patterns"]) == (False, 1, ["a.*", "c"])


def test_it_is_retired_and_keeps_its_jobs(kept, conn, mailer):
    assert kept("subscriptions", "retire", "mailer").out == "mailer is retired: events pass it by from now on\n"
    assert kept("subscriptions").out.splitlines()[1].split()[-1] == "retired"
    conn.execute("select kept.emit('a.b')")
    assert conn.execute("select count(*) from kept.job").fetchone() == (1,)
    said = kept("subscriptions", "retire", "mailer")
    assert (said.code, "retired already" in said.err) == (2, True)


def test_retire_as_json(kept, mailer):
    assert kept("subscriptions", "retire", "mailer", "--json").json == {"retired": "mailer", "patterns": ["a.*", "c"]}


@pytest.mark.parametrize("name", ["mialer", "' or 1=1 --", "x\x1b[2J"])
def test_one_that_is_not_there(kept, mailer, name):
    said = kept("subscriptions", "retire", name)
    assert said.code == 1
    assert "there is no subscription" in said.err
    assert "\x1b" not in said.err
