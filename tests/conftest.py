"""A real PostgreSQL for the run, a database of its own for every test, and a clock that tests own."""

from __future__ import annotations

import asyncio
import inspect
import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import urlsplit, urlunsplit
from uuid import uuid4

import psycopg
import pytest
from hypothesis import settings
from psycopg.sql import SQL, Identifier

from kept.db import migrate
from kept.db.embedded import Embedded
from support import Clock

# Properties are judged by their answers, not by how busy the machine is.
settings.register_profile("kept", deadline=None)
settings.load_profile("kept")

# A shell that starts us in the background ignores SIGINT, and so would whoever tests interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Durability is the server's business, not what these tests are about.
OPTIONS = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off", "max_connections": "200"}

MEMORY = Path("/dev/shm")
ROOM = 4 * 1024**3

# STABLE, as in production; the shift is a row, so that it holds for every session.
TEST_CLOCK = """
create table kept.test_clock (shift interval not null);
insert into kept.test_clock values ('0');
create or replace function kept.now() returns timestamptz
  language sql stable parallel safe
  as 'select statement_timestamp() + (select shift from kept.test_clock)';
"""


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """An ``async def test_…`` runs under ``asyncio.run``; fixtures stay sync."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    wanted = pyfuncitem._fixtureinfo.argnames
    asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in wanted}))
    return True


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a server for this run (for each xdist worker, its own), or KEPT_TEST_DATABASE_URL."""
    given = os.environ.get("KEPT_TEST_DATABASE_URL")
    if given:
        yield given
        return
    with _folder(tmp_path_factory) as folder, Embedded(folder, options=OPTIONS) as embedded:
        yield embedded.url()


@pytest.fixture(scope="session")
def template(server: str) -> Iterator[str]:
    """The name of a migrated database to copy, in which tests own the time."""
    with _fresh(server) as name:
        with psycopg.connect(at(server, name), autocommit=True) as conn:
            migrate.apply(conn)
            conn.execute(TEST_CLOCK)
        yield name


@pytest.fixture
def database(server: str, template: str) -> Iterator[str]:
    """The URL of a migrated database of this test's own."""
    with _fresh(server, template) as name:
        yield at(server, name)


@pytest.fixture
def empty_database(server: str) -> Iterator[str]:
    """The URL of a database of this test's own with nothing in it."""
    with _fresh(server) as name:
        yield at(server, name)


@pytest.fixture
def other_database(server: str) -> Iterator[str]:
    """A second empty one, to compare with."""
    with _fresh(server) as name:
        yield at(server, name)


@pytest.fixture
def conn(database: str) -> Iterator[psycopg.Connection]:
    """A sync connection to :func:`database`, in autocommit mode."""
    with psycopg.connect(database, autocommit=True) as conn:
        yield conn


@pytest.fixture
def clock(database: str) -> Iterator[Clock]:
    """The clock of :func:`database`."""
    with psycopg.connect(database, autocommit=True) as conn:
        yield Clock(conn)


@pytest.fixture
def role(server: str) -> Iterator[str]:
    """The name of a role that may do nothing. Ask for it before a database: what it owns must go first."""
    name = f"test_{uuid4().hex}"
    with psycopg.connect(server, autocommit=True) as conn:
        conn.execute(SQL("create role {}").format(Identifier(name)))
    yield name
    with psycopg.connect(server, autocommit=True) as conn:
        conn.execute(SQL("drop role {}").format(Identifier(name)))


def at(server: str, name: str) -> str:
    """The URL of the database *name* on *server*."""
    parts = urlsplit(server)
    return urlunsplit(parts._replace(path=f"/{name}"))


@contextmanager
def _folder(fallback: pytest.TempPathFactory) -> Iterator[Path]:
    """In memory where there is room: a database is 600 files, and making them is what tests wait for."""
    if not MEMORY.is_dir() or shutil.disk_usage(MEMORY).free < ROOM:
        yield fallback.mktemp("pg")
        return
    with TemporaryDirectory(prefix="kept-tests-", dir=MEMORY) as folder:
        yield Path(folder)


@contextmanager
def _fresh(server: str, template: str = "template0") -> Iterator[str]:
    name = f"test_{uuid4().hex}"
    with psycopg.connect(server, autocommit=True) as conn:
        conn.execute(SQL("create database {} template {}").format(Identifier(name), Identifier(template)))
    try:
        yield name
    finally:
        with psycopg.connect(server, autocommit=True) as conn:
            conn.execute(SQL("drop database {} with (force)").format(Identifier(name)))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """Where everything is installed (KEPT_TEST_NO_SKIPS), a skip is a failure: it would hide a missing step."""
    report = yield
    if report.skipped and os.environ.get("KEPT_TEST_NO_SKIPS"):
        report.outcome = "failed"
        report.longrepr = f"skipped, but nothing may be skipped here: {report.longrepr}"
    return report
