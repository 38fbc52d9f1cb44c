"""What a peer is, and what is measured. Data only."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

What = Literal["drain", "latency", "enqueue", "growth"]
WHAT: tuple[What, ...] = ("drain", "latency", "enqueue", "growth")


@dataclass(frozen=True)
class Peer:
    """One queue with one set of settings: a row of the table.

    *adapter* is the file that prepares and fills; *worker* the command that works, with ``{bin}`` for the folder of
    the peer's programs. *add* is the SQL that adds one job (``%(n)s``, ``%(text)s``), *left* the SQL that is true
    while a job of the queue ``bench`` is not settled.
    """

    name: str
    title: str
    settings: str
    adapter: str
    home: str  # the folder of its programs below .bench; empty: those that run Kept
    package: str  # whose version is told
    measured: frozenset[What]
    jobs: int = 50_000
    worker: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict)
    store: Literal["postgresql", "redis"] = "postgresql"
    add: str = ""
    left: str = ""

    @property
    def node(self) -> bool:
        return self.adapter.endswith(".mjs")


class PeerFailed(Exception):
    """A peer could not be installed or did not do its work; the others go on."""


@dataclass(frozen=True)
class Sizes:
    """How much is done."""

    rounds: int = 3
    share: float = 1.0  # of each peer's own number of jobs
    latency_jobs: int = 300
    one_by_one: int = 2_000
    bulk: int = 10_000
    snapshot_jobs: int = 200_000
    pending: int = 1_000_000


@dataclass
class Results:
    """Everything that was measured, by peer."""

    drain: dict[str, list[float]] = field(default_factory=dict)  # jobs/s, one for each round
    latency: dict[str, list[float]] = field(default_factory=dict)  # milliseconds, one for each job
    one: dict[str, list[float]] = field(default_factory=dict)  # transactions/s
    bulk: dict[str, list[float]] = field(default_factory=dict)  # jobs/s
    snapshot: dict[str, list[list[float]]] = field(
        default_factory=dict
    )  # jobs/s in tenths of a drain, from the second on
    behind: dict[str, list[float]] = field(default_factory=dict)  # jobs/s with many pending elsewhere
    failed: dict[str, str] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    facts: dict[str, str] = field(default_factory=dict)
    minutes: float = 0.0
