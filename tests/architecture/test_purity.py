"""Pure modules decide and do nothing else: they cannot reach a clock, chance, a log, the system or the database."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src"

NAMED = [
    "kept.admin.findings",
    "kept.admin.schedules",
    "kept.bench.tables",
    "kept.durations",
    "kept.redact",
    "kept.jobs.lanes",
    "kept.jobs.strides",
    "kept.jobs.lifecycle",
    "kept.jobs.model",
    "kept.jobs.order",
    "kept.jobs.payload",
    "kept.jobs.retry",
    "kept.jobs.text",
    "kept.outbox.model",
    "kept.outbox.addresses",
    "kept.outbox.target",
    "kept.schedules.cron",
    "kept.schedules.model",
    "kept.runners.model",
    "kept.schedules.rows",
    "kept.verify.books",
    "kept.verify.causes",
    "kept.verify.evidence",
    "kept.verify.slots",
    "kept.verify.tables",
    "kept.verify.timing",
    "kept.worker.pacing",
]
PURE = sorted(
    {*NAMED, *(".".join(path.relative_to(SOURCE).with_suffix("").parts) for path in SOURCE.rglob("rules.py"))}
)
# Modules that hold nothing but data or errors, or that a pure module needs for the types of its data.
DATA = {
    "kept.errors",
    "kept.admin.model",
    "kept.admin.facts",
    "kept.bench.model",
    "kept.verify.model",
    "kept.outbox.inbox.model",
    "kept.outbox.rows",
}
TYPES = {"kept.jobs.lanes": {"kept.jobs.declaration", "kept.jobs.rows"}, "kept.jobs.order": {"kept.jobs.rows"}}

IMPURE = {"asyncio", "time", "random", "logging", "os", "socket", "subprocess", "threading", "secrets"}
PARTS = {"msgspec", "cronsim"}


def imported(module: str) -> set[str]:
    """Every module that *module* imports, as it is written; types alone (TYPE_CHECKING) included."""
    path = (SOURCE / module.replace(".", "/")).with_suffix(".py")
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            found |= {_full(node.module, alias.name) for alias in node.names}
    return found


def _full(package: str, name: str) -> str:
    """``from kept.jobs import rules`` names a module, ``from kept.errors import Error`` something in one."""
    inside = SOURCE / package.replace(".", "/") / f"{name}.py"
    return f"{package}.{name}" if inside.exists() else package


@pytest.mark.parametrize("module", PURE)
def test_a_pure_module_imports_nothing_that_acts(module: str) -> None:
    roots = {name.partition(".")[0] for name in imported(module)} - {"kept"}
    assert roots & IMPURE == set()
    assert roots - set(sys.stdlib_module_names) <= PARTS


@pytest.mark.parametrize("module", PURE)
def test_a_pure_module_leans_on_pure_modules_only(module: str) -> None:
    ours = {name for name in imported(module) if name.partition(".")[0] == "kept"}
    assert ours - set(PURE) - DATA - TYPES.get(module, set()) == set()


@pytest.mark.parametrize("module", sorted(DATA))
def test_a_module_of_data_imports_nothing_that_acts(module: str) -> None:
    roots = {name.partition(".")[0] for name in imported(module)}
    assert roots & IMPURE == set()
    assert roots - set(sys.stdlib_module_names) - {"kept"} <= PARTS


def test_the_check_would_notice() -> None:
    assert "asyncio" in imported("kept.worker.worker")
    assert "psycopg" in imported("kept.jobs.runner")
    assert {"kept.jobs.rules", "kept.jobs.store"} <= imported("kept.jobs.reclaim")
