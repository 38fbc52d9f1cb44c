"""One database for many worlds: to make one takes longer than some worlds last."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import urlsplit, urlunsplit
from uuid import uuid4

import psycopg
import pytest
from psycopg.sql import SQL, Identifier


@pytest.fixture(scope="session")
def worlds(server: str, template: str) -> Iterator[str]:
    """The URL of a database in which one world follows the other; each begins by emptying it."""
    name = f"worlds_{uuid4().hex}"
    with psycopg.connect(server, autocommit=True) as conn:
        conn.execute(SQL("create database {} template {}").format(Identifier(name), Identifier(template)))
    yield urlunsplit(urlsplit(server)._replace(path=f"/{name}"))
    with psycopg.connect(server, autocommit=True) as conn:
        conn.execute(SQL("drop database {} with (force)").format(Identifier(name)))


@pytest.fixture
def eye(worlds: str) -> Iterator[psycopg.Connection]:
    """A connection that looks on."""
    with psycopg.connect(worlds, autocommit=True) as conn:
        yield conn
