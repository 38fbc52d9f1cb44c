"""Wrong clocks, where libfaketime is installed; and a sentence where it is not."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kept.verify import clocks


def test_without_the_library_it_says_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clocks, "LIBRARIES", tmp_path)
    assert clocks.missing() == "needs libfaketime (a package of Debian)"


def test_what_the_library_left_for_the_dead_is_removed_and_for_the_living_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clocks, "SHARED", tmp_path)
    dead = subprocess.Popen(["true"])
    dead.wait()
    for name in (f"faketime_shm_{dead.pid}", f"sem.faketime_sem_{dead.pid}", f"faketime_shm_{os.getpid()}", "other_1"):
        (tmp_path / name).touch()
    clocks.sweep()
    assert {path.name for path in tmp_path.iterdir()} == {f"faketime_shm_{os.getpid()}", "other_1"}


@pytest.mark.debian
@pytest.mark.skipif(clocks.missing() is not None, reason="libfaketime is not installed")
@pytest.mark.parametrize("seconds", [600, -600])
def test_a_process_with_a_wrong_clock_is_wrong_about_the_time_of_day_only(seconds: int) -> None:
    program = "import time; print(time.time(), time.monotonic(), time.clock_gettime(time.CLOCK_BOOTTIME))"
    ran = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, **clocks.off_by(seconds)},
        capture_output=True,
        text=True,
        check=True,
    )
    day, monotonic, boot = map(float, ran.stdout.split())
    assert abs(day - time.time() - seconds) < 10
    assert abs(monotonic - time.monotonic()) < 10
    assert abs(boot - time.clock_gettime(time.CLOCK_BOOTTIME)) < 10
