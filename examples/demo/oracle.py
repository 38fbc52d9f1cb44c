"""What really happened, in plain files that Kept knows nothing of: the judge of lost and duplicate work.

The producer writes down a job once its commit was acknowledged, a handler once its effect has happened. Lost and
duplicate are differences between those files, whatever Kept's own tables say.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from kept import Context

EFFECTS = "KEPT_DEMO_EFFECTS"  # the variable that tells handlers where to write


class Ledger:
    """A file that only grows. One write for each call, so lines of many processes do not mix."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)

    def add(self, *lines: str) -> None:
        """Append *lines*; they survive this process, however it ends."""
        if lines:
            os.write(self._file, "".join(f"{line}\n" for line in lines).encode())

    def sync(self) -> None:
        """Make them survive the machine."""
        os.fsync(self._file)


@cache
def _effects() -> Ledger:
    return Ledger(Path(os.environ[EFFECTS]))


def note_effect(ctx: Context) -> None:
    """Write down that this job's effect has happened: the last thing a handler does."""
    _effects().add(f"{ctx.job.id} {ctx.attempt} {ctx.job.queue}")


class Tally:
    """Counts a ledger's lines by their last word as they come; reads each byte once."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read = 0
        self.counts: Counter[str] = Counter()

    def update(self) -> None:
        """Count what was added since the last time."""
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            file.seek(self._read)
            whole, newline, _ = file.read().rpartition(b"\n")
        self._read += len(whole) + len(newline)
        self.counts.update(line.rpartition(" ")[2] for line in whole.decode().splitlines())


@dataclass(frozen=True, slots=True)
class Verdict:
    """Which accepted jobs have no effect, how many effects came twice, and which jobs should not exist at all."""

    accepted: int
    lost: frozenset[int]
    duplicates: int
    phantoms: frozenset[int]

    @property
    def clean(self) -> bool:
        """Nothing lost, nothing out of nowhere. A duplicate is allowed: effects outside happen at least once."""
        return not self.lost and not self.phantoms


def judge(accepted: Path, rolled_back: Path, effects: Path, *, waiting: Collection[int] = ()) -> Verdict:
    """Compare the files. Jobs still *waiting* because nobody let them finish are late, not lost."""
    promised = set(_ids(accepted))
    happened = list(_ids(effects))
    once = frozenset(happened)
    return Verdict(
        accepted=len(promised),
        lost=frozenset(promised - once - set(waiting)),
        duplicates=len(happened) - len(once),
        phantoms=once.intersection(_ids(rolled_back)),
    )


def _ids(path: Path) -> Iterable[int]:
    if not path.exists():
        return
    with path.open() as file:
        for line in file:
            yield int(line.split()[0])
