"""As whom PostgreSQL's programs run. They refuse to be root, so root has to become somebody else."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from kept.errors import Misconfigured

Mode = Literal["auto", "plain", "userns", "setuid"]

# Prints the pids of PostgreSQL's processes whose working directory is the folder given as $0.
_PROCESSES_IN = """
for p in /proc/[0-9]*; do
    [ "$p/cwd" -ef "$0" ] && read -r name < "$p/comm" && [ "$name" = postgres ] && echo "${p#/proc/}"
done
"""


@dataclass(frozen=True)
class Account:
    """*uid* and *gid* own the files; *prefix* stands before a command; *drops*: root becomes *uid* first."""

    uid: int
    gid: int
    prefix: tuple[str, ...] = ()
    drops: bool = False

    @property
    def _is_us(self) -> bool:
        return not self.prefix and not self.drops

    def run(self, *command: str | Path) -> subprocess.CompletedProcess[str]:
        """Run *command* as this account and capture what it says."""
        return self._spawn((*self.prefix, *map(str, command)))

    def works(self) -> bool:
        """Can a command be run as this account on this machine?"""
        if self._is_us:
            return True
        try:
            return self.run("true").returncode == 0
        except OSError:
            return False

    def reaches(self, path: Path) -> bool:
        """May this account enter the folder, or run the program, at *path*?"""
        return self._is_us or self.run("test", "-x", path).returncode == 0

    def own(self, path: Path) -> None:
        """Make *path*, which root just created, this account's."""
        if self.drops:
            os.chown(path, self.uid, self.gid, follow_symlinks=False)

    def draft_of(self, target: Path) -> Path:
        """An empty private folder beside *target* to prepare it in; leftovers of killed ones are removed."""
        for abandoned in target.parent.glob(f"{target.name}-new-*"):
            shutil.rmtree(abandoned, ignore_errors=True)
        draft = Path(tempfile.mkdtemp(prefix=f"{target.name}-new-", dir=target.parent))
        self.own(draft)
        return draft

    def own_all(self, top: Path) -> None:
        """Make everything from *top* down this account's."""
        if not self.drops:
            return
        self.own(top)
        for folder, folders, files in os.walk(top):
            for name in (*folders, *files):
                self.own(Path(folder, name))

    def servers_in(self, folder: Path) -> frozenset[int] | None:
        """The pids of PostgreSQL's processes working in *folder*; None where the system cannot tell.

        Asked as the owner itself: a root without CAP_SYS_PTRACE (as in most containers) may not look at the
        processes of others. But from outside the user namespace: inside, those of another one are hidden.
        """
        if not Path("/proc/self/cwd").exists():
            return None
        return frozenset(map(int, self._spawn(("sh", "-c", _PROCESSES_IN, str(folder))).stdout.split()))

    def _spawn(self, command: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
        # The user's own PGPORT, PGDATA and the like are meant for another server.
        env = {name: value for name, value in os.environ.items() if not name.startswith("PG")}
        return subprocess.run(
            command,
            cwd="/",
            env=env | {"LC_ALL": "C", "TZ": "UTC"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            user=self.uid if self.drops else None,
            group=self.gid if self.drops else None,
            extra_groups=[] if self.drops else None,
        )


def choose(mode: Mode, data: Path) -> Account:
    """The account for the data directory *data*: its owner if it exists, else the first that works."""
    for account in _candidates(mode, data):
        if account.works():
            return account
    if os.geteuid() != 0:
        raise Misconfigured(f"the embedded PostgreSQL cannot run in mode {mode!r} here: use 'auto'")
    raise Misconfigured(
        "PostgreSQL refuses to run as root, and here neither a user namespace (the program unshare) nor the "
        "user nobody can be used instead: run as another user, or set KEPT_DATABASE_URL to the URL of a "
        "running PostgreSQL"
    )


def _candidates(mode: Mode, data: Path) -> Iterator[Account]:
    if os.geteuid() != 0:
        if mode in ("auto", "plain"):
            yield Account(os.geteuid(), os.getegid())
    elif mode in ("auto", "setuid") and data.exists() and data.stat().st_uid != 0:
        yield Account(data.stat().st_uid, data.stat().st_gid, drops=True)
        return
    yield from _instead_of_root(mode)


def _instead_of_root(mode: Mode) -> Iterator[Account]:
    try:
        nobody = pwd.getpwnam("nobody")
    except KeyError:
        return
    unshare = shutil.which("unshare")
    if mode in ("auto", "userns") and unshare:
        # Looks like nobody to PostgreSQL, and is still root to the file system: no file changes its owner.
        mapped = (f"--map-user={nobody.pw_uid}", f"--map-group={nobody.pw_gid}")
        yield Account(os.geteuid(), os.getegid(), prefix=(unshare, "--user", *mapped))
    if mode in ("auto", "setuid") and os.geteuid() == 0:
        yield Account(nobody.pw_uid, nobody.pw_gid, drops=True)
