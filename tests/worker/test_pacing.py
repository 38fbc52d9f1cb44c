"""When to look where: pure decisions on times."""

from __future__ import annotations

from kept.worker.pacing import BOTTOM_COST, BOTTOM_EVERY, BOTTOM_LATEST, bottom_allowed


def test_a_dear_look_below_the_floors_is_not_repeated_at_once():
    assert not bottom_allowed(now=100.0 + BOTTOM_EVERY - 0.01, last=100.0, cost=0.0)
    assert bottom_allowed(now=100.0 + BOTTOM_EVERY, last=100.0, cost=0.0)
    assert not bottom_allowed(now=100.0 + BOTTOM_COST * 0.2 - 0.01, last=100.0, cost=0.2)


def test_one_answer_that_was_late_does_not_keep_a_worker_from_looking_for_minutes():
    assert bottom_allowed(now=100.0 + BOTTOM_LATEST, last=100.0, cost=60.0)
