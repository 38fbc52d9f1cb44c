"""A run from its start to its judgement: real workers, killed for real, on the test's own database."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from contextlib import suppress
from itertools import islice
from pathlib import Path
from random import Random

import psycopg
import pytest
from msgspec import structs

from kept.db.embedded import Embedded
from kept.db.embedded.places import socket_folder
from kept.errors import Refused
from kept.verify import calm, faults, ledger, leftovers, pooler
from kept.verify.books import Books
from kept.verify.crew import MARK, command_of, running
from kept.verify.faults.fault import Fault
from kept.verify.injector import sequence
from kept.verify.record import judged_again
from kept.verify.run import CLIENT, WORKER, Plan, run
from support import eventually

FIRST = (CLIENT << 40) + 1  # the token of the first job that a fault asks for

# A worker whose handlers forget to write down every tenth effect, as if they had never run.
FORGETFUL = """
from kept.verify.ledger import Ledger
note = Ledger.note
def forgetful(self, what, token, job, attempt):
    if what != "effect" or token % 10:
        note(self, what, token, job, attempt)
Ledger.note = forgetful
from kept.cli import main
main()
"""

# A worker that fires no schedule.
DEAF = """
from kept.schedules.runner import Fired, Firing
async def fire(self, *args, **options):
    return Fired()
Firing.fire = fire
from kept.cli import main
main()
"""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Where temporary folders go, so that a test can see what is left."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return tmp_path


def schemas(database: str) -> list[str]:
    with psycopg.connect(database) as conn:
        return [row[0] for row in conn.execute("select nspname from pg_namespace where nspname like 'kept_verify%'")]


def marked(folder: Path) -> list[int]:
    """Every process of a run in *folder*, whoever started it."""
    found = []
    for each in Path("/proc").iterdir():
        if each.name.isdigit():
            try:
                environ = (each / "environ").read_bytes()
            except OSError:
                continue
            if MARK.encode() in environ and str(folder).encode() in environ:
                found.append(int(each.name))
    return found


def stopped(folder: Path) -> list[int]:
    found = []
    for pid in marked(folder):
        with suppress(OSError):
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T":
                found.append(pid)
    return found


@pytest.mark.acceptance
def test_a_run_with_faults_breaks_no_promise_and_leaves_nothing(database, tmp_path):
    kept = tmp_path / "kept"
    report = run(Plan(database=database, seconds=5, jobs=600, workers=3, faults=["kill", "exit"], seed=1, keep=kept))
    assert report.breaches == ()
    assert report.accepted >= 600
    assert report.faults.keys() == {"kill", "exit"}
    assert report.slots_fired >= 3
    assert schemas(database) == []
    assert marked(tmp_path) == []
    assert list(tmp_path.iterdir()) == [kept]
    assert Books(ledger.told(kept)).counts()["committed"] == report.accepted
    hits = {hit.fault: hit for hit in ledger.hits(kept)}
    assert (hits["kill"].repeats, hits["exit"].repeats) == ("victims", "victims")
    assert hits["kill"].killed
    assert hits["exit"].jobs
    assert judged_again(kept) == structs.replace(report, logs=None)
    assert report.logs == str(kept)


@pytest.mark.acceptance
def test_whoever_is_frozen_past_his_lease_tries_to_write_afterwards_and_is_refused(database, tmp_path):
    kept = tmp_path / "kept"
    report = run(Plan(database=database, seconds=4, jobs=200, workers=2, faults=["stop"], seed=1, keep=kept))
    assert report.breaches == ()
    (hit, *_) = ledger.hits(kept)
    told = [line.what for line in ledger.effects(kept, hit.frozen[0]) if line.token == FIRST]
    assert told == ["began", "lost"], "and not that it failed, which would explain that somebody else began it"


@pytest.mark.acceptance
def test_a_worker_that_is_killed_when_its_job_runs_elsewhere_takes_nothing_back(database, tmp_path):
    kept = tmp_path / "kept"
    report = run(Plan(database=database, seconds=2, jobs=100, workers=2, faults=["stop-kill"], seed=1, keep=kept))
    assert report.breaches == ()
    (hit, *_) = ledger.hits(kept)
    lines = [line for line in ledger.effects(kept) if (line.what, line.token) == ("began", FIRST)]
    began = sorted((line.at, line.pid) for line in lines)
    (_, held), (elsewhere, _) = began
    assert held == hit.frozen[0] == hit.killed[0]
    assert hit.began < elsewhere < hit.healed, "it ran elsewhere before the first was killed"


@pytest.mark.acceptance
def test_the_process_in_which_a_suspect_runs_is_killed_in_the_midst_of_it_and_the_job_is_done(database, tmp_path):
    kept = tmp_path / "kept"
    report = run(Plan(database=database, seconds=2, jobs=100, workers=2, faults=["child"], seed=1, keep=kept))
    assert report.breaches == ()
    hit, *more = ledger.hits(kept)
    assert "with job" in hit.victim
    (token,) = {line.token for line in ledger.effects(kept) if line.job == hit.jobs[0]}
    began = sorted((line.at, line.pid) for line in ledger.effects(kept) if (line.what, line.token) == ("began", token))
    assert len(began) == 3
    assert began[1][1] == hit.killed[0], "once it ended its worker, once its process was killed, and then it is done"
    assert report.recovery["child"].jobs == 1 + len(more)


@pytest.mark.acceptance
def test_who_was_started_again_does_not_end_when_the_faults_do(database, tmp_path):
    ended = []

    def at_the_end_of_faults(said: str) -> None:
        if said.startswith("waiting until"):
            folder = next(tmp_path.rglob(f"{ledger.LEDGER}-*")).parent
            last = max(ledger.effects(folder), key=lambda effect: effect.at)
            watch = os.pidfd_open(last.pid)
            ended.append(bool(select.select([watch], [], [], 0.5)[0]))
            os.close(watch)

    plan = Plan(database=database, seconds=3, jobs=300, workers=1, faults=["kill"], seed=1)
    run(plan, at_the_end_of_faults)
    assert ended == [False]


@pytest.mark.acceptance
def test_a_server_that_never_had_kept_is_left_as_it_was(tmp_path_factory):
    with Embedded(tmp_path_factory.mktemp("untouched") / "pg", options={"fsync": "off"}) as server:
        run(Plan(database=server.url(), seconds=0.01, jobs=20, workers=1, producers=1, faults=[]))
        assert schemas(server.url()) == []
        with psycopg.connect(server.url()) as conn:
            assert conn.execute("select from pg_roles where rolname ~ '^kept'").fetchall() == []


@pytest.mark.acceptance
def test_a_run_in_which_handlers_are_left_out_is_a_breach(database):
    worker = ("-c", FORGETFUL, *WORKER[2:])
    report = run(Plan(database=database, seconds=2, jobs=300, workers=1, producers=1, faults=[], worker=worker))
    assert {breach.promise for breach in report.breaches} == {3}
    assert report.lost > 10
    assert report.logs is not None, "nobody asked for them, and without them nobody would learn why"
    assert judged_again(Path(report.logs)) == structs.replace(report, logs=None)


@pytest.mark.acceptance
def test_a_run_in_which_no_slot_fires_is_a_breach(database, monkeypatch):
    monkeypatch.setattr(calm, "CALM", 3.0)
    worker = ("-c", DEAF, *WORKER[2:])
    report = run(Plan(database=database, seconds=6, jobs=50, workers=1, producers=1, faults=[], worker=worker))
    assert {breach.promise for breach in report.breaches} == {9}
    assert report.slots_fired == 0


@pytest.mark.acceptance
@pytest.mark.parametrize(("told", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_run_that_is_told_to_stop_leaves_nothing(database, tmp_path, told, code):
    command = [sys.executable, "-c", "from kept.cli import main; main()", "verify", "--database", database]
    process = subprocess.Popen(
        [*command, "--faults", "stop"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        eventually(lambda: stopped(tmp_path), 60, what="a worker that is stopped")
        process.send_signal(told)
        assert process.wait(60) == code
    finally:
        process.kill()
        process.communicate()
    assert schemas(database) == []
    assert marked(tmp_path) == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.acceptance
def test_a_run_that_is_killed_leaves_no_process_and_the_next_one_removes_the_rest(database, tmp_path):
    command = [sys.executable, "-c", "from kept.cli import main; main()", "verify", "--database", database]
    process = subprocess.Popen([*command, "--faults", "recursion", "--workers", "1"], stdout=subprocess.DEVNULL)
    try:
        eventually(lambda: len(marked(tmp_path)) >= 4, 60, what="producers, a worker and its keeper")
        with psycopg.connect(database, autocommit=True) as conn:
            assert leftovers.sweep_schemas(conn) == [], "it is in use"
        assert leftovers.sweep_folders() == []
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    eventually(lambda: not marked(tmp_path), 30, what="the end of every process")
    (left,) = schemas(database)
    with psycopg.connect(database, autocommit=True) as conn:
        assert eventually(lambda: leftovers.sweep_schemas(conn), what="its last session to end") == [left]
    assert len(leftovers.sweep_folders()) == 1
    assert schemas(database) == list(tmp_path.iterdir()) == []


@pytest.mark.debian
@pytest.mark.acceptance
@pytest.mark.skipif(pooler.missing() is not None, reason="pgbouncer is not installed")
def test_the_pooler_of_a_run_that_was_killed_ends_with_the_next_run(tmp_path):
    def poolers() -> list[int]:
        return [pid for pid in running() if f"{tmp_path}/" in (said := command_of(pid)) and pooler.FILE in said]

    command = [sys.executable, "-c", "from kept.cli import main; main()", "verify", "--faults", "pgbouncer"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        eventually(lambda: poolers() and len(marked(tmp_path)) >= 4, 60, what="workers behind a pooler")
    finally:
        process.kill()
        process.wait()
    eventually(lambda: not marked(tmp_path), 30, what="the end of every process")
    assert len(poolers()) == 1
    (folder,) = tmp_path.iterdir()
    sockets = socket_folder(folder, pooler.account(folder))
    assert sockets.stat().st_mode & 0o077 == 0
    assert "listen_addr =\n" in (folder / pooler.FILE).read_text(), "it has no other door"
    assert len(leftovers.sweep_folders()) == 1
    eventually(lambda: not poolers(), what="the end of the pooler")
    assert not sockets.exists()


@pytest.mark.acceptance
def test_a_run_that_ends_before_a_worker_is_up_waits_for_one(database):
    report = run(Plan(database=database, seconds=0.01, jobs=20, workers=1, producers=1, faults=[]))
    assert report.breaches == ()
    assert report.accepted >= 20


def test_faults_are_named_one_by_one_or_by_group():
    assert [each.name for each in faults.chosen(["stop", "kill"])] == ["stop", "kill"]
    assert {each.group for each in faults.chosen(["worker"])} == {"worker"}
    assert list(faults.chosen([])) == []
    with pytest.raises(Refused, match="there is no 'kil'"):
        faults.chosen(["kil"])


def test_every_fault_has_a_name_of_its_own_and_says_what_it_does():
    names = [each.name for each in faults.ALL]
    assert len(set(names)) == len(names)
    assert not {each.group for each in faults.ALL} & set(names)
    assert all(type(each).__doc__ != Fault.__doc__ for each in faults.ALL)


def test_the_same_seed_draws_the_same_faults_and_each_comes_once_in_a_round():
    def drawn(seed: int) -> list[str]:
        return [each.name for each in islice(sequence(faults.ALL, Random(seed)), 3 * len(faults.ALL))]

    assert drawn(1) == drawn(1) != drawn(2)
    assert sorted(drawn(1)[: len(faults.ALL)]) == sorted(each.name for each in faults.ALL)
