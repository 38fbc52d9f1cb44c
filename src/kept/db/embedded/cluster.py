"""One data directory and its server: create, start, stop. Callers see to it that nobody else does."""

from __future__ import annotations

import os
import shlex
import shutil
import time
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Literal
from urllib.parse import quote

from psycopg import pq

from kept.db.embedded.account import Account
from kept.db.embedded.binaries import Binaries, within_reach
from kept.db.embedded.places import SOCKET_NAME, make_private, socket_folder
from kept.errors import Misconfigured, Unavailable

Shutdown = Literal["fast", "immediate"]

DEFAULTS = {"listen_addresses": "", "max_connections": "100"}
PATIENCE = 60  # seconds for a start, a stop, or for whatever is still running in the data directory
_PAUSE = 0.02  # seconds between two looks


class Cluster:
    """The data directory in *home*; its server is reached through a socket that only its owner can open."""

    def __init__(self, home: Path, binaries: Binaries, account: Account, options: Mapping[str, str]) -> None:
        for folder in (home, binaries.folder):
            _check_name(folder)
        self.data = home / "data"
        self._home = home
        self._log = home / "postgres.log"
        self._pid_file = self.data / "postmaster.pid"
        self._sockets = socket_folder(home, account)
        self._socket_pid_file = self._sockets / f"{SOCKET_NAME}.lock"
        self._found = binaries
        self._account = account
        self._options = options

    def url(self, database: str) -> str:
        """Where *database* is reached; the port is named because PGPORT would be taken otherwise."""
        host = quote(os.fsencode(self._sockets))
        return f"postgresql://postgres@/{quote(database, safe='')}?host={host}&port=5432"

    def alive(self) -> bool:
        """Does the server let us in, or say why it does not (no connection left)? A pid proves nothing."""
        return pq.PGconn.ping(f"{self.url('postgres')}&connect_timeout=2".encode()) == pq.Ping.OK

    def ensure(self) -> None:
        """Make the server run: create its data directory, start it, heal it after a crash, or find it."""
        self._check_version()
        # Before anything is believed that comes through it: somebody else's server could answer there.
        make_private(self._sockets, self._account)
        if self.alive():
            return
        if not self.data.exists():
            self._create()
        elif self.data.stat().st_uid != self._account.uid:
            self._account.own_all(self._home)
        self._start()

    def follow(self, url: str) -> None:
        """Copy the data directory of the server at *url*, so that ours will stream from it."""
        draft = self._account.draft_of(self.data)
        copy = (self._binaries.program("pg_basebackup"), "-D", draft, "-R", "-c", "fast", "--no-sync", "-d", url)
        result = self._account.run(*copy)
        if result.returncode:
            shutil.rmtree(draft, ignore_errors=True)
            raise Unavailable(f"pg_basebackup failed for {self.data}: {_last_lines(result.stderr)}")
        draft.rename(self.data)

    def stop(self, how: Shutdown = "fast") -> None:
        """Stop the server if it runs, and return when it is down."""
        if self.postmaster() is None:
            return
        result = self._account.run(*self._pg_ctl("stop"), "-m", how)
        if result.returncode and self.postmaster() is not None:
            complaint = _last_lines(result.stderr)
            raise Unavailable(f"the embedded PostgreSQL in {self._home} does not stop: {complaint}")

    def postmaster(self) -> int | None:
        """The server's main process, if it runs. The recorded pid may be anybody's; pg_ctl would kill it."""
        recorded = _pid_in(self._pid_file)
        serving = self._account.servers_in(self.data)
        if serving is None:
            return recorded if self.alive() else None
        return recorded if recorded in serving else None

    def _check_version(self) -> None:
        try:
            found = (self.data / "PG_VERSION").read_text().strip()
        except FileNotFoundError:
            return
        if found != str(self._found.major):
            raise Misconfigured(
                f"{self.data} was made by PostgreSQL {found}, but the programs are {self._found.version}: "
                f"point KEPT_PG_BIN to those of PostgreSQL {found}, or use another directory "
                "(pg_dump with the old and psql with the new ones carry the data over)"
            )

    def _create(self) -> None:
        """Run initdb beside the data directory and rename: if killed, it leaves nothing that looks whole."""
        draft = self._account.draft_of(self.data)
        flags = ["-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-instructions"]
        if self._options.get("fsync") == "off":
            flags.append("--no-sync")
        result = self._account.run(self._binaries.program("initdb"), "-D", draft, *flags, *self._found.locale_flags)
        if result.returncode:
            shutil.rmtree(draft, ignore_errors=True)
            raise Unavailable(f"initdb failed for {self.data}: {_last_lines(result.stdout + result.stderr)}")
        draft.rename(self.data)
        _sync(self._home)

    def _start(self) -> None:
        deadline = time.monotonic() + PATIENCE
        while not self.alive():
            if time.monotonic() > deadline:
                raise Unavailable(f"the processes in {self.data} neither answer nor end; see {self._log}")
            if self._account.servers_in(self.data):
                # A server that starts or stops, or children of a killed one: they still use the files.
                time.sleep(_PAUSE)
                continue
            self._forget_reused_pids()
            complaint = self._launch()
            if complaint and not self._in_use():
                raise Unavailable(f"the embedded PostgreSQL in {self._home} does not start: {complaint}")

    def _launch(self) -> str:
        """Start the server and wait until it serves; what it complained about if it does not."""
        before = self._log.stat().st_size if self._log.exists() else 0
        fixed = {"unix_socket_directories": str(self._sockets), "port": "5432"}
        options = {**DEFAULTS, **self._options, **fixed}
        # pg_ctl hands these to a shell.
        flags = shlex.join(f"--{name}={value}" for name, value in options.items())
        result = self._account.run(*self._pg_ctl("start"), "-l", self._log, "-o", flags)
        if result.returncode == 0:
            return ""
        logged = self._log.read_bytes()[before:] if self._log.exists() else b""
        return _last_lines(logged.decode(errors="replace") or result.stderr)

    def _forget_reused_pids(self) -> None:
        """Remove pid files whose pid is another process's, or a zombie's: PostgreSQL would never start again.

        Called when no server works in the data directory; where the system cannot tell, PostgreSQL decides.
        """
        for pid_file in (self._pid_file, self._socket_pid_file):
            pid = _pid_in(pid_file)
            if pid is not None and Path(f"/proc/{pid}").exists():
                pid_file.unlink(missing_ok=True)

    def _in_use(self) -> bool:
        serving = self._account.servers_in(self.data)
        return self._pid_file.exists() if serving is None else bool(serving)

    def _pg_ctl(self, action: str) -> tuple[str | Path, ...]:
        return (self._binaries.program("pg_ctl"), action, "-D", self.data, "-w", "-t", str(PATIENCE))

    @cached_property
    def _binaries(self) -> Binaries:
        return within_reach(self._found, self._account, self._home)


def _check_name(folder: Path) -> None:
    """Refuse what pg_ctl, which puts paths into a shell command between double quotes, would get wrong."""
    if set(str(folder)) & set('"$`\\\n'):
        raise Misconfigured(
            f"the embedded PostgreSQL cannot be in {str(folder)!r}: no double quote, dollar sign, backquote, "
            "backslash or line break may be in the path"
        )


def _pid_in(pid_file: Path) -> int | None:
    try:
        return int(pid_file.read_text().split("\n", 1)[0])
    except (FileNotFoundError, ValueError):
        return None


def _last_lines(text: str) -> str:
    return " / ".join(line.strip() for line in text.strip().splitlines()[-4:]) or "it said nothing"


def _sync(folder: Path) -> None:
    """Make a rename in *folder* survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
