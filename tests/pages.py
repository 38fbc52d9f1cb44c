"""What the tests of the documentation share: its pages, the blocks in them, and a shell that follows them.

A comment right above a block tells the tests about it, and readers do not see it: ``<!-- not run: REASON -->``.
Code that only the tests need stands in a comment of its own: ``<!-- run`` and Python up to ``-->``.
"""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

ROOT = Path(__file__).parents[1]
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    ROOT / "examples" / "publisher" / "README.md",
    ROOT / "deploy" / "README.md",
]

_BLOCK = re.compile(
    r"^(?:<!-- (?P<note>[^\n]*) -->\n)?```(?P<language>\w*)\n(?P<text>.*?)^```$"
    r"|^<!-- run\n(?P<hidden>.*?)^-->$",
    re.DOTALL | re.MULTILINE,
)
_FILE = re.compile(r"# (?P<added>added to )?(?P<name>[\w/]+\.py)\n")
_DONE = "__done__"


@dataclass(frozen=True, slots=True)
class Block:
    """One fenced block, or hidden code (whose language is Python)."""

    page: Path
    line: int
    language: str
    text: str
    note: str

    @property
    def runs(self) -> bool:
        return not self.note.startswith("not run: ")

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks(page: Path) -> Iterator[Block]:
    """The blocks of *page*, in order."""
    text = page.read_text(encoding="utf-8")
    for found in _BLOCK.finditer(text):
        hidden = found["hidden"]
        line = text.count("\n", 0, found.start()) + (2 if hidden is not None or found["note"] else 1)
        if hidden is not None:
            yield Block(page, line, "python", hidden, "")
        else:
            yield Block(page, line, found["language"], found["text"], found["note"] or "")


class Shell:
    """A bash in *folder*, as a reader would have it: our programs on the path, the database in the environment."""

    def __init__(self, folder: Path, database: str) -> None:
        self.folder = folder
        env = {name: value for name, value in os.environ.items() if not name.startswith(("KEPT_", "PYTEST_"))}
        env |= {
            "KEPT_DATABASE_URL": database,
            "PATH": f"{Path(sys.executable).parent}:{env['PATH']}",
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        self._bash = subprocess.Popen(
            ["bash", "--norc"], cwd=folder, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )  # fmt: skip
        self._said = ""  # and not yet read; a command in the background speaks when it likes
        self.run("set -m")  # each command in the background has a process group of its own, as in a terminal

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for group in re.findall(r"^\d+$", self.run("jobs -p"), re.MULTILINE):
            with suppress(ProcessLookupError):
                os.killpg(int(group), signal.SIGKILL)
        self._bash.communicate(timeout=10)  # no more commands: it ends

    def follow(self, block: Block) -> None:
        """Do what *block* tells the reader to do, and see what it says the reader will see."""
        named = _FILE.match(block.text)
        if block.language == "python" and named is not None:
            with (self.folder / named["name"]).open("a" if named["added"] else "w", encoding="utf-8") as file:
                file.write(block.text)
        elif block.language == "console":
            for command, shown in _commands(block.text):
                expect(self.run(command), shown, f"{block}: {command}")
        else:
            raise AssertionError(f"{block}: a {block.language} block that nobody can follow")

    def run(self, command: str, timeout: float = 60) -> str:
        """What is said until *command* is over; it must succeed within *timeout* seconds."""
        assert self._bash.stdin is not None
        self._bash.stdin.write(f"{{ {command}\n}} </dev/null; echo {_DONE} $?\n".encode())
        self._bash.stdin.flush()
        output, code = self._read_until_done(command, time.monotonic() + timeout)
        assert code == 0, f"{command}: exit code {code}\n{output}"
        return output

    def _read_until_done(self, command: str, deadline: float) -> tuple[str, int]:
        assert self._bash.stdout is not None
        while (done := re.search(rf"{_DONE} (\d+)\n", self._said)) is None:
            ready, _, _ = select.select([self._bash.stdout], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, f"{command}: not over in time; so far:\n{self._said}"
            self._said += os.read(self._bash.stdout.fileno(), 65536).decode(errors="replace")
        output, self._said = self._said[: done.start()], self._said[done.end() :]
        return output, int(done[1])


def expect(output: str, shown: list[str], where: str) -> None:
    """Each line shown is a line of the output, in this order; ``…`` stands for anything."""
    lines = iter(output.splitlines())
    for line in shown:
        pattern = ".*".join(re.escape(part) for part in line.split("…"))
        assert any(re.fullmatch(pattern, said.rstrip()) for said in lines), f"{where}: {line!r} is not in\n{output}"


def _commands(text: str) -> Iterator[tuple[str, list[str]]]:
    command, shown = "", []
    for line in text.splitlines():
        if line.startswith("$ "):
            if command:
                yield command, shown
            command, shown = line[2:], []
        elif line.strip():
            shown.append(line.rstrip())
    if command:
        yield command, shown
