"""``kept bench drain``: how fast a backlog is worked off, and how near that is to our own limit."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from kept.bench import crew
from kept.bench.app import DRAIN
from kept.bench.model import Drain, Tuning
from kept.bench.place import Place
from kept.bench.rules import ratios, spread
from kept.config import Settings

Say = Callable[[str], None]

DEFAULT = Tuning(Settings().concurrency, Settings().batch)
TUNED = Tuning(100, 500)
WARM_UP = 500  # jobs: partitions are made, lanes declared, pages read


@dataclass(slots=True)
class Rounds:
    """Jobs per second and bytes of WAL per job, round by round."""

    rates: defaultdict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    wal: list[float] = field(default_factory=list)


def measure(place: Place, *, jobs: int, rounds: int, tuned: Tuning, processes: Sequence[int], say: Say) -> Drain:
    """Interleaved rounds of a worker, a worker with default settings, the bare loop, and several workers at once."""
    lane = warm_up(place)
    found = Rounds()
    payload_bytes = 0
    for number in range(1, rounds + 1):
        told = f"round {number} of {rounds}"
        for name in _order(number, processes):
            say(f"{told}: {_told(name)}")
            place.empty()
            place.fill(lane, jobs)
            payload_bytes = int(str(place.one(place.sql["payload_bytes"])))
            place.settle_down()
            _run(place, name, tuned, jobs, found)
            place.check_done(lane, jobs)
    rates = found.rates
    return Drain(
        server=place.server,
        jobs=jobs,
        rounds=rounds,
        payload_bytes=payload_bytes,
        tuned=tuned,
        default=DEFAULT,
        jobs_per_s=spread(rates["1"]),
        limit_jobs_per_s=spread(rates["limit"]),
        ratio_to_limit=ratios(rates["1"], rates["limit"]),
        default_jobs_per_s=spread(rates["default"]),
        default_to_tuned=ratios(rates["default"], rates["1"]),
        wal_bytes_per_job=spread(found.wal),
        full_page_images=not place.walinspect,
        processes={str(count): spread(rates[str(count)]) for count in processes if count > 1},
    )


def warm_up(place: Place) -> int:
    """Have everything done once that is done once; the lane of the jobs that do nothing."""
    lane = place.lane("nothing", DRAIN)
    place.fill(lane, WARM_UP)
    with crew.workers(place, DEFAULT, jobs=WARM_UP) as one:
        one.start()
        one.wait_for(WARM_UP)
    return lane


def rate(place: Place, tuning: Tuning, jobs: int, *, processes: int = 1) -> float:
    """Jobs per second of workers on the jobs that are there."""
    with crew.workers(place, tuning, jobs=jobs, processes=processes) as several:
        several.start()
        several.wait_for(jobs)
        return jobs / several.seconds


def _order(number: int, processes: Sequence[int]) -> list[str]:
    """Who comes when: turned round in every other round, so that nobody always follows the same one."""
    names = ["limit", "1", "default", *(str(count) for count in processes if count > 1)]
    return names if number % 2 else names[::-1]


def _told(name: str) -> str:
    match name:
        case "limit":
            return "the bare loop"
        case "default":
            return "a worker with default settings"
        case "1":
            return "a worker"
        case _:
            return f"{name} workers"


def _run(place: Place, name: str, tuned: Tuning, jobs: int, found: Rounds) -> None:
    if name == "limit":
        with crew.limit(place, tuned, jobs=jobs) as bare:
            bare.start()
            bare.wait_for(jobs)
            found.rates[name].append(jobs / bare.seconds)
        return
    position = place.wal_position()
    tuning = DEFAULT if name == "default" else tuned
    found.rates[name].append(rate(place, tuning, jobs, processes=int(name) if name.isdigit() else 1))
    if name == "1":
        found.wal.append(place.wal_since(position) / jobs)
