"""Programs of the peers: one that answers with a line, and one that works until it is ended."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from peers.install import last_words
from peers.model import PeerFailed

_GRACE = 5.0  # seconds between asking a process to end and making it


class Process:
    """A program with a process group of its own; leaving the block ends it and all it started."""

    def __init__(
        self, command: list[str], env: Mapping[str, str], log: Path, cwd: Path | None = None, grace: float = _GRACE
    ) -> None:
        log.parent.mkdir(parents=True, exist_ok=True)
        self.log = log
        self._grace = grace
        with log.open("w") as output:
            self._process = subprocess.Popen(
                command, env=_without_ours() | dict(env), cwd=cwd, stdin=subprocess.DEVNULL, stdout=output,
                stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip

    def ended(self) -> int | None:
        return self._process.poll()

    def end(self) -> None:
        self._signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(self._grace)
        self._signal(signal.SIGKILL)  # whatever is left of its group
        self._process.wait()

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()


class Reports:
    """A named pipe on which the handlers of a worker say how far they are."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="bench-")
        self.path = Path(self._folder.name) / "report"
        os.mkfifo(self.path)
        # Open for writing too: a writer that closes is not the end.
        self._pipe = os.open(self.path, os.O_RDWR | os.O_NONBLOCK)
        self._text = b""

    def next(self, process: Process, patience: float) -> dict[str, Any]:
        """The next line; a worker that ends, or says nothing for *patience* seconds, has failed."""
        deadline = time.monotonic() + patience
        while b"\n" not in self._text:
            if process.ended() is not None:
                words = last_words(process.log.read_text(errors="replace"))
                raise PeerFailed(f"the worker ended with {process.ended()}: {words}")
            if time.monotonic() > deadline:
                raise PeerFailed(f"nothing happened for {patience:.0f} s")
            if select.select([self._pipe], [], [], 0.5)[0]:
                self._text += os.read(self._pipe, 65536)
        line, _, self._text = self._text.partition(b"\n")
        return dict(json.loads(line))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._pipe)
        self._folder.cleanup()


def ask(command: list[str], env: Mapping[str, str], cwd: Path, patience: float = 600) -> dict[str, Any]:
    """The one line that *command* prints."""
    process = subprocess.Popen(
        command, env=_without_ours() | dict(env), cwd=cwd, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    try:
        output, errors = process.communicate(timeout=patience)
    except subprocess.TimeoutExpired:
        raise PeerFailed(f"{Path(command[-1]).name} took longer than {patience:.0f} s") from None
    finally:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    if process.returncode:
        raise PeerFailed(last_words(errors or output))
    return dict(json.loads(output.strip().splitlines()[-1]))


def _without_ours() -> dict[str, str]:
    """The environment without settings of Kept: its defaults are what is measured, not those of whoever runs us."""
    return {name: value for name, value in os.environ.items() if not name.startswith("KEPT_")}
