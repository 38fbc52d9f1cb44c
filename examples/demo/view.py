"""The live view: lanes, workers, and what happened to those that were killed. Fits 80 columns and 24 lines."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from rich.box import ROUNDED
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from figures import Lane, Live
from fleet import Member

WIDTH = 80
WORKER_ROWS = 5  # three that live and two that were killed lately
EVENTS = 5
LEFT = ("lane", "worker", "state")


@dataclass(slots=True)
class Scene:
    """Everything there is to see."""

    status: str = "starting"
    elapsed: float = 0.0
    accepted: int = 0
    rolled_back: int = 0
    taken_over: int = 0
    kills: int = 0
    lanes: Sequence[Lane] = ()
    members: Sequence[Member] = ()
    live: dict[int, Live] = field(default_factory=dict)
    killed: Sequence[Member] = ()
    events: deque[tuple[float, str, str]] = field(default_factory=lambda: deque(maxlen=EVENTS))

    @property
    def done(self) -> int:
        return sum(lane.done for lane in self.lanes)

    @property
    def rate(self) -> float:
        return sum(lane.rate for lane in self.lanes)

    @property
    def oldest(self) -> float:
        return max((lane.oldest for lane in self.lanes), default=0.0)


def draw(scene: Scene) -> RenderableType:
    """The whole picture."""
    hint = Text("Ctrl-C ends it: what was accepted is finished first", style="dim")
    return Group(_header(scene), _lanes(scene), Text(), _workers(scene), Text(), _events(scene), hint)


def plain(scene: Scene) -> str:
    """The same in one line, for a log."""
    return (
        f"{scene.elapsed:5.1f} s  accepted {scene.accepted}  done {scene.done}  {scene.rate:.0f}/s  "
        f"oldest pending {scene.oldest:.1f} s  workers {len(scene.live)}  killed {scene.kills}  "
        f"taken over {scene.taken_over}"
    )


def _header(scene: Scene) -> Panel:
    figures = Text("  ").join(
        _figure(label, value)
        for label, value in (
            ("accepted", f"{scene.accepted:,}"),
            ("done", f"{scene.done:,}"),
            ("", f"{scene.rate:.0f}/s"),
            ("oldest pending", f"{scene.oldest:.1f} s"),
            ("taken over", f"{scene.taken_over:,}"),
        )
    )
    title = Text.assemble(("Kept", "bold green"), f"  {scene.status}  ", (_clock(scene.elapsed), "bold"))
    return Panel(figures, title=title, title_align="left", box=ROUNDED, border_style="green", width=WIDTH)


def _figure(label: str, value: str) -> Text:
    return Text.assemble((f"{label} " if label else "", "dim"), (value, "bold"))


def _lanes(scene: Scene) -> Table:
    table = _table(
        ("lane", 18), ("pending", 9), ("later", 9), ("running", 9), ("done", 10), ("rate", 9), ("oldest", 10)
    )
    for lane in scene.lanes:
        table.add_row(
            Text(lane.name, style="cyan"),
            f"{lane.pending:,}",
            f"{lane.later:,}",
            f"{lane.running:,}",
            f"{lane.done:,}",
            f"{lane.rate:.0f}/s",
            f"{lane.oldest:.1f} s",
        )
    return _filled(table, 3)


def _workers(scene: Scene) -> Table:
    table = _table(("worker", 18), ("pid", 9), ("", 3), ("state", 12), ("running", 9), ("lease left", 13))
    for member in sorted([*scene.members, *scene.killed], key=lambda each: (each.number, each.started)):
        live = scene.live.get(member.pid)
        if member.killed is not None:
            table.add_row(member.name, str(member.pid), "", "killed", style="red")
        elif live is None:
            table.add_row(Text(member.name, style="cyan"), str(member.pid), "", Text("starting", style="yellow"))
        else:
            state, left = Text("live", style="green"), f"{live.lease_left:.0f} s"
            table.add_row(Text(member.name, style="cyan"), str(member.pid), "", state, str(live.running), left)
    return _filled(table, WORKER_ROWS)


def _events(scene: Scene) -> Table:
    table = Table.grid(padding=(0, 1))
    for at, text, style in scene.events:
        table.add_row(Text(_clock(at), style="dim"), Text(text, style=style, no_wrap=True, overflow="ellipsis"))
    return _filled(table, EVENTS)


def _table(*columns: tuple[str, int]) -> Table:
    table = Table(box=None, padding=0, pad_edge=True, header_style="dim", width=WIDTH)
    for name, width in columns:
        table.add_column(name, width=width, no_wrap=True, justify="left" if name in LEFT else "right")
    return table


def _filled(table: Table, rows: int) -> Table:
    """Of the same height whatever is in it: nothing on the screen jumps."""
    for _ in range(rows - table.row_count):
        table.add_row("")
    return table


def _clock(seconds: float) -> str:
    return f"{int(seconds) // 60:02d}:{int(seconds) % 60:02d}"
