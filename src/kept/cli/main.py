"""The root of the command line: settings, errors and exit codes."""

from __future__ import annotations

import getpass
import os
import platform
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar

import click
import psycopg

from kept.app import App
from kept.config import Settings
from kept.db import migrate
from kept.db.connect import connect_sync, unavailable
from kept.db.queries import Queries
from kept.db.queries import load as load_queries
from kept.db.tx import Steps, SyncConnection, run
from kept.errors import Error, Misconfigured, Refused, Unavailable
from kept.loading import load
from kept.showable import clean
from kept.worker.lease import own_version

T = TypeVar("T")
OK, FAILED, MISCONFIGURED, TRY_LATER = 0, 1, 2, 75


@dataclass(frozen=True, slots=True)
class Desk:
    """An operator's connection, in autocommit mode, and the statements to use it with."""

    conn: SyncConnection
    schema: str
    sql: Queries

    def ask(self, steps: Steps[T]) -> T:
        """The answer to one question of :mod:`kept.admin`."""
        return run(self.conn, steps)


@dataclass(slots=True)
class Session:
    """What every command shares: the settings, and the App when there is one."""

    database: str | None

    def settings(self, **changes: Any) -> Settings:
        """The settings from the environment, with what the command line says on top."""
        given = {name: value for name, value in changes.items() if value is not None}
        return Settings.from_env(os.environ, database=self.database, **given)

    def app(self, location: str | None, **changes: Any) -> App:
        """The user's App at *location* (or KEPT_APP), with these settings."""
        settings = self.settings(**changes)
        where = location or settings.app
        if where is None:
            raise Misconfigured("no app was named: write `kept … module:app`, or set KEPT_APP")
        app = load(where)
        if not isinstance(app, App):
            raise Misconfigured(f"{where!r} is a {type(app).__name__}, not an App")
        app.configure(settings, where)
        return app

    def plain(self, **changes: Any) -> App:
        """An App without tasks: for commands that only look at the database."""
        settings = self.settings(**changes)
        return App(settings.require_database(), settings=settings)

    @contextmanager
    def desk(self, *, checked: bool = True) -> Iterator[Desk]:
        """A connection for an operator's command; unless told otherwise, only to a schema this code may work with."""
        app = self.plain()
        schema = app.settings.schema
        try:
            with connect_sync(app.database, name="kept cli") as conn:
                conn.prepare_threshold = None  # each statement has filters of its own and deserves a plan of its own
                if checked:
                    migrate.check(conn, schema)
                yield Desk(conn, schema, load_queries("kept.admin", schema))
        finally:
            app.close()


def operator() -> str:
    """Who is at the terminal, for the log of changes."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's user has no name
        user = str(os.getuid())
    return f"{user}@{platform.node()}"


class Commands(click.Group):
    """Turns our errors into one sentence and an exit code."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except psycopg.OperationalError as error:
            fail(unavailable(error))
        except psycopg.Error as error:
            fail(Unavailable(f"the database refused: {' '.join(str(error).split())}"), FAILED)
        except Error as error:
            fail(error)
        except TypeError as error:
            if not str(error).startswith(("queue", "concurrency", "grace")):
                raise
            fail(Refused(str(error)))


def fail(error: Error, code: int | None = None) -> NoReturn:
    """Say what is wrong in one sentence and exit."""
    click.echo(f"kept: {clean(str(error))}", err=True)
    match error:
        case Misconfigured() | Refused():
            default = MISCONFIGURED
        case Unavailable():
            default = TRY_LATER
        case _:
            default = FAILED
    sys.exit(default if code is None else code)


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(own_version(), prog_name="kept")
@click.option("--database", metavar="URL", help="The database; instead of KEPT_DATABASE_URL. 'embedded:' starts one.")
@click.pass_context
def main(ctx: click.Context, database: str | None) -> None:
    """Kept keeps promises: durable background work on the PostgreSQL you already run.

    Every setting is also a KEPT_* variable; see docs/configuration.md.
    """
    ctx.obj = Session(database)


def register() -> None:
    """Bring in the command groups; each adds itself to *main*."""
    from kept.cli import (
        bench,
        doctor,
        events,
        inbox,
        jobs,
        lanes,
        migrations,
        runs,
        schedules,
        sinks,
        status,
        subscriptions,
        verify,
        worker,
        workers,
    )

    work = (worker, migrations, jobs, lanes, workers)
    outbox = (events, subscriptions, sinks, inbox)
    time = (schedules, runs)
    for commands in (*work, *outbox, *time, status, doctor, bench, verify):
        commands.add_to(main)


register()
