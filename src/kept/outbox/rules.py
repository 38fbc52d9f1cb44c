"""Types, patterns, and how long a broker that failed is left alone. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from kept.errors import Refused

MOST_TYPE = 200
MOST_VERSION = 1_000_000
_TYPE = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")


class Rest(NamedTuple):
    """How long a sink rests after its broker failed, in seconds: at first, and at most."""

    first: float = 0.5
    most: float = 10.0


def check_type(type: object) -> str:
    """The type of an event: ``invoice.created``."""
    if not isinstance(type, str):
        raise TypeError(f"type: expected a string such as 'invoice.created', got {type.__class__.__name__}")
    if not type:
        raise Refused("type: an event needs one, such as 'invoice.created'", field="type")
    if len(type) > MOST_TYPE or not _TYPE.fullmatch(type):
        raise Refused(
            f"type: {type[:80]!r} is not the type of an event; write up to {MOST_TYPE} letters, digits, _ and -, "
            "with dots between words",
            field="type",
        )
    return type


def check_pattern(pattern: object) -> str:
    """What a subscription wants: a type, all types that begin with some words (``invoice.*``), or ``*``."""
    if isinstance(pattern, str) and (pattern == "*" or pattern.endswith(".*")):
        if pattern != "*":
            _check_stem(pattern)
        return pattern
    if isinstance(pattern, str) and "*" in pattern:
        raise Refused(
            f"pattern: {pattern[:80]!r} has a star elsewhere than at its end; write a type, or words and '.*'",
            field="pattern",
        )
    return check_type(pattern)


def _check_stem(pattern: str) -> None:
    stem = pattern[:-2]
    if len(stem) > MOST_TYPE or not _TYPE.fullmatch(stem):
        raise Refused(f"pattern: {pattern[:80]!r} is not words with dots between and '.*' behind", field="pattern")


def check_version(version: object) -> int:
    """The version of an event's data: 1, 2, …"""
    if isinstance(version, bool) or not isinstance(version, int):
        raise TypeError(f"version: expected a whole number, got {type(version).__name__}")
    if not 1 <= version <= MOST_VERSION:
        raise Refused(f"version: {version} is not between 1 and {MOST_VERSION}", field="version")
    return version


def matches(type: str, patterns: Iterable[str]) -> bool:
    """Whether a subscription with these *patterns* wants events of this *type*; as in SQL, ``kept.type_matches``."""
    return any(p in (type, "*") or (p.endswith(".*") and type.startswith(p[:-1])) for p in patterns)


def pause(rest: Rest, failures: int, draw: float) -> float:
    """Seconds to leave a broker alone after it failed *failures* times in a row; *draw* shortens by up to a fifth."""
    return min(rest.most, rest.first * 2.0 ** min(max(failures - 1, 0), 20)) * (1 - 0.2 * draw)
