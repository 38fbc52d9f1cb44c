"""The disk that `kept verify` fills: full is full, and afterwards nothing is missing."""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path

import pytest

from kept.verify import disk
from kept.verify.disk import Disk
from support import eventually

pytestmark = pytest.mark.skipif(disk.missing() is not None, reason="no file system can be mounted here")


def test_a_full_disk_takes_nothing_until_it_is_no_longer_full(tmp_path: Path) -> None:
    with Disk(tmp_path / "disk", 1 << 22) as small:
        kept = small.folder / "kept"
        kept.write_bytes(b"k" * 100_000)
        with small.full():
            with pytest.raises(OSError, match="No space left"):
                (small.folder / "more").write_bytes(b"m" * 100_000)
            assert kept.stat().st_size == 100_000
        (small.folder / "more").write_bytes(b"m" * 100_000)
    assert not list(small.folder.iterdir()), "it is not mounted any more"


def test_a_disk_becomes_full_while_somebody_writes_to_it(tmp_path: Path) -> None:
    over = threading.Event()

    def write(folder: Path) -> None:
        with (folder / "log").open("wb", buffering=0) as log, contextlib.suppress(OSError):
            while not over.is_set():
                log.write(b"w" * 8192)
                over.wait(0.0001)

    with Disk(tmp_path / "disk", 1 << 29) as small:
        writing = threading.Thread(target=write, args=[small.folder])
        writing.start()
        eventually(lambda: small.used > 0)
        with small.full():
            writing.join(10)  # it has met the end of the disk
            over.set()
            with pytest.raises(OSError, match="No space left"):
                (small.folder / "more").write_bytes(b"m" * 100_000)
