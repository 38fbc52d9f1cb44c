"""``kept lanes``, ``pause`` and ``resume``."""

from __future__ import annotations

from planted import claim, declare, enqueue, worker
from support import Clock


def test_lanes_tell_what_waits_in_them(kept, conn, clock: Clock):
    enqueue(conn)
    clock.advance("5min")
    enqueue(conn, due_at="2200-01-01Z")
    claim(conn, enqueue(conn), worker(conn))
    declare(conn)
    enqueue(conn, "render", "pdf")
    head, *rows = kept("lanes").out.splitlines()
    assert head.split() == ["queue", "task", "due", "parked", "running", "oldest", "paused", "declared"]
    assert [row.split() for row in rows] == [
        ["mail", "send", "1", "1", "1", "5min", "yes"],
        ["pdf", "render", "1", "0", "0", "0s", "no"],
    ]


def test_no_lanes_is_said(kept):
    assert kept("lanes").out == "there are no lanes yet: nothing was declared or enqueued\n"


def test_lanes_as_json_have_stable_keys(kept, conn):
    enqueue(conn)
    (lane,) = kept("lanes", "--json").json["lanes"]
    assert set(lane) == {
        *("queue", "task", "due", "parked", "running", "oldest_due", "paused", "paused_until", "declared")
    }


def test_a_queue_is_paused_for_a_while_and_resumed(kept, conn):
    enqueue(conn)
    enqueue(conn, "bounce")
    said = kept("lanes", "pause", "mail", "--for", "1h")
    assert (said.code, said.out) == (0, "mail is paused for 1h (2 lanes)\n")
    assert kept("lanes").out.count("until 20") == 2
    assert kept("lanes", "resume", "mail").out == "mail is resumed (2 lanes)\n"
    assert kept("lanes", "resume", "mail").out == "mail was not paused\n"


def test_one_task_is_paused_until_resumed(kept, conn):
    enqueue(conn)
    enqueue(conn, "bounce")
    assert kept("lanes", "pause", "mail/bounce").out == "mail/bounce is paused until resumed (1 lane)\n"
    lanes = {lane["task"]: lane for lane in kept("lanes", "--json").json["lanes"]}
    assert (lanes["bounce"]["paused"], lanes["bounce"]["paused_until"]) == (True, None)
    assert lanes["send"]["paused"] is False


def test_pause_and_resume_as_json_name_the_lanes(kept, conn):
    enqueue(conn)
    lane = {"queue": "mail", "task": "send"}
    assert kept("lanes", "pause", "mail", "--json").json == {"paused": 1, "lanes": [lane]}
    assert kept("lanes", "resume", "mail", "--json").json == {"resumed": 1, "lanes": [lane]}


def test_an_unknown_lane_is_an_error_that_names_near_ones(kept, conn):
    enqueue(conn)
    for command in ("pause", "resume"):
        said = kept("lanes", command, "mial")
        assert (said.code, said.err) == (1, "kept: there is no lane 'mial'; near: mail\n")


def test_a_paused_lane_is_not_claimed_from(kept, conn):
    """The word of the tables is what workers go by; this is the column that a claim reads."""
    enqueue(conn)
    kept("lanes", "pause", "mail")
    assert conn.execute("select paused_until > kept.now() from kept.lane").fetchone() == (True,)
