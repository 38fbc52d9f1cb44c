"""Numbers shared by processes: what the one tells, the other reads."""

from __future__ import annotations

import subprocess
import sys

from kept.bench.tally import Tally
from support import eventually


def test_what_one_process_tells_another_reads(tmp_path):
    path = tmp_path / "tally"
    ours = Tally.create(path, target=1000, stamps=3)
    code = (
        "import pathlib, sys\nfrom kept.bench.tally import Tally\n"
        "t = Tally(pathlib.Path(sys.argv[1]))\nt.start()\nt.settled(200)\nt.settled(800)\nt.stamp(2)\nt.done_in(1)\n"
    )
    child = subprocess.Popen([sys.executable, "-c", code, str(path)])
    try:
        eventually(lambda: ours.ready, what="the child")
        assert ours.started == ours.count == 0, "it waits for the start"
        ours.go()
        assert child.wait(timeout=30) == 0
    finally:
        child.kill()
        child.wait()
    assert ours.count == 1000
    assert 0 < ours.started <= ours.last
    assert [share for _, share in ours.curve()] == [0.2, 1.0]
    assert (ours.stamped(1), ours.stamped(2) > 0) == (0, True)
    assert (ours.done(1), ours.done(2)) == (1, 0)
    ours.close()


def test_more_than_the_target_is_counted_too(tmp_path):
    tally = Tally.create(tmp_path / "tally", target=10)
    tally.settled(25)
    assert tally.count == 25
    assert [share for _, share in tally.curve()] == [1.0]
    tally.close()
