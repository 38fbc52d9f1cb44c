"""From measurements to figures. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Spread:
    """What several rounds gave."""

    low: float
    median: float
    high: float


def spread(values: Sequence[float]) -> Spread:
    return Spread(min(values), statistics.median(values), max(values))


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least *share* of them do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def last_to_first(tenths: Sequence[float]) -> float:
    """The rate in the last two parts as a share of that in the first two; all parts are equal amounts of work."""
    first, last = tenths[:2], tenths[-2:]
    return statistics.harmonic_mean(last) / statistics.harmonic_mean(first)


def rate(value: float) -> str:
    """A rate as people read it."""
    return f"{round(value, -2):,.0f}" if value >= 10_000 else f"{value:,.0f}"


def milliseconds(value: float) -> str:
    return f"{value:.2f}" if value < 10 else f"{value:,.0f}"


def share(value: float) -> str:
    return f"{value * 100:.0f} %"


def nice_ticks(top: float, count: int = 5) -> list[float]:
    """Round numbers from 0 to just above *top*."""
    if top <= 0:
        return [0.0, 1.0]
    rough = top / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= rough)
    return [step * number for number in range(math.ceil(top / step) + 1)]


def decades(low: float, high: float) -> list[float]:
    """Powers of ten that enclose both."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    return [10.0**power for power in range(first, max(last, first + 1) + 1)]


def tens(value: float) -> int:
    """The multiple of ten below *value*, at least ten: work is looked at by tenths."""
    return max(10, int(value) // 10 * 10)
