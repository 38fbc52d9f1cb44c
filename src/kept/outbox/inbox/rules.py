"""What counts as an event's id, how Redis is asked about it, and when Redis is left alone. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256
from uuid import UUID

from kept.errors import Refused
from kept.jobs.payload import check_text

MOST_CONSUMER = 100  # characters
MOST_EVENT_ID = 200  # characters
LONGEST_KEY = 86_400.0  # seconds: redeliveries come soon, and what Redis knows should not outlive a mistake for long

PATIENCE = 3  # failures in a row
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 30.0  # seconds


def check_event_id(event_id: object) -> str:
    """An event's id as it is stored: text of 1 to 200 characters, or a UUID in its usual spelling."""
    if isinstance(event_id, UUID):
        return str(event_id)
    if not isinstance(event_id, str):
        raise TypeError(f"event_id: expected a string or a UUID, got {type(event_id).__name__}")
    if not 1 <= len(event_id) <= MOST_EVENT_ID:
        raise Refused(f"event_id: has {len(event_id)} characters; allowed are 1 to {MOST_EVENT_ID}", field="event_id")
    check_text(event_id, "event_id")
    return event_id


@dataclass(frozen=True, slots=True)
class Key:
    """A key of Redis, and the value that it must have: a reply to another question is never taken for a hit."""

    name: str
    value: bytes


def key(identity: str, schema: str, consumer: str, event_id: str) -> Key:
    """The key of a marker. Two different markers never share one: every part is told apart by its length."""
    parts = (part.encode() for part in (identity, schema, consumer, event_id))
    digest = sha256(b"".join(b"%d:%b" % (len(part), part) for part in parts)).hexdigest()
    return Key(f"kept:inbox:{consumer}:{digest}", digest.encode())


def key_ttl(seconds_left: float, spent: float) -> int:
    """How many milliseconds a key may live: never longer than its marker, *spent* seconds after that was asked."""
    return int(min(seconds_left - spent, LONGEST_KEY) * 1000)


@dataclass(frozen=True, slots=True)
class Breaker:
    """Whether Redis is asked at all: after some failures in a row it is left alone for a while, longer each time."""

    failures: int = 0
    until: float = 0.0

    def closed(self, now: float) -> bool:
        """Whether to ask at this moment."""
        return now >= self.until

    def asking(self, now: float) -> Breaker:
        """Before a question: where Redis was left alone, one caller tries it and the others go on without."""
        return Breaker(self.failures, now + self._pause()) if self.failures >= PATIENCE else self

    def failed(self, now: float) -> Breaker:
        """After a question that had no answer in time."""
        next = Breaker(self.failures + 1, self.until)
        return Breaker(next.failures, now + next._pause()) if next.failures >= PATIENCE else next

    def opens(self, before: Breaker) -> bool:
        """Whether it was with this failure that Redis began to be left alone."""
        return before.failures < PATIENCE <= self.failures

    def _pause(self) -> float:
        return min(FIRST_PAUSE * 2.0 ** min(self.failures - PATIENCE, 10), LONGEST_PAUSE)
