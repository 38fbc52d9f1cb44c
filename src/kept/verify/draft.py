"""What a producer puts into its transactions: drawn, not decided."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import groupby
from random import Random

from kept.verify.model import Part

MOST = 500  # jobs of one transaction
KEYS = 12  # order keys of one producer
SINGLES = {
    "keyed": 25,
    "in_order": 25,
    "completes": 20,
    "overstays": 2,
    "slow": 10,
    "lingers": 5,
    "threaded": 10,
    "flaky": 3,
    "defers": 2,
}
ASIDE = {"flaky": 20, "defers": 10, "keyed": 10, "completes": 10, "slow": 20, "threaded": 4, "lingers": 2, "plain": 924}
ROLLED_BACK = 0.05
LATER = "1s"


@dataclass(frozen=True, slots=True)
class Wanted:
    """One job that shall be."""

    task: str
    order: str | None = None
    delay: str | None = None
    args: dict[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Draft:
    """One transaction."""

    wanted: tuple[Wanted, ...]
    roll_back: bool = False
    again: bool = False  # until it is known to be committed

    @property
    def parts(self) -> tuple[Part, ...]:
        """The jobs as the log has them: those alike in one."""
        runs = groupby(self.wanted, key=lambda each: (each.task, each.order))
        return tuple(Part(task, sum(1 for _ in jobs), order) for (task, order), jobs in runs)


def single(chance: Random, producer: int) -> Draft:
    """A transaction with one job."""
    (task,) = chance.choices(list(SINGLES), list(SINGLES.values()))
    back = chance.random() < ROLLED_BACK
    return Draft((_wanted(task, chance, producer),), roll_back=back, again=task == "keyed" and not back)


def bulk(chance: Random, producer: int, due: int) -> Draft:
    """A transaction with many jobs, most of them plain, and a few of one order key in a row."""
    count = min(due, MOST)
    tasks = sorted(chance.choices(list(ASIDE), list(ASIDE.values()), k=count))
    wanted = [_wanted(task, chance, producer) for task in tasks]
    if count > 10:
        key = _order(chance, producer)
        wanted[-5:] = [Wanted("in_order", order=key)] * 5
    return Draft(tuple(wanted), roll_back=chance.random() < ROLLED_BACK)


def _wanted(task: str, chance: Random, producer: int) -> Wanted:
    match task:
        case "in_order":
            return Wanted(task, order=_order(chance, producer))
        case "slow":
            return Wanted(task, args={"ms": chance.randint(100, 1500)})
        case "threaded" | "lingers":
            return Wanted(task, args={"ms": chance.randint(10, 300)})
        case "completes":
            return Wanted(task, args={"ms": chance.randint(0, 400)})
        case "plain" if chance.random() < 0.02:
            return Wanted(task, delay=LATER)
        case _:
            return Wanted(task)


def _order(chance: Random, producer: int) -> str:
    return f"{producer}.{chance.randrange(KEYS)}"
