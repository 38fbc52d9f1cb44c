"""Crash points: named places around statements and commits at which a test makes a process die or a reply get lost.

For tests of Kept only. Without ``KEPT_TEST_POINTS`` nothing is armed, and a place costs one look at :data:`armed`.
With it, the variable names a folder. A file there called like a place, as in ``after.jobs.step``, arms it: whoever gets
there first takes the file away and dies, or sees an error. An error *before* means that nothing was sent; an error
*after*, that it was done, and that nobody heard of it.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, Protocol

import msgspec
import psycopg

from kept.db.queries import name_of
from kept.errors import Misconfigured

VARIABLE = "KEPT_TEST_POINTS"
When = Literal["before", "after"]
Way = Literal["kill", "error"]


class Arming(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a place is armed with; *where*: only if each of these parameters contains this text."""

    way: Way
    where: Mapping[str, str] = msgspec.field(default_factory=dict)


class Wire(Protocol):
    """A connection that can be broken off."""

    def finish(self) -> None: ...


class Points:
    """The armed places of one folder."""

    def __init__(self, folder: Path) -> None:
        if not folder.is_dir():
            raise Misconfigured(f"{VARIABLE}: {str(folder)!r} is not a folder; this variable is for tests of Kept only")
        self._folder = folder

    def before(self, what: str, params: Mapping[str, object] | None = None) -> None:
        """*what* is about to be sent."""
        if self._take("before", what, params):
            raise psycopg.OperationalError(f"crash point: before {what}")

    def after(self, what: str, wire: Wire | None, params: Mapping[str, object] | None = None) -> None:
        """*what* was done, and nobody has heard of it yet."""
        if self._take("after", what, params):
            if wire is not None:
                wire.finish()
            raise psycopg.OperationalError(f"crash point: after {what}")

    def _take(self, when: When, what: str, params: Mapping[str, object] | None) -> bool:
        """Whether an error is to be seen here. Each arming is for one process, once."""
        place = self._folder / f"{when}.{what}"
        try:
            arming = msgspec.json.decode(place.read_bytes(), type=Arming)
            if not all(text in str((params or {}).get(name)) for name, text in arming.where.items()):
                return False
            place.rename(self._folder / f"hit.{place.name}.{os.getpid()}")
        except FileNotFoundError:  # not armed, or somebody was quicker
            return False
        if arming.way == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        return True


def _armed() -> Points | None:
    folder = os.environ.get(VARIABLE)
    return Points(Path(folder)) if folder else None


armed: Points | None = _armed()


def before(what: str) -> None:
    """A place before something that is not a statement: a commit, a migration, what is handed to a broker."""
    if armed is not None:
        armed.before(what)


def after(what: str, wire: Wire | None = None) -> None:
    """The place after it."""
    if armed is not None:
        armed.after(what, wire)


def before_statement(statement: str, params: Mapping[str, object] | None = None) -> None:
    """A place before one of our statements."""
    if armed is not None and (name := name_of(statement)) is not None:
        armed.before(name, params)


def after_statement(statement: str, wire: Wire, params: Mapping[str, object] | None = None) -> None:
    """The place after it."""
    if armed is not None and (name := name_of(statement)) is not None:
        armed.after(name, wire, params)
