"""The table of docs/lifecycle.md says what the rules do, for every outcome."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import get_args
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kept.jobs import lifecycle, rules
from kept.jobs.lifecycle import TRANSITIONS
from kept.jobs.model import (
    STATES,
    Claimed,
    Close,
    Completed,
    Lane,
    Leave,
    LostLease,
    Outcome,
    Park,
    Settlement,
)
from kept.jobs.retry import Retry

PAGE = Path(__file__).parents[2] / "docs" / "lifecycle.md"
MADE = {"diagram": f"```mermaid\n{lifecycle.mermaid()}```\n", "table": lifecycle.table()}
NOW = datetime(2026, 1, 1, tzinfo=UTC)

outcomes = st.one_of(*[st.from_type(kind) for kind in get_args(Outcome)])
policies = st.builds(
    Retry,
    max_attempts=st.integers(1, 5),
    max_total=st.none() | st.just("1h"),
    unknown=st.sampled_from(["retry", "fail"]),
)
draws = st.floats(0, 1, exclude_max=True)


@st.composite
def jobs(draw: st.DrawFn) -> Claimed:
    attempt = draw(st.integers(1, 8))
    made = NOW - timedelta(minutes=draw(st.integers(0, 120)))
    return Claimed(
        id=1, lane=1, priority=0, attempt=attempt, uncharged=draw(st.integers(0, attempt - 1)),
        suspect=draw(st.booleans()), due_at=made, created_at=made, claimed_at=NOW, key=None, retry_of=None,
        headers=None, payload="{}", worker=UUID(int=1),
    )  # fmt: skip


def event_of(outcome: Outcome) -> str:
    """``LostLease`` is called lost_lease."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", type(outcome).__name__).lower()


def arrow(event: str, settlement: Settlement) -> tuple[str, str, str, bool] | None:
    """What *settlement* does to a running job, as the beginning of a row of the table; None: nothing."""
    match settlement:
        case Close(state):
            return ("running", event, state, True)
        case Park(_, charged):
            return ("running", event, "pending", charged)
        case Leave():
            return None


def described() -> set[tuple[str | None, str, str, bool | None]]:
    return {row[:4] for row in TRANSITIONS}


@given(job=jobs(), outcome=outcomes, policy=policies, draw=draws)
def test_whatever_the_rules_decide_is_an_arrow_of_the_table(
    job: Claimed, outcome: Outcome, policy: Retry, draw: float
) -> None:
    event = event_of(outcome)
    moved = arrow(event, rules.settle(job, outcome, policy, draw))
    match outcome:
        case Completed():
            assert moved is None, "the handler has settled it already"
            assert ("running", event, "done", True) in described()
        case LostLease():
            assert moved is None
            assert event not in {row.event for row in TRANSITIONS}
        case _:
            assert moved in described()


@given(job=jobs(), started=st.booleans(), attempts=st.integers(1, 5), draw=draws)
def test_whatever_a_reclaim_decides_is_an_arrow_of_the_table(
    job: Claimed, started: bool, attempts: int, draw: float
) -> None:
    lane = Lane(id=1, queue="q", task="t", max_attempts=attempts, priority=0, retry_base=5.0, retry_max=120.0)
    settlement = rules.reclaim(job, lane, started=started, draw=draw)
    assert arrow("died" if started else "released", settlement) in described()


@pytest.mark.parametrize("row", [row for row in TRANSITIONS if row.source == "running"], ids=str)
def test_every_arrow_from_running_is_one_the_rules_can_take(row: lifecycle.Transition) -> None:
    taken: set[object] = {("running", "completed", "done", True)}  # by the handler, not by the rules
    patient, strict = Retry(max_attempts=3), Retry(max_attempts=1)
    for kind in get_args(Outcome):
        outcome = _plainest(kind)
        for suspect in (False, True):
            job = Claimed(1, 1, 0, 1, 0, suspect, NOW, NOW, NOW, None, None, None, "{}", UUID(int=1))
            for policy in (patient, strict):
                taken.add(arrow(event_of(outcome), rules.settle(job, outcome, policy, 0.0)))
    assert row[:4] in taken


def test_every_state_is_reached_and_only_the_settled_ones_are_left_by_nothing() -> None:
    assert {row.target for row in TRANSITIONS} == set(STATES)
    left = {row.source for row in TRANSITIONS}
    assert set(STATES) - left == {"done", "failed", "cancelled", "skipped"}


@pytest.mark.parametrize("name", MADE)
def test_the_page_shows_what_the_code_makes(name: str) -> None:
    shown = re.search(rf"<!-- made: {name} -->\n(.*?)<!-- end -->", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert shown is not None
    assert shown[1] == MADE[name], "take it over from kept.jobs.lifecycle"


def _plainest(kind: type[Outcome]) -> Outcome:
    given: dict[str, object] = {"code": "boom", "message": "boom", "delay": 1.0}
    return kind(**{name: given[name] for name in kind.__struct_fields__ if name in given})
