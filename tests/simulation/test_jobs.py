"""Workers, keepers and producers, moved by one statement at a time, that die, freeze, lose their connection and their
lease at any of them: what was promised holds after each. ``make simulate SEEDS=1000`` runs more worlds; ``SEED=7`` runs
one again. One that fails tells the shortest story in which the promise breaks."""

from __future__ import annotations

import os
from collections import Counter
from unittest.mock import patch

import psycopg
import pytest

from kept.db.queries import in_schema
from simulation_cast import SQL
from simulation_stage import is_deadlock
from simulation_story import Told, printed, shortened, tell

ONE = os.environ.get("KEPT_SIMULATE_SEED")
SEEDS = [int(ONE)] if ONE else range(int(os.environ.get("KEPT_SIMULATE_SEEDS", "5")))
CHUNK = 25  # worlds in one test: a test each would take longer to report than to run
CHUNKS = [SEEDS[at : at + CHUNK] for at in range(0, len(SEEDS), CHUNK)]


def failure(url: str, conn: psycopg.Connection, told: Told) -> str:
    short = shortened(url, conn, told)
    again = f"make simulate SEED={told.seed}"
    return (
        f"promise {told.broken}\n({again})\n\nThe same in {len(short.trace)} steps:\n{printed(short)}\n{short.broken}"
    )


@pytest.mark.timeout(600)
@pytest.mark.parametrize("seeds", CHUNKS, ids=[f"{each[0]}-{each[-1]}" for each in CHUNKS])
def test_promises_hold_after_every_statement(worlds: str, eye: psycopg.Connection, seeds: range) -> None:
    for seed in seeds:
        told = tell(worlds, eye, seed)
        assert told.broken is None, failure(worlds, eye, told)


@pytest.mark.parametrize("seed", [0, 3])  # in the first, producers wait for each other's locks
def test_a_seed_tells_the_same_story_again(worlds: str, eye: psycopg.Connection, seed: int) -> None:
    first, second = tell(worlds, eye, seed), tell(worlds, eye, seed)
    assert first.trace == second.trace
    assert first.oracle.live == second.oracle.live
    assert first.oracle.settled == second.oracle.settled
    assert first.oracle.begun == second.oracle.begun


def test_the_events_of_a_story_are_all_it_takes_to_tell_it(worlds: str, eye: psycopg.Connection) -> None:
    first = tell(worlds, eye, 4)
    second = tell(worlds, eye, 4, first.events)
    assert first.trace == second.trace
    assert first.oracle.settled == second.oracle.settled


def test_nobody_decides_while_some_wait_for_each_other() -> None:
    """The server parts them in its own time, and a story has none but ours."""
    assert is_deadlock({1: {2}, 2: {1}})
    assert is_deadlock({1: {2}, 2: {3}, 3: {2, 9}})
    assert not is_deadlock({1: {2}, 2: {9}})
    assert not is_deadlock({})


# --- what the worlds are good for


def test_worlds_come_by_what_they_are_to_judge(worlds: str, eye: psycopg.Connection) -> None:
    seen: Counter[str] = Counter()
    for seed in range(3):
        told = tell(worlds, eye, seed)
        assert told.oracle is not None
        seen += told.oracle.counts
    assert min(seen[what] for what in ("claimed", "done", "looked for the dead", "looked below", "back: expired")) > 0


LEASE_CHECK = "state = 'live' and lease_until > kept.now() and session = %(session)s"
# A fence without the attempt, and a completion without one, take more luck than 200 worlds have: the state machine in
# tests/jobs breaks on both.
PLANTED = {
    "a fence without the worker": {" and j.worker = %(worker)s": ""},
    "a claim that does not check its lease": {LEASE_CHECK: "true"},
    "a reclaim from those who live": {"where state = 'lost' or (state = 'live' and lease_until <= kept.now())": ""},
    "a reclaim that leaves some for later": {"for update of j skip locked ": "limit 1 for update of j skip locked "},
    "a look below the floors that stops at a priority": {" and j.priority < b.priority": " and false"},
    "releases that are charged": {"case when p.charged then 0 else 1 end": "0"},
}


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("planted", PLANTED)
def test_a_planted_bug_breaks_a_promise_within_200_worlds_and_in_a_shorter_story(
    worlds: str, eye: psycopg.Connection, planted: str
) -> None:
    statements = dict(SQL._statements)
    for name, text in statements.items():
        for right, wrong in PLANTED[planted].items():
            text = text.replace(in_schema(right, "kept"), wrong)  # noqa: PLW2901
        statements[name] = text
    assert statements != SQL._statements, "there is nothing left to plant it in"
    with patch.object(SQL, "_statements", statements):
        broken = next((told for seed in range(200) if (told := tell(worlds, eye, seed)).broken), None)
        assert broken is not None, f"{planted}: 200 worlds, and nobody noticed"
        short = shortened(worlds, eye, broken, seconds=10)
    assert short.promise == broken.promise
    assert len(short.events) < len(broken.events)
    print(f"{planted}: seed {broken.seed} says {broken.broken}")
