"""Faults of the server, the network and the clocks: what they do to a run, and that none of them breaks a promise."""

from __future__ import annotations

from pathlib import Path

import pytest

from kept.verify import disk, pooler
from kept.verify.faults import failover
from kept.verify.model import Report
from kept.verify.run import Plan, run

pytestmark = [pytest.mark.acceptance, pytest.mark.slow]


def storm(*faults: str, seconds: float = 12.0) -> Report:
    report = run(Plan(faults=faults, seconds=seconds, jobs=int(seconds * 150), seed=1))
    assert set(report.faults) | set(report.left_out) >= set(faults)
    return report


@pytest.mark.parametrize(
    "faults",
    [
        ("restart", "restart-immediate", "postmaster", "backend"),
        ("connections", "snapshot", "deadlock"),
        ("latency", "trickle", "blackhole", "half-open", "reset"),
        ("reset-before-commit", "reset-after-commit"),
        ("server-clock",),
        ("promote-sync",),
    ],
    ids=",".join,
)
def test_no_fault_of_the_database_or_the_way_to_it_breaks_a_promise(faults: tuple[str, ...]) -> None:
    assert storm(*faults).breaches == ()


@pytest.mark.skipif(disk.missing() is not None, reason="no file system can be mounted here")
def test_a_full_disk_breaks_no_promise() -> None:
    assert storm("disk").breaches == ()


@pytest.mark.debian
@pytest.mark.skipif(pooler.missing() is not None, reason="pgbouncer is not installed")
def test_a_pooler_that_dies_breaks_no_promise() -> None:
    assert storm("pgbouncer").breaches == ()


def test_a_standby_that_is_not_waited_for_loses_what_the_server_lost_and_nothing_else() -> None:
    report = storm("promote")
    assert report.breaches == ()
    assert report.lost_with_commits > 0
    assert report.lost == 0


def test_a_standby_that_should_be_waited_for_and_is_not_is_found_out(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))  # for the evidence
    monkeypatch.setattr(failover.PromoteInStep, "in_step", False)
    assert 2 in {breach.promise for breach in storm("promote-sync").breaches}
