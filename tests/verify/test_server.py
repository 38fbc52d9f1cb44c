"""The server that `kept verify` harms: it always answers again, with everything that it had confirmed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from kept.verify.server import Server

pytestmark = pytest.mark.acceptance


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("verify") / "pg") as server:
        with server.connect() as conn:
            conn.execute("create table note (text text)")
        yield server


@pytest.mark.parametrize("how", ["fast", "immediate", "kill", "backend"])
def test_a_server_that_was_harmed_answers_again_with_all_it_had_confirmed(server: Server, how: str) -> None:
    with psycopg.connect(server.url, autocommit=True, application_name="victim") as victim:
        victim.execute("insert into note values (%s)", [how])
        match how:
            case "kill":
                server.kill()
            case "backend":
                (pid,) = server.backends("victim%")
                assert pid == victim.info.backend_pid
                server.kill_backend(pid)
            case _:
                server.restart("fast" if how == "fast" else "immediate")
        with pytest.raises(psycopg.OperationalError):
            victim.execute("select 1")
    with server.connect() as conn:
        assert conn.execute("select count(*) from note where text = %s", [how]).fetchone() == (1,)


def test_a_server_that_crashed_stays_down_until_it_is_started(server: Server) -> None:
    server.crash()
    assert not server.answers()
    server.start()
    assert server.answers()


def test_a_server_that_stopped_is_gone(tmp_path: Path) -> None:
    with Server(tmp_path / "pg") as server:
        assert server.answers()
    assert not server.answers()
