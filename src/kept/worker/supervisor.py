"""``--processes N``: keeps N workers alive, passes signals on, and ends when they have ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from math import inf
from types import FrameType

from kept.worker.alone import die_with_parent

INDEX, PARENT = "KEPT_PROCESS_INDEX", "KEPT_PROCESS_PARENT"  # set for children: which one they are, and whose
QUICK = 5.0  # seconds: a child that ends sooner is started again more slowly each time
SLOWEST = 30.0
LOOK = 0.1
OVERTIME = 60.0  # seconds beyond the grace for a child to give back and close, before it is killed


def end_with_supervisor() -> None:
    """Called by a child: told to stop when its supervisor dies, and at once if that is dead already.

    A child that is still loading when it happens would hear of it from nobody, and live on without a supervisor.
    """
    die_with_parent(signal.SIGTERM)
    supervisor = os.environ.pop(PARENT, None)  # not for whatever a handler starts
    if supervisor is not None and int(supervisor) != os.getppid():
        sys.exit(0)


@dataclass(slots=True)
class Child:
    """One worker process and when it may be started again."""

    index: int
    process: subprocess.Popen[bytes] | None = None
    started: float = 0.0
    failures: int = 0
    not_before: float = 0.0


@dataclass(slots=True)
class Supervisor:
    """Runs this very command N times."""

    processes: int
    grace: float
    command: list[str] = field(default_factory=lambda: [sys.executable, *sys.orig_argv[1:]])
    overtime: float = OVERTIME
    _signals: int = 0

    def run(self) -> int:
        """Until told to stop; 0 if every child ended in order."""
        children = [Child(index) for index in range(self.processes)]
        for each in (signal.SIGTERM, signal.SIGINT):
            signal.signal(each, self._on_signal)
        passed_on, patience = 0, inf
        while not self._signals or any(child.process for child in children):
            if self._signals > passed_on:
                passed_on += 1
                patience = min(patience, time.monotonic() + self.grace + self.overtime)
                self._pass_on(children, signal.SIGTERM)
            if time.monotonic() > patience:
                self._pass_on(children, signal.SIGKILL)  # a handler that holds the GIL hears nothing else
            for child in children:
                self._look_after(child)
            time.sleep(LOOK)
        return 0

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        self._signals += 1

    def _pass_on(self, children: list[Child], which: signal.Signals) -> None:
        for child in children:
            if child.process is not None:
                child.process.send_signal(which)

    def _look_after(self, child: Child) -> None:
        now = time.monotonic()
        if child.process is not None and child.process.poll() is not None:
            quick = now - child.started < QUICK
            child.failures = child.failures + 1 if quick else 0
            child.not_before = now + min(SLOWEST, 0.1 * 2**child.failures if child.failures else 0.0)
            child.process = None
        if child.process is None and not self._signals and now >= child.not_before:
            # A group of its own: Ctrl-C reaches the children once, through us.
            given = {INDEX: str(child.index), PARENT: str(os.getpid())}
            child.process = subprocess.Popen(self.command, env={**os.environ, **given}, process_group=0)
            child.started = now
