"""What the pages name exists, and what exists and matters is named."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from kept import errors
from kept.cli import main
from kept.config import DEFAULTS
from kept.config_names import ALIASES, VARIABLES
from kept.durations import parse
from kept.jobs.model import STATES
from pages import PAGES, ROOT, blocks

SOURCE = ROOT / "src" / "kept"
DOCS = ROOT / "docs"
# Pages whose blocks other tests run.
FOLLOWED = {
    ROOT / "README.md",
    *(
        DOCS / name
        for name in ("tutorial.md", "tasks.md", "schedules.md", "outbox.md", "migrating-an-outbox.md", "operations.md")
    ),
    *(DOCS / name for name in ("inbox.md", "sinks/webhooks.md")),
}

every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


def prose(page: Path) -> str:
    """*page* without its fenced blocks."""
    return re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)


# --- links


def anchors(page: Path) -> set[str]:
    """The headings of *page* as they appear in a link."""
    titles = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@every_page
def test_every_link_leads_somewhere(page: Path) -> None:
    for target in re.findall(r"\[[^\]]+\]\(([^)\s]+)\)", prose(page)):
        if target.startswith("https://"):
            continue
        name, _, anchor = target.partition("#")
        there = (page.parent / name).resolve() if name else page
        assert there.exists(), f"{page.name}: {target}"
        assert not anchor or anchor in anchors(there), f"{page.name}: {target}"


def test_every_page_can_be_reached_from_the_index() -> None:
    index = (DOCS / "README.md").read_text(encoding="utf-8")
    linked = {(DOCS / target).resolve() for target in re.findall(r"\]\(([^)#]+)\)", index)}
    assert {page for page in PAGES if page.is_relative_to(DOCS)} - linked == {DOCS / "README.md"}


# --- blocks


@every_page
def test_every_block_of_code_is_run_or_says_why_not(page: Path) -> None:
    left = [
        str(block)
        for block in blocks(page)
        if block.language in ("python", "console", "sql") and block.runs and page not in FOLLOWED
    ]
    assert left == []


# --- commands and settings


def commands(page: Path) -> Iterator[list[str]]:
    """The words after ``kept`` wherever a command is shown: in a block, or as code within a sentence."""
    shown = [line for block in blocks(page) if block.language != "python" for line in block.text.splitlines()]
    shown += re.findall(r"`(kept [^`]+)`", prose(page))
    for line in shown:
        found = re.search(r'(?:^|[\s/"\[])kept"?,? +(["\w].*)', line)
        if found:
            yield re.split(r"[\s,\"\[\]]+", re.split(r" (?:&|\d?>|\||;)", found[1])[0].strip('"'))


@every_page
def test_every_command_shown_is_one_that_kept_knows(page: Path) -> None:
    for words in commands(page):
        command: click.Command = main
        rest = list(words)
        while isinstance(command, click.Group) and rest and not rest[0].startswith("-"):
            assert rest[0] in command.commands, f"kept {' '.join(words)}"
            command = command.commands[rest.pop(0)]
        known = {option for parameter in command.params for option in parameter.opts}
        assert {word.partition("=")[0] for word in rest if word.startswith("--")} <= known, f"kept {' '.join(words)}"


def test_the_check_sees_commands_however_they_are_shown() -> None:
    seen = {" ".join(words[:2]) for page in PAGES for words in commands(page)}
    assert {"worker shop:app", "migrate", "migrate --print", "jobs retry", "status --max-age"} <= seen
    operations = [words for words in commands(DOCS / "operations.md") if words[0] == "worker"]
    assert sum("--processes" in words for words in operations) == 2, "systemd and Docker"
    assert sum("--metrics-host" in words for words in operations) == 1, "Kubernetes"


def test_every_command_is_in_the_operators_list() -> None:
    page = (DOCS / "operations.md").read_text(encoding="utf-8")
    for name, command in main.commands.items():
        assert f"`kept {name}" in page
        for inner in command.commands if isinstance(command, click.Group) else ():
            assert f"`kept {name} {inner}`" in page


@every_page
def test_every_setting_named_is_one(page: Path) -> None:
    known = {variable.name for variable in VARIABLES} | {alias.name for alias in ALIASES}
    # Not settings of a worker; docs/configuration.md says so, and what a mistake looks like.
    known |= {"KEPT_PG_BIN", "KEPT_SERVICE_", "KEPT_PORT", "KEPT_DEMO_", "KEPT_TEST_", "KEPT_"}
    known |= {"KEPT_DEMO_SECONDS", "KEPT_DEMO_DIR"} if page.is_relative_to(ROOT / "examples") else set()
    known |= {"KEPT_CONCURENCY", "KEPT_LEASE_MS"} if page.name == "configuration.md" else set()
    named = set(re.findall(r"\bKEPT_[A-Z0-9_]*", page.read_text(encoding="utf-8")))
    assert named - known == set()


@every_page
def test_a_default_told_beside_its_setting_is_the_default(page: Path) -> None:
    for name, told in re.findall(r"`(KEPT_[A-Z_]+)`(?:,| \() ?(\d+ (?:days?|min|s|h)\b)", prose(page)):
        variable = next(each for each in VARIABLES if each.name == name)
        assert DEFAULTS[variable.field] == parse(re.sub(r" d.*", "d", told).replace(" ", "")), f"{name}: {told}"


def test_the_check_sees_defaults() -> None:
    told = re.findall(r"`(KEPT_[A-Z_]+)`(?:,| \() ?\d+ ", prose(DOCS / "operations.md"))
    assert {"KEPT_LEASE", "KEPT_SHUTDOWN_GRACE", "KEPT_RETENTION_LOG"} <= set(told)


def test_every_metric_an_alert_asks_for_exists() -> None:
    listed = set(re.findall(r"^\| `(kept_\w+)` \|", (DOCS / "metrics.md").read_text(encoding="utf-8"), re.MULTILINE))
    asked = set(re.findall(r"\bkept_[a-z_]+", (DOCS / "operations.md").read_text(encoding="utf-8")))
    assert asked
    assert {name.removesuffix("_bucket") for name in asked} <= listed


# --- errors, codes and findings


def table(page: str, heading: str) -> list[list[str]]:
    """The rows below *heading*, as the code that stands in each cell."""
    section = (DOCS / page).read_text(encoding="utf-8").split(f"\n## {heading}\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (.+) \|$", section, re.MULTILINE)[2:]
    return [[" ".join(re.findall(r"`([^`]+)`", cell)) for cell in row.split(" | ")] for row in rows]


def calls(name: str) -> Iterator[list[str | None]]:
    """The arguments of every call of *name* in the source, where they are plain text."""
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "id", None) == name:
                given = [*node.args, *(each.value for each in node.keywords if each.arg == "code")]
                yield [each.value if isinstance(each, ast.Constant) else None for each in given]


def texts(found: Iterator[list[str | None]], place: int) -> set[str]:
    return {args[place] for args in found if len(args) > place and isinstance(args[place], str)}


def test_every_error_is_listed_with_its_code() -> None:
    listed = {row[0]: row[1] for row in table("errors.md", "What is raised")}
    classes = [each for each in vars(errors).values() if isinstance(each, type) and issubclass(each, errors.Error)]
    assert len(classes) > 5
    assert listed == {each.__name__: "" if each is errors.Failure else each.code for each in classes}


def test_every_code_that_kept_gives_an_attempt_is_listed() -> None:
    given = texts(calls("Raised"), 0) | (texts(calls("Close"), 1))
    assert {"timeout", "worker_died", "unrecordable"} <= given, "the check must see them"
    assert {row[0] for row in table("errors.md", "Codes of failed attempts")} == given


def test_every_reason_is_listed() -> None:
    given = texts(calls("Close"), 2) | {"skipped", "cancelled"}
    assert {"fatal", "exhausted"} <= given, "the check must see them"
    assert {row[0] for row in table("errors.md", "Reasons")} == given


def test_every_refusal_of_a_command_is_listed() -> None:
    given = texts(calls("Refusal"), 1) | {f"is_{state}" for state in STATES}
    assert "key_held" in given, "the check must see them"
    listed = {code for row in table("errors.md", "Refusals of commands") for code in row[0].split()}
    assert listed == given


def test_every_warning_is_listed() -> None:
    given = texts(calls("Warned"), 0)
    assert "pooled" in given, "the check must see them"
    assert {row[0] for row in table("errors.md", "Warnings")} == given


def test_everything_the_doctor_may_complain_of_is_listed() -> None:
    given = texts(calls("_warning"), 0) | texts(calls("_problem"), 0)
    assert {"no_worker", "bloat", "schema"} <= given, "the check must see them"
    assert {row[0] for row in table("operations.md", "The doctor")} == given


# --- promises


def test_every_promise_is_on_its_page_with_its_number_and_its_tests() -> None:
    page = (DOCS / "promises.md").read_text(encoding="utf-8")
    sections = re.split(r"^## (\d+) .+$", page, flags=re.MULTILINE)[1:]
    assert sections[::2] == [str(number) for number in range(1, 18)]
    for number, section in zip(sections[::2], sections[1::2], strict=True):
        tests = re.findall(r"`(tests/[\w/]+\.py)`", section)
        assert all((ROOT / test).exists() for test in tests), f"promise {number}: {tests}"
        assert ("*Tested by*" in section) == bool(tests), f"promise {number}"
        assert tests or "yet.*" in section, f"promise {number} names no test and does not say so"
