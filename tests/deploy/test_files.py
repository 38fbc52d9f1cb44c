"""Linters have nothing to say about deploy/, and the steps of the image lead to a worker that works."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from importlib.metadata import Distribution, distribution
from pathlib import Path

import psycopg
import pytest
from packaging.requirements import Requirement

from deployed import DEPLOY, image_env, instructions, last
from pages import ROOT

BIN = Path(sys.executable).parent


def run(*words: object, **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(word) for word in words], capture_output=True, text=True, timeout=110, check=False, **options
    )


# --- linters


def test_yamllint_finds_nothing() -> None:
    found = run(BIN / "yamllint", "--strict", "-c", DEPLOY / ".yamllint.yml", DEPLOY)
    assert (found.returncode, found.stdout) == (0, "")


@pytest.mark.skipif(sys.platform != "linux", reason="hadolint comes with the development tools on Linux only")
def test_hadolint_finds_nothing() -> None:
    found = run(BIN / "hadolint", DEPLOY / "Dockerfile")
    assert (found.returncode, found.stdout) == (0, "")


@pytest.mark.debian
def test_systemd_finds_nothing(tmp_path: Path) -> None:
    units = [tmp_path / path.name for path in sorted((DEPLOY / "systemd").iterdir())]
    for unit in units:
        text = (DEPLOY / "systemd" / unit.name).read_text(encoding="utf-8")
        unit.write_text(text.replace("/srv/shop/.venv/bin/kept", str(BIN / "kept")), encoding="utf-8")
    found = run("systemd-analyze", "verify", *units)
    assert (found.returncode, found.stderr) == (0, "")
    units[0].write_text(units[0].read_text(encoding="utf-8") + "\n[Service]\nTimoutStopSec=1\n", encoding="utf-8")
    assert "TimoutStopSec" in run("systemd-analyze", "verify", units[0]).stderr, "the check would notice"


# --- the image


def needed(by: Requirement, found: dict[str, Distribution]) -> dict[str, Distribution]:
    """What pip would install for *by*, from what is installed here."""
    found[by.name] = distribution(by.name)
    for line in found[by.name].requires or ():
        inner = Requirement(line)
        wanted = inner.marker is None or any(inner.marker.evaluate({"extra": each}) for each in ("", *by.extras))
        if wanted and inner.name not in found:
            needed(inner, found)
    return found


def fresh_python(folder: Path) -> Path:
    """An environment with what Kept needs and nothing of what we develop with."""
    run(sys.executable, "-m", "venv", "--without-pip", folder)
    (site,) = folder.glob("lib/python*/site-packages")
    for name, each in needed(Requirement("kept"), {}).items():
        parts = {path.parts[0] for path in each.files or () if path.parts[0] not in ("..", "__pycache__")}
        for part in parts if name != "kept" else ():
            (site / part).symlink_to(each.locate_file(part))
    return folder / "bin" / "python"


def build(source: Path) -> Path:
    """The wheel, made of no more than the Dockerfile copies for it."""
    source.mkdir()
    copied = [rest.split() for name, rest in instructions() if name == "COPY" and not rest.startswith("--from")]
    for *names, place in copied:
        for name in names if place in ("./", "src") else ():
            here = ROOT / name
            shutil.copytree(here, source / name) if here.is_dir() else shutil.copy(here, source)
    options = ("--no-deps", "--no-build-isolation", "--no-index", "--quiet", "--wheel-dir", source / "wheels")
    built = run(sys.executable, "-m", "pip", "wheel", *options, source)
    assert built.returncode == 0, built.stderr
    (wheel,) = (source / "wheels").glob("*.whl")
    return wheel


def test_the_steps_of_the_image_lead_to_a_worker_that_works(tmp_path: Path, empty_database: str) -> None:
    told = [rest for name, rest in instructions() if name == "RUN"]
    assert told[0].startswith("pip wheel ") and "--no-deps" in told[0]
    assert told[1].startswith("pip install ") and "/wheels/*.whl" in told[1]
    python = fresh_python(tmp_path / "fresh")
    options = ("--no-deps", "--no-index", "--quiet")
    run(sys.executable, "-m", "pip", "--python", python, "install", *options, build(tmp_path / "src"))
    assert run(python, "-c", "import pytest").returncode != 0, "nothing we develop with"
    env = image_env() | {"PATH": f"{python.parent}:{os.environ['PATH']}", "KEPT_DATABASE_URL": empty_database}

    def kept(*words: str) -> str:
        ended = run(*json.loads(last("ENTRYPOINT")), *words, cwd=DEPLOY / "app", env=env)
        assert ended.returncode == 0, ended.stderr
        return ended.stdout

    assert kept("--version").startswith("kept, version ")
    kept("migrate")
    kept("sync")
    with psycopg.connect(empty_database, autocommit=True) as conn:
        conn.execute("""select kept.enqueue('send_welcome', '{"user_id": 7}')""")
        kept("tick")
        assert conn.execute("select state from kept.jobs").fetchall() == [("done",)]
