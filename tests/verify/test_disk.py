"""The disk that `kept verify` fills: full is full, and afterwards nothing is missing."""

from __future__ import annotations

from pathlib import Path

import pytest

from kept.verify import disk
from kept.verify.disk import Disk

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
