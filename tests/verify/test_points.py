"""Crash points: some of them here, all of them in `make verify-points`; nothing is lost, whatever they are hit with."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from crash_points import POINTS, hit_points
from kept.db.queries import load

pytestmark = pytest.mark.acceptance

HERE = Path(__file__).parents[1]
SOME = ("caller.commit", "jobs.claim", "settle", "retry", "reclaim.rest")
FEATURES = ("jobs", "outbox", "runners", "schedules")


def chosen(*names: str) -> list:
    return [point for point in POINTS if point.name in names]


def test_every_point_at_a_statement_names_one_that_there_is() -> None:
    known = {f"{feature}.{name}" for feature in FEATURES for name in load(f"kept.{feature}")}
    elsewhere = {"tx.commit", "caller.commit", "wire.early", "outbox.publish"}
    odd = {point.at for point in POINTS} - known - elsewhere
    assert {name for name in odd if not name.startswith("reclaim.")} == set()


def test_every_statement_that_settles_or_claims_is_a_point() -> None:
    wanted = {
        "enqueue",
        "enqueue_later",
        "enqueue_many",
        "copy_jobs",
        "claim",
        "claim_ordered",
        "claim_suspects",
        "step",
    }
    wanted |= {"complete", "survey", "lose_expired", "lose", "orphans", "held"}
    assert {f"jobs.{name}" for name in wanted} <= {point.at for point in POINTS}


def test_nothing_is_lost_or_done_that_should_not_be_when_processes_die_around_their_commits() -> None:
    outcome = hit_points(chosen(*SOME))
    assert outcome.never == []
    assert outcome.breaches == []
    assert outcome.report.accepted > 100


def test_a_bug_that_shows_at_a_point_is_noticed() -> None:
    planting = {"PYTHONPATH": f"{HERE / 'planting'}{os.pathsep}{HERE}", "KEPT_TEST_PLANTS": "mark_before_effect"}
    outcome = hit_points(chosen("jobs.claim", "settle"), environ=planting)
    assert {breach.promise for breach in outcome.breaches} & {3, 8}
