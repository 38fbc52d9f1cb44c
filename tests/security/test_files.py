"""What Kept writes to a disk is closed to other users of the machine, whatever the umask, and goes through no link."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from kept.db.embedded import Embedded
from kept.db.embedded.account import choose
from kept.errors import Misconfigured
from kept.worker.board import Board

CARELESS = """
import json, os, stat, sys
from pathlib import Path
os.umask(0)
from kept.db.embedded import Embedded
from kept.bench.place import site

def modes(top):
    below = [Path(folder, name) for folder, folders, files in os.walk(top) for name in (*folders, *files)]
    return {str(path): path.lstat().st_mode for path in (top, *below) if not path.is_symlink()}

with Embedded(Path(sys.argv[1]) / "deep" / "pg", options={"fsync": "off"}):
    found = modes(Path(sys.argv[1]) / "deep")
with site("postgresql://nowhere") as there:
    measured = modes(there.folder)

from kept.verify.crew import Command, Processes
from kept.verify.ledger import FAULTS, Journal, Ledger
from kept.verify.place import place
from kept.verify.pooler import Pooler
with place(None, frozenset({"proxy"})) as where:
    Pooler(where.database, where.folder)
    Processes("mark", where.folder, dict(os.environ)).start(Command(("-c", "")))
    Journal(where.folder / FAULTS)
    Ledger(where.folder)
    verified = modes(where.folder)
print(json.dumps([found, measured, verified]))
"""


@pytest.fixture(scope="module")
def careless(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, int], ...]:
    """The modes of all that a server, a measurement and a verification make while the umask forbids nothing."""
    folder = tmp_path_factory.mktemp("careless")
    said = subprocess.check_output([sys.executable, "-c", CARELESS, folder], text=True, timeout=60)
    return tuple(json.loads(said))


def test_an_embedded_server_is_closed_to_others_whatever_the_umask(careless: tuple[dict[str, int], ...]) -> None:
    modes = careless[0]
    assert len(modes) > 100, "a whole server"
    writable = {path for path, mode in modes.items() if mode & 0o022 and not stat.S_ISSOCK(mode)}
    assert writable == set()
    for path, mode in modes.items():
        inside = Path(path).parts[Path(path).parts.index("pg") + 1 :] if "pg" in Path(path).parts else ()
        if inside and inside[0] != ".gitignore" and stat.S_ISDIR(mode) and len(inside) == 1:
            assert mode & 0o077 == 0, path
        if inside and inside[0] in ("postgres.log", "users.lock", "start.lock"):
            assert mode & 0o077 == 0, path


def test_the_folder_of_a_measurement_is_closed_to_others_whatever_the_umask(
    careless: tuple[dict[str, int], ...],
) -> None:
    assert {mode & 0o077 for mode in careless[1].values()} == {0}


def test_the_folder_of_a_verification_is_closed_to_others_whatever_the_umask(
    careless: tuple[dict[str, int], ...],
) -> None:
    """All but the folder of its server, which looks after itself, and the way to that if it is somebody else's."""
    (top, mode), *below = careless[2].items()
    assert mode & 0o077 == (0o011 if choose("auto", Path(top, "data")).drops else 0)
    ours = {
        path.removeprefix(f"{top}/"): mode
        for path, mode in below
        if not path.startswith(f"{top}/pg/") and path != f"{top}/pg"
    }
    assert {"held", "pgbouncer.ini", "pgbouncer.out", "faults"} <= ours.keys()
    assert {path for path, mode in ours.items() if mode & 0o077} == set()


def test_a_folder_planted_where_data_will_be_prepared_is_not_used(tmp_path: Path) -> None:
    """The draft of a data directory has a name that nobody knows before."""
    home = tmp_path / "pg"
    home.mkdir(mode=0o700)
    trap = tmp_path / "trap"
    trap.mkdir()
    (home / "data-new-planted").symlink_to(trap)
    with Embedded(home, options={"fsync": "off"}) as server:
        assert server.alive()
    assert list(trap.iterdir()) == []


@pytest.mark.parametrize("name", ["users.lock", "start.lock"])
def test_a_lock_that_somebody_made_a_link_of_is_not_followed(tmp_path: Path, name: str) -> None:
    home = tmp_path / "pg"
    home.mkdir(mode=0o700)
    target = tmp_path / "precious"
    target.write_text("keep")
    (home / name).symlink_to(target)
    with pytest.raises(Misconfigured, match="cannot use"):
        Embedded(home, options={"fsync": "off"}).acquire()
    assert target.read_text() == "keep"


def test_a_socket_folder_that_is_a_link_is_refused(tmp_path: Path) -> None:
    home = tmp_path / "pg"
    home.mkdir(mode=0o700)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    (home / "s").symlink_to(elsewhere)
    with pytest.raises(Misconfigured, match="remove it"):
        Embedded(home, options={"fsync": "off"}).acquire()


def test_the_board_of_a_worker_has_no_name_that_others_could_open() -> None:
    board = Board.create(4)
    assert "(deleted)" in str(Path(f"/proc/self/fd/{board.fd}").readlink())
    assert os.get_inheritable(board.fd) is False
