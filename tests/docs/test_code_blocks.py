"""What the documentation shows as Python and SQL runs, and does what the page says."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import ModuleType

import psycopg
import pytest

from pages import ROOT, Block, blocks

DOCS = ROOT / "docs"


@pytest.fixture
def page_module(database: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """A module for a page's code: its blocks follow one another as in a session."""
    monkeypatch.setenv("KEPT_DATABASE_URL", database)
    module = ModuleType("page")
    monkeypatch.setitem(sys.modules, "page", module)
    yield module
    if "app" in vars(module):
        module.app.close()


def perform(block: Block, module: ModuleType, database: str) -> None:
    if block.language == "sql":
        with psycopg.connect(database, autocommit=True) as conn:
            conn.execute(block.text.encode())
    else:
        # Blank lines in front, so that a traceback names the line of the page.
        code = "\n" * block.line + block.text
        exec(compile(code, str(block.page), "exec"), vars(module))


@pytest.mark.parametrize(
    ("page", "least"),
    [
        ("tasks.md", 20),
        ("schedules.md", 8),
        ("outbox.md", 5),
        ("migrating-an-outbox.md", 3),
        ("operations.md", 2),
        ("inbox.md", 6),
        ("sinks/webhooks.md", 2),
        ("runners.md", 4),
    ],
)
def test_the_code_of_a_page_does_what_the_page_says(
    page: str, least: int, page_module: ModuleType, database: str
) -> None:
    performed = [block for block in blocks(DOCS / page) if block.runs and block.language in ("python", "sql")]
    for block in performed:
        perform(block, page_module, database)
    assert len(performed) >= least
