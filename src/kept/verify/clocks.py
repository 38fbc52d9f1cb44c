"""Clocks that are wrong, by Debian's libfaketime: of any process that is started with them."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path

LIBRARIES = Path("/usr/lib")
SHARED = Path("/dev/shm")  # noqa: S108  # where the library leaves its own files
LEFT = re.compile(r"(?:faketime_shm|sem\.faketime_sem)_(\d+)")  # … by the pid of whom they are for


def library() -> Path | None:
    """Where libfaketime is, if it is installed."""
    return next(iter(sorted(LIBRARIES.glob("*/faketime/libfaketime.so.1"))), None)


def missing() -> str | None:
    """Why no clock can be turned here, if so."""
    return None if library() else "needs libfaketime (a package of Debian)"


def off_by(seconds: int) -> dict[str, str]:
    """The environment of a process whose clock is wrong about the time of day, and right in how fast it goes."""
    return {"LD_PRELOAD": str(library()), "FAKETIME_DONT_FAKE_MONOTONIC": "1", "FAKETIME": f"{seconds:+d}"}


def sweep() -> None:
    """Remove the files that the library made for processes that are no more."""
    for path in SHARED.glob("*faketime_*") if SHARED.is_dir() else ():
        pid = LEFT.fullmatch(path.name)
        if pid and not _maps(int(pid[1])):
            with suppress(OSError):
                path.unlink()


def is_wrong(pid: int) -> bool:
    """Whether the clock of *pid* is one of these."""
    return "libfaketime" in _maps(pid)


def _maps(pid: int) -> str:
    """What *pid* has loaded; nothing if it is gone, or only waits to be buried."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/maps").read_text()
    return ""
