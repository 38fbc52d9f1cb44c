"""Every command against a server that is too old: one sentence, the right exit code, nothing stored."""

from __future__ import annotations

from contextlib import closing

import pytest

from old_server import OldServer

SENTENCE = "Kept needs PostgreSQL 15 or newer, this is 14"
GOOD = "from kept import App\napp = App()\n@app.task()\ndef send() -> None: ...\n"
LOOKING = [["jobs", "list"], ["jobs", "show", "1"], ["lanes"], ["workers"], ["status"]]
CHANGING = [
    ["migrate"],
    ["migrate", "--check"],
    ["jobs", "retry", "1"],
    ["jobs", "cancel", "1"],
    ["jobs", "delete", "1", "--yes"],
    ["lanes", "pause", "mail"],
    ["lanes", "resume", "mail"],
]
WORKING = [["worker"], ["worker", "--migrate"], ["tick"], ["sync"]]


@pytest.fixture
def old():
    with closing(OldServer()) as old:
        yield old


@pytest.fixture(autouse=True)
def project(tmp_path, monkeypatch):
    """A directory with an app in it; it is the current one."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "app_for_an_old_server.py").write_text(GOOD)


def named(words: list[str]) -> list[str]:
    return [*words, "app_for_an_old_server:app"] if words in WORKING else words


@pytest.mark.parametrize("words", [*LOOKING, *CHANGING, *WORKING], ids=" ".join)
def test_a_server_too_old_is_said_in_one_sentence_and_changed_by_nobody(at, old, words):
    said = at(old.url)(*named(words))
    assert said.code == 1
    assert said.err == f"kept: {SENTENCE}\n"
    assert said.out == ""
    assert old.refused == [], "nothing was asked for but the version"


def test_the_doctor_says_it_as_a_finding(at, old):
    said = at(old.url)("doctor")
    assert said.code == 1
    assert SENTENCE in said.out
    (finding,) = at(old.url)("doctor", "--json").json["findings"]
    assert (finding["level"], SENTENCE in finding["message"]) == ("problem", True)
    assert old.refused == []


def test_a_check_as_json_says_it_too(at, old):
    said = at(old.url)("migrate", "--check", "--json")
    assert (said.code, said.json["problem"]) == (1, SENTENCE)
