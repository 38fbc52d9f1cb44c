"""Events while everything around them is killed (promises 1 to 4 at the outbox); `make storm` is the large one."""

from __future__ import annotations

from pathlib import Path

import pytest

from storm import Told, judge, storm

pytestmark = pytest.mark.acceptance


@pytest.mark.timeout(300)
def test_events_reach_everybody_in_order_while_worker_broker_and_database_are_killed(tmp_path: Path) -> None:
    outcome = storm(events=3000, parcels=50, workers=2, seed=7, folder=tmp_path, every=0.35)
    assert outcome.clean, str(outcome)
    assert outcome.committed == 3000
    assert sum(outcome.kills.values()) >= 3, "a storm without kills shows nothing"


def test_the_judge_knows_a_loss_a_phantom_and_a_wrong_order() -> None:
    one, two, three = (Told(event, "p", n) for event, n in (("a", 1), ("b", 2), ("c", 3)))
    committed = {each.event: each for each in (one, two)}
    assert judge("x", committed, [one, two, one]).clean
    assert judge("x", committed, [one]).lost == {"b"}
    assert judge("x", committed, [one, two, three]).phantoms == {"c"}
    assert judge("x", committed, [two, one]).disordered == ["p"]
