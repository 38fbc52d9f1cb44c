"""``kept bench growth``: what large tables and old snapshots cost a worker."""

from __future__ import annotations

from collections.abc import Callable

from kept.bench import crew
from kept.bench.app import ASIDE, DRAIN, HALTED
from kept.bench.drain import DEFAULT, Say, warm_up
from kept.bench.model import Case, Growth, Snapshot
from kept.bench.place import Place
from kept.bench.rules import fifths, ratios, spread
from kept.db.connect import connect_sync

QUEUES = f"{DRAIN},{HALTED}"
SIZES = {
    "pending in another lane": 1_000_000,
    "parked for later": 1_000_000,
    "in history": 5_000_000,
    "in a paused lane": 100_000,
}
SNAPSHOT = 200_000
YEAR = 31_536_000.0  # seconds


def measure(empty: Place, grown: Place, *, jobs: int, rounds: int, scale: float, say: Say) -> Growth:
    """Drains in two schemas in turn: one with nothing else in it, one with a million of something."""
    lanes = (warm_up(empty), warm_up(grown))
    cases: dict[str, Case] = {}
    for name, size in SIZES.items():
        rows = max(1, int(size * scale))
        say(f"filling in {rows:,} {name}")
        empty.empty()
        grown.empty()
        _beside(name)(grown, lanes[1], rows)
        cases[name] = _compare(empty, grown, lanes, jobs, rounds, rows, _prefixed(say, name))
    snapshot = _snapshot(empty, lanes[0], max(100, int(SNAPSHOT * scale)), rounds, say)
    return Growth(server=empty.server, jobs=jobs, rounds=rounds, cases=cases, snapshot=snapshot)


def _prefixed(say: Say, name: str) -> Say:
    return lambda text: say(f"{name}: {text}")


def _beside(name: str) -> Callable[[Place, int, int], None]:
    match name:
        case "pending in another lane":
            return lambda place, _, rows: place.fill(place.lane("aside", ASIDE), rows)
        case "parked for later":
            return lambda place, lane, rows: place.fill(lane, rows, delay=YEAR)
        case "in history":
            return lambda place, lane, rows: place.fill_history(lane, rows)
        case _:
            return _fill_paused


def _fill_paused(place: Place, _lane: int, rows: int) -> None:
    paused = place.lane("halted", HALTED)
    place.conn.execute(place.sql["pause"], {"lane": paused})
    place.fill(paused, rows)


def _compare(empty: Place, grown: Place, lanes: tuple[int, int], jobs: int, rounds: int, rows: int, say: Say) -> Case:
    alone: list[float] = []
    beside: list[float] = []
    for number in range(1, rounds + 1):
        say(f"round {number} of {rounds}")
        turns = [(empty, lanes[0], alone), (grown, lanes[1], beside)]
        for place, lane, rates in turns if number % 2 else turns[::-1]:
            rates.append(_drain(place, lane, jobs)[0])
    return Case(
        rows=rows,
        jobs_per_s=spread(beside),
        empty_jobs_per_s=spread(alone),
        ratio_to_empty=ratios(beside, alone),
    )


def _drain(place: Place, lane: int, jobs: int) -> tuple[float, list[tuple[int, float]]]:
    """Jobs per second, and when which share of them was settled."""
    place.fill(lane, jobs)
    place.settle_down()
    with crew.workers(place, DEFAULT, jobs=jobs, queue=QUEUES) as worker:
        worker.start()
        worker.wait_for(jobs)
        return jobs / worker.seconds, worker.members[0].tally.curve()


def _snapshot(place: Place, lane: int, jobs: int, rounds: int, say: Say) -> Snapshot:
    first: list[float] = []
    last: list[float] = []
    for number in range(1, rounds + 1):
        say(f"an open transaction: round {number} of {rounds}")
        place.empty()
        with connect_sync(place.url, name="kept bench snapshot") as conn:
            conn.execute("begin isolation level repeatable read")
            conn.execute("select txid_current()")  # from here on nothing that dies is forgotten
            _, curve = _drain(place, lane, jobs)
            conn.execute("rollback")
        for rates, found in zip((first, last), fifths(curve, jobs), strict=True):
            rates.append(found)
    return Snapshot(
        jobs=jobs,
        first_fifth_jobs_per_s=spread(first),
        last_fifth_jobs_per_s=spread(last),
        last_to_first=ratios(last, first),
    )
