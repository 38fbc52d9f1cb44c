import time, pages
orig = pages.Shell.run
def run(self, command, timeout=60):
    t=time.time(); r=orig(self, command, timeout); print(f"{time.time()-t:.2f} {command}"); return r
pages.Shell.run = run
"""Somebody who follows the tutorial to the letter sees what it says."""


from pathlib import Path

import psycopg
import pytest

from pages import ROOT, Shell, blocks

PAGE = ROOT / "docs" / "tutorial.md"


@pytest.mark.acceptance
def test_the_tutorial_can_be_followed(database: str, tmp_path: Path) -> None:
    with Shell(tmp_path, database) as shell:
        for block in blocks(PAGE):
            if block.runs:
                shell.follow(block)
    with psycopg.connect(database) as conn:
        states = conn.execute("select task, state, count(*)::int from kept.jobs group by 1, 2").fetchall()
    assert sorted(states) == [
        ("charge", "done", 1),
        ("refund", "failed", 1),
        ("render", "done", 1),
        ("send_welcome", "done", 3),
    ]
