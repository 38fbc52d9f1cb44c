"""The command line, in this process: ``kept("jobs", "list")`` on a database of the test's own."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pytest
from click.testing import CliRunner

from kept.cli import main


@dataclass(frozen=True, slots=True)
class Said:
    """What a command said, and how it ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@dataclass(frozen=True, slots=True)
class Kept:
    """``kept --database URL …``; a traceback is a failure of the test."""

    database: str | None = None

    def __call__(self, *words: object, **environ: str | None) -> Said:
        given = [] if self.database is None else ["--database", self.database]
        result = CliRunner(env=environ).invoke(main, [*given, *map(str, words)], prog_name="kept")
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert "Traceback (most recent call last)" not in result.output
        return Said(result.exit_code, result.stdout, result.stderr)


@pytest.fixture
def kept(database: str) -> Kept:
    return Kept(database)


@pytest.fixture
def nowhere(monkeypatch: pytest.MonkeyPatch) -> Kept:
    """The command line without any database configured."""
    monkeypatch.delenv("KEPT_DATABASE_URL", raising=False)
    return Kept()


@pytest.fixture
def at() -> type[Kept]:
    """The command line on a database of the test's choice."""
    return Kept
