"""``make publisher``: domain events from PostgreSQL to Google Pub/Sub while publisher and broker fail; see README.md.

Ends after KEPT_DEMO_SECONDS (20) or on Ctrl-C, with a line that says what was lost. Everything it makes is in
``.kept/publisher`` (or KEPT_DEMO_DIR).
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

# The seed's knobs at the seed's values. Kept reads the names as they are; the topic is read by packfinder.py.
KNOBS = {
    "PACKFINDERZ_OUTBOX_PUBLISH_BATCH_SIZE": "50",
    "PACKFINDERZ_OUTBOX_PUBLISH_POLL_MS": "500",
    "PACKFINDERZ_OUTBOX_MAX_ATTEMPTS": "25",
    "PACKFINDERZ_PUBSUB_DOMAIN_TOPIC": "pf-domain-events",
    "PACKFINDERZ_EVENTING_IDEMPOTENCY_TTL": "720h",
}


def main() -> int:
    """0 if every event was published in order and took effect once."""
    ours = [name for name in os.environ if name.startswith("KEPT_") and name != "KEPT_PG_BIN"]
    asked = {name: os.environ.pop(name) for name in ours}  # the others are meant for the reader's own work
    for name, value in KNOBS.items():
        os.environ.setdefault(name, value)
    folder = Path(asked.get("KEPT_DEMO_DIR") or PROJECT / ".kept" / "publisher").absolute()
    os.environ["KEPT_DATABASE_URL"] = f"embedded:{folder}"
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # that a connection broke is part of the story
    enough = _stop_on_signals()
    try:
        seconds = float(asked.get("KEPT_DEMO_SECONDS") or 20)
    except ValueError:
        sys.stderr.write(f"publisher: KEPT_DEMO_SECONDS={asked['KEPT_DEMO_SECONDS']!r} is not a number of seconds\n")
        return 1
    from story import StoryFailed, tell  # reads the environment

    try:
        verdict = tell(folder, seconds, enough)
    except StoryFailed as failure:
        sys.stderr.write(f"publisher: {failure} (the logs are in {folder})\n")
        return 1
    except KeyboardInterrupt:
        return 130
    sys.stdout.write(f"{verdict}\n")
    return 0 if verdict.clean else 1


def _stop_on_signals() -> threading.Event:
    """Set by the first signal; a second one interrupts."""
    enough = threading.Event()

    def on_signal(_number: int, _frame: object) -> None:
        if enough.is_set():
            raise KeyboardInterrupt
        enough.set()

    for each in SIGNALS:
        signal.signal(each, on_signal)
    return enough


if __name__ == "__main__":
    sys.exit(main())
