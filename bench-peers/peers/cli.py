"""The command line of the bench."""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from peers import page, table
from peers.catalogue import BY_NAME, PEERS
from peers.figures import tens
from peers.model import WHAT, Sizes
from peers.run import Run

ROOT = Path(__file__).parents[2]


def main() -> int:
    options = _parser().parse_args()
    peers = [BY_NAME[name] for name in options.peers]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the blocks are left, and what we started is ended
    sizes = Sizes(
        rounds=options.rounds,
        share=options.scale,
        latency_jobs=max(options.rounds, int(300 * min(1.0, options.scale))),
        one_by_one=max(10, int(2_000 * options.scale)),
        snapshot_jobs=tens(200_000 * options.scale),
        pending=options.pending,
    )
    try:
        results = Run(peers, options.what, sizes, _say).all(options.scratch.resolve(), options.database)
    except KeyboardInterrupt:
        print("\nended; nothing is left running", file=sys.stderr)
        return 130
    if options.json:
        print(json.dumps(asdict(results) | {"sizes": asdict(sizes)}, indent=2))
    else:
        print(table.text(results, peers))
    if options.write:
        page.write(ROOT / "docs", results, peers, sizes)
        print("written: docs/performance.md and its plots", file=sys.stderr)
    return 1 if results.failed else 0


def _say(words: str) -> None:
    print(f"{time.strftime('%H:%M:%S')}  {words}", file=sys.stderr, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="bench-peers", description="The same work through Kept and its peers.")
    everybody = ",".join(peer.name for peer in PEERS)
    parser.add_argument("--peers", type=_names(set(BY_NAME)), default=list(BY_NAME), metavar=everybody)
    parser.add_argument("--what", type=_names(set(WHAT)), default=list(WHAT), metavar=",".join(WHAT))
    parser.add_argument("--rounds", type=int, default=3, help="rounds of drain, enqueue and latency")
    parser.add_argument("--scale", type=float, default=1.0, help="share of the usual numbers of jobs")
    parser.add_argument("--pending", type=int, default=1_000_000, help="jobs pending elsewhere in growth")
    parser.add_argument("--database", metavar="URL", help="a server of your own; needs the right to create databases")
    parser.add_argument("--scratch", type=Path, default=ROOT / ".bench", help="where the peers are installed")
    parser.add_argument("--json", action="store_true", help="everything that was measured, instead of the table")
    parser.add_argument("--no-write", dest="write", action="store_false", help="leave docs/performance.md alone")
    return parser


def _names(known: set[str]) -> Callable[[str], list[str]]:
    def names(text: str) -> list[str]:
        given = [name for name in text.split(",") if name]
        unknown = [name for name in given if name not in known]
        if unknown:
            raise argparse.ArgumentTypeError(f"unknown: {', '.join(unknown)}; there are {', '.join(sorted(known))}")
        return given

    return names
