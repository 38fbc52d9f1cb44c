"""Every statement of every queries.sql is used, and every statement that is asked for exists."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "kept"
NAME = re.compile(r"^-- name: (\w+)\s*$", re.MULTILINE)
FILES = sorted(SOURCE.rglob("queries.sql"))
MODULES = [ast.parse(path.read_text(encoding="utf-8")) for path in sorted(SOURCE.rglob("*.py"))]


def names(file: Path) -> list[str]:
    return NAME.findall(file.read_text(encoding="utf-8"))


def asked_for() -> set[str]:
    """The names in ``sql["…"]``, in ``sql["a" if … else "b"]`` and in ``helper(sql, "…")``."""
    found: set[str] = set()
    for module in MODULES:
        for node in ast.walk(module):
            if isinstance(node, ast.Subscript) and _is_sql(node.value):
                place = node.slice
                found |= _texts([place.body, place.orelse] if isinstance(place, ast.IfExp) else [place])
            elif isinstance(node, ast.Call) and node.args and _is_sql(node.args[0]):
                found |= _texts(node.args[1:])
    return found


def _texts(nodes: list[ast.expr]) -> set[str]:
    return {n.value for n in nodes if isinstance(n, ast.Constant) and isinstance(n.value, str)}


def _is_sql(node: ast.expr) -> bool:
    name = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
    return name in ("sql", "_sql", "archive")


ASKED_FOR = asked_for()


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.parent.name)
def test_every_statement_is_used(file: Path) -> None:
    assert names(file)
    assert [name for name in names(file) if name not in ASKED_FOR] == []


def test_every_statement_asked_for_exists() -> None:
    assert {"step", "purge_keys", "purge_workers", "take_pending"} <= ASKED_FOR, "the check must see them"
    assert {name for file in FILES for name in names(file)} >= ASKED_FOR
