"""Planted bugs: the oracle raises the alarm. `make verify-planted` plants them all; here are the quickest."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from kept.db import migrate
from planted_bugs import PROMISES, breaches
from planted_scenes import SCENES
from plants import PLANTS, edited

pytestmark = pytest.mark.acceptance


@pytest.fixture
def second(other_database: str) -> str:
    """The URL of another migrated database."""
    with psycopg.connect(other_database, autocommit=True) as conn:
        migrate.apply(conn)
    return other_database


MACHINES = {"slow_decisions"}
LOADED = "from kept.db.queries import load; [load(each) for each in ('kept.jobs', 'kept.schedules')]"


def test_every_plant_has_a_scene_that_it_shows_in_and_a_promise_that_it_breaks() -> None:
    assert set(PLANTS) - MACHINES == set(SCENES) == set(PROMISES)


@pytest.mark.parametrize("plant", PLANTS)
def test_every_plant_finds_what_it_breaks(plant: str) -> None:
    tests = Path(__file__).parents[1]
    subprocess.run(
        [sys.executable, "-c", LOADED],
        env={"PYTHONPATH": f"{tests / 'planting'}:{tests}", "KEPT_TEST_PLANTS": plant},
        check=True,
    )


def test_a_plant_that_finds_nothing_to_break_says_so() -> None:
    with pytest.raises(ValueError, match="0 places like 'for update'; the plant has to follow the statement"):
        edited("select 1", ("claim", "for update", ""), "kept")


@pytest.mark.parametrize("plant", ["mark_before_effect", "order_by_rows_skipped"])
def test_a_planted_bug_is_an_alarm_and_a_sound_system_is_none(
    plant: str, database: str, second: str, tmp_path: Path
) -> None:
    assert PROMISES[plant] in {each.promise for each in breaches(database, plant, tmp_path, broken=True)}
    assert breaches(second, plant, tmp_path, broken=False) == ()
