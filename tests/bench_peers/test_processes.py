"""Programs of the peers: what they say, how they fail, and that nothing of them is left."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from peers.catalogue import BY_NAME
from peers.model import PeerFailed, Sizes
from peers.processes import Process, Reports, ask
from peers.run import Run
from support import eventually

ADAPTERS = Path(__file__).parents[2] / "bench-peers" / "adapters"


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def test_an_adapter_answers_with_its_last_line(tmp_path):
    assert ask(python("print('chatter'); print('{\"seconds\": 2}')"), {}, tmp_path) == {"seconds": 2}


def test_an_adapter_that_fails_is_quoted(tmp_path):
    with pytest.raises(PeerFailed, match="ValueError: no such queue"):
        ask(python("raise ValueError('no such queue')"), {}, tmp_path)


def test_settings_of_whoever_runs_the_bench_do_not_reach_it(tmp_path, monkeypatch):
    monkeypatch.setenv("KEPT_CONCURRENCY", "999")
    code = "import json, os; print(json.dumps({n: v for n, v in os.environ.items() if n.startswith('KEPT_')}))"
    assert ask(python(code), {"KEPT_BATCH": "7"}, tmp_path) == {"KEPT_BATCH": "7"}


def test_handlers_report_the_first_job_and_the_last(tmp_path):
    code = "from tally import Tally; tally = Tally(); [tally.note(n) for n in range(20)]"
    with Reports() as reports:
        env = {"PYTHONPATH": str(ADAPTERS), "BENCH_REPORT": str(reports.path), "BENCH_JOBS": "20", "BENCH_STARTS": "1"}
        with Process(python(code + "; import time; time.sleep(60)"), env, tmp_path / "log") as process:
            first = reports.next(process, 30)["first"]
            done = reports.next(process, 30)
    assert first <= done["starts"]["1"] <= done["last"]
    assert len(done["marks"]) == 10
    assert list(done["starts"]) == [str(n) for n in range(20)]
    assert done["marks"] == sorted(done["marks"])


def test_a_worker_that_dies_is_quoted_at_once(tmp_path):
    with (
        Reports() as reports,
        Process(python("raise SystemExit('error: no database')"), {}, tmp_path / "log") as process,
        pytest.raises(PeerFailed, match="ended with 1: error: no database"),
    ):
        reports.next(process, 60)


def test_nothing_of_a_worker_is_left(tmp_path):
    # A worker that will not be told, and a child of its own.
    code = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print(child.pid, flush=True)
time.sleep(600)
"""
    with Process(python(code), {}, tmp_path / "log", grace=0.1) as process:
        eventually(lambda: process.log.read_text().strip())
        child = int(process.log.read_text())
        assert alive(child)
    eventually(lambda: not alive(child))


def alive(pid: int) -> bool:
    try:
        # A zombie that nobody has fetched yet is dead.
        return " Z " not in Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_a_peer_that_fails_is_noted_and_left_out_and_the_others_go_on():
    peers = [BY_NAME[name] for name in ("kept", "celery", "arq")]
    run = Run(peers, ["drain"], Sizes(), lambda _: None)
    worked = []

    def act(peer):
        if peer.name == "celery":
            raise PeerFailed("no such version")
        worked.append(peer.name)

    run.each(peers, "install", act)
    run.each(peers, "drain", act)
    assert worked == ["kept", "arq", "kept", "arq"]
    assert run.results.failed == {"celery": "install: no such version"}
