"""``kept schedules``: looking, and changing what no deploy owns."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from kept import App, cron, every
from kept.db.connect import Link
from kept.worker.post import declare
from kernel import row, rows
from planted import settle

DAILY = ("--cron", "0 6 * * *", "--tz", "Europe/Berlin", "--task", "report")


@pytest.fixture
def app(database: str) -> Iterator[App]:
    app = App(database)
    yield app
    app.close()


@pytest.fixture
def declared(app: App) -> str:
    """A schedule that a deploy owns."""

    @app.schedule(cron("0 3 * * *"), name="cleanup")
    def cleanup() -> None: ...

    sync(app)
    return "cleanup"


def sync(app: App) -> None:
    async def go() -> None:
        link = await Link.open(app.database)
        await declare(link, app.plan(kept=False))
        await link.close()

    asyncio.run(go())


def fire(app: App) -> None:
    async def go() -> None:
        async with app:
            await app.drain()

    asyncio.run(go())


# --- add


def test_one_is_added_with_everything_it_was_told(kept, conn):
    said = kept(
        *("schedules", "add", "report-7", *DAILY, "--args", '{"n": 7}', "--queue", "slow", "--priority", 5),
        *("--start", "2026-01-01T00:00Z", "--end", "2099-01-01T00:00+01:00", "--blackout", "12-25"),
        *("--blackout", "2030-01-01..2030-01-05", "--jitter", "5m", "--misfire", "all", "--most", 3),
        *("--within", "1h", "--overlap", "allow", "--owner", "ops", "--description", "sums"),
    )
    assert said.code == 0
    assert said.out.startswith("report-7 is added: 0 6 * * * Europe/Berlin; its next slot is ")
    found = kept("schedules", "show", "report-7", "--json").json
    assert (found["task"], found["queue"], found["priority"], found["args"]) == ("report", "slow", 5, {"n": 7})
    assert (found["misfire"], found["most"], found["within"], found["overlap"]) == ("all", 3, 3600.0, "allow")
    assert (found["owner"], found["description"], found["jitter"]) == ("ops", "sums", 300.0)
    assert found["blackout"] == ["12-25", "2030-01-01..2030-01-05"]
    assert found["ends_at"] == "2098-12-31T23:00:00+00:00"
    assert [each["what"] for each in found["changes"]] == ["added"]
    assert "@" in found["changes"][0]["who"]


def test_a_task_that_nobody_declared_is_accepted_with_a_sentence(kept, declared):
    said = kept("schedules", "add", "a", *DAILY)
    assert (said.code, said.err) == (
        0,
        "kept: no code has declared task report yet: its jobs wait until a worker does\n",
    )
    assert kept("schedules", "add", "b", "--every", "5m", "--task", "cleanup").err == ""


def test_a_task_goes_to_its_own_queue_unless_told_otherwise(kept, app):
    app.task(name="report", queue="slow")(lambda: None)
    sync(app)
    kept("schedules", "add", "a", *DAILY)
    kept("schedules", "add", "b", *DAILY, "--queue", "fast")
    found = kept("schedules", "list", "--json").json["schedules"]
    assert [each["queue"] for each in found] == ["slow", "fast"]


def test_arguments_are_checked_against_the_task_where_the_app_is_at_hand(
    kept, conn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    script = tmp_path / "shop.py"
    script.write_text("from kept import App\napp = App()\n@app.task()\ndef report(n: int) -> None: ...\n")
    words = ("schedules", "add", "a", *DAILY, "--app", f"{script}:app", "--args")
    said = kept(*words, '{"n": "seven"}')
    assert (said.code, "the arguments do not fit" in said.err) == (2, True)
    assert rows(conn, "select * from kept.schedule") == []
    assert kept(*words, '{"n": 7}').code == 0


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--cron", "0 0 31 2 *", "--task", "t"), "'0 0 31 2 *' is not a time that comes"),
        (("--cron", "0 0 *", "--task", "t"), "wrong number of fields"),
        (("--cron", "@often", "--task", "t"), "'@often' is not known"),
        (("--cron", "x\x1b[2J", "--task", "t"), "is not a time that comes"),
        (("--cron", "@daily", "--tz", "Mars/Olympus", "--task", "t"), "'Mars/Olympus' is not a time zone"),
        (("--every", "0s", "--task", "t"), "shorter than a second"),
        (("--every", "-5m", "--task", "t"), "'-5m' is not a duration"),
        (("--every", "10ms", "--task", "t"), "shorter than a second"),
        (("--every", "5", "--task", "t"), "is not a duration"),
        (("--every", "5m", "--cron", "@daily", "--task", "t"), "--cron and --every exclude each other"),
        (("--task", "t"), "say when"),
        (("--every", "5m"), "say what"),
        (("--every", "5m", "--task", "t t"), "is not a name"),
        (("--every", "5m", "--task", "t", "--queue", "q q"), "is not a name"),
        (("--every", "5m", "--task", "t", "--priority", "5000"), "5000 is not between"),
        (("--every", "5m", "--task", "t", "--start", "2030-01-02T00:00Z", "--end", "2030-01-01T00:00Z"), "after start"),
        (("--every", "5m", "--task", "t", "--start", "2030-01-02T00:00"), "has no time zone"),
        (("--every", "5m", "--task", "t", "--end", "soon"), "is not a time"),
        (("--every", "5m", "--task", "t", "--end", "2001-01-01T00:00Z"), "never fires"),
        (("--cron", "0 0 25 12 *", "--task", "t", "--blackout", "12-25"), "never fires"),
        (("--every", "5m", "--task", "t", "--blackout", "christmas"), "is not a day"),
        (("--every", "5m", "--task", "t", "--misfire", "all", "--most", "3"), "needs overlap='allow'"),
        (("--every", "5m", "--task", "t", "--misfire", "all", "--overlap", "allow"), "say how many"),
        (("--every", "5m", "--task", "t", "--most", "3"), "goes with misfire='all'"),
        (("--every", "5m", "--task", "t", "--misfire", "sometimes"), "'sometimes' is not one of"),
        (("--every", "5m", "--task", "t", "--args", "{n: 7}"), "cannot be read as JSON"),
        (("--every", "5m", "--task", "t", "--args", "[" * 5000), "cannot be read as JSON"),
        (("--every", "5m", "--task", "t", "--args", "[7]"), "must be a JSON object"),
        (("--every", "5m", "--task", "t", "--args", '{"a": "\\u0000"}'), "NUL"),
        (("--every", "5m", "--task", "t", "--args", '{"a":' * 70 + "1" + "}" * 70), "nested deeper"),
        (("--every", "5m", "--task", "t", "--args", '{"a": "%s"}' % ("x" * 1_100_000)), "exceed the limit"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_in_a_sentence_and_nothing_is_stored(kept, conn, words, told):
    said = kept("schedules", "add", "a", *words)
    assert said.code == 2
    assert told in said.err
    assert "\x1b" not in said.err
    assert rows(conn, "select * from kept.schedule") == rows(conn, "select * from kept.lane") == []


def test_a_name_that_is_none_or_taken_is_refused(kept, conn):
    assert kept("schedules", "add", "x\x1b[2J", *DAILY).code == 2
    kept("schedules", "add", "a", *DAILY)
    said = kept("schedules", "add", "a", "--every", "5m", "--task", "report")
    assert (said.code, "exists already (added)" in said.err) == (2, True)
    assert row(conn, "select every from kept.schedule") == {"every": None}


# --- edit


def test_an_edit_changes_what_is_given_and_nothing_else(kept):
    kept("schedules", "add", "a", *DAILY, "--args", '{"n": 7}', "--end", "2099-01-01T00:00Z", "--owner", "ops")
    before = kept("schedules", "show", "a", "--json").json
    assert kept("schedules", "edit", "a", "--cron", "0 7 * * *", "--queue", "slow").out.startswith("a is edited: 0 7")
    after = kept("schedules", "show", "a", "--json").json
    same = ("zone", "args", "task", "ends_at", "owner", "misfire", "origin")
    assert {name: after[name] for name in same} == {name: before[name] for name in same}
    assert (after["cron"], after["queue"]) == ("0 7 * * *", "slow")
    assert [each["what"] for each in after["changes"]] == ["edited", "added"]
    assert "rule: 0 6 * * * Europe/Berlin -> 0 7 * * * Europe/Berlin" in after["changes"][0]["detail"]


def test_terms_can_be_cleared_and_a_zone_can_be_changed_alone(kept):
    kept("schedules", "add", "a", *DAILY, "--end", "2099-01-01T00:00Z", "--blackout", "12-25", "--owner", "ops")
    assert kept("schedules", "edit", "a", "--clear", "end, blackout,owner", "--tz", "UTC").code == 0
    found = kept("schedules", "show", "a", "--json").json
    assert (found["ends_at"], found["blackout"], found["owner"], found["when"]) == (None, [], None, "0 6 * * * UTC")


def test_an_edit_that_changes_nothing_says_so_and_leaves_no_line(kept):
    kept("schedules", "add", "a", *DAILY)
    assert kept("schedules", "edit", "a", "--cron", "0 6 * * *").out.startswith("a is unchanged")
    assert len(kept("schedules", "show", "a", "--json").json["changes"]) == 1


def test_one_that_has_ended_can_be_given_another_owner(kept, clock):
    kept("schedules", "add", "a", *DAILY, "--end", "2027-01-01T00:00Z")
    clock.advance("1000d")
    assert kept("schedules", "edit", "a", "--owner", "ops").code == 0
    assert kept("schedules", "edit", "a", "--cron", "@daily").code == 2


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ((), "nothing to change"),
        (("--clear", "cron"), "is none of"),
        (("--cron", "* *"), "wrong number of fields"),
        (("--end", "2001-01-01T00:00Z"), "never fires"),
        (("--misfire", "all", "--most", "2"), "overlap='allow'"),
    ],
)
def test_a_bad_edit_is_refused_and_changes_nothing(kept, conn, words, told):
    kept("schedules", "add", "a", *DAILY)
    before = row(conn, "select * from kept.schedule")
    said = kept("schedules", "edit", "a", *words)
    assert (said.code, told in said.err) == (2, True)
    assert row(conn, "select * from kept.schedule") == before


def test_what_a_deploy_owns_is_neither_edited_nor_removed(kept, declared):
    for words in (("edit", declared, "--cron", "@daily"), ("remove", declared)):
        said = kept("schedules", *words)
        assert (said.code, "is declared by an App, and its next deploy would undo this" in said.err) == (2, True)


# --- pause, resume, run-now, remove


def test_pause_and_resume_tell_whether_they_changed_anything(kept, declared):
    assert kept("schedules", "pause", declared).out == "cleanup is paused until resumed\n"
    assert kept("schedules", "pause", declared).out == "cleanup was paused already\n"
    assert kept("schedules", "list", "--state", "paused", "--json").json["schedules"][0]["name"] == declared
    assert kept("schedules", "resume", declared).out.startswith("cleanup is resumed; its next slot is ")
    assert kept("schedules", "resume", declared, "--json").json == {
        "schedule": "cleanup", "state": "active", "changed": False,
    }  # fmt: skip


def test_run_now_tells_the_job(kept, conn, declared):
    said = kept("schedules", "run-now", declared, "--json")
    assert said.err == ""
    assert said.json == {"schedule": "cleanup", "job": str(row(conn, "select id from kept.job")["id"])}
    assert kept("schedules", "run-now", declared).out.endswith("is enqueued for cleanup\n")
    assert "by hand" in kept("schedules", "show", declared).out


def test_what_was_added_is_removed(kept, conn):
    kept("schedules", "add", "a", *DAILY)
    assert kept("schedules", "remove", "a").out == "a is removed; jobs that it became stay\n"
    assert kept("schedules", "list").out == "there are no schedules yet\n"


def test_what_is_retired_is_removed_too(kept, conn, declared):
    conn.execute("update kept.schedule set retired_at = kept.now()")
    assert kept("schedules", "list").out == "there are no schedules yet\n"
    assert kept("schedules", "list", "--all").out.splitlines()[1].split()[-2:] == ["retired", "declared"]
    assert kept("schedules", "remove", declared, "--json").json == {"removed": "cleanup", "origin": "declared"}


@pytest.mark.parametrize("verb", ["show", "edit", "pause", "resume", "run-now", "remove", "next"])
@pytest.mark.parametrize("name", ["clenup", "' or 1=1 --", "x\x1b[2J"])
def test_one_that_is_not_there_is_said_with_a_near_name(kept, declared, verb, name):
    words = ("--owner", "ops") if verb == "edit" else ()
    said = kept("schedules", verb, name, *words)
    assert said.code == 1
    assert "there is no schedule" in said.err
    assert ("did you mean 'cleanup'?" in said.err) == (name == "clenup")
    assert "\x1b" not in said.err


# --- list and show


def test_they_are_listed_with_what_comes_and_how_it_went(kept, conn, app, clock):
    @app.schedule(every("1h"))
    def beat() -> None: ...

    sync(app)
    kept("schedules", "add", "later", *DAILY)
    clock.advance("61min")
    fire(app)
    assert kept("schedules", "list").out.splitlines()[1].split()[-3:] == ["settled", "active", "declared"]
    clock.advance("31s")  # by then somebody has looked how it ended
    fire(app)
    head, first, second = kept("schedules", "list").out.splitlines()
    assert head.split() == ["schedule", "when", "task", "next", "last", "state", "origin"]
    assert first.split()[:4] == ["beat", "every", "1h", "beat"]
    assert "(in 59min)" in first or "(in 58min)" in first
    assert first.split()[-3:] == ["done", "active", "declared"]
    assert second.split()[:7] == ["later", "0", "6", "*", "*", "*", "Europe/Berlin"]
    assert second.split()[-2:] == ["active", "added"]


def test_filters(kept, declared):
    kept("schedules", "add", "a", *DAILY)

    def found(*words: str) -> list[str]:
        return [each["name"] for each in kept("schedules", "list", "--json", *words).json["schedules"]]

    assert found() == ["a", "cleanup"]
    assert found("--task", "report") == found("--origin", "added") == ["a"]
    assert found("--state", "active") == ["a", "cleanup"]
    assert found("--state", "ended") == []
    assert kept("schedules", "list", "--task", "x").out == "no schedule matches\n"


def test_show_tells_the_terms_the_runs_and_the_changes(kept, conn, app, clock):
    kept("schedules", "add", "a", *DAILY, "--description", "sums \x1b[31m", "--jitter", "1m", "--owner", "ops")
    clock.advance("3d")
    fire(app)
    (job,) = rows(conn, "select id from kept.job")
    settle(conn, job["id"], code="boom", message="no \x1b[2Jluck")
    out = kept("schedules", "show", "a").out
    for part in (
        "0 6 * * * Europe/Berlin", "ops", "up to 1min", "once", "report in queue default", "added", "active",
        "coming", "runs", f"job {job['id']}", "failed", "boom", "missed before it", "changes", "@",
    ):  # fmt: skip
        assert part in out
    assert "\x1b" not in out
    found = kept("schedules", "show", "a", "--json").json
    (run,) = found["runs"]
    assert (run["state"], run["outcome"], run["code"], run["job"]) == ("fired", "failed", "boom", str(job["id"]))
    assert run["missed"] >= 2
    assert len(found["coming"]) == 5


def test_a_slot_that_was_passed_by_says_why(kept, app, clock):
    kept("schedules", "add", "a", "--every", "1h", "--task", "report")
    for _ in range(2):
        clock.advance("61min")
        fire(app)
    assert "skipped (overlap)" in kept("schedules", "show", "a").out


# --- next


def test_what_comes_is_told_in_the_order_of_time_over_all_of_them(kept, declared):
    kept("schedules", "add", "a", "--every", "1h", "--task", "report", "--jitter", "5m")
    head, *lines = kept("schedules", "next", "--count", 30).out.splitlines()
    assert head.split() == ["schedule", "slot", "zone", "UTC", "due", "task"]
    assert len(lines) == 30
    assert {line.split()[0] for line in lines} == {"a", "cleanup"}
    assert sum("up to 5min later" in line for line in lines if line.startswith("a ")) > 20
    slots = [each["slot"] for each in kept("schedules", "next", "--json").json["coming"]]
    assert slots == sorted(slots)


def test_the_clocks_going_forward_and_back_can_be_seen(kept):
    kept("schedules", "add", "a", "--cron", "30 2 * * *", "--tz", "Europe/Berlin", "--task", "t",
         "--start", "2045-03-25T00:00+01:00", "--end", "2045-10-31T00:00+01:00")  # fmt: skip
    found = kept("schedules", "next", "a", "--count", 300, "--json").json["coming"]
    local = {each["local"][:10]: each["local"][11:] for each in found}
    assert len(local) == len(found)
    assert (local["2045-03-25"], local["2045-03-26"]) == ("02:30:00+01:00", "03:00:00+02:00")
    assert (local["2045-10-28"], local["2045-10-29"], local["2045-10-30"]) == (
        "02:30:00+02:00", "02:30:00+02:00", "02:30:00+01:00",
    )  # fmt: skip
    assert "2045-03-26 03:00:00+02:00  Europe/Berlin  2045-03-26 01:00:00Z" in kept("schedules", "next").out


def test_next_ends_where_it_is_told_to_and_leaves_out_what_does_not_fire(kept, declared):
    kept("schedules", "add", "a", "--cron", "0 0 1 1 *", "--task", "t", "--start", "2045-01-01T00:00Z")
    assert kept("schedules", "next", "a", "--until", "2044-12-31").out == "no slot comes\n"
    found = kept("schedules", "next", "a", "--until", "2046-01-01T00:00", "--json").json["coming"]
    assert [each["slot"][:4] for each in found] == ["2045", "2046"]
    kept("schedules", "pause", "a")
    assert {each["schedule"] for each in kept("schedules", "next", "--json").json["coming"]} == {"cleanup"}
    assert kept("schedules", "next", "a").err == "a is paused: it does not fire\n"
    assert kept("schedules", "next", "--until", "tomorrow").code == 2
