"""``make demo``: a shop on Kept whose workers are killed every few seconds, and which loses nothing.

Ends on Ctrl-C, after KEPT_DEMO_SECONDS, or after 20 seconds where there is no terminal. Everything it makes is in
``.kept/demo`` (or KEPT_DEMO_DIR): the database, the workers' logs, and the files by which it is judged.
"""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from terminal import Stop

if TYPE_CHECKING:
    from show import Plan, Result

PROJECT = Path(__file__).resolve().parents[2]
WITHOUT_TERMINAL = 20.0  # seconds


def main() -> int:
    """0 if nothing was lost."""
    stop = Stop()
    with stop.listening():
        from fleet import DemoFailed  # imports take half a second, in which Ctrl-C must be heard already
        from show import run

        try:
            result = run(_plan(), stop)
        except DemoFailed as failure:
            sys.stderr.write(f"demo: {failure}\n")
            return 1
        _tell(result)
        return 0 if result.verdict.clean else 1


def _plan() -> Plan:
    """What the environment asks for. Other KEPT_* variables are meant for the reader's own work: they go."""
    from fleet import DemoFailed
    from show import Plan

    ours = [name for name in os.environ if name.startswith("KEPT_") and name != "KEPT_PG_BIN"]
    own = {name: os.environ.pop(name) for name in ours}
    terminal = sys.stdout.isatty()
    seconds = own.get("KEPT_DEMO_SECONDS")
    try:
        limit = float(seconds) if seconds else (None if terminal else WITHOUT_TERMINAL)
    except ValueError:
        raise DemoFailed(f"KEPT_DEMO_SECONDS={seconds!r} is not a number of seconds") from None
    folder = Path(own.get("KEPT_DEMO_DIR") or PROJECT / ".kept" / "demo").absolute()
    return Plan(folder=folder, seconds=limit, terminal=terminal)


def _tell(result: Result) -> None:
    """The summary, and a sentence about what it does not say."""
    waiting, phantoms = len(result.totals.waiting), len(result.verdict.phantoms)
    if waiting:
        sys.stderr.write(f"demo: {waiting} jobs were not waited for; they are kept, not lost\n")
    if phantoms:
        sys.stderr.write(f"demo: {phantoms} jobs ran although their transaction was rolled back\n")
    with contextlib.suppress(OSError):
        sys.stdout.write(f"{result.summary}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
