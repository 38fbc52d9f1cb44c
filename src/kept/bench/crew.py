"""The processes that are measured: started, let go at one moment, watched from aside, and ended whatever happens."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from kept.bench.app import DRAIN
from kept.bench.child import PARENT, TALLY
from kept.bench.model import Tuning
from kept.bench.place import Place
from kept.bench.tally import Tally
from kept.config_names import ALIASES
from kept.errors import Error
from kept.showable import clean

LOOK = 0.005  # seconds between looks at a tally
PATIENCE = 60.0  # seconds without any progress
ENDING = 10.0  # seconds to end in order

WORKER = ("-c", "from kept.cli import main; main()", "worker", "kept.bench.app:app", "--queues")
LIMIT = ("-m", "kept.bench.limit")
CLIENT = ("-m", "kept.bench.producer")
ANY = Tuning(10, 500)  # for processes that do not care
NS = 1_000_000_000


class Stuck(Error):
    """What was measured ended or stood still."""

    code = "bench_stuck"


@dataclass(slots=True)
class Member:
    """One process, its tally and its log."""

    process: subprocess.Popen[bytes]
    tally: Tally
    log: Path

    def check(self) -> None:
        """Raise if it is gone."""
        if self.process.poll() is not None:
            raise Stuck(f"a measured process ended with code {self.process.returncode}: {self._last_words()}")

    def _last_words(self) -> str:
        lines = self.log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return clean(lines[-1], 300) if lines else "it said nothing"


@dataclass(slots=True)
class Crew:
    """The processes of one measurement."""

    members: list[Member]

    @property
    def count(self) -> int:
        return sum(member.tally.count for member in self.members)

    def start(self) -> None:
        """Let all of them go, once all are ready."""
        self._wait(lambda: all(member.tally.ready for member in self.members), "was ready")
        for member in self.members:
            member.tally.go()

    def wait_for(self, jobs: int) -> None:
        """Return when *jobs* jobs are settled."""
        self._wait(lambda: self.count >= jobs, "was settled")

    def wait_for_stamp(self, number: int) -> int:
        """The moment *number*, once a handler has written it down."""
        tally = self.members[0].tally
        self._wait(lambda: tally.stamped(number) > 0, "was started")
        return tally.stamped(number)

    def check(self) -> None:
        """Raise if one of them is gone."""
        for member in self.members:
            member.check()

    def set_mode(self, mode: int) -> None:
        """Tell all of them what to do."""
        for member in self.members:
            member.tally.mode = mode

    def done(self, mode: int) -> int:
        """How often they did something in *mode*, together."""
        return sum(member.tally.done(mode) for member in self.members)

    @property
    def seconds(self) -> float:
        """From the first start to the last settlement."""
        tallies = [member.tally for member in self.members]
        return (max(tally.last for tally in tallies) - min(tally.started for tally in tallies)) / NS

    def _wait(self, reached: Callable[[], bool], what: str) -> None:
        seen, until = self.count, time.monotonic() + PATIENCE
        while not reached():
            self.check()
            if self.count != seen:
                seen, until = self.count, time.monotonic() + PATIENCE
            if time.monotonic() > until:
                raise Stuck(f"nothing {what} for {PATIENCE:.0f} s")
            time.sleep(LOOK)


@contextmanager
def limit(place: Place, tuning: Tuning, *, jobs: int) -> Iterator[Crew]:
    """A bare loop over the worker's statement."""
    with _crew(place, LIMIT, tuning, jobs=jobs) as crew:
        yield crew


@contextmanager
def clients(place: Place, number: int) -> Iterator[Crew]:
    """Applications that enqueue."""
    with _crew(place, CLIENT, ANY, jobs=1, processes=number) as crew:
        yield crew


@contextmanager
def workers(
    place: Place,
    tuning: Tuning,
    *,
    jobs: int,
    processes: int = 1,
    queue: str = DRAIN,
    stamps: int = 0,
    environ: Mapping[str, str] | None = None,
) -> Iterator[Crew]:
    """Worker processes as in production."""
    command = (*WORKER, queue)
    with _crew(place, command, tuning, jobs=jobs, processes=processes, stamps=stamps, environ=environ) as crew:
        yield crew


@contextmanager
def _crew(
    place: Place,
    command: tuple[str, ...],
    tuning: Tuning,
    *,
    jobs: int,
    processes: int = 1,
    stamps: int = 0,
    environ: Mapping[str, str] | None = None,
) -> Iterator[Crew]:
    crew = Crew([])
    given = environment(place, tuning) | dict(environ or {})
    with TemporaryDirectory(dir=place.folder) as folder:
        try:
            for index in range(processes):
                crew.members.append(_member(Path(folder), index, command, given, jobs=jobs, stamps=stamps))
            yield crew
        finally:
            _end(crew)


def _member(
    folder: Path, index: int, command: tuple[str, ...], environ: Mapping[str, str], *, jobs: int, stamps: int
) -> Member:
    path, log = folder / f"tally{index}", folder / f"log{index}"
    tally = Tally.create(path, target=jobs, stamps=stamps)
    with log.open("wb") as out:
        # A group of its own: Ctrl-C is ours to answer.
        process = subprocess.Popen(
            [sys.executable, *command],
            env={**environ, TALLY: str(path), PARENT: str(os.getpid())},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            process_group=0,
        )
    return Member(process, tally, log)


def environment(place: Place, tuning: Tuning) -> dict[str, str]:
    """Our environment without settings of Kept, but those of the measurement: the URL is not for everybody's eyes.

    And with Python's bytecode, which an installed package has: without it a keeper and a spare are compiled anew by
    every worker, in the middle of what is measured.
    """
    aliases = {alias.name for alias in ALIASES} | {"PYTHONDONTWRITEBYTECODE"}
    given = {name: value for name, value in os.environ.items() if not name.startswith("KEPT_") and name not in aliases}
    return given | {
        "KEPT_DATABASE_URL": place.url,
        "KEPT_SCHEMA": place.schema,
        "KEPT_CONCURRENCY": str(tuning.concurrency),
        "KEPT_BATCH": str(tuning.batch),
    }


def _end(crew: Crew) -> None:
    for member in crew.members:
        member.tally.go()  # one that still waits for the start hears no signal
        member.process.terminate()
    until = time.monotonic() + ENDING
    for member in crew.members:
        try:
            member.process.wait(max(0.1, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            member.process.kill()
            member.process.wait()
        member.tally.close()
