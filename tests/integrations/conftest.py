"""What the tests of logs and metrics share: the tables of docs/metrics.md."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

Row = dict[str, str]
DOC = Path(__file__).parents[2] / "docs" / "metrics.md"


@pytest.fixture
def documented() -> Callable[[str], list[Row]]:
    """The rows of the table under ``<!-- table: NAME -->``, by column, without backticks."""

    def rows(name: str) -> list[Row]:
        after = DOC.read_text().split(f"<!-- table: {name} -->\n", 1)[1]
        table = after.split("\n\n", 1)[0].replace("`", "").splitlines()
        head, _, *body = [[cell.strip() for cell in line.strip("|").split("|")] for line in table]
        return [dict(zip(head, cells, strict=True)) for cells in body]

    return rows
