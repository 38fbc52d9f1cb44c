"""The last line of ``make test``: what it left out and why."""

from __future__ import annotations

import contextlib
import io
import sys

import pytest

REASONS = {
    "debian": "need Debian packages (make test-debian)",
    "slow": "take minutes (make test-slow)",
}


class Marks:
    """Counts collected tests by the mark that keeps them out of ``make test``."""

    def __init__(self) -> None:
        self.counts = dict.fromkeys(REASONS, 0)

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        for item in items:
            for mark in REASONS:
                if item.get_closest_marker(mark):
                    self.counts[mark] += 1
                    break


def main() -> int:
    marks = Marks()
    with contextlib.redirect_stdout(io.StringIO()):
        pytest.main(["--collect-only", "-qq", "-p", "no:xdist"], plugins=[marks])
    told = ", ".join(f"{count} tests {REASONS[mark]}" for mark, count in marks.counts.items() if count)
    print(f"left out: {told or 'nothing'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
