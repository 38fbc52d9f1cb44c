"""Text of unknown origin, made safe to show in a log line, a terminal or an answer. Pure."""

from __future__ import annotations

import re

from kept.redact import redact

LONGEST = 1000  # characters of one shown text

# Control characters, line separators, marks that turn the direction of writing, lone surrogates.
_UNSAFE = re.compile(r"[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def clean(text: str, limit: int = LONGEST) -> str:
    """*text* without passwords and control characters, on one line, cut after *limit* characters."""
    # Redacted before the cut, or half a password would lose what marks it as one; but never all of 10 MB.
    window = 16 * limit
    shown = escape(redact(text[:window]))
    if len(shown) <= limit and len(text) <= window:
        return shown
    return f"{shown[:limit]}… ({len(text)} characters)"


def escape(text: str) -> str:
    r"""*text* with everything spelled out that could end a line or steer a terminal, like ``\n``."""
    return text if text.isprintable() else _UNSAFE.sub(_spell, text)


def _spell(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode("ascii")
