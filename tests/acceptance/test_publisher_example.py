"""``make publisher`` keeps its word: publisher and broker fail, every event is published in order and applied once."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType

import pytest

pytestmark = pytest.mark.acceptance

EXAMPLE = Path(__file__).parents[2] / "examples" / "publisher"
SUMMARY = re.compile(
    r"emitted=(?P<emitted>\d+) published=(?P<published>\d+) lost=0 phantoms=0 out_of_order=0 duplicates=\d+ "
    r"effects=(?P<effects>\d+) twice=0\n\Z"
)


@pytest.fixture
def folder() -> Iterator[Path]:
    """Its name is that of no other test: processes that are left behind are known by it."""
    with TemporaryDirectory(prefix="kept-publisher-", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


@pytest.fixture
def example(folder: Path) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, EXAMPLE],
        env={**os.environ, "KEPT_DEMO_DIR": str(folder), "KEPT_DEMO_SECONDS": "5"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    yield process
    process.kill()
    process.communicate()


@pytest.fixture(scope="module")
def judge() -> ModuleType:
    spec = spec_from_file_location("publisher_judge", EXAMPLE / "judge.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def left(folder: Path) -> list[str]:
    """Every process that has *folder* in its environment or on its command line."""
    return [each.name for each in Path("/proc").glob("[0-9]*") if folder.name.encode() in told_by(each)]


def told_by(process: Path) -> bytes:
    try:
        return (process / "cmdline").read_bytes() + (process / "environ").read_bytes()
    except OSError:  # it has ended, or is somebody else's
        return b""


def figures(out: str) -> dict[str, int]:
    found = SUMMARY.search(out)
    assert found is not None, out
    return {name: int(number) for name, number in found.groupdict().items()}


def test_every_event_is_published_in_order_and_applied_once_although_publisher_and_broker_fail(
    example: subprocess.Popen[str], folder: Path
) -> None:
    out, err = example.communicate(timeout=110)
    assert (example.returncode, err) == (0, ""), out
    ended = figures(out)
    assert ended["emitted"] > 100
    assert ended["published"] == ended["effects"] == ended["emitted"]
    told = re.findall(r"SIGKILL|has published|is away|is back|^ +pubsub +pubsub +(?:open|closed)", out, re.MULTILINE)
    acts = [each.split()[-1] for each in told]
    assert acts == ["SIGKILL", "published", "closed", "away", "open", "back", "closed"]
    assert left(folder) == []


def test_ctrl_c_ends_it_after_what_was_committed_is_published(example: subprocess.Popen[str], folder: Path) -> None:
    assert example.stdout is not None
    begun = next(line for line in example.stdout if "the publisher is kept worker" in line)
    os.killpg(example.pid, signal.SIGINT)
    out, err = example.communicate(timeout=110)
    assert (example.returncode, err) == (0, ""), begun + out
    ended = figures(out)
    assert ended["published"] == ended["effects"] == ended["emitted"]
    assert "SIGKILL" not in out
    assert left(folder) == []


def test_its_judge_knows_a_loss_a_phantom_a_wrong_order_and_an_effect_that_came_twice(judge: ModuleType) -> None:
    one, two, other = judge.Fact("a", "p"), judge.Fact("b", "p"), judge.Fact("c", "q")
    emitted = [one, two, other]
    once = {"a": 1, "b": 1, "c": 1}

    def verdict(published: list[object], effects: dict[str, int] = once) -> object:
        return judge.judge(emitted, published, effects)

    assert verdict([other, one, two, one]).clean
    assert verdict([other, one, two, one]).duplicates == 1
    assert verdict([one, other]).lost == {"b"}
    assert verdict([one, two, other, judge.Fact("d", "p")]).phantoms == {"d"}
    assert verdict([two, one, other]).out_of_order == ["p"]
    assert verdict([one, two, other], {"a": 2, "b": 1, "c": 1}).twice == ["a"]
    assert not verdict([one, two, other], {"a": 1, "b": 1}).clean
