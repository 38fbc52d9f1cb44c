"""The life of an embedded server: who starts it, who joins, who stops it, and what survives which death."""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from kept.db.embedded import Embedded
from kept.errors import Misconfigured, Unavailable
from support import eventually

OPTIONS = {"fsync": "off"}

# A user of the server: tells the URL, stays until its standard input ends, then just exits.
USER = """
import sys
from pathlib import Path
from kept.db.embedded import Embedded
print(Embedded(Path(sys.argv[1]), options={"fsync": "off"}).acquire(), flush=True)
sys.stdin.read()
"""

# A user whose forked child ends the way Python programs do, exit hooks included.
FORKING_USER = """
import os, sys
from pathlib import Path
from kept.db.embedded import Embedded
server = Embedded(Path(sys.argv[1]), options={"fsync": "off"})
server.acquire()
child = os.fork()
if child == 0:
    sys.exit(1 if server.release() else 0)
print(os.waitpid(child, 0)[1], server.alive(), server.release())
"""


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root whose server ran once: tests copy it, because initdb is most of a first start."""
    root = tmp_path_factory.mktemp("prepared") / "pg"
    with Embedded(root, options=OPTIONS):
        return root


@pytest.fixture
def root(prepared: Path, tmp_path: Path) -> Iterator[Path]:
    """A root of this test's own with a stopped server in it; stopped again whatever the test does."""
    root = tmp_path / "pg"
    shutil.copytree(prepared, root, ignore=shutil.ignore_patterns("*.lock", "s"))
    yield root
    if root.exists() and (root / "data" / "PG_VERSION").read_text() == prepared_version(prepared):
        Embedded(root, options=OPTIONS).__enter__().release()


@pytest.fixture
def users(root: Path) -> Iterator[Users]:
    with_root = Users(root)
    yield with_root
    with_root.kill_all()


class Users:
    """Processes that use the server in one root."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._processes: list[subprocess.Popen[str]] = []

    def start(self) -> subprocess.Popen[str]:
        """One more; it may still be starting the server."""
        command = [sys.executable, "-c", USER, str(self._root)]
        pipe = subprocess.PIPE
        self._processes.append(subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True))
        return self._processes[-1]

    def kill_all(self) -> None:
        for process in self._processes:
            process.kill()
            process.communicate()


def prepared_version(prepared: Path) -> str:
    return (prepared / "data" / "PG_VERSION").read_text()


def url_of(user: subprocess.Popen[str]) -> str:
    assert user.stdout is not None
    return user.stdout.readline().strip()


def leave(user: subprocess.Popen[str]) -> int:
    """Let *user* exit by itself."""
    user.communicate()
    return user.returncode


def ask(url: str, question: str) -> object:
    with psycopg.connect(url, autocommit=True) as conn:
        row = conn.execute(question).fetchone()
        assert row is not None
        return row[0]


def started_at(url: str) -> object:
    return ask(url, "select pg_postmaster_start_time()")


def postmaster(root: Path) -> int:
    return int((root / "data" / "postmaster.pid").read_text().split()[0])


def ends(pid: int) -> bool:
    """Is the process, ours or not, over within ten seconds?"""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([descriptor], [], [], 10)[0])
    finally:
        os.close(descriptor)


def test_the_first_one_creates_and_starts_a_server_and_others_join_it(tmp_path: Path) -> None:
    first, second = Embedded(tmp_path / "pg", options=OPTIONS), Embedded(tmp_path / "pg")
    with first, second:
        assert first.url() == second.url()
        assert started_at(first.url()) == started_at(second.url())
        assert ask(first.url("template1"), "select current_database()") == "template1"


def test_the_last_one_out_stops_the_server(root: Path) -> None:
    first, second = Embedded(root, options=OPTIONS), Embedded(root)
    first.acquire()
    second.acquire()
    pid = postmaster(root)
    assert first.release() is False
    assert second.alive()
    assert second.release() is True
    assert ends(pid)
    assert not second.alive()


def test_releasing_without_holding_does_nothing(root: Path) -> None:
    with Embedded(root, options=OPTIONS) as server:
        assert Embedded(root).release() is False
        assert server.alive()


def test_the_last_one_may_leave_the_server_running_for_the_next(root: Path) -> None:
    first, second = Embedded(root, options=OPTIONS), Embedded(root)
    first.acquire()
    before = started_at(first.url())
    assert first.release(stop=False) is True
    assert started_at(second.acquire()) == before
    assert second.release() is True
    assert not second.alive()


def test_acquiring_twice_is_one_hold(root: Path) -> None:
    server = Embedded(root, options=OPTIONS)
    assert server.acquire() == server.acquire()
    assert server.release() is True
    assert not server.alive()


def test_six_starters_at_once_get_one_server_and_the_last_to_exit_stops_it(users: Users, root: Path) -> None:
    shutil.rmtree(root)
    starters = [users.start() for _ in range(6)]
    urls = [url_of(user) for user in starters]
    assert len({started_at(url) for url in urls}) == 1
    pid = postmaster(root)
    assert [leave(user) for user in starters[:5]] == [0] * 5
    assert Embedded(root).alive()
    assert leave(starters[5]) == 0
    assert ends(pid)


def test_a_server_whose_starter_was_killed_is_joined_and_stopped_by_the_next(users: Users, root: Path) -> None:
    starter = users.start()
    before = started_at(url_of(starter))
    starter.kill()
    starter.wait()
    pid = postmaster(root)
    with Embedded(root) as server:
        assert started_at(server.url()) == before
    assert ends(pid)


def test_a_killed_server_is_revived_with_what_was_committed(root: Path) -> None:
    with Embedded(root, options=OPTIONS) as server:
        with psycopg.connect(server.url()) as conn:
            conn.execute("create table kept_promise as select 7 as number")
        os.kill(postmaster(root), signal.SIGKILL)
        assert ask(server.acquire(), "select number from kept_promise") == 7


@pytest.mark.parametrize("how", ["fast", "immediate"])
def test_a_restart_gives_a_new_server_with_the_same_url(root: Path, how: str) -> None:
    with Embedded(root, options=OPTIONS) as server:
        before = started_at(server.url())
        server.restart("fast" if how == "fast" else "immediate")
        assert started_at(server.url()) != before


def test_a_recorded_pid_that_is_another_process_by_now_blocks_no_start_and_harms_nobody(
    root: Path,
) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as bystander:
        with Embedded(root, options=OPTIONS) as server:
            crash_and_record(root, bystander.pid)
            assert server.release() is True
            assert bystander.poll() is None
            assert ask(server.acquire(), "select 1") == 1
        assert bystander.poll() is None
        bystander.communicate(b"\n")
        assert bystander.returncode == 0


def crash_and_record(root: Path, pid: int) -> None:
    """Kill the server and make its pid file name *pid*, as if the system had given the number away."""
    dead = postmaster(root)
    os.kill(dead, signal.SIGKILL)
    assert ends(dead)
    pid_file = root / "data" / "postmaster.pid"
    _, *rest = pid_file.read_text().splitlines(keepends=True)
    pid_file.write_text("".join((f"{pid}\n", *rest)))


def test_a_forked_child_that_exits_takes_nothing_from_its_parent(root: Path) -> None:
    told = subprocess.check_output([sys.executable, "-c", FORKING_USER, str(root)], text=True)
    assert told.split() == ["0", "True", "True"]


def test_a_program_started_by_a_user_does_not_keep_the_server(root: Path) -> None:
    server = Embedded(root, options=OPTIONS)
    server.acquire()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, close_fds=False) as child:
        assert server.release() is True
        child.communicate(b"\n")
    assert not server.alive()


def test_an_interrupted_first_start_leaves_nothing_in_the_way(tmp_path: Path) -> None:
    abandoned = tmp_path / "pg" / "data-new-killed"
    abandoned.mkdir(parents=True)
    (abandoned / "PG_VERSION").write_text("18\n")
    with Embedded(tmp_path / "pg", options=OPTIONS) as server:
        assert server.alive()
        assert not abandoned.exists()


def test_a_server_with_no_connection_left_is_alive(root: Path) -> None:
    options = {
        **OPTIONS,
        "max_connections": "1",
        "superuser_reserved_connections": "0",
        "max_wal_senders": "0",
    }

    def connection() -> psycopg.Connection | None:
        with contextlib.suppress(psycopg.OperationalError):  # the launcher's own look may not have ended yet
            return psycopg.connect(server.url())
        return None

    with Embedded(root, options=options) as server, eventually(connection):
        with pytest.raises(psycopg.OperationalError, match="too many"):
            psycopg.connect(server.url())
        assert server.alive()


def test_releasing_after_the_directory_was_removed_is_no_error(root: Path) -> None:
    server = Embedded(root, options=OPTIONS)
    server.acquire()
    pid = postmaster(root)
    shutil.rmtree(root)
    assert server.release() is True
    # The server would notice by itself within a minute.
    os.kill(pid, signal.SIGQUIT)
    assert ends(pid)


def test_the_settings_are_durable_and_can_be_overridden(root: Path) -> None:
    with Embedded(root) as server:
        assert ask(server.url(), "show fsync") == "on"
        assert ask(server.url(), "show max_connections") == "100"
        assert ask(server.url(), "show listen_addresses") == ""
    with Embedded(root, options={"max_connections": "7", "application_name": "it's mine"}) as server:
        assert ask(server.url(), "show max_connections") == "7"


def test_the_users_own_pg_variables_change_nothing(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"PGPORT": "1", "PGHOST": "nowhere", "PGDATA": "/nowhere", "PGUSER": "x"}.items():
        monkeypatch.setenv(name, value)
    with Embedded(root, options=OPTIONS) as server:
        assert ask(server.url(), "select current_user") == "postgres"


def test_a_setting_the_server_does_not_know_is_told_with_the_servers_words(root: Path) -> None:
    server = Embedded(root, options={"no_such_setting": "1"})
    with pytest.raises(Unavailable, match=r"does not start: .*no_such_setting"):
        server.acquire()
    assert server.release() is False


def test_data_of_another_major_version_is_refused_with_advice(root: Path) -> None:
    (root / "data" / "PG_VERSION").write_text("14\n")
    with pytest.raises(Misconfigured, match=r"made by PostgreSQL 14, but .*KEPT_PG_BIN.*pg_dump"):
        Embedded(root).acquire()
    assert not (root / "data" / "postmaster.pid").exists()
