"""SECURITY.md names a test for each attack, and each test of an attack is named."""

from __future__ import annotations

import re

from pages import ROOT

PAGE = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
ATTACKS = re.findall(r"^\| (.+) \| (.+) \| (.+) \|$", PAGE.split("\n## Attacks\n")[1], re.MULTILINE)[2:]


def test_every_attack_has_a_defence_and_tests_that_exist() -> None:
    assert len(ATTACKS) > 20
    for attack, defence, tests in ATTACKS:
        named = re.findall(r"`(tests/[\w/]+\.py)`", tests)
        assert named, attack
        assert defence, attack
        assert [name for name in named if not (ROOT / name).exists()] == [], attack


def test_every_test_of_an_attack_is_named() -> None:
    written = {str(path.relative_to(ROOT)) for path in (ROOT / "tests" / "security").glob("test_*.py")}
    assert written <= set(re.findall(r"`(tests/[\w/]+\.py)`", PAGE))
