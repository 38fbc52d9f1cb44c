"""What faults act upon: the processes, the server and the network of one run."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from kept.verify.crew import Processes, parent_of
from kept.verify.ledger import clock
from kept.verify.proxy import Proxy
from kept.verify.server import Server


class Client(Protocol):
    """Who enqueues one job for a fault, and looks what becomes of it."""

    def enqueue(self, task: str, **args: object) -> int: ...
    def settled(self, job: int, within: float) -> bool: ...
    def holder(self, job: int) -> int | None:
        """The process of the worker that has claimed it, if anybody has and the database can be asked."""


@dataclass(slots=True)
class Scene:
    """One run as a fault sees it."""

    database: str  # for workers and producers: through the proxy, if there is one
    direct: str  # past the proxy
    schema: str
    folder: Path
    lease: float
    scan: float
    workers: Processes
    producers: Processes
    client: Client
    server: Server | None = None  # if it is ours
    proxy: Proxy | None = None  # if a fault needs one
    extras: dict[str, Any] = field(default_factory=dict)  # what other needs were set up as: "replica", "pooler"
    struck: int | None = None  # when the first of them was killed or frozen
    killed: list[int] = field(default_factory=list)
    frozen: list[int] = field(default_factory=list)
    harmed: list[int] = field(default_factory=list)  # told to leave, or left without their keeper
    jobs: list[int] = field(default_factory=list)  # that do the harm themselves
    gone: list[int] = field(default_factory=list)  # tokens of jobs that only a server had that is no more

    def kill(self, *pids: int) -> None:
        """Kill processes of workers; those in which a suspect runs alone die with them, and count too."""
        self.killed += [*pids, *(child for child in self.workers.pids("child") if parent_of(child) in pids)]
        self.struck = self.struck or clock()
        for pid in pids:
            _send(pid, signal.SIGKILL)

    def freeze(self, *pids: int) -> None:
        """Stop processes."""
        self.frozen += pids
        self.struck = self.struck or clock()
        for pid in pids:
            _send(pid, signal.SIGSTOP)

    def tell(self, pid: int, which: signal.Signals) -> None:
        """Send a signal that ends nobody by force."""
        self.harmed.append(pid)
        _send(pid, which)

    def thaw(self, *pids: int) -> None:
        """Let stopped processes go on."""
        for pid in pids:
            _send(pid, signal.SIGCONT)


def _send(pid: int, which: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, which)
