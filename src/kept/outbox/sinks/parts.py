"""What sinks share: the missing library, time limits, addresses and errors without secrets, bearable portions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from urllib.parse import urlsplit

from kept.durations import Duration, duration
from kept.errors import Misconfigured, Refused
from kept.outbox.sink import Message, Rejected
from kept.showable import clean

MOST_AT_ONCE = 8 * 1024 * 1024  # bytes on their way before their acknowledgements are awaited
MOST_SAID = 500


def missing(library: str, *, extra: str) -> Misconfigured:
    """The error for a sink whose client library is not installed."""
    return Misconfigured(f'{library} is not installed; this sink needs it: pip install "kept[{extra}]"')


def limit(timeout: Duration) -> float:
    """*timeout* in seconds; a call without any time would never succeed."""
    seconds = duration(timeout, field="timeout").total_seconds()
    if seconds <= 0:
        raise Refused("timeout: must be longer than nothing", field="timeout")
    return seconds


def address(url: str, schemes: Sequence[str]) -> str | None:
    """Host and port of *url* as they are written, without what must not be shown; None if it is no such URL."""
    try:
        parts = urlsplit(url)
        fit = parts.scheme in schemes and parts.hostname and parts.port != 0
    except ValueError:  # a port that is no number
        return None
    return parts.netloc.rpartition("@")[2] if fit else None


def said(error: object) -> str:
    """What *error* says, on one line and without passwords; its class, if it says nothing."""
    return clean(str(error) or type(error).__name__, MOST_SAID)


def too_large(size: int, most: int) -> Rejected:
    """The answer for a message that the broker would refuse for its size, now and later."""
    return Rejected("message_too_large", f"the message has {size} bytes; the broker takes {most}", retryable=False)


def bad_topic(topic: str) -> Rejected:
    """The answer for a message whose filled-in topic the broker would refuse."""
    return Rejected("bad_topic", f"the broker takes no topic like {topic[:80]!r}", retryable=False)


def portions(messages: Sequence[Message], places: Sequence[int]) -> Iterator[list[int]]:
    """*places* in order, cut where their bodies would be more than a connection should hold at once."""
    portion: list[int] = []
    size = 0
    for place in places:
        more = len(messages[place].body)
        if portion and size + more > MOST_AT_ONCE:
            yield portion
            portion, size = [], 0
        portion.append(place)
        size += more
    if portion:
        yield portion
