"""The process that stands by: when it is started."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from kept.signals import Signal, Signals, SpareReady
from kept.worker import alone
from kept.worker.alone import Alone

APP = "from kept import App\napp = App()\n"


@pytest.fixture(autouse=True)
def importable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "spare_app.py").write_text(APP)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(alone, "SETTLE_IN", 0.0)
    monkeypatch.setattr(alone, "LOOK", 0.0)


class Backlog:
    """A worker's backlog, as long as *busy*; it counts how often somebody asks."""

    def __init__(self) -> None:
        self.busy = True
        self.asked = 0
        self.often = asyncio.Event()

    def __call__(self) -> bool:
        self.asked += 1
        if self.asked > 20:  # long enough for a process to be there, if one had been started
            self.often.set()
        return self.busy


def spares() -> list[str]:
    """Processes of ours that stand by, or are about to."""
    children = [pid for told in Path("/proc/self/task").glob("*/children") for pid in told.read_text().split()]
    return [pid for pid in children if "worker.alone" in Path(f"/proc/{pid}/cmdline").read_text()]


@asynccontextmanager
async def standing_by(backlog: Backlog) -> AsyncIterator[asyncio.Event]:
    """A spare of a worker that has *backlog*; the event says that it is ready."""
    ready, signals = asyncio.Event(), Signals()

    def note(signal: Signal) -> None:
        if isinstance(signal, SpareReady):
            ready.set()

    signals.subscribe(note)
    spare = Alone("spare_app:app", database="postgresql://", schema="kept", limit=1024)
    spare.keep_spare("w", signals, busy=backlog)
    try:
        yield ready
    finally:
        await spare.close()


async def test_a_spare_is_not_started_before_the_backlog_of_its_worker_is_worked_off() -> None:
    backlog = Backlog()
    async with standing_by(backlog) as ready, asyncio.timeout(60):
        await backlog.often.wait()
        assert spares() == []
        backlog.busy = False
        await ready.wait()
        assert len(spares()) == 1


async def test_a_backlog_that_does_not_end_keeps_a_worker_from_its_spare_for_some_seconds_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(alone, "PATIENCE", 0.2)
    backlog = Backlog()
    async with standing_by(backlog) as ready, asyncio.timeout(60):
        await ready.wait()
        assert backlog.asked > 1
