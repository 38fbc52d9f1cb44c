"""``kept bench schedules``: what schedules cost while none is due, and how fast and how precisely they fire."""

from __future__ import annotations

import time
from datetime import timedelta

from kept.bench import crew, firing
from kept.bench.app import SLOTS
from kept.bench.drain import DEFAULT, Say, warm_up
from kept.bench.model import Latencies, Schedules, Undue
from kept.bench.place import Place
from kept.bench.proc import family, is_server, running_seconds
from kept.bench.rules import latencies, spread

SETTLING = 3.0  # seconds until a worker that found nothing rests
FAR = 86_400.0  # seconds: nothing is due before
AHEAD = 5.0  # seconds before the first slot that counts: the worker rests
NS = 1_000_000_000
READINGS = 20  # of two clocks; the quickest counts


def measure(place: Place, *, schedules: int, rounds: int, seconds: float, slots: int, say: Say) -> Schedules:
    """Rounds with none due, rounds with all due at once, and *slots* slots of one schedule, a second apart."""
    lane = warm_up(place)
    return Schedules(
        server=place.server,
        schedules=schedules,
        rounds=rounds,
        undue=_undue(place, lane, schedules=schedules, rounds=rounds, seconds=seconds, say=say),
        at_once=firing.at_once(place, lane, schedules=schedules, rounds=rounds, say=say),
        late=_late(place, slots=slots, say=say),
    )


# --- none due


def _undue(place: Place, lane: int, *, schedules: int, rounds: int, seconds: float, say: Say) -> Undue:
    """Interleaved rounds with and without schedules; in every other round the other way round."""
    shares: dict[int, list[float]] = {0: [], schedules: []}
    seen = True
    for number in range(1, rounds + 1):
        for count in (0, schedules) if number % 2 else (schedules, 0):
            say(f"round {number} of {rounds}: {count:,} schedules, none due, for {seconds:.0f} s")
            firing.fill(place, lane, count, firing.coming(place, FAR))
            place.leave_nothing_to_vacuum()
            share, complete = _share(place, seconds)
            shares[count].append(share)
            seen = seen and complete
    added = [these - those for these, those in zip(shares[schedules], shares[0], strict=True)]
    return Undue(
        seconds=seconds,
        cpu_percent=spread(shares[schedules], 3),
        without_cpu_percent=spread(shares[0], 3),
        added_percent=spread(added, 3),
        server_process=seen,
    )


def _share(place: Place, seconds: float) -> tuple[float, bool]:
    """Percent of a core that a worker takes with its keeper and its server process; whether the last is in."""
    others = _sessions(place)
    with crew.workers(place, DEFAULT, jobs=1) as worker:
        worker.start()
        time.sleep(min(SETTLING, seconds))
        server = [pid for pid in _sessions(place) - others if is_server(pid)]
        processes = [*family(worker.members[0].process.pid).values(), *server]
        before, began = sum(map(running_seconds, processes)), time.monotonic()
        time.sleep(seconds)
        used = sum(map(running_seconds, processes)) - before
        worker.check()
        return 100 * used / (time.monotonic() - began), bool(server)


def _sessions(place: Place) -> set[int]:
    return {int(row[0]) for row in place.conn.execute(place.sql["worker_sessions"]).fetchall()}


# --- precision


def _late(place: Place, *, slots: int, say: Say) -> Latencies:
    """How long after its slot the handler of each began."""
    firing.fill(place, place.lane("beat", SLOTS), 0, firing.coming(place, FAR))
    with crew.workers(place, DEFAULT, jobs=slots, queue=SLOTS, stamps=slots) as idle:
        idle.start()
        first = firing.coming(place, AHEAD)
        _add_beat(place, int(first.timestamp()), first.isoformat(), (first + timedelta(seconds=slots - 1)).isoformat())
        offset = _offset(place)
        late = []
        for number in range(slots):
            say(f"slot {number + 1} of {slots}")
            due = int((first + timedelta(seconds=number)).timestamp()) * NS
            late.append(max(0, idle.wait_for_stamp(number) + offset - due))
    return latencies(late)


def _add_beat(place: Place, begin: int, first: str, last: str) -> None:
    params = {"lane": place.lane("beat", SLOTS), "begin": begin, "first": first, "last": last}
    place.conn.execute(place.sql["add_beat"], params)


def _offset(place: Place) -> int:
    """Nanoseconds to add to a moment of the monotonic clock to have it on the server's."""
    readings = []
    for _ in range(READINGS):
        before = time.monotonic_ns()
        moment = float(str(place.one(place.sql["moment"])))
        after = time.monotonic_ns()
        readings.append((after - before, int(moment * NS) - (before + after) // 2))
    return min(readings)[1]
