"""``kept runs``, ``kept runners`` and ``kept tick`` with runners of one's own."""

from __future__ import annotations

import json
import sys
from uuid import uuid4

import pytest

from kept import App
from kernel import rows

WORKER = "00000000-0000-4000-8000-000000000001"


def record(conn, name="sweep", state="done", *, counters="{}", code=None, error=None, ago="0 s") -> int:
    open_ = state == "running"
    return conn.execute(
        "insert into kept.run (name, worker, worker_name, state, counters, code, error, started_at, finished_at)"
        " values (%s, %s, 'host:7', %s, %s, %s, %s, kept.now() - %s::interval,"
        " case when %s then null else kept.now() - %s::interval + interval '2 s' end) returning id",
        [name, WORKER, state, counters, code, error, ago, open_, ago],
    ).fetchone()[0]


def test_runs_are_listed_newest_first_with_their_counters(kept, conn):
    record(conn, counters='{"swept": 3, "kept": 1.5}', ago="1 h")
    record(conn, "remind", "failed", code="timeout", error="slow", ago="1 min")
    head, *lines = kept("runs", "list").out.splitlines()
    assert head.split() == ["id", "name", "state", "slot", "started", "took", "worker", "counters", "code"]
    assert [line.split()[1:3] for line in lines] == [["remind", "failed"], ["sweep", "done"]]
    assert "kept 1.5, swept 3" in lines[1]
    assert lines[0].endswith("timeout")
    assert "2.000s" in lines[0]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--name", "sweep"], ["sweep", "sweep"]),
        (["--state", "failed"], ["remind"]),
        (["--newer-than", "30min"], ["sweep", "remind"]),
        (["--since", "2999-01-01"], []),
        (["--since", "2000-01-01T00:00"], ["sweep", "remind", "sweep"]),
        (["--limit", "1"], ["sweep"]),
    ],
)
def test_runs_are_filtered(kept, conn, options, expected):
    record(conn, ago="1 h")
    record(conn, "remind", "failed", ago="1 min")
    record(conn, state="running", ago="10 s")
    found = kept("runs", "list", "--json", *options).json
    assert [run["name"] for run in found["runs"]] == expected
    assert found["more"] == ("--limit" in options)


def test_no_run_and_no_runner_are_said(kept):
    assert kept("runs", "list").out == "no run matches\n"
    assert kept("runners", "list").out.startswith("there are no runners of your own")


def test_a_run_is_shown_whole_and_cannot_steer_a_terminal(kept, conn):
    id = record(conn, state="failed", code="boom", error="Traceback\n  it \x1b[2J broke", counters='{"a": 1}')
    said = kept("runs", "show", id)
    assert said.code == 0
    assert "\x1b" not in said.out
    for part in ("sweep", "failed", "boom", "host:7", "a 1", "Traceback", "broke"):
        assert part in said.out
    shown = kept("runs", "show", id, "--json").json
    assert (shown["id"], shown["kind"], shown["counters"], shown["job"]) == (str(id), "runner", {"a": 1}, None)


def test_an_unknown_run_is_an_error(kept):
    assert kept("runs", "show", "7").code == 1
    assert "there is no run 7" in kept("runs", "show", "7").err
    assert kept("runs", "show", "seven").code == 2


# --- kept tick


@pytest.fixture
def module(monkeypatch, database) -> str:
    """A module with an App: one runner counts, one fails, one finds nothing."""
    name = f"shop_{uuid4().hex[:8]}"
    app = App(database)
    app.runner("bad")(lambda: 1 / 0)
    app.runner("good", singleton=True)(lambda ctx: {"sent": ctx.budget.items})
    app.runner("idle")(lambda: None)
    module = type(sys)(name)
    module.app = app
    monkeypatch.setitem(sys.modules, name, module)
    return f"{name}:app"


def test_a_tick_tells_of_every_runner_and_one_that_fails_does_not_stop_the_others(kept, module, conn):
    said = kept("tick", module, "--items", "5")
    lines = {line.partition(":")[0]: line for line in said.out.splitlines()}
    assert list(lines) == ["reclaim", "promote", "schedules", "upkeep", "jobs", "bad", "good", "idle"]
    assert said.code == 1
    assert "error: zero_division_error: ZeroDivisionError: division by zero" in lines["bad"]
    assert lines["good"].startswith("good: sent 5 in ")
    assert lines["idle"].startswith("idle: 0 in ")
    assert [(each["name"], each["state"]) for each in rows(conn, "select * from kept.run order by id")] == [
        ("bad", "failed"),
        ("good", "done"),
    ]
    again = kept("tick", module)
    assert again.code == 0
    assert "good: not due for 60 s" in again.out


def test_a_tick_in_json_is_an_object_for_each_runner(kept, module):
    said = kept("tick", module, "--json", KEPT_TICK_RUNNERS="outbox,good")
    found = [json.loads(line) for line in said.out.splitlines()]
    assert [each["runner"] for each in found] == ["reclaim", "promote", "jobs", "good"]
    assert found[-1]["counters"] == {"sent": 200}
    assert found[-1]["error"] is None
    assert found[-1]["note"] is None


def test_a_tick_in_the_order_asked_for(kept, module):
    said = kept("tick", module, WORKER_TICK_RUNNERS="idle,good,jobs")
    assert [line.partition(":")[0] for line in said.out.splitlines()] == ["idle", "good", "jobs"]
    assert said.code == 0


def test_an_unknown_runner_is_misconfiguration_that_lists_what_there_is(kept, module):
    said = kept("tick", module, KEPT_TICK_RUNNERS="jobs,invoiceReminders")
    assert said.code == 2
    known = "reclaim, promote, schedules, upkeep, jobs, bad, good, idle"
    assert said.err == f"kept: no runner is called 'invoiceReminders'; there are: {known}\n"


def test_runners_are_listed_with_their_interval_and_last_success(kept, module):
    kept("tick", module)
    found = {each["name"]: each for each in kept("runners", "list", "--json").json["runners"]}
    assert set(found) == {"bad", "good", "idle"}
    assert (found["good"]["every"], found["good"]["singleton"], found["good"]["holder"]) == (60.0, True, None)
    assert found["good"]["done_at"]
    assert found["idle"]["done_at"], "an idle pass ended well, too"
    assert (found["bad"]["done_at"], found["bad"]["last_state"]) == (None, "failed")
    head = kept("runners", "list").out.splitlines()[0]
    assert "last success" in head


def test_a_tick_whose_time_is_over_says_what_it_left_out(kept, module):
    said = kept("tick", module, KEPT_TICK_OVERALL="1ms", KEPT_TICK_RUNNERS="idle,bad,good")
    assert "skipped, the tick's time is over" in said.out
