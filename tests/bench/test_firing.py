"""The schedules that are measured: all have a slot at the same moment, and the next one long after."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from kept.bench.firing import Mixed, rule
from kept.schedules.model import Cron, Every, Timetable
from kept.schedules.rules import next_slot


def table(mixed: Mixed, anchor: datetime) -> Timetable:
    if mixed.cron is not None:
        return Timetable(rule=Cron(mixed.cron, mixed.zone), anchor=anchor)
    assert mixed.every is not None
    return Timetable(rule=Every(timedelta(seconds=mixed.every), mixed.zone), anchor=anchor)


@pytest.mark.parametrize(
    "slot", [datetime(2026, 11, 18, 2, 5, 9, tzinfo=UTC), datetime(2026, 5, 31, 23, 58, tzinfo=UTC)]
)
def test_every_rule_has_a_slot_at_that_moment_and_none_soon_after(slot):
    for number in range(500):
        found = table(rule(number, slot), slot)
        assert next_slot(found, slot - timedelta(seconds=1)) == slot
        following = next_slot(found, slot)
        assert following is None or following - slot >= timedelta(minutes=5)


def test_half_are_cron_expressions_in_many_zones_and_few_are_alike():
    slot = datetime(2026, 11, 18, 2, 5, 9, tzinfo=UTC)
    found = [rule(number, slot) for number in range(1000)]
    assert sum(each.cron is not None for each in found) == 500
    assert len({each.zone for each in found}) == 6
    assert len(set(found)) > 700
