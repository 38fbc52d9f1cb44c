"""One word for each concept: those of docs/glossary.md, and not those of other systems."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pages import PAGES, ROOT

BANNED = re.compile(r"heart-?beat|rescue|snooz|throttl|entrypoint", re.IGNORECASE)
# Names of other systems' settings, which we accept: HEARTBEAT_INTERVAL_SEC.
FOREIGN = re.compile(r"\b[A-Z]+(?:_[A-Z]+)+\b")

GLOSSARY = ROOT / "docs" / "glossary.md"
WRITTEN = [
    *PAGES,
    *sorted(path for path in (ROOT / "src" / "kept").rglob("*") if path.suffix in (".py", ".sql")),
]


def text_of(path: Path) -> str:
    text = path.read_text(encoding="utf-8")
    # The glossary has to name them once, to say what we call them.
    return text.partition("## Words we do not use")[0] if path == GLOSSARY else text


@pytest.mark.parametrize("path", WRITTEN, ids=lambda path: str(path.relative_to(ROOT)))
def test_other_systems_words_are_not_used_for_our_concepts(path: Path) -> None:
    lines = enumerate(FOREIGN.sub("", text_of(path)).splitlines(), 1)
    assert [f"{number}: {line.strip()}" for number, line in lines if BANNED.search(line)] == []


def test_the_check_would_notice() -> None:
    assert BANNED.search("sends a Heartbeat")
    assert BANNED.search("lease_heartbeat")
    assert not BANNED.search(FOREIGN.sub("", "OUTBOX_LEASE_HEARTBEAT_MS and HEARTBEAT_INTERVAL_SEC"))


def test_the_glossary_says_what_to_use_instead() -> None:
    listed = GLOSSARY.read_text(encoding="utf-8").partition("## Words we do not use")[2]
    for word in ("heartbeat", "rescue", "snooze", "throttle", "entrypoint"):
        assert re.search(rf"^\| .*\b{word}\b.* \| \w+", listed, re.MULTILINE), word
