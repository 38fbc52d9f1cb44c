"""Somebody who follows the tutorial to the letter sees what it says."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest

from pages import ROOT, Shell, blocks

PAGE = ROOT / "docs" / "tutorial.md"


@pytest.mark.acceptance
def test_the_tutorial_can_be_followed(empty_database: str, tmp_path: Path) -> None:
    with Shell(tmp_path, empty_database) as shell:
        for block in blocks(PAGE):
            if block.runs:
                shell.follow(block)
    with psycopg.connect(empty_database) as conn:
        states = conn.execute("select task, state, count(*)::int from kept.jobs group by 1, 2").fetchall()
    assert sorted(states) == [
        ("charge", "done", 1),
        ("refund", "failed", 1),
        ("render", "done", 1),
        ("send_welcome", "done", 3),
    ]
