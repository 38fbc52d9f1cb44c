"""Months of schedules, with workers that die at every statement and clocks that change: each slot fires once, or is
accounted for by its policy. ``make simulate SEEDS=1000`` runs more; ``SEED=7`` runs one again."""

from __future__ import annotations

import os
from datetime import timedelta

import psycopg
import pytest

from simulation_world import World

STEPS = 300
ONE = os.environ.get("KEPT_SIMULATE_SEED")
SEEDS = [int(ONE)] if ONE else range(int(os.environ.get("KEPT_SIMULATE_SEEDS", "5")))


@pytest.mark.parametrize("seed", SEEDS)
async def test_every_slot_fires_once_or_is_accounted_for(database: str, conn: psycopg.Connection, seed: int) -> None:
    world = World(database, seed, conn)
    began = world.now
    try:
        for _ in range(STEPS):
            await world.step()
            world.check()
        await world.finish()
    except AssertionError as error:
        raise AssertionError(f"seed {seed}, at {world.now}: {error} (make simulate SEED={seed})") from error
    assert world.furthest - began > timedelta(days=14), "hardly any time went by, so little is proved"
    assert world.crashes > 3, "hardly anybody died, so little is proved"
