"""A disk of our own that can be full: a file system in memory whose size is ours to change."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Self

from kept.errors import Unavailable

SIZE = 4 << 30  # bytes at most; only what is used takes memory
TRIAL = 1 << 16
TRIES, PAGE = 100, 4096


class Disk:
    """Mounted on *folder*, which is made for it, until :meth:`close`."""

    def __init__(self, folder: Path, size: int = SIZE) -> None:
        self.folder, self._size = folder, size

    def __enter__(self) -> Self:
        self.folder.mkdir()
        _mount("-t", "tmpfs", "-o", f"size={self._size},mode=0711", "kept-verify", self.folder)
        return self

    def __exit__(self, *_: object) -> None:
        _run("umount", "-l", self.folder)  # lazily: a process that still has a file there must not keep us

    @contextmanager
    def full(self) -> Iterator[None]:
        """There is not a byte left while the block lasts."""
        self._shrink()
        try:
            yield
        finally:
            _mount("-o", f"remount,size={self._size}", self.folder)

    def _shrink(self) -> None:
        """Make it as small as what is in it. It grows while we look, and cannot become too small for that."""
        problem = ""
        for slack in range(TRIES):
            size = max(PAGE, self.used + slack * PAGE)  # 0 would mean without limit
            problem = _run("mount", "-o", f"remount,size={size}", self.folder)
            if not problem:
                return
        raise Unavailable(f"mount: {problem}")

    @property
    def used(self) -> int:
        """Bytes in use, in whole pages."""
        found = os.statvfs(self.folder)
        return (found.f_blocks - found.f_bfree) * found.f_frsize


@cache
def missing() -> str | None:
    """Why there can be no such disk here, if so."""
    with TemporaryDirectory() as folder:
        try:
            with Disk(Path(folder, "trial"), TRIAL):
                return None
        except Unavailable:
            return "needs the right to mount a file system in memory"


def _mount(*given: str | Path) -> None:
    if problem := _run("mount", *given):
        raise Unavailable(f"mount: {problem}")


def _run(*command: str | Path) -> str:
    try:
        ran = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        return str(error)
    return ran.stderr.strip() or f"it ended with code {ran.returncode}" if ran.returncode else ""
