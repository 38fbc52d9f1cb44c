"""Who says whether it went well: what was committed, published and applied, compared with one another. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple


class Fact(NamedTuple):
    """An event, wherever it was seen."""

    event_id: str
    aggregate_id: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """Everything that may be wrong, and duplicates, which may not."""

    emitted: int
    published: int
    lost: Collection[str]
    phantoms: Collection[str]  # published or applied, and never committed
    out_of_order: Collection[str]  # aggregates
    duplicates: int  # published again; the inbox is there for them
    effects: int
    twice: Collection[str]

    @property
    def clean(self) -> bool:
        return not (self.lost or self.phantoms or self.out_of_order or self.twice) and self.effects == self.emitted

    def __str__(self) -> str:
        return (
            f"emitted={self.emitted} published={self.published} lost={len(self.lost)} phantoms={len(self.phantoms)} "
            f"out_of_order={len(self.out_of_order)} duplicates={self.duplicates} effects={self.effects} "
            f"twice={len(self.twice)}"
        )


def judge(emitted: Sequence[Fact], published: Sequence[Fact], effects: Mapping[str, int]) -> Verdict:
    """Compare; *effects* says how often each event was applied. For order the first of each event counts."""
    committed, seen = dict(emitted), dict(published)
    told = {event_id for event_id, _ in published} | effects.keys()
    ours, theirs = _by_aggregate(emitted), _by_aggregate(each for each in published if each.event_id in committed)
    return Verdict(
        emitted=len(committed),
        published=len(seen),
        lost=committed.keys() - seen.keys(),
        phantoms=told - committed.keys(),
        out_of_order=[aggregate for aggregate, events in theirs.items() if not _is_in(events, ours[aggregate])],
        duplicates=len(published) - len(seen),
        effects=len(effects),
        twice=[event_id for event_id, times in Counter(effects).items() if times > 1],
    )


def _by_aggregate(facts: Iterable[Fact]) -> dict[str, list[str]]:
    """The events of each aggregate, each at its first place."""
    found: defaultdict[str, dict[str, None]] = defaultdict(dict)
    for event_id, aggregate_id in facts:
        found[aggregate_id][event_id] = None
    return {aggregate_id: list(events) for aggregate_id, events in found.items()}


def _is_in(some: Sequence[str], all: Sequence[str]) -> bool:
    """Whether *some* are in the order that they have in *all*."""
    wanted = set(some)
    return list(some) == [each for each in all if each in wanted]
