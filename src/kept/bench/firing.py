"""Schedules that are due all at once: how long it takes until each is a job, with one worker and with several."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import NamedTuple
from zoneinfo import ZoneInfo

from kept.bench import crew
from kept.bench.drain import DEFAULT, Say
from kept.bench.model import AtOnce
from kept.bench.place import Place, Unsound
from kept.bench.producer import TEXT
from kept.bench.rules import spread
from kept.db.connect import array

WORKERS = (1, 2)
ZONES = ("UTC", "Europe/Berlin", "America/Santiago", "Australia/Lord_Howe", "Asia/Kolkata", "America/New_York")
PERIODS = (300, 900, 3600, 86_400)  # seconds
AHEAD = 4.0  # seconds from the start of the workers to the slot: they are idle by then
SHORTLY = timedelta(seconds=0.5)  # before the slot, statements are counted from
LOOK = 0.005  # seconds between looks whether all are enqueued
PATIENCE = 60.0  # seconds for all of them


class Mixed(NamedTuple):
    """A rule as its row has it."""

    cron: str | None
    every: float | None
    zone: str


def rule(number: int, slot: datetime) -> Mixed:
    """One of many rules with a slot at *slot* and the next one minutes to a month later: no two in a row are alike.

    Half are cron expressions on the clocks of six zones, each with minutes of its own: nothing learnt from one of
    them helps with the next.
    """
    zone = ZONES[number // 2 % len(ZONES)]
    if number % 2:
        return Mixed(None, float(PERIODS[number // 2 % len(PERIODS)] + number), zone)
    shown = slot.astimezone(ZoneInfo(zone))
    kind = number // 2 % 4
    other = (shown.minute + 5 + number // 8 % 50) % 60
    hours = "*" if kind == 0 else str(shown.hour)
    day = str(shown.day) if kind == 2 else "*"
    weekday = str(shown.isoweekday()) if kind == 3 else "*"
    return Mixed(f"{shown.second} {shown.minute},{other} {hours} {day} * {weekday}", None, zone)


def fill(place: Place, lane: int, schedules: int, slot: datetime) -> None:
    """No job, and *schedules* schedules whose next slot is *slot*."""
    place.empty()
    place.conn.execute(place.sql["empty_schedules"])
    rules = [rule(number, slot) for number in range(schedules)]
    params = {
        "slot": slot,
        "lane": lane,
        "payload": json.dumps({"number": 1, "text": TEXT}),
        "cron": array([each.cron for each in rules]),
        "every": array([each.every for each in rules]),
        "zone": array([each.zone for each in rules]),
    }
    place.conn.execute(place.sql["fill_schedules"], params)
    place.settle_down()


def coming(place: Place, ahead: float) -> datetime:
    """The first whole second at least *ahead* seconds from now, by the server's clock."""
    return _now(place).replace(microsecond=0) + timedelta(seconds=int(ahead) + 1)


class Round(NamedTuple):
    """One round; times in milliseconds after the slot."""

    first: float
    last: float
    enqueued: float
    done: float
    firings: float
    statements: float


def at_once(place: Place, lane: int, *, schedules: int, rounds: int, say: Say) -> dict[str, AtOnce]:
    """Interleaved rounds of one worker and of two; in every other round the other way round."""
    found: dict[int, list[Round]] = {workers: [] for workers in WORKERS}
    for number in range(1, rounds + 1):
        for workers in WORKERS if number % 2 else WORKERS[::-1]:
            say(f"round {number} of {rounds}: {schedules:,} due at once, workers: {workers}")
            found[workers].append(_round(place, lane, schedules, workers))
    return {str(workers): _summary(schedules, found[workers]) for workers in WORKERS}


def _summary(schedules: int, found: Sequence[Round]) -> AtOnce:
    return AtOnce(
        first_ms=spread([each.first for each in found]),
        last_ms=spread([each.last for each in found]),
        enqueued_ms=spread([each.enqueued for each in found]),
        done_ms=spread([each.done for each in found]),
        jobs_per_s=spread([schedules / each.enqueued * 1000 for each in found]),
        firings=spread([each.firings for each in found]),
        statements=spread([each.statements for each in found]),
    )


def _round(place: Place, lane: int, schedules: int, workers: int) -> Round:
    with crew.workers(place, DEFAULT, jobs=schedules, processes=workers) as several:
        several.start()
        slot = coming(place, AHEAD)
        fill(place, lane, schedules, slot)
        _sleep_until(place, slot - SHORTLY)
        before = _transactions(place)
        enqueued, looks = _wait(place, several, slot)
        several.wait_for(schedules)
    sent = _transactions(place) - before - looks - 1  # the last one is the question itself
    row = place.conn.execute(place.sql["firings"], {"slot": slot}).fetchone()
    assert row is not None
    *counts, first, last, done, firings = row
    if counts != [schedules] * 4:
        raise Unsound(f"of {schedules} slots, not each became one job: {counts}; nothing can be said")
    return Round(first, last, enqueued, done, firings, max(0, sent))


def _wait(place: Place, several: crew.Crew, slot: datetime) -> tuple[float, int]:
    """Milliseconds from *slot* until all are enqueued, and how often we looked."""
    _sleep_until(place, slot)
    looks, until = 1, time.monotonic() + PATIENCE
    while True:
        looks += 1
        row = place.conn.execute(place.sql["still_due"], {"slot": slot}).fetchone()
        assert row is not None
        if not row[0]:
            return float(row[1]), looks
        several.check()
        if time.monotonic() > until:
            raise crew.Stuck(f"not all schedules had fired after {PATIENCE:.0f} s")
        time.sleep(LOOK)


def _sleep_until(place: Place, moment: datetime) -> None:
    left = (moment - _now(place)).total_seconds()
    if left < 0:
        raise Unsound("the slot had come before all schedules were there: this server is too slow for so many")
    time.sleep(left)


def _now(place: Place) -> datetime:
    now = place.one(place.sql["now"])
    assert isinstance(now, datetime)
    return now.astimezone(UTC)


def _transactions(place: Place) -> int:
    return int(str(place.one(place.sql["transactions"])))
