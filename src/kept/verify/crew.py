"""The processes of a run: started, replaced when they end, found by what they are, and gone at the end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from kept.config_names import ALIASES
from kept.errors import Error
from kept.showable import clean
from kept.worker.alone import die_with_parent

MARK, PARENT, FOLDER = "VERIFY_MARK", "VERIFY_PARENT", "VERIFY_FOLDER"
Role = Literal["supervisor", "worker", "keeper", "child"]
AGAIN = 0.3  # seconds before a process that ended is started again
QUICK, MOST_QUICK = 2.0, 40  # seconds; a process that ends sooner again and again will never do anything
ENDING = 20.0  # seconds to end in order


class Stuck(Error):
    """What was verified ended or stood still, and not because of a fault."""

    code = "verify_stuck"


@dataclass(frozen=True, slots=True)
class Command:
    """What is run, and with which options."""

    argv: tuple[str, ...]
    environ: Mapping[str, str] = field(default_factory=dict)
    supervises: bool = False
    ends: bool = False  # by itself, with code 0, when its work is done


@dataclass(slots=True)
class Member:
    """One place in the crew and the process that holds it now."""

    command: Command
    log: Path
    process: subprocess.Popen[bytes] | None = None
    since: float = 0.0
    ended: float = 0.0
    quick: int = 0
    code: int | None = None


@dataclass(slots=True)
class Processes:
    """Processes of one sort, each in a place of its own."""

    mark: str
    folder: Path
    environ: dict[str, str]  # of whatever is started from now on
    members: list[Member] = field(default_factory=list)
    replace: bool = True  # whoever ends is started again

    def start(self, *commands: Command) -> None:
        """Start one process for each of *commands*."""
        for command in commands:
            log = self.folder / f"{len(self.members)}-{self.mark[:6]}.out"
            member = Member(command, log)
            self.members.append(member)
            self._launch(member)

    def look_after(self) -> None:
        """Start those again that ended; raises if one of them ends time and again."""
        now = time.monotonic()
        for member in self.members:
            if member.process is not None and member.process.poll() is not None:
                member.code, member.process, member.ended = member.process.returncode, None, now
                quick = now - member.since < QUICK and member.code > 0
                member.quick = member.quick + 1 if quick else 0
                if member.quick > MOST_QUICK:
                    raise Stuck(f"a process ends again and again, with code {member.code}: {last_words(member.log)}")
            done = member.command.ends and member.code == 0
            if member.process is None and self.replace and not done and now - member.ended > AGAIN:
                self._launch(member)

    @property
    def done(self) -> bool:
        """Whether all have done their work and ended."""
        return all(member.code == 0 and member.process is None for member in self.members)

    def _launch(self, member: Member) -> None:
        member.log.touch(mode=0o600)
        with member.log.open("ab") as out:
            # A group of its own: Ctrl-C is the conductor's to answer.
            member.process = subprocess.Popen(
                [sys.executable, *member.command.argv],
                env={**self.environ, **member.command.environ, MARK: self.mark, PARENT: str(os.getpid())},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                process_group=0,
            )
        member.code = None
        member.since = time.monotonic()

    # --- who is who

    def pids(self, role: Role) -> list[int]:
        """The processes that are *role* now, in a stable order."""
        whole = self.all()
        tops = {m.process.pid: m.command for m in self.members if m.process is not None}
        return [pid for pid in whole if _role(pid, tops) == role]

    def all(self) -> list[int]:
        """Every process with our mark, whoever started it."""
        wanted = f"{MARK}={self.mark}".encode()
        return sorted(pid for pid in running() if wanted in _environ(pid))

    def below(self, pid: int) -> list[int]:
        """The children of *pid*, and theirs."""
        parents = {each: parent_of(each) for each in self.all()}
        found, look = [], [pid]
        while look:
            these = [each for each, parent in parents.items() if parent in look]
            found += these
            look = these
        return found

    def keeper_of(self, pid: int) -> int | None:
        """The process that renews the lease of worker *pid*."""
        return next((each for each in self.below(pid) if "kept.worker.keeper" in command_of(each)), None)

    # --- the end

    def stop(self, within: float = ENDING) -> None:
        """End in order, as at a deployment: SIGTERM, and time to drain."""
        self.replace = False
        for process in self._started():
            with suppress(ProcessLookupError):
                process.terminate()
        until = time.monotonic() + within
        for process in self._started():
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0.1, until - time.monotonic()))

    def clear(self) -> None:
        """End every process with our mark, whatever state it is in."""
        self.replace = False
        until = time.monotonic() + ENDING
        while (left := self.all()) and time.monotonic() < until:
            for pid in left:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            for process in self._started():
                with suppress(subprocess.TimeoutExpired):
                    process.wait(0.2)

    def _started(self) -> list[subprocess.Popen[bytes]]:
        """Those that are not known to have ended; whoever looks after them may learn of it meanwhile."""
        return [process for member in self.members if (process := member.process) is not None]


def end_with_conductor() -> None:
    """Called by a process that a run started: it does not outlive the run, even if that is killed.

    Its own children are for it to end: they are not told whom to watch.
    """
    conductor = os.environ.pop(PARENT, None)
    if conductor is not None:
        die_with_parent(signal.SIGKILL)
        if os.getppid() != int(conductor):
            os._exit(1)  # it was gone before we could ask to go with it


def own_environment() -> dict[str, str]:
    """Our environment without settings of Kept: those of the run come on top."""
    aliases = {alias.name for alias in ALIASES} | {"PYTHONDONTWRITEBYTECODE"}
    return {name: value for name, value in os.environ.items() if not name.startswith("KEPT_") and name not in aliases}


def last_words(log: Path) -> str:
    """The last line that a process said."""
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return clean(lines[-1], 300) if lines else "it said nothing"


def _role(pid: int, tops: Mapping[int, Command]) -> Role:
    said = command_of(pid)
    if "kept.worker.keeper" in said:
        return "keeper"
    if "kept.worker.alone" in said:
        return "child"
    top = tops.get(pid)
    return "supervisor" if top is not None and top.supervises else "worker"


def command_of(pid: int) -> str:
    """The command line of *pid*; nothing if it is gone."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text(encoding="utf-8", errors="replace")
    return ""


def running() -> list[int]:
    """Every process of this machine."""
    return [int(folder.name) for folder in Path("/proc").iterdir() if folder.name.isdigit()]


def _environ(pid: int) -> Sequence[bytes]:
    with suppress(OSError):
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return ()


def parent_of(pid: int) -> int:
    """Who started *pid*; 0 if it is gone."""
    with suppress(OSError):
        return int(Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[1])
    return 0
