"""For Django: jobs written in the transaction that is open, without saying so at every call."""

from __future__ import annotations

from django.db import DEFAULT_DB_ALIAS, connections  # type: ignore[import-untyped]


def current_tx(using: str = DEFAULT_DB_ALIAS) -> object | None:
    """Django's connection while it is inside ``atomic()``, else None: ``App(default_tx=current_tx)``."""
    connection = connections[using]
    return connection if connection.in_atomic_block else None
