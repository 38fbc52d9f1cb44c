"""What the commands of ``kept bench`` share: their options, a server to measure on, and how figures are told."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, NoReturn, TypeVar

import click
import msgspec
from rich.console import Console

from kept.bench import place as places
from kept.bench.drain import TUNED, Say
from kept.bench.place import Site
from kept.bench.tables import Table
from kept.cli.main import Session
from kept.cli.show import echo_json, echo_table

F = TypeVar("F", bound=Callable[..., Any])
INTERRUPTED, TERMINATED = 130, 143


def database_option(command: F) -> F:
    return click.option(
        "--database", metavar="URL", help="Measure on this server.  [default: a PostgreSQL of its own]"
    )(command)


def jobs_option(default: int) -> Callable[[F], F]:
    return click.option("--jobs", type=click.IntRange(1), default=default, show_default=True, metavar="N")


rounds_option = click.option(
    "--rounds",
    type=click.IntRange(1),
    default=3,
    show_default=True,
    metavar="N",
    help="Rounds in turn; the median counts.",
)


def tuning_options(command: F) -> F:
    concurrency = click.option(
        "--concurrency", type=click.IntRange(1, 10_000), default=TUNED.concurrency, show_default=True, metavar="N"
    )
    batch = click.option("--batch", type=click.IntRange(1, 1000), default=TUNED.batch, show_default=True, metavar="N")
    return concurrency(batch(command))


# --- running


@contextmanager
def measuring(session: Session, database: str | None, *, as_json: bool) -> Iterator[tuple[Site, Say]]:
    """A server to measure on and somebody to tell how far we are; what is ours is gone at the end."""
    with stoppable(), progress(quiet=as_json) as say:
        say("preparing the database")
        with places.site(database or session.database) as site:
            yield site, say
            say("cleaning up")


@contextmanager
def stoppable() -> Iterator[None]:
    """SIGTERM and Ctrl-C end what is done here in order, so that it can clean up after itself."""
    before = signal.signal(signal.SIGTERM, _terminated)
    try:
        yield
    except KeyboardInterrupt:
        click.echo("kept: interrupted; nothing is left behind", err=True)
        sys.exit(INTERRUPTED)
    finally:
        signal.signal(signal.SIGTERM, before)


def _terminated(_number: int, _frame: FrameType | None) -> NoReturn:
    sys.exit(TERMINATED)


@contextmanager
def progress(*, quiet: bool) -> Iterator[Say]:
    """On a terminal, a line that says what is being done."""
    console = Console(stderr=True)
    if quiet or not sys.stderr.isatty():
        yield lambda _: None
        return
    with console.status("") as status:
        yield status.update


# --- telling


def tell(found: msgspec.Struct, means: str, table: Table, *, as_json: bool) -> None:
    if as_json:
        echo_json({**msgspec.to_builtins(found), "meaning": means})
        return
    echo_table(table.columns, table.rows, right=table.columns[1:])
    click.echo()
    click.echo(click.wrap_text(means, width=100))
