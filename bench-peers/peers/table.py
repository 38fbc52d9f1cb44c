"""The tables, for a terminal and for a page. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from peers.figures import Spread, last_to_first, milliseconds, percentile, rate, share, spread
from peers.model import Peer, Results

Rows = list[list[str]]
MISSING = "not measured"


def drain(results: Results, peers: Sequence[Peer]) -> Rows:
    rows = [["drain, one worker process", "version", "jobs/s, median", "min to max", "settings"]]
    for peer, values in _found(results.drain, peers):
        across = spread(values)
        cells = [peer.title, results.versions.get(peer.name, ""), rate(across.median), _range(across)]
        rows.append([*cells, peer.settings])
    return rows


def latency(results: Results, peers: Sequence[Peer]) -> Rows:
    rows = [["pick-up, idle worker", "p50, ms", "p99, ms", "jobs"]]
    for peer, values in _found(results.latency, peers):
        cells = [milliseconds(percentile(values, point)) for point in (0.5, 0.99)]
        rows.append([peer.title, *cells, str(len(values))])
    return rows


def enqueue(results: Results, peers: Sequence[Peer]) -> Rows:
    rows = [["enqueue", "in a transaction, one by one, /s", "min to max", "in bulk, jobs/s", "min to max"]]
    for peer, values in _found(results.one, peers):
        one, bulk = spread(values), spread(results.bulk[peer.name])
        rows.append([peer.title, rate(one.median), _range(one), rate(bulk.median), _range(bulk)])
    return rows


def growth(results: Results, peers: Sequence[Peer]) -> Rows:
    rows = [
        [
            "growth",
            "snapshot held: last fifth to an early one",
            "min to max",
            "many pending elsewhere, jobs/s",
            "of its drain",
        ]
    ]
    for peer in peers:
        held = [last_to_first(tenths) for tenths in results.snapshot.get(peer.name, [])]
        behind, usual = results.behind.get(peer.name), results.drain.get(peer.name)
        if not held and not behind:
            continue
        ranged = f"{share(min(held))} to {share(max(held))}" if held else MISSING
        # Round by round: what else the machine did then slowed both.
        ratios = [after / before for after, before in zip(behind or [], usual or [], strict=False)]
        kept = share(spread(ratios).median) if ratios else MISSING
        waiting = rate(spread(behind).median) if behind else MISSING
        rows.append([peer.title, share(spread(held).median) if held else MISSING, ranged, waiting, kept])
    return rows


TABLES: tuple[Callable[[Results, Sequence[Peer]], Rows], ...] = (drain, latency, enqueue, growth)


def text(results: Results, peers: Sequence[Peer]) -> str:
    """All tables in columns, and what failed."""
    parts = [_aligned(rows) for rows in _filled(results, peers)]
    return "\n\n".join([*parts, *_failures(results, peers)])


def markdown(results: Results, peers: Sequence[Peer]) -> str:
    """All tables for a page, and what failed."""
    parts = [_piped(rows) for rows in _filled(results, peers)]
    return "\n\n".join([*parts, *_failures(results, peers)])


def _filled(results: Results, peers: Sequence[Peer]) -> Iterable[Rows]:
    return (rows for rows in (table(results, peers) for table in TABLES) if len(rows) > 1)


def _found(measured: dict[str, list[float]], peers: Sequence[Peer]) -> Iterable[tuple[Peer, list[float]]]:
    return ((peer, measured[peer.name]) for peer in peers if measured.get(peer.name))


def _failures(results: Results, peers: Sequence[Peer]) -> list[str]:
    titles = {peer.name: peer.title for peer in peers}
    return [f"Not measured to the end: {titles[name]} ({why})." for name, why in results.failed.items()]


def _range(across: Spread) -> str:
    return f"{rate(across.low)} to {rate(across.high)}"


def _aligned(rows: Rows) -> str:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    rule = ["-" * width for width in widths]
    return "\n".join(_line(row, widths) for row in [rows[0], rule, *rows[1:]])


def _line(row: list[str], widths: list[int]) -> str:
    cells = [
        cell.rjust(width) if _is_number(cell) else cell.ljust(width) for cell, width in zip(row, widths, strict=True)
    ]
    return "  ".join(cells).rstrip()


def _piped(rows: Rows) -> str:
    sides = [" ---: " if _is_number(cell) else " --- " for cell in rows[1]]
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([lines[0], "|" + "|".join(sides) + "|", *lines[1:]])


def _is_number(cell: str) -> bool:
    return cell[:1].isdigit() and not any(letter.isalpha() for letter in cell.replace(" to ", ""))
