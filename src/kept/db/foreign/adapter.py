"""What an adapter is: it runs one statement of ours in somebody else's transaction.

Parameters are sent as text, which the statement casts: no driver then has its own idea of their types, and no
codec that the caller has set up gets in between.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, LiteralString, Protocol

from kept.db.connect import Params
from kept.db.foreign import words
from kept.db.unfit import Server, by_code
from kept.errors import Error

_ABORTED = "25P02"  # current transaction is aborted, commands ignored until end of transaction block

Rows = Sequence[Sequence[Any]]


class Sync(Protocol):
    """A sync transaction of the caller's."""

    def rows(self, statement: LiteralString, params: Params) -> Rows:
        """Run one statement; what it answers, as plain rows."""

    def server(self) -> Server:
        """Facts about the server, for the sentence of an error."""


class Async(Protocol):
    """An async transaction of the caller's."""

    async def rows(self, statement: LiteralString, params: Params) -> Rows:
        """Run one statement; what it answers, as plain rows."""

    def server(self) -> Server:
        """Facts about the server, for the sentence of an error."""


def loaded(module: str) -> Any:
    """A module that is there, because an object of it is in our hands: nothing foreign is imported by us."""
    return sys.modules[module]


def as_text(value: object) -> str | None:
    """*value* as PostgreSQL reads it."""
    return None if value is None else str(value)


def as_texts(params: Params) -> dict[str, str | None]:
    """All of *params* as PostgreSQL reads them."""
    return {name: as_text(value) for name, value in params.items()}


@contextmanager
def in_our_words(server: Callable[[], Server]) -> Iterator[None]:
    """Say what is wrong with the transaction or the database as a whole; every other error stays what it is."""
    try:
        yield
    except Exception as error:
        ours = _ours(error, server)
        if ours is None:
            raise
        raise ours from error


def _ours(error: Exception, server: Callable[[], Server]) -> Error | None:
    # SQLAlchemy keeps the driver's error in `orig`, Django in `__cause__`.
    for each in (error, getattr(error, "orig", None), error.__cause__):
        code = getattr(each, "sqlstate", None) or getattr(each, "pgcode", None)
        if code == _ABORTED:
            return words.aborted()
        if code is not None:
            return by_code(code, str(each).partition("\n")[0], server)
    return None
