"""``kept bench``: the right figures, and nothing left behind, whatever ends it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psycopg
import pytest

from kept.bench import place as places
from kept.db.embedded import Embedded
from support import eventually

KEPT = str(Path(sys.executable).with_name("kept"))
SMALL = {
    "drain": ["--jobs", "500", "--rounds", "1", "--processes", "1,2"],
    "enqueue": ["--jobs", "60", "--rounds", "1", "--clients", "2", "--many", "100"],
    "outbox": ["--events", "60", "--rounds", "1", "--many", "100", "--drained", "600"],
    "schedules": ["--schedules", "300", "--rounds", "1", "--seconds", "0.5", "--slots", "2"],
    "latency": ["--samples", "3"],
    "sustained": ["--jobs", "500", "--seconds", "1"],
    "growth": ["--jobs", "200", "--rounds", "1", "--scale", "0.0005"],
    "idle": ["--seconds", "0.5", "--settling", "0", "--jobs", "100"],
}


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Where temporary folders go, so that a test can see what is left."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return tmp_path


def schemas(database: str) -> list[str]:
    with psycopg.connect(database) as conn:
        return [row[0] for row in conn.execute("select nspname from pg_namespace where nspname like 'kept_bench%'")]


def check_drain(found: Any) -> None:
    for name in ("jobs_per_s", "limit_jobs_per_s", "ratio_to_limit", "default_jobs_per_s", "wal_bytes_per_job"):
        check_spread(found[name])
    assert found["full_page_images"] is False, "this server can tell"
    assert 300 < found["wal_bytes_per_job"]["median"] < 3000
    assert 80 <= found["payload_bytes"] <= 120
    assert list(found["processes"]) == ["2"]


def check_enqueue(found: Any) -> None:
    for name in ("kept_per_s", "bare_per_s", "ratio_to_bare", "busy_ratio_to_bare", "many_rows_per_s", "many_to_copy"):
        check_spread(found[name])


def check_outbox(found: Any) -> None:
    check_spread(found["bare_per_s"])
    assert list(found["emit"]) == ["0", "1", "3"]
    for each in found["emit"].values():
        for name in ("per_s", "ratio_to_bare", "many_per_s"):
            check_spread(each[name])
    assert (found["ordered"]["events"], found["ordered"]["violations"]) == (600, 0)
    check_spread(found["ordered"]["per_s"])
    assert found["published"]["events"] == 600
    for name in ("per_s", "bare_per_s", "ratio_to_bare"):
        check_spread(found["published"][name])


def check_schedules(found: Any) -> None:
    undue = found["undue"]
    check_spread(undue["cpu_percent"])
    assert undue["server_process"] is True, "it is on this machine"
    assert list(found["at_once"]) == ["1", "2"]
    for each in found["at_once"].values():
        for name in ("first_ms", "last_ms", "enqueued_ms", "done_ms", "jobs_per_s", "firings", "statements"):
            check_spread(each[name])
        assert each["first_ms"]["median"] <= each["last_ms"]["median"] <= each["enqueued_ms"]["median"]
        assert each["statements"]["median"] < 300, "fewer than there are schedules"
    assert found["late"]["samples"] == 2
    assert 0 < found["late"]["p50"] <= found["late"]["max"]


def check_latency(found: Any) -> None:
    seen = found["from_commit"]
    assert seen["samples"] == 3
    assert 0 <= seen["p50"] <= seen["p90"] <= seen["p99"] <= seen["max"]
    assert found["with_commit"]["p50"] >= seen["p50"]


def check_sustained(found: Any) -> None:
    assert found["enqueued_per_s"] > 0
    assert found["pick_up"]["samples"] > 0, "history says when each was claimed"
    assert isinstance(found["growing"], bool)


def check_growth(found: Any) -> None:
    rows = {name: case["rows"] for name, case in found["cases"].items()}
    assert rows == {"pending in another lane": 500, "parked for later": 500, "in history": 2500, "in a paused lane": 50}
    for case in found["cases"].values():
        check_spread(case["ratio_to_empty"])
    check_spread(found["snapshot"]["last_to_first"])


def check_idle(found: Any) -> None:
    assert set(found["rss_mib"]) == {"worker", "keeper"}
    assert 0 < found["memory"]["after_a_tenth"] < 1000
    assert found["memory"]["jobs"] == 100


def check_spread(found: Any) -> None:
    assert 0 < found["min"] <= found["median"] <= found["max"]


CHECKS = {
    "drain": check_drain,
    "enqueue": check_enqueue,
    "outbox": check_outbox,
    "schedules": check_schedules,
    "latency": check_latency,
    "sustained": check_sustained,
    "growth": check_growth,
    "idle": check_idle,
}


@pytest.mark.parametrize("what", SMALL)
def test_a_measurement_tells_its_figures_and_leaves_nothing_behind(at, empty_database, folder, what):
    said = at()("bench", what, "--database", empty_database, *SMALL[what], "--json")
    assert (said.code, said.err) == (0, "")
    found = said.json
    assert found["server"]["cpus"] >= 1
    assert found["meaning"].endswith(".")
    CHECKS[what](found)
    assert schemas(empty_database) == []
    assert list(folder.iterdir()) == []


def test_a_server_that_never_had_kept_is_left_without_its_role(at, tmp_path_factory):
    with Embedded(tmp_path_factory.mktemp("untouched") / "pg", options={"fsync": "off"}) as server:
        assert at()("bench", "latency", "--database", server.url(), "--samples", 1).code == 0
        with psycopg.connect(server.url()) as conn:
            assert conn.execute("select from pg_roles where rolname ~ '^kept'").fetchall() == []


def test_people_get_a_table_and_a_sentence(at, empty_database):
    said = at()("bench", "latency", "--database", empty_database, "--samples", 1)
    assert said.out.splitlines()[0].split() == ["ms", "p50", "p90", "p99", "max"]
    assert "On an idle worker a job starts" in said.out
    assert said.err == ""


def test_without_a_database_it_measures_on_a_durable_server_of_its_own(nowhere, folder):
    said = nowhere("bench", "latency", "--samples", 1, "--json", KEPT_DATABASE_URL="postgresql://u:p@127.0.0.1:1/x")
    server = said.json["server"]
    assert (server["embedded"], server["fsync"], server["synchronous_commit"]) == (True, "on", "on")
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("what", [*SMALL, "clean"])
def test_an_unreachable_database_is_one_sentence(at, folder, what):
    said = at()("bench", what, "--database", "postgresql://u:sekret@127.0.0.1:1/x")
    assert said.code == 75
    assert said.err.startswith("kept: the database is not available: ")
    assert said.err.count("\n") == 1
    assert "sekret" not in said.err
    assert list(folder.iterdir()) == []


def test_numbers_of_processes_must_be_numbers(at):
    said = at()("bench", "drain", "--processes", "1,two")
    assert (said.code, "write numbers like 1,2,4" in said.err) == (2, True)


@pytest.mark.parametrize(("sent", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_it_and_cleans_up(empty_database, folder, sent, code):
    command = [KEPT, "bench", "latency", "--database", empty_database, "--samples", "100000"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        with psycopg.connect(empty_database, autocommit=True) as conn:
            eventually(lambda: _working(conn), timeout=60, what="a worker under measurement")
        process.send_signal(sent)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == code
    assert "Traceback" not in err
    assert (out, err) == ("", "kept: interrupted; nothing is left behind\n" if sent == signal.SIGINT else "")
    assert schemas(empty_database) == []
    assert list(folder.iterdir()) == []
    with psycopg.connect(empty_database, autocommit=True) as conn:
        eventually(lambda: not _others(conn), what="the end of the measured processes")


def _others(conn: psycopg.Connection) -> list[tuple[int, str]]:
    return conn.execute(
        "select pid, application_name from pg_stat_activity where datname = current_database() "
        "and pid <> pg_backend_pid() and backend_type = 'client backend'"
    ).fetchall()


def _working(conn: psycopg.Connection) -> bool:
    return any("worker" in name for _, name in _others(conn))


def test_what_a_killed_measurement_left_can_be_cleaned_up(at, empty_database, folder):
    command = [KEPT, "bench", "latency", "--database", empty_database, "--samples", "100000"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    with psycopg.connect(empty_database, autocommit=True) as conn:
        try:
            eventually(lambda: _working(conn), timeout=60, what="a worker under measurement")
            (schema,) = schemas(empty_database)
            assert at()("bench", "clean", "--database", empty_database, "--json").json == {"dropped": []}, "it runs"
        finally:
            process.kill()
            process.wait()
        eventually(lambda: not _others(conn), timeout=60, what="the end of what was measured")
    (left,) = folder.iterdir()
    said = at()("bench", "clean", "--database", empty_database)
    assert said.out.splitlines() == [f"dropped {left}", f"dropped {schema}"]
    assert schemas(empty_database) == []
    assert list(folder.iterdir()) == []
    assert at()("bench", "clean", "--database", empty_database).out == "nothing to clean up\n"


def test_a_server_of_its_own_that_was_left_running_is_stopped_and_removed(at, folder):
    code = (
        "import os, sys\nfrom kept.bench.place import site\n"
        "with site(None) as there:\n    print(there.url, flush=True)\n    sys.stdin.read()\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=os.environ
    )
    try:
        assert process.stdout is not None and process.stdin is not None
        url = process.stdout.readline().strip()
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
        process.stdin.close()
    psycopg.connect(url).close()  # it still serves
    said = at()("bench", "clean", "--json")
    assert len(json.loads(said.out)["dropped"]) == 1
    assert list(folder.iterdir()) == []
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(url)


def test_a_folder_of_somebody_else_is_left_alone(folder):
    target = folder / "precious"
    target.mkdir()
    (folder / "kept-bench-link").symlink_to(target)
    assert places.clean(None) == []
    assert target.is_dir()
