"""A stranger can follow the README."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from pages import ROOT, Shell, blocks
from support import eventually

PAGE = ROOT / "README.md"


def told() -> list[str]:
    """Every command the README shows, run here or not."""
    lines = [line for block in blocks(PAGE) if block.language == "console" for line in block.text.splitlines()]
    return [line.removeprefix("$ ") for line in lines]


@pytest.mark.acceptance
def test_the_example_works_as_it_stands(empty_database: str, tmp_path: Path) -> None:
    with psycopg.connect(empty_database, autocommit=True) as conn:
        conn.execute("create table users (id serial primary key, name text)")
        with Shell(tmp_path, empty_database) as shell:
            for block in blocks(PAGE):
                if block.runs:
                    shell.follow(block)
            results = "select result #>> '{}' from kept.jobs where state = 'done'"
            row = eventually(lambda: conn.execute(results).fetchone(), 30, what="the welcome to be sent")
    assert row == ("welcome, user 1, in de",)


def test_every_make_target_it_names_exists() -> None:
    targets = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {command.removeprefix("make ") for command in told() if command.startswith("make ")}
    assert named == {"demo", "test"}
    assert named <= targets


def test_it_installs_from_a_checkout_with_everything_it_needs(tmp_path: Path) -> None:
    """The dependencies are here already; what is tried is our own wheel."""
    assert "pip install ." in told()
    options = ["--no-deps", "--no-build-isolation", "--no-index", "--quiet", "--target", str(tmp_path)]
    subprocess.run([sys.executable, "-m", "pip", "install", *options, str(ROOT)], check=True, timeout=110)
    package = tmp_path / "kept"
    there = {str(path.relative_to(package)) for path in package.rglob("*") if path.suffix in (".py", ".sql")}
    source = ROOT / "src" / "kept"
    assert there >= {str(path.relative_to(source)) for path in source.rglob("*") if path.suffix in (".py", ".sql")}
    assert (package / "py.typed").exists()
    where = subprocess.check_output(
        [sys.executable, "-c", "import kept.cli, kept; print(kept.__file__)"],
        env={"PYTHONPATH": str(tmp_path)},
        cwd=tmp_path,
        text=True,
        timeout=60,
    )
    assert Path(where.strip()) == package / "__init__.py"
