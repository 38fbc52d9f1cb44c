"""What is known when a run is over, and what is found in it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import Struct

from kept.verify.books import Books, Deeds
from kept.verify.model import Breach, Hit, Once, Row, Slot

SHOWN = 20  # items of a breach


class Terms(Struct, frozen=True, kw_only=True):
    """What the run was set to, and how it ended."""

    seed: int
    lease: float
    scan: float
    seconds: float
    jobs: int = 0  # that were to be enqueued
    asked: tuple[str, ...] = ()  # names of the faults that were to be injected
    left_out: dict[str, str] = {}
    slots: tuple[int, int] | None = None  # seconds of the database's clock: workers at work, nothing breaks any more


class Evidence(Struct, frozen=True, kw_only=True):
    """All that is known when a run is over: from files, and from the database."""

    books: Books
    deeds: Deeds
    hits: Sequence[Hit]
    rows: Iterable[Row]
    once: Iterable[Once]
    slots: Sequence[Slot]


class Findings:
    """What was found so far, by promise and sentence."""

    def __init__(self) -> None:
        self._items: dict[tuple[int, str], list[str]] = {}
        self.lost = self.phantom = self.gone = self.zombies = 0
        self.unsettled = self.without_job = self.without_effect = 0

    def add(self, promise: int, sentence: str, item: str) -> None:
        self._items.setdefault((promise, sentence), []).append(item)

    def breaches(self) -> tuple[Breach, ...]:
        return tuple(
            Breach(promise, f"{sentence} ({len(items)})" if len(items) > 1 else sentence, tuple(items[:SHOWN]))
            for (promise, sentence), items in sorted(self._items.items())
        )
