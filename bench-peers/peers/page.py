"""Writes what was measured into docs/performance.md, between its marks, and the plots beside it."""

from __future__ import annotations

import statistics
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from peers import plot, table
from peers.figures import percentile
from peers.model import Peer, Results, Sizes

T = TypeVar("T")
BEGIN, END = "<!-- peers:begin -->", "<!-- peers:end -->"
EMPTY = f"""# Performance

## Beside others

`make bench-peers` wrote what follows.

{BEGIN}
{END}
"""


def write(docs: Path, results: Results, peers: Sequence[Peer], sizes: Sizes) -> None:
    """Put the tables into the page and the plots beside it; the rest of the page stays as it is."""
    drawn = plots(results, peers)
    for name, svg in drawn.items():
        (docs / name).write_text(svg, encoding="utf-8")
    path = docs / "performance.md"
    text = path.read_text(encoding="utf-8") if path.exists() else EMPTY
    path.write_text(replaced(text, section(results, peers, sizes, drawn)), encoding="utf-8")


def replaced(text: str, part: str) -> str:
    """*text* with *part* between the marks, which it gets at its end if it has none."""
    if BEGIN not in text or END not in text:
        text = f"{text.rstrip()}\n\n{BEGIN}\n{END}\n"
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{part.strip()}\n{END}{after}"


def section(results: Results, peers: Sequence[Peer], sizes: Sizes, drawn: Iterable[str]) -> str:
    """What stands between the marks."""
    pictures = [f"![{_ALT[name]}]({name})" for name in drawn]
    return "\n\n".join([_told(results, sizes), table.markdown(results, peers), *pictures])


def plots(results: Results, peers: Sequence[Peer]) -> dict[str, str]:
    """The plots for which there are figures, by the name of their file."""
    drawn: dict[str, str] = {}
    drain = _titled(results.drain, peers)
    if drain:
        axis = "jobs per second, median (bar) and range (line); longer is better"
        drawn["performance-drain.svg"] = plot.bars("Drain, one worker process", axis, drain)
    latency = {
        title: (percentile(values, 0.5), percentile(values, 0.99))
        for title, values in _titled(results.latency, peers).items()
    }
    if latency:
        axis = "milliseconds, p50 (large dot) to p99 (small dot); further left is better"
        drawn["performance-latency.svg"] = plot.ranges("Pick-up by an idle worker", axis, latency)
    growth = {title: values for title, values in _titled(median_tenths(results), peers).items() if values}
    if growth:
        drawn["performance-growth.svg"] = plot.lines(
            "Drain while a snapshot is held open", "share of the jobs done", "jobs per second", growth
        )
    return drawn


def median_tenths(results: Results) -> dict[str, list[float]]:
    """Each tenth of the drain behind a snapshot, as the median of the rounds."""
    return {
        name: [statistics.median(tenth) for tenth in zip(*rounds, strict=True)]
        for name, rounds in results.snapshot.items()
    }


_ALT = {
    "performance-drain.svg": "Drain: jobs per second for each system",
    "performance-latency.svg": "Pick-up latency: p50 and p99 for each system",
    "performance-growth.svg": "Drain while a snapshot is held open: jobs per second over the run",
}


def _titled(measured: Mapping[str, T], peers: Sequence[Peer]) -> dict[str, T]:
    return {peer.title: measured[peer.name] for peer in peers if peer.name in measured}


def _told(results: Results, sizes: Sizes) -> str:
    return textwrap.fill(_TOLD.format(**results.facts, sizes=sizes, minutes=results.minutes), 118)


_TOLD = """
Measured on {date} on {machine} with {cores} cores, PostgreSQL {server_version} (fsync {fsync}, synchronous_commit
{synchronous_commit}, shared_buffers {shared_buffers}) and Python {python}, in {sizes.rounds} interleaved rounds
({minutes:.0f} minutes). Jobs do nothing; a payload has about 100 bytes. A drain is timed from the start of the first
job until the database says that all are settled; for those on a Redis, which keeps everything in memory, until the
last handler returned. Growth: {sizes.snapshot_jobs:,} jobs while a snapshot is held open (the rate of the last
fifth against that between 10 and 30 %), and a drain with {sizes.pending:,} jobs pending in a queue nobody serves.
"""
