"""How findings are worded. Pure."""

from __future__ import annotations

from kept.admin.model import Finding


def ok(code: str, message: str) -> Finding:
    """Nothing to do."""
    return Finding("ok", code, message)


def warning(code: str, message: str, advice: str) -> Finding:
    """Worth a look."""
    return Finding("warning", code, message, advice)


def problem(code: str, message: str, advice: str) -> Finding:
    """Something does not work."""
    return Finding("problem", code, message, advice)


def sentence(text: str) -> str:
    """*text* as a sentence."""
    return f"{text[:1].upper()}{text[1:].rstrip('.')}."


def join(words: list[str]) -> str:
    """``a, b and c``."""
    return " and ".join([", ".join(words[:-1]), words[-1]]) if len(words) > 1 else words[0]


def count(number: int, noun: str) -> str:
    """``1 job``, ``2 jobs``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def are(number: int) -> str:
    """``is`` or ``are``."""
    return "is" if number == 1 else "are"
