"""Runners as they are declared, and what becomes of a pass. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal
from uuid import UUID

from msgspec import Struct

Counters = Mapping[str, int | float]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerDeclaration:
    """What ``@app.runner`` or ``app.call`` wrote down. *check* is asked at the start whether all it needs is there."""

    name: str
    function: Callable[..., Any]
    is_async: bool
    takes_context: bool
    singleton: bool
    every: float  # seconds
    max_items: int | None = None
    max_time: float | None = None  # seconds
    check: Callable[[Any], None] | None = None  # given the settings


class Place(Struct, frozen=True):
    """Where a runner's passes are counted: one row, or one for each shard."""

    name: str  # of the runner
    row: str  # of the database's row
    key: str  # of the advisory lock it is taken under
    index: int = 0
    count: int = 1


class Lease(Struct, frozen=True):
    """What a pass holds its slot by."""

    run: int
    worker: UUID


# --- what asking for a pass comes to


class Taken(Struct, frozen=True):
    """The pass is ours."""

    run: int


class NotDue(Struct, frozen=True):
    """Somebody had this interval's pass."""

    wait: float  # seconds


class Held(Struct, frozen=True):
    """Somebody is at it, and nobody else may. *dead*: not any more; *late*: without a lease that holds."""

    by: str
    wait: float  # seconds until it would be due
    dead: bool = False
    late: bool = False


class Busy(Struct, frozen=True):
    """Somebody is taking it, or looking at it, this very moment."""


Answer = Taken | NotDue | Held | Busy


# --- what a pass comes to


class Counted(Struct, frozen=True):
    """It returned."""

    counters: Counters


class Postponed(Struct, frozen=True):
    """It said: nothing to do now; and perhaps: not before *after* seconds."""

    after: float | None = None


class Failed(Struct, frozen=True):
    """It raised, returned nonsense or ran out of time."""

    code: str
    error: str
    retryable: bool | None = None
    after: float | None = None  # seconds until it wants to be tried again


class Stopped(Struct, frozen=True):
    """It was told to stop, for *reason*."""

    reason: str


class Lost(Struct, frozen=True):
    """Its worker's lease is gone: nothing it says counts."""


Outcome = Counted | Postponed | Failed | Stopped | Lost


class Ending(Struct, frozen=True):
    """What is written about a pass. An idle one leaves no record."""

    state: Literal["idle", "done", "failed", "cancelled"]
    counters: Counters = {}
    code: str | None = None
    reason: str | None = None
    error: str | None = None
    after: float | None = None


class Abandoned(Struct, frozen=True):
    """A run whose worker died."""

    id: int
    name: str
    worker: str
    duration: float
