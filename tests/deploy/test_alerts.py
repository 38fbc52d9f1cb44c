"""Every alert asks for what is measured, says what to do, and fires when it should."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml

from deployed import DEPLOY
from kept.integrations.prometheus import Metrics
from pages import ROOT

RULES = DEPLOY / "prometheus" / "kept-rules.yml"
TESTS = DEPLOY / "prometheus" / "kept-rules.test.yml"
RUNBOOK = ROOT / "docs" / "runbook.md"
SUFFIXES = {"counter": ("_total",), "info": ("_info",), "histogram": ("_bucket", "_sum", "_count")}


def alerts() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"] for rule in group["rules"]]


def exposed() -> set[str]:
    return {family.name + suffix for family in Metrics().collect() for suffix in SUFFIXES.get(family.type, ("",))}


def sections() -> dict[str, str]:
    """The runbook by the headings of its alerts."""
    parts = re.split(r"^### (\w+)$", RUNBOOK.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    return dict(zip(parts[::2], parts[1::2], strict=True))


every_alert = pytest.mark.parametrize("alert", alerts(), ids=lambda alert: alert["alert"])


@every_alert
def test_an_alert_says_how_urgent_it_is_what_happened_and_where_to_read_on(alert: dict[str, Any]) -> None:
    assert set(alert) <= {"alert", "expr", "for", "labels", "annotations"}
    assert alert["labels"]["severity"] in ("page", "ticket")
    assert set(alert["annotations"]) == {"summary", "runbook"}
    assert alert["annotations"]["runbook"] == f"docs/runbook.md#{alert['alert'].lower()}"


@every_alert
def test_the_runbook_knows_it_and_agrees_how_urgent_it_is(alert: dict[str, Any]) -> None:
    section = sections()[alert["alert"]]
    assert section.strip().startswith(f"*{alert['labels']['severity']}.*")
    assert "\n- Look: " in section and "\n- Do: " in section


@every_alert
def test_every_metric_it_asks_for_is_exposed(alert: dict[str, Any]) -> None:
    asked = set(re.findall(r"\bkept_\w+", alert["expr"]))
    assert asked
    assert asked - exposed() == set()


def test_the_runbook_has_no_section_without_an_alert() -> None:
    assert set(sections()) == {alert["alert"] for alert in alerts()}


def test_every_alert_is_seen_to_fire() -> None:
    tried = [
        each for test in yaml.safe_load(TESTS.read_text(encoding="utf-8"))["tests"] for each in test["alert_rule_test"]
    ]
    assert {each["alertname"] for each in tried if each["exp_alerts"]} == {alert["alert"] for alert in alerts()}


def test_figures_of_the_cluster_are_never_added_up() -> None:
    shared = "kept_jobs_due|kept_oldest_due_seconds|kept_workers|kept_schedules_late|kept_schedule_lateness_seconds"
    for alert in alerts():
        assert not re.search(rf"\b(?:sum|count|avg)\b[^(]*(?:\([^)]*\))?\s*\(\s*(?:{shared})", alert["expr"])
