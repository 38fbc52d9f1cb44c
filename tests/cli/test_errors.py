"""What is said when something is wrong: one sentence, an exit code, never a password, never a traceback."""

from __future__ import annotations

import json

import pytest

GOOD = "from kept import App\napp = App()\n@app.task()\ndef send() -> None: ...\n"


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A directory in which modules can be written; it is the current one."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))

    def write(name: str, text: str) -> None:
        (tmp_path / name).write_text(text)

    return write


EVERY = [["jobs", "list"], ["jobs", "show", "1"], ["lanes"], ["workers"], ["status"], ["migrate", "--check"]]


@pytest.mark.parametrize("words", [*EVERY, ["doctor"], ["migrate"]], ids=" ".join)
def test_no_database_configured_names_both_ways_to_have_one(nowhere, words):
    said = nowhere(*words)
    assert said.code == 2
    assert "KEPT_DATABASE_URL=postgresql://" in said.err
    assert "KEPT_DATABASE_URL=embedded:" in said.err


@pytest.mark.parametrize("words", EVERY, ids=" ".join)
def test_an_unreachable_database_is_something_to_try_later(at, words):
    said = at("postgresql://u:sekret@127.0.0.1:1/x")(*words)
    assert said.code == 75
    assert said.err.startswith("kept: the database is not available: ")
    assert said.err.count("\n") == 1
    assert "sekret" not in said.err


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://u:sekret@host:port/x",
        "postgresql://u:sekret@127.0.0.1:1/x?nonsense=1",
        "host=127.0.0.1 port=1 password=sekret nonsense",
        "postgresql://u:sek/ret@127.0.0.1:1/x",
    ],
)
def test_a_url_that_cannot_be_read_is_misconfigured_and_keeps_its_password(at, url):
    said = at(url)("jobs", "list")
    assert said.code in (2, 75)
    assert said.err.startswith("kept: ")
    assert "sekret" not in said.err and "sek/ret" not in said.err


@pytest.mark.parametrize(
    "words", [["jobs", "list"], ["jobs", "cancel", "1"], ["lanes"], ["workers"], ["status"]], ids=" ".join
)
def test_a_missing_schema_says_how_to_make_it(at, empty_database, words):
    said = at(empty_database)(*words)
    assert said.code == 1
    assert said.err == 'kept: schema "kept" is not set up in this database; run `kept migrate`\n'


def test_a_read_only_database_is_something_to_try_later(kept, conn):
    conn.execute(f"alter database {conn.info.dbname} set default_transaction_read_only = on")
    for words in (["jobs", "list"], ["migrate"], ["jobs", "retry", "1"]):
        said = kept(*words)
        assert said.code == 75
        assert said.err == "kept: this connection is read-only, as on a standby; Kept needs the primary\n"


def test_a_near_miss_of_a_setting_is_an_error(nowhere):
    said = nowhere("status", KEPT_DATABSE_URL="postgresql:///x")
    assert said.code == 2
    assert said.err == "kept: KEPT_DATABSE_URL is not a setting; did you mean KEPT_DATABASE_URL?\n"


def test_settings_that_contradict_each_other_are_an_error(kept):
    said = kept("status", KEPT_RENEW="50s")
    assert said.code == 2
    assert "KEPT_RENEW is 50s" in said.err and "renew must be at most half of lease" in said.err


def test_a_schema_name_that_cannot_be_one_is_an_error(kept):
    said = kept("jobs", "list", KEPT_SCHEMA="drop table;")
    assert said.code == 2
    assert "KEPT_SCHEMA='drop table;' is not a schema name" in said.err


# --- the user's own module (kept worker, kept tick, kept sync)


@pytest.mark.parametrize("command", ["worker", "tick", "sync"])
def test_no_app_named_says_how_to_name_one(kept, command):
    said = kept(command, KEPT_APP=None)
    assert said.code == 2
    assert "write `kept … module:app`, or set KEPT_APP" in said.err


@pytest.mark.parametrize("command", ["worker", "tick", "sync"])
@pytest.mark.parametrize(
    ("text", "where", "sentence"),
    [
        (None, "nowhere_at_all:app", "no such module here or on the path"),
        ("import not_installed_anywhere", "broken:app", "'broken' does not import: ModuleNotFoundError"),
        ("raise RuntimeError('no \\x1b[31m config')", "broken:app", "RuntimeError: no \\x1b[31m config"),
        ("def f(:", "broken:app", "'broken' does not import: SyntaxError"),
        (GOOD, "broken:other", "'broken' has no attribute 'other'"),
        ("app = 7", "broken:app", "'broken:app' is a int, not an App"),
        (GOOD, "broken", "does not name an app; write it like 'package.module:app'"),
    ],
)
def test_an_app_that_cannot_be_loaded_is_misconfigured(kept, project, monkeypatch, command, text, where, sentence):
    monkeypatch.delitem(__import__("sys").modules, "broken", raising=False)
    if text is not None:
        project("broken.py", text)
    said = kept(command, where)
    assert said.code == 2
    assert sentence in said.err
    assert said.err.count("\n") == 1


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--concurrency", "0"], "concurrency must be between 1 and"),
        (["--concurrency", "many"], "'many' is not a valid integer"),
    ],
)
@pytest.mark.parametrize("command", ["worker", "tick"])
def test_bad_options_of_a_worker_are_refused(kept, project, command, options, sentence):
    project("good_app.py", GOOD)
    said = kept(command, "good_app:app", *options)
    assert said.code == 2
    assert sentence in said.err


def test_a_grace_without_a_unit_is_refused(kept, project):
    project("good_app.py", GOOD)
    said = kept("worker", "good_app:app", "--grace", "soon")
    assert said.code == 2
    assert "grace" in said.err and "not a duration" in said.err


@pytest.mark.parametrize("command", ["tick", "sync"])
def test_a_worker_needs_the_schema_and_says_so(at, empty_database, project, command):
    project("good_app.py", GOOD)
    said = at(empty_database)(command, "good_app:app")
    assert said.code == 1
    assert "run `kept migrate`" in said.err


def test_sync_registers_the_tasks_of_an_app(kept, project):
    project("good_app.py", GOOD)
    said = kept("sync", "good_app:app", "--json")
    assert (said.code, said.json["tasks"]) == (0, 1)
    assert kept("lanes", "--json").json["lanes"][0]["declared"] is True


@pytest.mark.parametrize("command", ["worker", "tick"])
def test_a_variable_that_is_no_setting_is_warned_about_once(at, project, command):
    project("good_app.py", GOOD)
    nowhere = at("postgresql://u@127.0.0.1:1/x")
    said = nowhere(command, "good_app:app", KEPT_WHATSIT="1", KEPT_LOG_FORMAT="json")
    assert said.code == 75
    (warning,) = [json.loads(line) for line in said.err.splitlines() if "KEPT_WHATSIT" in line]
    assert (warning["event"], warning["code"]) == ("warned", "unknown_variable")
    assert warning["message"] == "KEPT_WHATSIT is not a setting of Kept"
