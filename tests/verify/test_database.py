"""The database that is named: which host is meant, and how it is reached through the proxy, with TLS and without."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from random import Random

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from endpoint import certificate
from kept.db.embedded import Embedded
from kept.errors import Misconfigured, Refused, Unavailable
from kept.verify import faults
from kept.verify.database import Database, look, url_at, url_on
from kept.verify.proxy import proxy_before
from kept.verify.run import Plan, run
from servers import free_port
from tls import tls_before

DEBIAN = Path("/usr/lib/postgresql/15/bin")
COMMITS = {"reset-before-commit", "reset-after-commit"}


@pytest.fixture
def secured(database: str, tmp_path: Path) -> Iterator[str]:
    """The test's database on a server called localhost that insists on TLS; its certificate is checked."""
    with tls_before(database, tmp_path) as url:
        yield url


def asks(url: str) -> tuple[object, bool]:
    """Which database answers at *url*, and whether it was asked through TLS."""
    with psycopg.connect(url, connect_timeout=10) as conn:
        (name,) = conn.execute("select current_database()").fetchone() or ("nothing",)
        return name, conn.pgconn.ssl_in_use


def test_a_certificate_for_the_server_s_name_is_good_through_the_proxy(secured: str) -> None:
    found = look(secured)
    assert found.encrypted
    with proxy_before(str(found.url)) as proxy:
        assert asks(proxy.url) == (conninfo_to_dict(secured)["dbname"], True)


def test_a_certificate_for_another_name_is_refused_through_the_proxy(database: str, tmp_path: Path) -> None:
    refused = pytest.raises(psycopg.OperationalError, match=r"certificate .* does not match")
    with tls_before(database, tmp_path) as url, proxy_before(make_conninfo(url, host="127.0.0.1")) as proxy, refused:
        psycopg.connect(proxy.url)


@pytest.mark.debian
@pytest.mark.skipif(not (DEBIAN / "postgres").exists(), reason="postgresql-15 is not installed")
def test_a_server_with_tls_of_its_own_is_verified_through_the_proxy(tmp_path: Path) -> None:
    certificate(tmp_path, "localhost")
    address = f"127.{Random().randrange(1, 255)}.{os.getpid() % 255}.77"
    options = {"fsync": "off", "listen_addresses": address}
    with Embedded(tmp_path / "pg", bin_dir=DEBIAN, options=options) as server:
        _turn_on_tls(server, tmp_path)
        ca = tmp_path / "cert.pem"
        url = f"postgresql://postgres@localhost/postgres?hostaddr={address}&sslmode=verify-full&sslrootcert={ca}"
        found = look(url)
        assert found.encrypted
        with proxy_before(str(found.url)) as proxy:
            assert asks(proxy.url) == ("postgres", True)


def _turn_on_tls(server: Embedded, folder: Path) -> None:
    with psycopg.connect(server.url(), autocommit=True) as conn:
        ((data,),) = conn.execute("show data_directory").fetchall()
        owner = Path(data).stat()
        for name, made in (("server.crt", "cert.pem"), ("server.key", "key.pem")):
            shutil.copy(folder / made, Path(data, name))
            Path(data, name).chmod(0o600)
            os.chown(Path(data, name), owner.st_uid, owner.st_gid)
        conn.execute("alter system set ssl = on")
    server.restart()


@pytest.mark.acceptance
def test_a_run_on_a_server_with_tls_breaks_no_promise(secured: str) -> None:
    plan = Plan(database=secured, seconds=3, jobs=200, workers=1, producers=1, faults=["reset", "latency"], seed=1)
    report = run(plan)
    assert report.breaches == ()
    assert set(report.faults) == {"reset", "latency"}


def test_faults_of_commits_are_left_out_where_nobody_sees_a_commit() -> None:
    database = Database("postgresql://somewhere/x", encrypted=True)
    for names in (None, ["network"]):
        asked, left_out = faults.possible(names, database)
        assert {name for name, why in left_out.items() if "not encrypted" in why} == COMMITS
        assert not COMMITS & {fault.name for fault in asked}
    in_clear, _ = faults.possible(["network"], Database("postgresql://somewhere/x"))
    assert {fault.name for fault in in_clear} > COMMITS


@pytest.mark.parametrize("name", sorted(COMMITS))
def test_a_fault_of_commits_that_is_named_is_refused_with_a_sentence(secured: str, name: str) -> None:
    with pytest.raises(Refused, match=rf"{name} cannot be injected here: needs a connection that is not encrypted"):
        run(Plan(database=secured, faults=["kill", name]))


def test_of_several_hosts_the_one_that_answers_as_a_primary_is_meant(secured: str, database: str) -> None:
    given, nobody = conninfo_to_dict(secured), free_port()
    several = make_conninfo(secured, host="localhost,localhost", port=f"{nobody},{given['port']}")
    for each in (several, make_conninfo(several, hostaddr="127.0.0.1,127.0.0.1")):
        meant = look(each)
        found = conninfo_to_dict(str(meant.url))
        assert (found["host"], str(found["port"])) == ("localhost", str(given["port"]))
        with proxy_before(str(meant.url)) as proxy:
            assert asks(proxy.url) == (given["dbname"], True)
    socket = conninfo_to_dict(database)["host"]
    mixed = look(make_conninfo(database, host=f"127.0.0.1,{socket}", port=f"{nobody},5432"))
    assert conninfo_to_dict(str(mixed.url))["host"] == socket
    assert not mixed.encrypted


def test_what_the_url_leaves_to_the_environment_is_written_out(
    database: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    given = conninfo_to_dict(database)
    monkeypatch.setenv("PGHOST", str(given["host"]))
    monkeypatch.setenv("PGUSER", "postgres")
    monkeypatch.setenv("PGDATABASE", str(given["dbname"]))
    monkeypatch.setenv("PGPASSWORD", "not asked for")
    found = conninfo_to_dict(str(look("postgresql://").url))
    wanted = ("host", "user", "dbname")
    assert [found[name] for name in wanted] == [given[name] for name in wanted]
    assert found["password"] == "not asked for"


@pytest.mark.parametrize(("url", "error"), [("postgresql://%zz", Misconfigured), ("host=/nowhere", Unavailable)])
def test_a_database_that_is_none_is_one_sentence(url: str, error: type[Exception]) -> None:
    with pytest.raises(error) as said:
        look(url)
    assert "\n" not in str(said.value)


@pytest.mark.parametrize("url", [None, "embedded:", "embedded:/somewhere"])
def test_a_server_of_our_own_is_not_asked_before_it_runs(url: str | None) -> None:
    assert look(url) == Database(url)


def test_the_url_of_the_proxy_keeps_the_server_s_name_and_all_else() -> None:
    given = "postgresql://me:p%40ss@db.example:6000/data%20base?sslmode=verify-full&application_name=x%20y"
    assert url_at(given, 77).startswith("postgresql://me:p%40ss@/data%20base?")
    assert _parts(url_at(given, 77)) == {
        "user": "me",
        "password": "p@ss",
        "host": "db.example",
        "hostaddr": "127.0.0.1",
        "port": "77",
        "dbname": "data base",
        "sslmode": "verify-full",
        "application_name": "x y",
    }


def test_a_server_on_a_socket_speaks_in_clear_whatever_it_was_asked_for() -> None:
    given = "postgresql://me@/db?host=/run/pg&sslmode=require&sslrootcert=system&channel_binding=require"
    plain = {"user": "me", "dbname": "db", "sslmode": "disable", "gssencmode": "disable"}
    assert _parts(url_at(given, 77)) == {**plain, "host": "127.0.0.1", "hostaddr": "127.0.0.1", "port": "77"}
    assert _parts(url_on(url_at(given, 77), "/a folder", 5432)) == {**plain, "host": "/a folder", "port": "5432"}


def _parts(url: str) -> dict[str, str]:
    return {name: str(value) for name, value in conninfo_to_dict(url).items()}
