"""Where an embedded server keeps its files, and the folder of its socket."""

from __future__ import annotations

import hashlib
import os
import stat
from pathlib import Path

from kept.db.embedded import binaries
from kept.db.embedded.account import Account, Mode, choose
from kept.errors import Misconfigured

SCHEME = "embedded:"
SOCKET_NAME = ".s.PGSQL.5432"
LONGEST_SOCKET_PATH = 103  # bytes: Linux takes 107, macOS 103


def is_embedded(url: str) -> bool:
    """Does *url* ask for a PostgreSQL of one's own?"""
    return url.startswith(SCHEME)


def location(url: str, *, start: Path | None = None) -> Path:
    """The root directory that *url* means, seen from *start* (default: the working directory).

    ``embedded:`` is ``.kept/pg18`` beside the nearest pyproject.toml at or above *start*, else in *start*;
    ``embedded:PATH`` is ``PATH/pg18``. The number is the major version of the PostgreSQL programs in use.
    """
    if not is_embedded(url):
        raise Misconfigured("this database URL is that of a server: an embedded one is embedded: or embedded:PATH")
    path = url.removeprefix(SCHEME)
    if path.startswith("//") and not path.startswith("///"):
        raise Misconfigured(f"{url!r} names a host, and an embedded PostgreSQL has none: write embedded:PATH")
    here = (start or Path.cwd()).resolve()
    base = here / Path(path).expanduser() if path else _project(here) / ".kept"
    return base.resolve() / f"pg{binaries.find().major}"


def _project(here: Path) -> Path:
    return next((folder for folder in (here, *here.parents) if (folder / "pyproject.toml").is_file()), here)


def settle_in(root: Path, mode: Mode) -> tuple[Path, Account]:
    """The directory really used for *root*, and the account for it.

    It is another directory only if we are root and PostgreSQL's account may not enter *root* (a project below
    a private home): then it is in /var/lib/kept, for good. Opening up somebody's folders is not ours to do.
    """
    if os.geteuid() != 0:
        return root, choose(mode, root / "data")
    elsewhere = Path("/var/lib/kept") / _digest(root)
    if (elsewhere / "data").exists():
        return elsewhere, choose(mode, elsewhere / "data")
    account = choose(mode, root / "data")
    nearest = next(folder for folder in (root, *root.parents) if folder.is_dir())
    return (root if account.reaches(nearest) else elsewhere), account


def make_home(home: Path, account: Account) -> None:
    """Create *home* and what is missing above it: *account* can enter and nobody else write, whatever the umask."""
    for folder in reversed([folder for folder in (home, *home.parents) if not folder.exists()]):
        try:
            folder.mkdir(mode=0o755)
        except FileExistsError:
            continue
        if account.drops:
            folder.chmod(0o755)
        if folder == home:
            account.own(home)
            (home / ".gitignore").touch(mode=0o644)
            (home / ".gitignore").write_text("*\n")


def let_through(folder: Path) -> None:
    """Let the account of a server below the private *folder* get to it, if it is not ours; it may not list it."""
    if choose("auto", folder / "data").drops:
        folder.chmod(0o711)


def socket_folder(home: Path, account: Account) -> Path:
    """The folder for the socket of the server in *home*: inside, or a short one in /tmp if it does not fit.

    A comma separates hosts in a connection string, so a path that has one does not fit either.
    """
    inside = home / "s"
    longest = os.fsencode(inside / SOCKET_NAME)
    if len(longest) <= LONGEST_SOCKET_PATH and b"," not in longest:
        return inside
    return Path("/tmp") / f"kept-{account.uid}-{_digest(home)}"  # noqa: S108 (see make_private)


def make_private(folder: Path, account: Account) -> None:
    """Create *folder* for *account* alone; refuse one that somebody else planted there."""
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:
        found = folder.lstat()
        owners = (account.uid, os.geteuid())
        if not stat.S_ISDIR(found.st_mode) or found.st_uid not in owners or found.st_mode & 0o077:
            raise Misconfigured(
                f"{folder} exists and is not a folder that only uid {account.uid} may enter: remove it"
            ) from None
    account.own(folder)


def _digest(path: Path) -> str:
    return hashlib.sha256(os.fsencode(path)).hexdigest()[:16]
