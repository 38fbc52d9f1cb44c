"""What is known of markers, frozen. Pure."""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

from msgspec import Struct


class Marked(NamedTuple):
    """The database's answer. *first*: the marker is this transaction's, made just now.

    *seconds_left* is what remains of a marker that is committed for certain. *identity* says which table of which
    server has answered, if that was asked.
    """

    first: bool
    seconds_left: float | None
    identity: str | None


class ConsumerRow(Struct, frozen=True):
    """A consumer and its markers; counts are exact up to a limit. *overdue*: seconds since the oldest one expired."""

    consumer: str
    markers: int
    exact: bool
    expired: int
    oldest: datetime
    newest: datetime
    overdue: float
