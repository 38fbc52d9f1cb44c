"""Real ``kept worker`` processes: started, killed without warning, replaced, and gone at the end."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from kept.worker.supervisor import INDEX

REPLACE_AFTER = 1.0  # seconds
GRACE = 5  # seconds a worker has to finish what it runs
HERE = Path(__file__).resolve().parent


class DemoFailed(Exception):
    """A part of the demo did not work; the message is a sentence for its user."""


@dataclass(slots=True)
class Member:
    """One worker process. It leads a process group, so that its keeper is found even after its death."""

    number: int
    process: subprocess.Popen[bytes]
    started: float = field(default_factory=time.monotonic)
    killed: float | None = None

    @property
    def name(self) -> str:
        return f"worker {self.number}"

    @property
    def pid(self) -> int:
        return self.process.pid

    def kill(self) -> None:
        """SIGKILL: no clean-up, no farewell."""
        self.killed = time.monotonic()
        self.process.kill()
        self.process.wait()


class Fleet:
    """As many workers as asked for; whoever is killed is replaced."""

    def __init__(self, size: int, environ: Mapping[str, str], logs: Path) -> None:
        self._size = size
        self._environ = environ
        self._logs = logs
        self._groups: list[Member] = []  # everyone whose group may still have a process
        self._vacant: list[tuple[int, float]] = []
        self.members: list[Member] = []

    def start(self) -> None:
        """Start all of them; they come up on their own time."""
        for number in range(1, self._size + 1):
            self.members.append(self._start(number))

    def kill(self, member: Member) -> None:
        """Kill *member*; another takes its place in a moment, as a supervisor would see to."""
        member.kill()
        self._groups = self._left()
        self.members.remove(member)
        self._vacant.append((member.number, time.monotonic() + REPLACE_AFTER))

    def look_after(self) -> None:
        """Start who is to be replaced; raise if a worker ended on its own."""
        now = time.monotonic()
        for number, at in [each for each in self._vacant if each[1] <= now]:
            self._vacant.remove((number, at))
            self.members.append(self._start(number))
        for member in self.members:
            code = member.process.poll()
            if code is not None:
                raise DemoFailed(f"{member.name} ended by itself with exit code {code}: {self._last_words(member)}")

    def _log_of(self, number: int) -> Path:
        return self._logs / f"worker-{number}.log"

    def _last_words(self, member: Member) -> str:
        lines = self._log_of(member.number).read_text(errors="replace").split("\n")
        return next((line[:300] for line in reversed(lines) if line.strip()), "it said nothing")

    def stop(self, *, is_hurried: Callable[[], bool]) -> None:
        """SIGTERM, and when their time is up SIGKILL, until no process of ours is left."""
        for member in self.members:
            member.process.terminate()
        self._wait(GRACE + 5.0, unless=is_hurried)
        for member in self._left():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(member.pid, signal.SIGKILL)
        self._wait(5.0)
        self.members.clear()

    def _wait(self, patience: float, *, unless: Callable[[], bool] = lambda: False) -> None:
        deadline = time.monotonic() + patience
        while self._left() and time.monotonic() < deadline and not unless():
            time.sleep(0.02)

    def _left(self) -> list[Member]:
        """Those of whom something is left: the worker, its keeper or another child."""
        living = living_groups()
        return [member for member in self._groups if member.process.poll() is None or member.pid in living]

    def _start(self, number: int) -> Member:
        command = [
            str(Path(sys.executable).with_name("kept")), "worker", "app:app", "--concurrency", "10",
            "--grace", f"{GRACE}s", "--log-format", "json",
        ]  # fmt: skip
        with self._log_of(number).open("ab") as log:
            process = subprocess.Popen(
                command,
                cwd=HERE,
                # A worker that has an index ends with its parent, also when we are the ones to be killed.
                env={**self._environ, INDEX: str(number)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                process_group=0,  # the terminal's Ctrl-C is for us; we tell them
            )
        member = Member(number, process)
        self._groups.append(member)
        return member


def living_groups() -> frozenset[int]:
    """The process groups in which something lives. Zombies do not count: where nobody reaps, they stay for ever."""
    found = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has just ended
            state, _parent, group = stat.read_text().rpartition(")")[2].split()[:3]
            if state not in ("Z", "X"):
                found.add(int(group))
    return frozenset(found)
