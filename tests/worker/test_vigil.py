"""What a keeper does before it has loaded anything: it waits, deaf and light, until it is needed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kept.worker.board import Board
from support import eventually

KEEP = """
import sys
from time import monotonic
print("begun", flush=True)
from kept.worker.vigil import keep_vigil
began = monotonic()
keep_vigil({parent}, {board}, {seconds})
print(monotonic() - began, [each for each in ("psycopg", "asyncio", "msgspec") if each in sys.modules])
"""


@pytest.fixture
def board() -> Iterator[Board]:
    one = Board.create(1)
    yield one
    one.close()


def vigil(board: Board, seconds: float, parent: str = str(os.getpid())) -> subprocess.Popen[str]:
    code = KEEP.format(parent=parent, board=board.fd, seconds=seconds)
    return subprocess.Popen([sys.executable, "-c", code], pass_fds=[board.fd], stdout=subprocess.PIPE, text=True)


def test_it_ends_in_time_and_has_loaded_nothing_of_what_a_lease_is_renewed_with(board: Board) -> None:
    lasted, loaded = vigil(board, 0.4).communicate()[0].splitlines()[1].split(maxsplit=1)
    assert float(lasted) >= 0.4
    assert loaded == "[]"


@pytest.mark.parametrize("say", [Board.say_calm, Board.say_left, Board.say_closed])
def test_a_word_of_the_worker_ends_it(board: Board, say) -> None:
    with vigil(board, 600) as keeper:
        say(board)
        assert keeper.wait(30) == 0


def test_what_ends_the_worker_by_the_terminal_does_not_end_it(board: Board) -> None:
    with vigil(board, 600) as keeper:
        eventually(lambda: ignores(keeper.pid) >= {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}, what="deafness")
        for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            keeper.send_signal(each)
        board.say_calm()
        assert keeper.wait(30) == 0


def test_the_end_of_the_worker_ends_it(board: Board) -> None:
    worker = f"""
import os, subprocess, sys
code = {KEEP!r}.format(parent=os.getpid(), board={board.fd}, seconds=600)
keeper = subprocess.Popen([sys.executable, "-c", code], pass_fds=[{board.fd}], stdout=subprocess.PIPE)
keeper.stdout.readline()
print(keeper.pid, flush=True)
os.kill(os.getpid(), 9)
"""
    with subprocess.Popen([sys.executable, "-c", worker], pass_fds=[board.fd], stdout=subprocess.PIPE, text=True) as it:
        assert it.stdout is not None
        keeper = int(it.stdout.readline())
        assert it.wait(30) == -signal.SIGKILL
    eventually(lambda: not lives(keeper), what="the keeper's end")


def ignores(pid: int) -> set[signal.Signals]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    mask = next(int(line.split()[1], 16) for line in lines if line.startswith("SigIgn"))
    return {each for each in signal.Signals if mask >> (each - 1) & 1}


def lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
