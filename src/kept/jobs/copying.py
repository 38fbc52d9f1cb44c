"""A job as a row for COPY in binary: nothing for the server to parse, and no character to mind."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from struct import Struct

BEGIN, END = b"PGCOPY\n\xff\r\n\0" + bytes(8), b"\xff\xff"

_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_NULL = b"\xff\xff\xff\xff"
# The size of each value, then the value.
_FIRST = Struct(">hiq").pack  # how many values a row has, and the id
_MIDDLE = Struct(">ii ii i? iq iq").pack
_SIZE = Struct(">i").pack


def row(id: int, middle: bytes, payload: str) -> bytes:
    """A whole row, with what :func:`between` gave for the rest of it."""
    data = payload.encode()
    return b"".join((_FIRST(8, 8, id), middle, _SIZE(len(data)), data))


def between(
    lane: int, priority: int, *, ready: bool, due_at: datetime, created_at: datetime, headers: str | None
) -> bytes:
    """All values between the id and the payload: the same for many jobs."""
    values = _MIDDLE(4, lane, 4, priority, 1, ready, 8, _moment(due_at), 8, _moment(created_at))
    return values + _text(headers)


def _moment(at: datetime) -> int:
    return (at - _EPOCH) // _MICROSECOND


def _text(value: str | None) -> bytes:
    if value is None:
        return _NULL
    data = value.encode()
    return _SIZE(len(data)) + data
