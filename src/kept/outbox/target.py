"""The URLs that events are posted to. Pure."""

from __future__ import annotations

import re
from functools import lru_cache
from urllib.parse import urlsplit

from msgspec import Struct

from kept.errors import Refused

MOST_URL = 2048
_URL = re.compile(r"[!-\[\]-~]+")  # printable ASCII; no space, no backslash


class Target(Struct, frozen=True):
    """A URL, taken apart."""

    scheme: str
    host: str
    port: int
    authority: str
    path: str  # and the query

    @property
    def origin(self) -> str:
        """All of it that may be shown: for some receivers the path is a secret."""
        return f"{self.scheme}://{self.authority}"


@lru_cache(maxsize=1024)
def take_apart(url: str) -> Target:
    """The parts of *url*, or :class:`Refused` if it is not one that events are posted to."""
    if not _URL.fullmatch(url) or len(url) > MOST_URL:
        raise Refused(
            f"url: must be at most {MOST_URL} printable ASCII characters, others percent-encoded", field="url"
        )
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:  # it may show a password
        raise Refused("url: its host or its port cannot be read", field="url") from None
    if parts.scheme not in ("http", "https") or not host:
        raise Refused("url: must begin with https:// and a host", field="url")
    if "@" in parts.netloc:
        raise Refused("url: must not hold a user or a password", field="url")
    if parts.fragment:
        raise Refused("url: must not hold a fragment", field="url")
    if any(each in (".", "..") for each in parts.path.replace("%2e", ".").replace("%2E", ".").split("/")):
        raise Refused("url: the path must not hold the segments '.' and '..'", field="url")
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return Target(parts.scheme, host, port or (443 if parts.scheme == "https" else 80), parts.netloc.lower(), path)


def template_of(url: str) -> Target:
    """The parts of a template: only its path is filled in, so no event decides where it goes."""
    target = take_apart(url)
    if "{" in target.authority or "{" in target.path.partition("?")[2]:
        raise Refused("url: only the path may hold {type}, {aggregate_type} and {aggregate_id}", field="url")
    return target
