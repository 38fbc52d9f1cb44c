"""pgbouncer in transaction mode between Kept and PostgreSQL."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import Self

import psycopg
from psycopg.conninfo import conninfo_to_dict

from kept.verify.crew import command_of, running
from kept.verify.proxy import url_at
from kept.verify.server import LOOK, PATIENCE, Down

FILE = "pgbouncer.ini"
SETTINGS = """
[databases]
* = host=127.0.0.1 port={upstream} user={user}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
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


def end_leftover(folder: Path) -> None:
    """End the pooler of a run in *folder* that was killed."""
    for pid in running():
        words = command_of(pid).rstrip("\0").split("\0")
        if Path(words[0]).name == "pgbouncer" and words[-1] == str(folder / FILE):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


class Pooler:
    """Before the server of *database*, which is reached over TCP; its files are in *folder*."""

    def __init__(self, database: str, folder: Path) -> None:
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        self.url = url_at(database, port)
        given = conninfo_to_dict(database)
        settings = SETTINGS.format(upstream=given["port"], user=given["user"], port=port)
        (folder / FILE).write_text(settings, encoding="utf-8")

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def start(self) -> None:
        """Start it; returns when it lets somebody in."""
        asked = program()
        assert asked is not None
        account = ["-u", "nobody"] if os.geteuid() == 0 else []  # it refuses to be root
        with (self._folder / "pgbouncer.out").open("ab") as log:
            self._process = subprocess.Popen([asked, *account, self._folder / FILE], stdout=log, stderr=log)
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
