"""The data of the kernel, frozen: what a claim hands out, what an attempt comes to, what is decided. Pure."""

from __future__ import annotations

from datetime import datetime
from typing import Literal
from uuid import UUID

from msgspec import Struct

State = Literal["pending", "running", "done", "failed", "cancelled", "skipped"]
Final = Literal["done", "failed", "cancelled", "skipped"]

STATES: tuple[State, ...] = ("pending", "running", "done", "failed", "cancelled", "skipped")
MOST_PRIORITY = 1000  # and the least is this below zero


class Lane(Struct, frozen=True, kw_only=True):
    """One task in one queue: the unit that is claimed, limited and paused."""

    id: int
    queue: str
    task: str
    max_attempts: int
    priority: int
    retry_base: float  # seconds
    retry_max: float  # seconds
    ordered: bool = False  # jobs of one order key run one at a time, in the order of their ids
    trusted: bool = False  # its handler is our own: whoever died with its jobs in hand died of something else


class Claimed(Struct, frozen=True, gc=False):
    """A job under our lease, as the claim returned it. (id, attempt, worker) is its fence."""

    id: int
    lane: int
    priority: int
    attempt: int
    uncharged: int
    suspect: bool
    due_at: datetime
    created_at: datetime
    claimed_at: datetime
    key: str | None
    retry_of: int | None
    headers: str | None
    payload: str
    worker: UUID
    order_key: str | None = None  # told by the claim of an ordered lane

    @property
    def charged(self) -> int:
        """Attempts that count against ``max_attempts``, this one included."""
        return self.attempt - self.uncharged


# --- what an attempt came to. Structs with tags, so that a child process can tell its parent.


class Returned(Struct, frozen=True, tag=True):
    """The handler returned; *result* is JSON, or None for a plain None."""

    result: str | None = None


class Raised(Struct, frozen=True, tag=True):
    """The handler raised, ran out of time, or could not be started.

    *types* are the names of the exception's classes, nearest first; *retryable* is what the exception itself says.
    """

    code: str
    message: str
    types: tuple[str, ...] = ()
    detail: str = ""
    retryable: bool | None = None
    after: float | None = None  # seconds


class Deferred(Struct, frozen=True, tag=True):
    """The handler asked for later; not charged."""

    delay: float  # seconds
    reason: str = ""


class Skipped(Struct, frozen=True, tag=True):
    """The handler found it no longer needed."""

    reason: str = ""


class Completed(Struct, frozen=True, tag=True):
    """The handler settled the job inside its own transaction."""


class Released(Struct, frozen=True, tag=True):
    """We gave it back: shutdown, or claimed and never started. Not charged."""

    started: bool = False
    reason: str = "released"


class Died(Struct, frozen=True, tag=True):
    """The process that ran it is gone."""

    message: str = "the worker process died"


class LostLease(Struct, frozen=True, tag=True):
    """The lease went while the handler ran; the job is someone else's."""


Outcome = Returned | Raised | Deferred | Skipped | Completed | Released | Died | LostLease


# --- what we decided


class Note(Struct, frozen=True):
    """One line of a job's log."""

    event: str
    code: str | None = None
    message: str | None = None
    detail: str | None = None


class Close(Struct, frozen=True):
    """The job is settled for good and moves to history."""

    state: Final
    code: str | None = None
    reason: str | None = None
    message: str | None = None
    result: str | None = None
    note: Note | None = None


class Park(Struct, frozen=True):
    """The job comes back after *delay* seconds."""

    delay: float
    charged: bool
    suspect: bool = False
    note: Note | None = None
    aside: bool = False  # it leaves its order key, and those behind it need not wait


class Leave(Struct, frozen=True):
    """Nothing to write: it was settled elsewhere, or is no longer ours."""


Settlement = Close | Park | Leave

# Most attempts return nothing and most settlements are plain; these are the ones that need not be made anew.
NOTHING = Returned()
DONE = Close("done")
