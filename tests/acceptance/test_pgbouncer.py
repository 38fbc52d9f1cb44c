"""Behind a pooler in transaction mode: no session state, no LISTEN, the same work."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import psycopg
import pytest

from fleet import Fleet, Jobs
from support import eventually

PGBOUNCER = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")

pytestmark = [
    pytest.mark.acceptance,
    pytest.mark.debian,
    pytest.mark.skipif(PGBOUNCER is None, reason="pgbouncer is not installed"),
]


@pytest.fixture
def pooled(database: str, tmp_path: Path) -> Iterator[str]:
    """The URL of the test's database behind pgbouncer in transaction mode."""
    parts = urlsplit(database)
    given = parse_qs(parts.query)
    host = parts.hostname or given["host"][0]
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    (tmp_path / "pgbouncer.ini").write_text(
        f"[databases]\n* = host={host} port={given.get('port', ['5432'])[0]} user=postgres\n"
        f"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\nauth_type = any\n"
        "pool_mode = transaction\ndefault_pool_size = 5\nmax_client_conn = 100\n"
        "ignore_startup_parameters = extra_float_digits\n"
    )
    account = ["-u", "nobody"] if os.geteuid() == 0 else []
    for folder in (tmp_path, *tmp_path.parents[:2]):
        folder.chmod(0o755)
    with (tmp_path / "pgbouncer.log").open("wb") as log:
        process = subprocess.Popen([PGBOUNCER, *account, tmp_path / "pgbouncer.ini"], stdout=log, stderr=log)
    url = f"postgresql://postgres@127.0.0.1:{port}{parts.path}"
    try:
        eventually(lambda: answers(url), what=f"pgbouncer: {(tmp_path / 'pgbouncer.log').read_text()}")
        yield url
    finally:
        process.kill()
        process.wait()


def answers(url: str) -> bool:
    try:
        psycopg.connect(url, connect_timeout=2).close()
    except psycopg.OperationalError:
        return False
    return True


def test_a_worker_behind_pgbouncer_notices_and_works_by_polling(fleet: Fleet, jobs: Jobs, pooled: str) -> None:
    workers = [fleet.start(database=pooled) for _ in range(2)]
    assert all(worker.says("warned")["code"] == "pooled" for worker in workers)
    ids = jobs.enqueue_many("note", 500)
    assert jobs.all_settled(note=fleet.told) == {"done": 500}
    assert sorted(effect.job for effect in fleet.effects("end")) == sorted(ids)
    alone = jobs.enqueue("note")
    assert (jobs.settled(alone)["claimed_at"] - jobs.one(alone)["created_at"]).total_seconds() < 1.2
    assert not jobs.value("select count(*) from kept.sleeper")
    job = jobs.enqueue("hold", gate=str(fleet.gate()))
    (first,) = fleet.sees("start", job)
    victim = next(worker for worker in workers if worker.pid == first.pid)
    victim.kill()
    fleet.sees("start", job, count=2)
    fleet.gate().touch()
    assert jobs.settled(job)["attempt"] == 2
    assert jobs.log(job) == ["requeued:stale"]
