"""What a run that was killed left behind, and how the next one knows that nobody needs it any more."""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import subprocess
from contextlib import ExitStack, suppress
from pathlib import Path
from tempfile import gettempdir

import psycopg
from psycopg.rows import TupleRow

from kept.db import temporary
from kept.db.embedded import Embedded
from kept.errors import Error
from kept.verify import pooler

Conn = psycopg.Connection[TupleRow]
FOLDER, SCHEMA, HELD = "kept-verify-", "kept_verify", "held"


def hold_folder(folder: Path, until: ExitStack) -> None:
    """Show that *folder* is in use."""
    (folder / HELD).touch(mode=0o600)
    lock = until.enter_context((folder / HELD).open("wb"))
    fcntl.flock(lock, fcntl.LOCK_EX)


def sweep_schemas(conn: Conn) -> list[str]:
    """Drop the schemas of runs that were killed, with the role if it came with one; their names."""
    return temporary.sweep(conn, SCHEMA)


def sweep_folders() -> list[Path]:
    """Remove the folders of runs that were killed, with the servers in them."""
    return [folder for folder in sorted(Path(gettempdir()).glob(f"{FOLDER}*")) if _removed(folder)]


def _removed(folder: Path) -> bool:
    """Remove *folder*, unless it is somebody else's or a run still goes on there."""
    with suppress(OSError):
        found = folder.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or not (folder / HELD).exists():
            return False
        with (folder / HELD).open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _stop_servers(folder)
            shutil.rmtree(folder, ignore_errors=True)
            return True
    return False


def _stop_servers(folder: Path) -> None:
    for root in sorted(folder.glob("**/users.lock")):
        with suppress(Error, OSError):
            embedded = Embedded(root.parent)
            if embedded.alive():
                embedded.acquire()
                embedded.release()
    pooler.end_leftover(folder)
    for mount in (folder / "disk",):
        if mount.is_mount():
            subprocess.run(["umount", "--lazy", str(mount)], check=False)  # noqa: S607  # wherever it is
