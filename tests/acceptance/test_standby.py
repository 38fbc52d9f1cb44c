"""A standby is no place to work (promise 2): what is asked of it is refused with a sentence, until it is promoted."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import psycopg
import pytest

from fleet import Jobs, Member, fleet_of
from kept import App, Unavailable
from kept.config import Settings
from kept.db import migrate
from kept.db.embedded import Embedded
from standby import OPTIONS, Pair, pair, place
from support import eventually

pytestmark = pytest.mark.acceptance

READ_ONLY = "this connection is read-only, as on a standby; Kept needs the primary"
LONG = {"KEPT_LEASE": "60s", "KEPT_RENEW": "500ms"}  # longer than any failover here takes


@pytest.fixture(scope="module")
def lasting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """A pair that every test may ask and none may change."""
    with pair(tmp_path_factory.mktemp("pair")) as servers:
        yield servers


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[Pair]:
    """A pair of the test's own."""
    with pair(tmp_path / "pair") as servers:
        yield servers


@pytest.fixture
def single(tmp_path: Path) -> Iterator[Embedded]:
    """A server without a standby."""
    with Embedded(tmp_path / "pg", options=OPTIONS) as server:
        with psycopg.connect(server.url(), autocommit=True) as conn:
            migrate.apply(conn)
        yield server


@contextmanager
def jobs_of(server: Embedded) -> Iterator[Jobs]:
    with psycopg.connect(server.url(), autocommit=True) as conn:
        yield Jobs(conn)


# --- asked for what it cannot do


def test_an_enqueue_on_a_standby_is_something_to_try_later(lasting: Pair) -> None:
    app = App(lasting.standby.url(), settings=Settings())

    @app.task()
    def greet(whom: str) -> None: ...

    with closing(app), psycopg.connect(lasting.standby.url()) as tx:
        for call in (
            lambda: greet.enqueue("you"),
            lambda: greet.using(key="k").enqueue("you"),
            lambda: greet.using(tx=tx).enqueue("you"),
            lambda: app.enqueue_many([greet.bind("you")]),
            lambda: asyncio.run(greet.aenqueue("you")),
        ):
            with pytest.raises(Unavailable) as raised:
                call()
            assert str(raised.value) == READ_ONLY
    with jobs_of(lasting.primary) as jobs:
        assert not jobs.states()


@pytest.mark.parametrize(
    "command",
    [
        ["worker", "errands:app"],
        ["worker", "errands:app", "--migrate"],
        ["tick", "errands:app"],
        ["sync", "errands:app"],
        ["migrate"],
        ["status"],
        ["jobs", "list"],
        ["lanes"],
    ],
    ids=" ".join,
)
def test_a_command_on_a_standby_says_so_and_asks_to_be_tried_later(
    lasting: Pair, tmp_path: Path, command: list[str]
) -> None:
    with fleet_of(lasting.standby.url(), tmp_path) as fleet:
        tried = fleet.run(*command)
    assert (tried.returncode, tried.stdout) == (75, "")
    assert tried.stderr == f"kept: {READ_ONLY}\n"


def test_the_driver_finds_the_primary_among_several(lasting: Pair, tmp_path: Path) -> None:
    url = lasting.url(target_session_attrs="read-write")
    with fleet_of(url, tmp_path) as fleet:
        assert fleet.run("status").returncode == 0
        assert fleet.run("tick", "errands:app").returncode == 0


# --- failover


@pytest.mark.parametrize("options", [{}, {"target_session_attrs": "read-write"}], ids=["plain", "read-write"])
def test_a_worker_goes_on_by_itself_on_the_standby_that_was_promoted(
    servers: Pair, tmp_path: Path, options: dict[str, str]
) -> None:
    count = 300
    with fleet_of(servers.url(**options), tmp_path, **LONG) as fleet:
        worker = fleet.start()
        with jobs_of(servers.primary) as jobs:
            running = jobs.enqueue("hold", gate=str(fleet.gate()))
            fleet.sees("start", running)
            done = jobs.enqueue_many("note", count)
            eventually(lambda: jobs.value("select count(*) from kept.history") == count, 60, what="the first jobs")
            later = [jobs.enqueue("note", delay=2) for _ in range(20)]
        servers.caught_up()
        servers.primary._cluster.stop("immediate")
        said = "read-only" if options else READ_ONLY
        eventually(lambda: said in " ".join(errors(worker)), 60, what="a worker that finds the standby and says so")
        servers.promote()
        worker.says("connection_restored", 60)
        fleet.gate().touch()
        with jobs_of(servers.standby) as jobs:
            more = jobs.enqueue_many("note", 20)
            assert jobs.all_settled(told=fleet.told) == {"done": count + 41}
            assert jobs.one(running)["attempt"] == 1, "its lease outlived the failover"
        ends = sorted(effect.job for effect in fleet.effects("end"))
        assert ends == sorted([running, *done, *later, *more]), "each once: all of it had been replicated"
        assert not worker.lines("worker_fenced")


def errors(worker: Member) -> list[str]:
    return [line["error"] for line in worker.lines("connection_lost")]


def test_a_job_whose_settlement_was_not_replicated_runs_again(servers: Pair, tmp_path: Path) -> None:
    with fleet_of(servers.url(), tmp_path, **LONG) as fleet:
        worker = fleet.start()
        with jobs_of(servers.primary) as jobs:
            job = jobs.enqueue("hold", gate=str(fleet.gate()))
            fleet.sees("start", job)
            servers.caught_up()
            servers.cut()
            fleet.gate().touch()
            jobs.settled(job)
        servers.primary._cluster.stop("immediate")
        servers.promote()
        worker.says("connection_restored", 60)
        with jobs_of(servers.standby) as jobs:
            jobs.settled(job)
        assert len(fleet.effects("end", job)) == 2
        assert not worker.lines("worker_fenced")


def test_a_claim_that_was_not_replicated_is_given_up_and_its_job_runs_under_a_new_identity(
    servers: Pair, tmp_path: Path
) -> None:
    with fleet_of(servers.url(), tmp_path, **LONG) as fleet:
        worker = fleet.start()
        with jobs_of(servers.primary) as jobs:
            fleet.run("lanes", "pause", "default", database=servers.primary.url())
            job = jobs.enqueue("hold", gate=str(fleet.gate()))
            servers.caught_up()
            servers.cut()
            fleet.run("lanes", "resume", "default", database=servers.primary.url())
            fleet.sees("start", job)
        servers.primary._cluster.stop("immediate")
        servers.promote()
        fenced = worker.says("worker_fenced", 60)
        assert fenced["cancelled"] == 1
        fleet.sees("cancelled", job)
        with jobs_of(servers.standby) as jobs:
            assert not jobs.value("select count(*) from kept.job where worker = %s", fenced["old"])
            fleet.run("lanes", "resume", "default", database=servers.standby.url())
            fleet.sees("start", job, count=2)
            fleet.gate().touch()
            assert jobs.settled(job)["charged"] == 1
        assert len(fleet.effects("end", job)) == 1


def test_an_old_primary_that_comes_back_is_not_worked_on(servers: Pair, tmp_path: Path) -> None:
    with fleet_of(servers.url(target_session_attrs="read-write"), tmp_path, **LONG) as fleet:
        worker = fleet.start()
        with jobs_of(servers.primary) as jobs:
            jobs.settled(jobs.enqueue("note"))
        servers.caught_up()
        servers.primary._cluster.stop("immediate")
        servers.promote()
        worker.says("connection_restored", 60)
        servers.primary.acquire()  # by itself: it takes writes, and stands first in the workers' URL
        with jobs_of(servers.primary) as old, jobs_of(servers.standby) as new:
            astray = old.enqueue("note")
            new.conn.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity where application_name like 'kept worker%'"
            )
            eventually(lambda: "timeline" in " ".join(errors(worker)), 60, what="a worker that refuses the old primary")
            assert old.state(astray) == "pending"
        servers.primary._cluster.stop("immediate")
        with jobs_of(servers.standby) as new:
            new.settled(new.enqueue("note"))


# --- a database that turns read-only under a worker


def test_a_session_that_turns_read_only_is_left_until_it_takes_writes_again(single: Embedded, tmp_path: Path) -> None:
    with jobs_of(single) as jobs, fleet_of(single.url(), tmp_path, **LONG) as fleet:
        worker = fleet.start()
        jobs.settled(jobs.enqueue("note"))
        _read_only(jobs, "on")
        eventually(lambda: READ_ONLY in errors(worker), 30, what="a worker that says what is wrong")
        assert not worker.lines("runner_failed")
        _read_only(jobs, "off")
        worker.says("connection_restored", 60)
        jobs.settled(jobs.enqueue("note"))
        assert not worker.lines("worker_fenced")


def _read_only(jobs: Jobs, value: str) -> None:
    jobs.conn.execute("set default_transaction_read_only = off")
    jobs.conn.execute(f"alter system set default_transaction_read_only = {value}")
    jobs.conn.execute("select pg_reload_conf()")


# --- the first of several hosts is dead, and does not even refuse


@contextmanager
def silent_host() -> Iterator[int]:
    """The port of a host that accepts connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


@pytest.mark.parametrize("limit", ["", "&connect_timeout=2"], ids=["default", "2s"])
def test_a_keeper_gets_past_a_host_that_is_silent_however_short_the_lease(
    single: Embedded, tmp_path: Path, limit: str
) -> None:
    host, port = place(single)
    with silent_host() as silent:
        url = f"postgresql://postgres@/postgres?host=127.0.0.1,{host}&port={silent},{port}{limit}"
        with fleet_of(url, tmp_path, KEPT_LEASE="6s", KEPT_RENEW="500ms") as fleet, jobs_of(single) as jobs:
            worker = fleet.start()
            job = jobs.enqueue("hold", gate=str(fleet.gate()))
            fleet.sees("start", job)
            lease = jobs.value("select lease_until from kept.worker where state = 'live'")
            renewed = "select lease_until > %s + interval '6 seconds' from kept.worker where state = 'live'"
            eventually(lambda: jobs.value(renewed, lease), 30, what="a lease that outlives its length")
            fleet.gate().touch()
            assert jobs.settled(job)["attempt"] == 1
            assert not worker.lines("worker_fenced")
