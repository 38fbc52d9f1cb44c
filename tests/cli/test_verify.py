"""``kept verify``: what it says, and how it ends."""

from __future__ import annotations

from errno import ENOSPC
from pathlib import Path

import pytest

from kept.verify import faults
from kept.verify.crew import Processes
from kept.verify.evidence import Terms
from kept.verify.ledger import Torn
from kept.verify.record import cover

# Handlers that never write down an effect, as if they had not run.
FORGETFUL = """
from kept.verify.ledger import Ledger
note = Ledger.note
Ledger.note = lambda self, what, *rest: None if what == "effect" else note(self, what, *rest)
"""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))


@pytest.mark.acceptance
def test_a_small_run_ends_well_and_tells_what_it_found(kept):
    said = kept("verify", "--seconds", 3, "--jobs", 200, "--workers", 2, "--faults", "recursion", "--seed", 5)
    assert said.code == 0, said.out + said.err
    assert "No promise was broken after 2" in said.out
    assert "(seed 5)" in said.out
    lines = {
        line.rsplit("  ", 1)[0].strip(): line.rsplit("  ", 1)[1].strip()
        for line in said.out.splitlines()
        if "  " in line
    }
    assert lines["lost"] == lines["phantom"] == lines["… that got through"] == "0"
    assert lines["… recursion"].isdigit()


@pytest.mark.acceptance
def test_a_breach_is_told_with_its_promise_its_items_and_code_1(kept, tmp_path, monkeypatch):
    (tmp_path / "sitecustomize.py").write_text(FORGETFUL)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    said = kept("verify", "--seconds", 1, "--jobs", 20, "--workers", 1, "--faults", "", "--seed", 5)
    assert said.code == 1
    assert "promise 3: a job is done, and its handler never did it" in said.out
    assert "token" in said.out
    assert "Promise 3 was broken" in said.out.splitlines()[-1]
    (logs,) = tmp_path.glob("kept-evidence-*")
    assert f"The logs are in {logs};" in said.out
    assert logs.stat().st_mode & 0o077 == 0
    again = kept("verify", "--judge", logs, "--json")
    assert again.code == 1
    assert [breach["promise"] for breach in again.json["breaches"]] == [3]


def record(folder: Path, **files: str) -> Path:
    """A record of a run in which nothing was to be done, with some files otherwise."""
    folder.mkdir()
    for name, text in ({"rows": "", "once": "", "slots": ""} | files).items():
        (folder / name).write_text(text)
    cover(folder, Terms(seed=7, lease=3, scan=0.5, seconds=1))
    return folder


def test_a_record_is_judged_without_a_database(nowhere, tmp_path):
    said = nowhere("verify", "--judge", record(tmp_path / "sound"))
    assert (said.code, said.out.splitlines()[-1]) == (
        0,
        "No promise was broken after 0 jobs and 0 faults in 1 s (seed 7).",
    )
    said = nowhere("verify", "--judge", record(tmp_path / "ghost", rows='[1,"plain","done",null,1,1,5]\n'))
    assert said.code == 1
    assert "promise 1: a job exists whose transaction did not commit" in said.out


def test_a_record_that_is_not_complete_is_refused(nowhere, tmp_path):
    def why(folder: Path) -> str:
        said = nowhere("verify", "--judge", folder)
        assert (said.code, said.out) == (2, "")
        return said.err.partition("is no record of a run that came to its end: ")[2]

    assert why(tmp_path) == "'cover': No such file or directory\n"
    assert why(tmp_path / "none") == "'cover': No such file or directory\n"
    sound = record(tmp_path / "sound", rows='[1,"plain","done",null,1,1,5]\n')
    (sound / "rows").write_text('[1,"plain","done",null,1,1,5]')
    assert why(sound) == "'rows' was cut, added or removed\n"
    (sound / "rows").unlink()
    assert why(sound) == "'rows' was cut, added or removed\n"
    more = record(tmp_path / "more")
    (more / "ledger-1-1").mkdir()
    assert why(more) == "'ledger-1-1' was cut, added or removed\n"
    cut = record(tmp_path / "cut")
    (cut / "cover").write_text('{"kept":"0",')
    assert why(cut) == "its 'cover' cannot be read\n"
    (cut / "cover").write_text('{"kept":"0"}\n')
    assert why(cut) == "its 'cover' cannot be read\n"


def test_what_cannot_be_read_breaks_no_promise(nowhere, tmp_path):
    said = nowhere("verify", "--judge", record(tmp_path / "odd", rows="[1]\n"))
    assert (said.code, said.out) == (3, "")
    assert "rows, line 1" in said.err
    odd = record(tmp_path / "bytes", rows='["x"]\n')
    (odd / "rows").write_bytes(b'["\xff"]\n')
    said = nowhere("verify", "--judge", odd)
    assert (said.code, said.out) == (3, "")
    assert "rows, line 1" in said.err


def test_options_that_would_be_ignored_are_refused(nowhere, tmp_path):
    said = nowhere("verify", "--judge", record(tmp_path / "more"), "--seed", 7, "--workers", 4)
    assert (said.code, said.err) == (2, "kept: judge: it goes without --seed, --workers\n")
    said = nowhere("verify", "--list", "--judge", tmp_path)
    assert (said.code, said.err) == (2, "kept: list: it goes without --judge\n")


@pytest.mark.acceptance
def test_a_run_that_could_not_go_on_says_where_its_logs_are(kept, tmp_path, monkeypatch):
    def torn(*_: object) -> None:
        raise Torn("rows, line 1: nonsense")

    monkeypatch.setattr("kept.verify.run.judged", torn)
    said = kept("verify", "--seconds", 1, "--jobs", 20, "--workers", 1, "--faults", "", "--seed", 5)
    (logs,) = tmp_path.glob("kept-evidence-*")
    assert (said.code, said.out) == (3, "")
    assert said.err == f"kept: The logs are in {logs}.\nkept: rows, line 1: nonsense\n"
    assert list(logs.glob("ledger-*"))


@pytest.mark.acceptance
def test_logs_that_cannot_be_kept_do_not_cost_the_judgement(kept, tmp_path, monkeypatch):
    def full(*_: object) -> None:
        raise OSError(ENOSPC, "No space left on device")

    monkeypatch.setattr("shutil.move", full)
    options = ("--seconds", 1, "--jobs", 20, "--workers", 1, "--faults", "", "--seed", 5, "--keep", tmp_path / "logs")
    said = kept("verify", *options, "--json")
    assert said.code == 3
    assert said.json["accepted"] >= 20
    assert [breach["sentence"] for breach in said.json["breaches"]] == ["the logs could not be kept where they should"]


@pytest.mark.acceptance
def test_a_fault_that_finds_nobody_to_hit_is_told_in_json_and_code_3(kept, monkeypatch):
    pids = Processes.pids
    monkeypatch.setattr(Processes, "pids", lambda self, role: [] if role == "supervisor" else pids(self, role))
    said = kept("verify", "--seconds", 1, "--jobs", 20, "--workers", 2, "--faults", "supervisor", "--seed", 5, "--json")
    assert said.code == 3
    assert said.json["breaches"] == [
        {"promise": 0, "sentence": "a fault was asked for and never hit", "items": ["supervisor"]}
    ]
    assert "not complete" in said.json["meaning"]


@pytest.mark.parametrize("seconds", ["nan", "inf", "-inf", "0", "soon"])
def test_seconds_that_do_not_end_are_refused(nowhere, seconds):
    said = nowhere("verify", "--seconds", seconds)
    assert said.code == 2
    assert "Invalid value for '--seconds'" in said.err


def test_a_folder_that_holds_something_or_cannot_be_written_to_is_refused_before_anything_is_started(nowhere, tmp_path):
    (tmp_path / "before").touch()
    said = nowhere("verify", "--keep", tmp_path)
    assert (said.code, said.err) == (2, f"kept: keep: {tmp_path} is not empty\n")
    said = nowhere("verify", "--keep", "/proc/kept")
    assert said.code == 2
    assert "keep: /proc/kept cannot be written to" in said.err


def test_a_fault_that_cannot_be_injected_here_is_refused_if_it_was_asked_for(kept):
    said = kept("verify", "--faults", "restart")
    assert (said.code, said.out) == (2, "")
    assert "faults: restart cannot be injected here: needs a server of its own" in said.err
    said = kept("verify", "--workers", 1, "--faults", "supervisor")
    assert said.code == 2
    assert "faults: supervisor cannot be injected here: needs more than one worker" in said.err


def test_a_fault_that_does_not_exist_is_refused_with_those_that_do(nowhere):
    said = nowhere("verify", "--faults", "kil")
    assert said.code == 2
    assert "there is no 'kil'; there are worker, handler" in said.err


def test_a_fault_of_the_server_is_left_out_on_a_given_database(kept):
    said = kept("verify", "--seconds", 1, "--jobs", 10, "--workers", 1, "--faults", "server", "--seed", 5)
    assert said.code == 0, said.out + said.err
    left_out = [
        line.split()[1] for line in said.out.splitlines() if line.endswith("left out: needs a server of its own")
    ]
    assert left_out == sorted(each.name for each in faults.ALL if each.group == "server" and is_common(each))


def is_common(fault: faults.Fault) -> bool:
    return "own_server" in fault.needs and not fault.by_name_only


def test_the_list_names_every_fault(nowhere):
    said = nowhere("verify", "--list", "--json")
    assert said.code == 0
    assert [each["name"] for each in said.json] == [each.name for each in faults.ALL]
    assert all(each["about"].endswith(".") for each in said.json)
    assert "SIGKILL of a worker" in nowhere("verify", "--list").out
