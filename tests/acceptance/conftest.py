"""A fleet of real workers for every acceptance test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from fleet import Fleet, Jobs, fleet_of
from pooler import pooler_before


@pytest.fixture
def fleet(database: str, tmp_path: Path) -> Iterator[Fleet]:
    """Workers on this test's database; none of their processes outlives the test."""
    with fleet_of(database, tmp_path) as fleet:
        yield fleet


@pytest.fixture
def jobs(conn: psycopg.Connection) -> Jobs:
    """What the database knows."""
    return Jobs(conn)


@pytest.fixture
def pooled(database: str, tmp_path: Path) -> Iterator[str]:
    """The URL of the test's database behind pgbouncer in transaction mode."""
    with pooler_before(database, tmp_path) as url:
        yield url
