"""Measured processes do not outlive whoever measures, not even while they wait for the start."""

from __future__ import annotations

import subprocess
import sys

CHILD = (
    "import os, sys\nfrom kept.bench import child\n"
    "tally = child.begin()\nprint(os.getpid(), flush=True)\nchild.start(tally)\n"
)
PARENT = """
import os, pathlib, subprocess, sys
from kept.bench.tally import Tally
path = pathlib.Path(sys.argv[1])
Tally.create(path, target=1)
env = os.environ | {"BENCH_TALLY": str(path), "BENCH_PARENT": str(os.getpid() if sys.argv[2] == "ours" else 1)}
# It ignores SIGTERM, as a worker does whose loop stands still.
code = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\\n" + sys.argv[3]
child = subprocess.Popen([sys.executable, "-c", code], env=env)
sys.exit(child.wait())
"""


def test_a_process_that_waits_for_the_start_ends_when_its_parent_is_killed(tmp_path):
    command = [sys.executable, "-c", PARENT, str(tmp_path / "tally"), "ours", CHILD]
    parent = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    assert int(parent.stdout.readline()) != parent.pid
    parent.kill()
    parent.wait()
    # Its output ends when it does.
    assert parent.communicate(timeout=60) == ("", None)


def test_a_process_whose_parent_died_before_it_began_ends_at_once(tmp_path):
    command = [sys.executable, "-c", PARENT, str(tmp_path / "tally"), "another", CHILD]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (1, "", "")


def test_a_child_of_a_measured_process_is_not_measured(tmp_path):
    code = (
        "import subprocess, sys\nfrom kept.bench import child\nassert child.begin() is child.begin() is not None\n"
        "inner = 'from kept.bench import app; print(app._tally)'\n"
        "sys.exit(subprocess.run([sys.executable, '-c', inner]).returncode)\n"
    )
    command = [sys.executable, "-c", PARENT, str(tmp_path / "tally"), "ours", code]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "None\n", "")
