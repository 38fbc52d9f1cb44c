"""``kept sinks`` and ``enable``."""

from __future__ import annotations

import pytest

from kept.db.queries import load
from kept.db.tx import run
from kept.outbox import breaker
from kept.outbox.rules import Rest
from planted import enqueue

SQL = load("kept.outbox")


@pytest.fixture
def nats(conn):
    enqueue(conn, "nats")
    conn.execute(
        """insert into kept.sink (name, kind) values ('nats', 'nats');
           insert into kept.subscription (name, patterns, lane, sink) select 'nats', '{*}', id, 'nats' from kept.lane"""
    )


def met(conn, code: str, error: str) -> breaker.Met:
    (lane,) = conn.execute("select id from kept.lane").fetchone()
    return breaker.Met("nats", lane, code, error, took=False)


def rests(conn, after: float | None = None):
    return run(conn, breaker.rests(SQL, met(conn, "no_broker", "it said \x1b[31m no"), Rest(), after, 0.0))


def test_none_is_said(kept):
    assert kept("sinks").out.startswith("there are no sinks yet")


def test_a_sink_tells_state_backlog_rate_and_error(kept, conn, nats):
    (found,) = kept("sinks", "--json").json["sinks"]
    assert (found["state"], found["backlog"], found["rate"], found["last_error"]) == ("closed", 1, 0.0, None)
    rests(conn)
    (found,) = kept("sinks", "--json").json["sinks"]
    assert (found["state"], found["failures"], found["last_code"]) == ("open", 1, "no_broker")
    assert "\x1b" not in kept("sinks").out
    assert "open since" in kept("sinks").out


def test_a_sink_rests_longer_each_time_and_once_for_everybody(conn, nats, clock):
    assert rests(conn).seconds == 0.5
    assert rests(conn) is None, "somebody has just done so"
    clock.advance("1s")
    assert rests(conn) == (2, 1.0)
    clock.advance("2s")
    assert rests(conn, after=60.0) == (3, 60.0)
    assert run(conn, breaker.works(SQL, "nats")) is True
    assert run(conn, breaker.works(SQL, "nats")) is False


def test_a_disabled_sink_is_enabled_again(kept, conn, nats):
    run(conn, breaker.disable(SQL, met(conn, "gone", "410")))
    assert kept("sinks", "--json").json["sinks"][0]["state"] == "disabled"
    assert conn.execute("select paused_until = 'infinity' from kept.lane").fetchone() == (True,)
    assert kept("sinks", "enable", "nats").out == "nats is enabled (1 lane)\n"
    assert kept("sinks", "enable", "nats", "--json").json == {"enabled": "nats", "lanes": 1}
    assert conn.execute("select paused_until from kept.lane").fetchone() == (None,)


def test_one_that_is_not_there(kept):
    said = kept("sinks", "enable", "nast")
    assert (said.code, said.err) == (1, "kept: there is no sink 'nast'\n")
