"""pgbouncer in transaction mode between Kept and PostgreSQL."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import Self

import psycopg
from psycopg.conninfo import conninfo_to_dict

from kept.db.embedded.account import Account, choose
from kept.db.embedded.places import make_private, socket_folder
from kept.verify.crew import command_of, running
from kept.verify.database import url_on
from kept.verify.server import LOOK, PATIENCE, Down

FILE, LOG, PORT = "pgbouncer.ini", "pgbouncer.out", 5432
SETTINGS = """
[databases]
* = host=127.0.0.1 port={upstream} user={user}
[pgbouncer]
listen_addr =
listen_port = {port}
unix_socket_dir = {sockets}
auth_type = any
pool_mode = transaction
default_pool_size = 20
max_client_conn = 500
server_login_retry = 1
"""


def program() -> str | None:
    """Where pgbouncer is, if it is installed."""
    return shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")


def missing() -> str | None:
    """Why there can be no pooler here, if so."""
    return None if program() else "needs pgbouncer (a package of Debian)"


def account(folder: Path) -> Account:
    """As whom a pooler in *folder* runs: it refuses to be root."""
    return choose("auto", folder / "s")


def end_leftover(folder: Path) -> None:
    """End the pooler of a run in *folder* that was killed."""
    for pid in running():
        words = command_of(pid).rstrip("\0").split("\0")
        if Path(words[0]).name == "pgbouncer" and words[-1] == str(folder / FILE):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    shutil.rmtree(socket_folder(folder, account(folder)), ignore_errors=True)


class Pooler:
    """Before the server of *database*, which is reached over TCP; its files are in *folder*.

    It asks nobody for a password, so it listens on a socket in a folder of its own only.
    """

    def __init__(self, database: str, folder: Path) -> None:
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self._account = account(folder)
        self._sockets = socket_folder(folder, self._account)
        self.url = url_on(database, str(self._sockets), PORT)
        given = conninfo_to_dict(database)
        settings = SETTINGS.format(upstream=given["port"], user=given["user"], port=PORT, sockets=self._sockets)
        for name in (FILE, LOG):
            (folder / name).touch(mode=0o600)
            self._account.own(folder / name)
        (folder / FILE).write_text(settings, encoding="utf-8")

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        shutil.rmtree(self._sockets, ignore_errors=True)

    def start(self) -> None:
        """Start it; returns when it lets somebody in."""
        asked = program()
        assert asked is not None
        us = self._account
        make_private(self._sockets, us)
        with (self._folder / LOG).open("ab") as log:
            self._process = subprocess.Popen(
                [*us.prefix, asked, self._folder / FILE],
                stdout=log,
                stderr=log,
                user=us.uid if us.drops else None,
                group=us.gid if us.drops else None,
                extra_groups=[] if us.drops else None,
            )
        until = time.monotonic() + PATIENCE
        while not self._answers():
            if time.monotonic() > until:
                self.kill()
                raise Down("pgbouncer does not let anybody in")
            time.sleep(LOOK)

    def kill(self) -> None:
        """SIGKILL it: every connection through it is gone."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def _answers(self) -> bool:
        try:
            psycopg.Connection.connect(self.url, connect_timeout=2).close()
        except psycopg.OperationalError:
            return False
        return True
