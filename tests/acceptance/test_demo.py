"""``make demo`` keeps its word: workers are killed, nothing is lost, it ends when told to and no process is left."""

from __future__ import annotations

import fcntl
import importlib.util
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType

import pytest

from kept.db.embedded import Embedded, location

pytestmark = pytest.mark.acceptance

DEMO = Path(__file__).parents[2] / "examples" / "demo"
SUMMARY = re.compile(
    r"accepted=(?P<accepted>\d+) done=(?P<done>\d+) failed=(?P<failed>\d+) "
    r"taken_over=(?P<taken_over>\d+) lost=(?P<lost>\d+) duplicates=(?P<duplicates>\d+)"
)
FLOWING = "jobs are flowing"
CTRL_C = b"\x03"


class Demo:
    """The demo in a folder of its own, whose name all its processes carry."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.process: subprocess.Popen[str] | None = None

    def start(self, **more: object) -> subprocess.Popen[str]:
        """Start it without a terminal, in a process group of its own."""
        self.process = subprocess.Popen(
            [sys.executable, str(DEMO)],
            env=self._environ(**more),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        return self.process

    def start_on(self, terminal: int) -> subprocess.Popen[str]:
        """Start it on *terminal*, as a login there would."""
        login = "import os, sys; os.login_tty(int(sys.argv[1])); os.execv(sys.argv[2], sys.argv[2:])"
        self.process = subprocess.Popen(
            [sys.executable, "-c", login, str(terminal), sys.executable, str(DEMO)],
            env=self._environ(TERM="xterm"),
            pass_fds=[terminal],
            text=True,
        )
        return self.process

    def _environ(self, **more: object) -> dict[str, str]:
        return {**os.environ, "KEPT_DEMO_DIR": str(self.folder), **{name: str(value) for name, value in more.items()}}

    def says(self, wanted: str) -> list[str]:
        """Read lines up to the one that has *wanted* in it."""
        assert self.process is not None
        assert self.process.stdout is not None
        lines = []
        for line in self.process.stdout:
            lines.append(line)
            if wanted in line:
                return lines
        pytest.fail(f"it ended without saying {wanted!r}: {lines}, {self.process.communicate()[1]}")

    def end(self) -> dict[str, int]:
        """Wait for its end in order; the figures of its last line."""
        assert self.process is not None
        out, err = self.process.communicate(timeout=60)
        assert (self.process.returncode, err) == (0, ""), out
        return figures(out)

    def left(self) -> list[str]:
        """Every process that has this demo's folder in its environment, its command line or as its place."""
        mark = self.folder.name.encode()
        return [each.name for each in Path("/proc").glob("[0-9]*") if mark in _told_by(each)]

    def server_answers(self) -> bool:
        return Embedded(location(f"embedded:{self.folder}")).alive()


def _told_by(process: Path) -> bytes:
    try:
        told = (process / "cmdline").read_bytes() + (process / "environ").read_bytes()
        return told + os.fsencode((process / "cwd").readlink())
    except OSError:  # it has ended, or is somebody else's
        return b""


def figures(out: str) -> dict[str, int]:
    """What the one summary line, the last of all, says."""
    (found,) = SUMMARY.finditer(out)
    assert out.rstrip().endswith(found.group())
    return {name: int(number) for name, number in found.groupdict().items()}


def read_until(terminal: int, *wanted: bytes) -> str:
    """What is written to *terminal*, until each of the patterns *wanted* was."""
    shown = b""
    while not all(re.search(each, shown) for each in wanted):
        shown += os.read(terminal, 65536)
    return shown.decode()


@pytest.fixture
def demo() -> Iterator[Demo]:
    """A demo that does not outlive its test: its workers end with it, and the last of them stops the server."""
    with TemporaryDirectory(prefix="kept-demo-", ignore_cleanup_errors=True) as folder:
        demo = Demo(Path(folder))
        yield demo
        if demo.process is not None:
            demo.process.kill()
            demo.process.communicate()


@pytest.fixture
def terminal() -> Iterator[tuple[int, int]]:
    """The two ends of a terminal of 80 by 24: the one a person has, and the one a program has."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    yield ours, theirs
    os.close(ours)
    os.close(theirs)


@pytest.fixture(scope="module")
def oracle() -> ModuleType:
    spec = importlib.util.spec_from_file_location("demo_oracle", DEMO / "oracle.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_nothing_is_lost_although_workers_are_killed(demo: Demo) -> None:
    demo.start(KEPT_DEMO_SECONDS=6)
    lines = demo.says("no more orders")
    ended = demo.end()
    assert any("was killed with SIGKILL" in line for line in lines)
    assert ended["accepted"] > 100
    assert (ended["done"], ended["failed"], ended["lost"]) == (ended["accepted"], 0, 0)
    assert (demo.left(), demo.server_answers()) == ([], False)


def test_ctrl_c_ends_it_after_what_was_accepted_is_done(demo: Demo) -> None:
    process = demo.start()
    demo.says(FLOWING)
    demo.says("accepted")
    os.killpg(process.pid, signal.SIGINT)
    ended = demo.end()
    assert ended["accepted"] > 0
    assert (ended["done"], ended["lost"]) == (ended["accepted"], 0)
    assert (demo.left(), demo.server_answers()) == ([], False)


@pytest.mark.parametrize("moment", ["starting PostgreSQL", "starting workers"])
def test_ctrl_c_while_it_starts_ends_it_in_order(demo: Demo, moment: str) -> None:
    process = demo.start()
    demo.says(moment)
    os.killpg(process.pid, signal.SIGINT)
    assert demo.end()["lost"] == 0
    assert (demo.left(), demo.server_answers()) == ([], False)


def test_on_a_terminal_it_shows_lanes_and_workers_and_takes_ctrl_c_as_a_key(
    demo: Demo, terminal: tuple[int, int]
) -> None:
    ours, theirs = terminal
    before = termios.tcgetattr(theirs)
    process = demo.start_on(theirs)
    read_until(ours, b"oldest pending", b"invoices", b"mail", b"thumbnails", b"live", FLOWING.encode())
    os.write(ours, CTRL_C)
    shown = read_until(ours, rb"duplicates=\d+\r\n")
    assert process.wait(timeout=60) == 0
    assert figures(shown)["lost"] == 0
    assert termios.tcgetattr(theirs) == before
    assert (demo.left(), demo.server_answers()) == ([], False)


def test_if_it_cannot_start_one_sentence_says_why_and_where_the_logs_are(demo: Demo, tmp_path: Path) -> None:
    process = demo.start(KEPT_PG_BIN=tmp_path)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert err.count("\n") == 1
    assert str(tmp_path) in err
    assert f"the logs are in {demo.folder / 'run'}" in err
    assert demo.left() == []


def test_the_oracle_finds_what_was_lost_done_twice_or_out_of_nowhere(oracle: ModuleType, tmp_path: Path) -> None:
    accepted, rolled_back, effects = (tmp_path / name for name in ("accepted", "rolled_back", "effects"))
    accepted.write_text("1\n2\n3\n4\n")
    rolled_back.write_text("5\n6\n")
    effects.write_text("1 1 mail\n2 1 mail\n2 2 mail\n2 3 mail\n6 1 mail\n")
    verdict = oracle.judge(accepted, rolled_back, effects, waiting=[4])
    assert (verdict.accepted, verdict.lost, verdict.duplicates, verdict.phantoms) == (4, {3}, 2, {6})
    assert not verdict.clean


def test_the_oracle_has_nothing_against_a_duplicate(oracle: ModuleType, tmp_path: Path) -> None:
    accepted, rolled_back, effects = (tmp_path / name for name in ("accepted", "rolled_back", "effects"))
    accepted.write_text("1\n")
    effects.write_text("1 1 mail\n1 2 mail\n")
    verdict = oracle.judge(accepted, rolled_back, effects)
    assert (verdict.duplicates, verdict.clean) == (1, True)
