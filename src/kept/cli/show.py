"""How answers look: tables for people, aligned text for pipes, JSON for programs.

Nothing of what a payload, a key or a message holds can steer a terminal: every text is spelled out first.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import click
from msgspec import Struct
from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from kept.durations import parse
from kept.errors import Refused
from kept.showable import escape

F = TypeVar("F", bound=Callable[..., Any])
IDS = frozenset({"id", "retry_of", "job", "last_job"})  # bigints, which JSON readers may round
WIDEST = 60  # characters of one cell
DEEPEST = 200  # levels of a document that are shown as such


def json_option(command: F) -> F:
    """``--json`` for a command that takes *as_json*."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON.")(command)


def as_duration(_ctx: click.Context, _param: click.Parameter, value: str | None) -> timedelta | None:
    """For options like ``1h``."""
    if value is None:
        return None
    try:
        return parse(value)
    except Refused as error:
        raise click.BadParameter(escape(str(error).removeprefix("duration: "))) from None


def as_moment(_ctx: click.Context, _param: click.Parameter, value: str | None) -> datetime | None:
    """For options like ``2026-11-17T08:00``; without a zone, UTC."""
    if value is None:
        return None
    try:
        given = datetime.fromisoformat(value)
    except ValueError:
        raise click.BadParameter(f"'{escape(value[:40])}' is not a time; write 2026-11-17T08:00") from None
    return given if given.tzinfo else given.replace(tzinfo=UTC)


def as_job_id(_ctx: click.Context, _param: click.Parameter, value: str | None) -> int | None:
    """For an option that is a job's id."""
    return None if value is None else _job_id(value)


def as_job_ids(_ctx: click.Context, _param: click.Parameter, value: Sequence[str]) -> tuple[int, ...]:
    """For arguments that are ids of jobs."""
    return tuple(_job_id(each) for each in value)


def as_text(_ctx: click.Context, _param: click.Parameter, value: str | None) -> str | None:
    """For what the database is asked for by name: bytes that are not UTF-8 cannot be sent to it."""
    try:
        return value and value.encode().decode()
    except UnicodeEncodeError:
        raise click.BadParameter("is not valid UTF-8") from None


def _job_id(value: str) -> int:
    if not (value.isascii() and value.isdigit() and len(value) < 20 and 1 <= int(value) < 2**63):
        raise click.BadParameter(f"'{escape(value[:40])}' is not the id of a job")
    return int(value)


def echo_json(value: object) -> None:
    """*value* as JSON, in plain ASCII: what it holds cannot steer a terminal."""
    click.echo(json.dumps(value, indent=2))


def as_dict(struct: Struct, *, without: Sequence[str] = ()) -> dict[str, object]:
    """The fields of *struct* as JSON has them: ids as strings, moments in UTC."""
    names = [name for name in struct.__struct_fields__ if name not in without]
    return {name: _plain(name, getattr(struct, name)) for name in names}


def _plain(name: str, value: object) -> object:
    if name in IDS and value is not None:
        return str(value)
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat()
    return round(value, 3) if isinstance(value, float) else value


def document(text: str | None) -> object:
    """A stored JSON text as Python has it; one that is nested too deeply stays a text."""
    if text is None:
        return None
    try:
        value = json.loads(text, parse_float=_number)
    except RecursionError:
        return text
    return text if _is_deep(value) else value


def _is_deep(value: object) -> bool:
    """Whether *value* is nested so deeply that it might be read, but not be written with indentation."""
    layer = [value]
    for _ in range(DEEPEST):
        layer = [inner for each in layer for inner in _within(each)]
        if not layer:
            return False
    return True


def _within(value: object) -> Iterable[object]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def _number(text: str) -> float | str:
    value = float(text)
    return value if math.isfinite(value) else text  # JSON knows no infinity


def lines(text: str) -> list[str]:
    """*text* line by line, each safe to show."""
    return [escape(line) for line in text.splitlines()]


def moment(value: datetime | None) -> str:
    """``2025-06-01 12:00:05Z``."""
    return "" if value is None else f"{value.astimezone(UTC):%Y-%m-%d %H:%M:%S}Z"


def brief(seconds: float | None) -> str:
    """A stretch of time in its largest fitting unit: ``45s``, ``12min``, ``3h``, ``4d``."""
    if seconds is None:
        return ""
    for unit, size, upto in (("s", 1, 120), ("min", 60, 120), ("h", 3600, 48)):
        if abs(seconds) < size * upto:
            return f"{int(seconds / size)}{unit}"
    return f"{int(seconds / 86_400)}d"


def count(number: int, noun: str) -> str:
    """``1 job``, ``2 jobs``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def echo_table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, right: Iterable[str] = ()) -> None:
    """A table of texts and numbers; None is an empty cell."""
    cells = [["" if cell is None else _cut(escape(str(cell))) for cell in row] for row in rows]
    if sys.stdout.isatty():
        _echo_rich(columns, cells, set(right))
    else:
        _echo_plain(columns, cells, set(right))


def _cut(cell: str) -> str:
    return cell if len(cell) <= WIDEST else f"{cell[: WIDEST - 1]}…"


def _echo_rich(columns: Sequence[str], rows: list[list[str]], right: set[str]) -> None:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        table.add_column(column, justify="right" if column in right else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))  # as Text: a "[red]" in a key is not markup
    Console().print(table)


def _echo_plain(columns: Sequence[str], rows: list[list[str]], right: set[str]) -> None:
    table = [list(columns), *rows]
    widths = [max(cell_len(row[at]) for row in table) for at in range(len(columns))]
    for row in table:
        padded = [
            _pad(cell, width, right=column in right) for cell, width, column in zip(row, widths, columns, strict=True)
        ]
        click.echo("  ".join(padded).rstrip())


def _pad(cell: str, width: int, *, right: bool) -> str:
    space = " " * (width - cell_len(cell))
    return space + cell if right else cell + space
