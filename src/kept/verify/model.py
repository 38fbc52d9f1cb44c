"""What a verification writes down, and what comes of it. Data only."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

# --- what producers write down, each line before or after what it tells of


class Part(Struct, frozen=True, array_like=True, gc=False):
    """Jobs of one task in a row; with an *order* key, they are to run in the order of their tokens."""

    task: str
    count: int
    order: str | None = None


class Intent(Struct, frozen=True, array_like=True, tag="intent"):
    """Written before anything is sent: one transaction, and the tokens *first*, *first* + 1, … of its jobs."""

    at: int
    tx: int
    first: int
    parts: tuple[Part, ...]


class Told(Struct, frozen=True, array_like=True, tag="told"):
    """What became of a transaction, as its producer was told.

    ``refused``: the COMMIT was never sent, or the server said no. ``unknown``: it was sent and nobody answered.
    """

    at: int
    tx: int
    answer: Literal["committed", "refused", "unknown"]


Line = Intent | Told

# --- what handlers and the injector write down

POISON_ATTEMPTS = 3  # of a job that kills its process every time

What = Literal["began", "effect", "failed", "lost", "slot"]
Moment = tuple[int, int]  # when, and in which process
Repeats = Literal["nobody", "victims", "starved", "everyone", "whoever starves"]


class Effect(Struct, frozen=True, array_like=True, gc=False):
    """A line of the ledger: ``began``, ``effect``, ``failed``, ``lost`` (its lease), or ``slot`` of the schedule.

    Of a slot, *token* is its moment in seconds. *at* is in nanoseconds, on a clock that all processes of a host share.
    """

    what: What
    token: int
    job: int
    attempt: int
    pid: int
    at: int
    parent: int = 0  # who started the process: whatever ends that ends it as well


class Hit(Struct, frozen=True, kw_only=True):
    """One fault that was injected, from *began* to *healed*, and the processes that it ended.

    *repeats*: whose jobs may run a second time because of it. The lease of those that starve has to run out first:
    ``starved`` are victims, ``whoever starves`` may be anybody.
    """

    fault: str
    group: str
    victim: str
    began: int
    healed: int
    killed: tuple[int, ...] = ()
    frozen: tuple[int, ...] = ()  # processes that were stopped, and went on
    harmed: tuple[int, ...] = ()  # processes that were told to leave, or may lose their lease
    jobs: tuple[int, ...] = ()  # that do the harm themselves
    repeats: Repeats
    loses: bool = False  # commits that the server had confirmed may be gone
    gone: tuple[int, ...] = ()  # tokens of jobs that were on the server that was lost, and on no other
    promised: float | None = None  # seconds until the jobs of the killed begin elsewhere; only if nothing disturbed it


UNSETTLED = ("pending", "running")


class Row(Struct, frozen=True, array_like=True, gc=False):
    """A job as the database shows it at the end."""

    id: int
    task: str
    state: str
    reason: str | None
    attempt: int
    charged: int
    token: int | None


class Once(Struct, frozen=True, array_like=True, gc=False):
    """A row that a handler committed together with its completion."""

    token: int
    job: int
    attempt: int


class Slot(Struct, frozen=True, array_like=True, gc=False):
    """An occurrence of the schedule as the database shows it at the end."""

    slot: int
    state: str
    missed: int
    job: int | None


# --- what comes of it


class Breach(Struct, frozen=True):
    """A promise that was broken, by its number (0: the verification itself), and the items concerned."""

    promise: int
    sentence: str
    items: tuple[str, ...] = ()


class Recovery(Struct, frozen=True, kw_only=True):
    """Seconds from the death of a process to the start of what it had begun, elsewhere."""

    jobs: int
    p50: float
    p99: float
    most: float


class Report(Struct, frozen=True, kw_only=True):
    """What was seen, and what it says about the promises."""

    seed: int
    seconds: float
    accepted: int
    refused: int
    unknown: int
    done: int
    failed_by_design: int
    lost: int
    unsettled: int
    without_job: int  # effects whose job is not done
    without_effect: int  # jobs that are done
    phantom: int
    lost_with_commits: int
    effects: int
    duplicates: int
    duplicates_by_fault: dict[str, int]
    zombies_refused: int
    zombies_written: int
    once: int
    recovery: dict[str, Recovery]  # by fault
    undisturbed: dict[str, Recovery]  # … where no other fault came before or after
    slots_due: int
    slots_fired: int
    slots_twice: int
    lease_and_scan: float
    faults: dict[str, int]
    left_out: dict[str, str]
    breaches: tuple[Breach, ...]
    logs: str | None = None  # the folder with what was judged, if that was kept

    @property
    def duplicates_per_million(self) -> float:
        return 1e6 * self.duplicates / self.effects if self.effects else 0.0
