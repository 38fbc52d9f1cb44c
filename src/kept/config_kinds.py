"""The kinds of values a setting can have: how each is read, written and explained. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

from kept import durations

_SIZES = {"": 1, "b": 1, "kib": 1024, "mib": 1024**2, "gib": 1024**3}
_YES, _NO = ("1", "true", "yes", "on"), ("0", "false", "no", "off")
_DATABASE = re.compile(r"postgres(ql)?://|embedded:|[a-z_]+\s*=")
_API = re.compile(r"https?://[^\s@?#]+\Z")  # a password in it would end up in errors
_TOKEN = re.compile(r"[!-~]{1,4096}\Z")  # what a header takes
_SCHEMA = re.compile(r"(?!pg_)[a-z_][a-z0-9_]{0,39}\Z")


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of value.

    *take* returns the value, raises TypeError for a wrong type and ValueError or Refused for a wrong text;
    what *show* writes, *take* reads. *unit* is what a bare number in an environment variable counts.
    """

    wants: str
    take: Callable[[object], object]
    show: Callable[[object], str] = str
    unit: str = ""
    secret: bool = False


def _whole(value: object) -> int:
    if isinstance(value, str):
        if not re.fullmatch(r"[0-9]{1,10}", value):
            raise ValueError
        return int(value)
    if type(value) is not int:  # True is an int to isinstance
        raise TypeError
    return value


def _size(value: object) -> int:
    if not isinstance(value, str):
        return _whole(value)
    found = re.fullmatch(r"([0-9]{1,10})\s*([a-z]*)", value.lower())
    if found is None or found[2] not in _SIZES:
        raise ValueError
    return int(found[1]) * _SIZES[found[2]]


def _show_size(value: object) -> str:
    size = _whole(value)
    for unit in ("GiB", "MiB", "KiB"):
        if size and size % _SIZES[unit.lower()] == 0:
            return f"{size // _SIZES[unit.lower()]}{unit}"
    return str(size)


def _flag(value: object) -> bool:
    if isinstance(value, str):
        if value.lower() not in _YES + _NO:
            raise ValueError
        return value.lower() in _YES
    if not isinstance(value, bool):
        raise TypeError
    return value


def _names(value: object) -> tuple[str, ...]:
    if isinstance(value, str):
        value = value.split(",")
    if not isinstance(value, tuple | list | set | frozenset):
        raise TypeError
    names = dict.fromkeys(_text(name) for name in value)
    names.pop("", None)
    if not names:
        raise ValueError
    return tuple(names)


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value.strip()


def _matching(pattern: re.Pattern[str]) -> Callable[[object], str]:
    def take(value: object) -> str:
        text = _text(value)
        if not pattern.match(text):
            raise ValueError
        return text

    return take


def choice(*words: str) -> Kind:
    """One of *words*, in any case."""

    def take(value: object) -> str:
        word = _text(value).lower()
        if word not in words:
            raise ValueError
        return word

    return Kind(f"one of {', '.join(words)}", take)


def _show_duration(value: object) -> str:
    return durations.render(value) if isinstance(value, timedelta) else str(value)


def _show_names(value: object) -> str:
    return ",".join(value) if isinstance(value, tuple) else str(value)


DURATION = Kind(
    "a duration of at most ten years; write it like 250ms, 60s, 10min or 24h",
    durations.duration,
    _show_duration,
    unit="ms",
)
WHOLE = Kind("a whole number; write it like 10", _whole)
SIZE = Kind("a size; write it like 1MiB, 512KiB or a number of bytes", _size, _show_size)
FLAG = Kind("a yes or no; write true or false", _flag, lambda value: str(value).lower())
NAMES = Kind("a list of names; write it like mail,default", _names, _show_names)
TEXT = Kind("a text", _text)
SCHEMA = Kind(
    "a schema name; write a lower-case identifier of at most 40 characters that does not start with pg_",
    _matching(_SCHEMA),
)
DATABASE = Kind(
    "a PostgreSQL database; write postgresql://user@host/name, or embedded: to start one of your own",
    _matching(_DATABASE),
    secret=True,
)
API = Kind("the URL of an API; write it like https://api.internal/v1, without a password", _matching(_API))
TOKEN = Kind("a token of printable ASCII characters", _matching(_TOKEN), lambda _: "…", secret=True)
