"""What Linux tells of processes and folders."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kept.bench.proc import cpu_seconds, family, is_in_memory, is_server, rss_mib, running_seconds
from kept.errors import Refused
from support import eventually


def test_a_process_is_seen_with_its_children():
    child = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()", "keeper"], stdin=subprocess.PIPE)
    try:
        # A process that is just being made has no command line yet.
        found = eventually(lambda: (seen := family(os.getpid())) and "keeper" in seen and seen, what="the child")
        assert (found["worker"], found["keeper"]) == (os.getpid(), child.pid)
    finally:
        child.communicate()


def test_a_process_uses_time_and_memory():
    assert cpu_seconds(os.getpid()) > 0
    assert running_seconds(os.getpid()) > 0
    assert 5 < rss_mib(os.getpid()) < 10_000


def test_a_server_process_is_told_from_others(conn):
    assert is_server(conn.info.backend_pid)
    assert not is_server(os.getpid())
    assert not is_server(2**22 + 1)


def test_a_process_that_is_not_there_is_refused():
    with pytest.raises(Refused):
        family(2**22 + 1)


def test_a_folder_in_memory_is_told_from_one_on_a_disk():
    memory = Path("/dev/shm")
    if not memory.is_dir():
        pytest.skip("no file system in memory here")
    assert is_in_memory(memory)
    assert not is_in_memory(Path("/proc"))
