"""The real ``kept``, in a process of its own: exit codes, no tracebacks, a terminal."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from planted import enqueue, states

KEPT = str(Path(sys.executable).with_name("kept"))


@pytest.fixture
def environ() -> dict[str, str]:
    """An environment without settings of ours."""
    return {name: value for name, value in os.environ.items() if not name.startswith("KEPT_")}


@pytest.fixture
def run(environ):
    def call(*words: object, **more: str) -> subprocess.CompletedProcess[str]:
        ended = subprocess.run(
            [KEPT, *map(str, words)], env=environ | more, capture_output=True, text=True, timeout=60, check=False
        )
        assert "Traceback" not in ended.stderr
        return ended

    return call


def test_exit_codes_of_the_real_command(run, database, empty_database):
    assert run("--version").stdout.startswith("kept, version ")
    assert run("status", KEPT_DATABASE_URL=database).returncode == 0
    assert run("status", KEPT_DATABASE_URL=empty_database).returncode == 1
    assert run("status").returncode == 2
    assert run("status", KEPT_DATABASE_URL="postgresql://u:sekret@127.0.0.1:1/x").returncode == 75


def test_a_module_that_raises_while_it_is_imported_is_one_sentence(run, database, tmp_path):
    module = tmp_path / "broken.py"
    module.write_text("raise RuntimeError('postgresql://u:sekret@h/x')")
    ended = run("tick", f"{module}:app", KEPT_DATABASE_URL=database)
    assert ended.returncode == 2
    assert ended.stderr.count("\n") == 1
    assert "sekret" not in ended.stderr


def test_a_reader_that_goes_away_ends_the_command_quietly(environ, conn, database):
    for _ in range(50):
        enqueue(conn, payload=f'{{"text": "{"x" * 10_000}"}}')
    script = f"{KEPT} --database '{database}' jobs list --json | head -c 10"
    shell = ["/bin/sh", "-c", script]
    ended = subprocess.run(shell, env=environ, capture_output=True, text=True, timeout=60, check=False)
    assert ended.stdout == '{\n  "jobs"'
    assert ended.stderr == ""


def on_terminal(environ: dict[str, str], answer: bytes, *words: str) -> tuple[int, str]:
    """Run ``kept`` on a terminal of its own, type *answer* once it has asked, and return its end and the screen."""
    main, sub = pty.openpty()
    process = subprocess.Popen(
        [KEPT, *words], env=environ | {"COLUMNS": "120"}, stdin=sub, stdout=sub, stderr=sub, close_fds=True
    )
    os.close(sub)
    screen = b""
    try:
        while chunk := _read(main):
            screen += chunk
            if answer and b"[y/N]: " in screen:
                os.write(main, answer)
                answer = b""
        return process.wait(timeout=60), screen.decode()
    finally:
        os.close(main)
        process.kill()
        process.wait()


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65_536)
    except OSError:  # how a terminal says that its last user left
        return b""


def test_a_bulk_asks_on_a_terminal_and_no_means_no(environ, conn, database):
    ids = [enqueue(conn), enqueue(conn)]
    words = ("--database", database, "jobs", "cancel", "--queue", "mail")
    code, screen = on_terminal(environ, b"n\n", *words)
    assert "2 jobs will be cancelled. Go on?" in screen
    assert code == 1
    assert set(states(conn).values()) == {"pending"}
    code, screen = on_terminal(environ, b"y\n", *words)
    assert (code, "2 jobs cancelled" in screen) == (0, True)
    assert states(conn) == dict.fromkeys(ids, "cancelled")


def test_a_terminal_gets_a_table_that_a_key_cannot_steer(environ, conn, database):
    enqueue(conn, key="\x1b]0;owned\x07[red]\u202e")
    code, screen = on_terminal(environ, b"", "--database", database, "jobs", "list")
    assert code == 0
    assert "\x1b]0;" not in screen and "\u202e" not in screen
    assert r"\x1b]0;owned\x07[red]\u202e" in screen
