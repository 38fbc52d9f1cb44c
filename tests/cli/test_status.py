"""``kept status``."""

from __future__ import annotations

from planted import enqueue, failed, settle
from support import Clock


def test_status_tells_what_waits_and_what_the_last_hour_brought(kept, conn, clock: Clock):
    enqueue(conn)
    clock.advance("3min")
    enqueue(conn, due_at="2200-01-01Z")
    failed(conn)
    for attempts in (1, 2):
        settle(conn, enqueue(conn), "done", attempt=attempts)
    said = kept("status")
    first, second = said.out.splitlines()[:2]
    assert said.code == 0
    assert first == "1 job due, the oldest for 3min; 1 parked, 0 running"
    assert second == "last hour: 2 done, 1 failed (33.3%), 1.50 attempts per done job"
    assert said.out.splitlines()[-1].split() == [
        *("mail", "send", "1", "3min", "1", "0", "2", "1", "33.3%", "1.50"),
    ]


def test_status_of_nothing_is_fine(kept):
    said = kept("status", "--max-age", "1s")
    assert said.code == 0
    assert said.out == "0 jobs due; 0 parked, 0 running\nlast hour: 0 done, 0 failed\n"


def test_status_fails_with_a_sentence_when_a_job_has_waited_too_long(kept, conn, clock: Clock):
    enqueue(conn)
    clock.advance("10min")
    assert kept("status", "--max-age", "15m").code == 0
    said = kept("status", "--max-age", "5m")
    assert said.code == 1
    assert said.err == "kept: the oldest due job of mail/send has waited for 10min, longer than 5min\n"


def test_a_paused_lane_raises_no_alarm(kept, conn, clock: Clock):
    enqueue(conn)
    kept("lanes", "pause", "mail")
    clock.advance("10min")
    assert kept("status", "--max-age", "5m").code == 0


def test_status_as_json_has_stable_keys_and_says_what_is_late(kept, conn, clock: Clock):
    enqueue(conn)
    clock.advance("10min")
    said = kept("status", "--max-age", "5m", "--json")
    assert said.code == 1
    assert "has waited for 10min" in said.json["late"]
    assert 599 < said.json["oldest_due"] < 610
    recent = {"done_last_hour", "failed_last_hour", "failure_rate", "attempts_per_done"}
    assert set(said.json) == {"due", "oldest_due", "parked", "running", "late", "lanes", "schedules"} | recent
    assert set(said.json["lanes"][0]) > {"queue", "task", "due"} | recent


def test_status_tells_of_schedules_if_there_are_any(kept, clock: Clock):
    kept("schedules", "add", "beat", "--every", "2h", "--task", "t")
    kept("schedules", "add", "other", "--every", "1h", "--task", "t")
    kept("schedules", "pause", "other")
    assert "schedules: 1 active, 1 paused; next is beat, in 119min" in kept("status").out
    clock.advance("123min")
    assert "next is beat, 3min late" in kept("status").out
    found = kept("status", "--json").json["schedules"]
    assert (found["active"], found["paused"], found["next_name"]) == (1, 1, "beat")
