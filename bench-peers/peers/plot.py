"""Plots as SVG, drawn by hand: readable on light and on dark, nothing on top of anything else. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape

from peers.figures import decades, milliseconds, nice_ticks, rate, spread

WIDTH = 760
_LETTER = 7.2  # width of a letter, about
_ROW = 30
_TOP = 62
_BOTTOM = 52
_STYLE = """
  .paper { fill: #ffffff } .ink { fill: #1f2328 } .faint { fill: #59636e } .grid { stroke: #d1d9e0 }
  .c0 { fill: #1d4ed8; stroke: #1d4ed8 } .c1 { fill: #b45309; stroke: #b45309 } .c2 { fill: #047857; stroke: #047857 }
  .c3 { fill: #9333ea; stroke: #9333ea } .c4 { fill: #be123c; stroke: #be123c } .c5 { fill: #64748b; stroke: #64748b }
  polyline.line { fill: none; stroke-width: 2.5 } text.text { stroke: none }
  .spread { stroke: #1f2328; stroke-width: 1.5 }
  text { font: 13px system-ui, "Segoe UI", Helvetica, Arial, sans-serif } .title { font-size: 16px; font-weight: 600 }
  @media (prefers-color-scheme: dark) {
    .paper { fill: #0d1117 } .ink { fill: #f0f6fc } .faint { fill: #9198a1 } .grid { stroke: #3d444d }
    .c0 { fill: #60a5fa; stroke: #60a5fa } .c1 { fill: #fbbf24; stroke: #fbbf24 }
    .c2 { fill: #34d399; stroke: #34d399 } .c3 { fill: #c084fc; stroke: #c084fc }
    .c4 { fill: #fb7185; stroke: #fb7185 } .c5 { fill: #94a3b8; stroke: #94a3b8 }
    .spread { stroke: #f0f6fc }
  }
"""


@dataclass
class Sheet:
    """Shapes in the order they are drawn."""

    height: float
    label: str
    shapes: list[str] = field(default_factory=list)

    def text(self, x: float, y: float, words: str, kind: str = "ink", anchor: str = "start") -> None:
        place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
        self.shapes.append(f'<text class="{kind}" {place}>{escape(words)}</text>')

    def line(self, x1: float, y1: float, x2: float, y2: float, kind: str) -> None:
        self.shapes.append(f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>')

    def bar(self, x: float, y: float, width: float, height: float, kind: str) -> None:
        place = f'x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"'
        self.shapes.append(f'<rect class="{kind}" stroke-width="0" rx="2" {place}/>')

    def dot(self, x: float, y: float, kind: str, radius: float = 5) -> None:
        self.shapes.append(f'<circle class="{kind}" cx="{x:.1f}" cy="{y:.1f}" r="{radius}"/>')

    def path(self, points: Sequence[tuple[float, float]], kind: str) -> None:
        drawn = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        self.shapes.append(f'<polyline class="{kind} line" points="{drawn}"/>')

    def svg(self) -> str:
        head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {self.height:.0f}" role="img"'
        paper = f'<rect class="paper" width="{WIDTH}" height="{self.height:.0f}"/>'
        body = "\n".join([paper, *self.shapes])
        return f'{head} aria-label="{escape(self.label)}">\n<style>{_STYLE}</style>\n{body}\n</svg>\n'


def bars(title: str, axis: str, values: Mapping[str, Sequence[float]]) -> str:
    """A bar for each name, as long as its median, the longest first; a thin line from the least to the most."""
    order = sorted(values, key=lambda name: -spread(values[name]).median)
    sheet, left = _sheet(title, order)
    ticks = nice_ticks(max(spread(each).high for each in values.values()))
    right = WIDTH - 84.0  # room for the figure behind the longest bar
    scale = (right - left) / ticks[-1]
    _grid(sheet, [(left + tick * scale, rate(tick)) for tick in ticks], axis, (left + right) / 2)
    for row, name in enumerate(order):
        across, y = spread(values[name]), _TOP + row * _ROW
        sheet.text(left - 10, y + 19, name, anchor="end")
        sheet.bar(left, y + 5, max(1.0, across.median * scale), 20, "c0" if _is_ours(name) else "c5")
        sheet.line(left + across.low * scale, y + 15, left + across.high * scale, y + 15, "spread")
        sheet.text(left + max(across.high, across.median) * scale + 8, y + 19, rate(across.median))
    return sheet.svg()


def ranges(title: str, axis: str, values: Mapping[str, tuple[float, float]]) -> str:
    """From the middle to the slow end for each name, on a scale of powers of ten; the quickest first."""
    order = sorted(values, key=lambda name: values[name])
    sheet, left = _sheet(title, order)
    ticks = decades(min(low for low, _ in values.values()), max(high for _, high in values.values()))
    right = WIDTH - 150.0
    scale = (right - left) / math.log10(ticks[-1] / ticks[0])

    def place(value: float) -> float:
        return left + math.log10(value / ticks[0]) * scale

    _grid(sheet, [(place(tick), f"{tick:g}") for tick in ticks], axis, (left + right) / 2)
    for row, name in enumerate(order):
        (low, high), y = values[name], _TOP + row * _ROW + 15
        kind = "c0" if _is_ours(name) else "c5"
        sheet.text(left - 10, y + 4, name, anchor="end")
        sheet.path([(place(low), y), (place(high), y)], kind)
        sheet.dot(place(low), y, kind)
        sheet.dot(place(high), y, kind, radius=3.5)
        sheet.text(right + 12, y + 4, f"{milliseconds(low)} / {milliseconds(high)} ms")
    return sheet.svg()


def lines(title: str, across: str, upwards: str, values: Mapping[str, Sequence[float]]) -> str:
    """A line for each name over tenths of the work, from the second to the last, named at its end."""
    sheet = Sheet(height=400, label=title)
    sheet.text(20, 30, title, "ink title")
    sheet.text(20, 52, upwards, "faint")
    ticks = nice_ticks(max(max(each) for each in values.values()))
    top, bottom, left = 72.0, 336.0, 28 + len(rate(ticks[-1])) * _LETTER
    right = WIDTH - 24 - max(len(name) for name in values) * _LETTER
    for tick in ticks:
        y = bottom - tick / ticks[-1] * (bottom - top)
        sheet.line(left, y, right, y, "grid")
        sheet.text(left - 8, y + 4, rate(tick), "faint", "end")
    count = max(len(each) for each in values.values())
    step = (right - 12 - left) / count
    for number in range(1, count + 1):
        sheet.text(left + number * step, bottom + 20, f"{(number + 1) * 100 // (count + 1)} %", "faint", "middle")
    sheet.text((left + right) / 2, bottom + 44, across, "faint", "middle")
    ends = {name: bottom - each[-1] / ticks[-1] * (bottom - top) for name, each in values.items()}
    shown = apart(ends, 17, top, bottom)
    for number, (name, each) in enumerate(values.items()):
        kind = f"c{number % 5}"
        points = [(left + (i + 1) * step, bottom - value / ticks[-1] * (bottom - top)) for i, value in enumerate(each)]
        sheet.path(points, kind)
        for x, y in points:
            sheet.dot(x, y, kind, radius=3)
        sheet.text(right + 8, shown[name] + 4, name, f"{kind} text")
    return sheet.svg()


def apart(places: Mapping[str, float], distance: float, top: float, bottom: float) -> dict[str, float]:
    """*places* moved as little as a pass down and one up need, so that no two are closer than *distance*."""
    order = sorted(places, key=lambda name: places[name])
    moved: dict[str, float] = {}
    floor = top
    for name in order:
        moved[name] = max(places[name], floor)
        floor = moved[name] + distance
    ceiling = bottom
    for name in reversed(order):
        moved[name] = min(moved[name], ceiling)
        ceiling = moved[name] - distance
    return moved


def _sheet(title: str, names: Sequence[str]) -> tuple[Sheet, float]:
    sheet = Sheet(height=_TOP + len(names) * _ROW + _BOTTOM, label=title)
    sheet.text(20, 30, title, "ink title")
    return sheet, 30 + max(len(name) for name in names) * _LETTER


def _grid(sheet: Sheet, ticks: Sequence[tuple[float, str]], axis: str, middle: float) -> None:
    bottom = sheet.height - _BOTTOM
    for x, words in ticks:
        sheet.line(x, _TOP - 8, x, bottom + 4, "grid")
        sheet.text(x, bottom + 20, words, "faint", "middle")
    sheet.text(middle, bottom + 42, axis, "faint", "middle")


def _is_ours(name: str) -> bool:
    return name.startswith("Kept")
