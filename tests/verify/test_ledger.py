"""Files that only grow, written by processes that are killed."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from kept.verify import ledger
from kept.verify.ledger import Journal, Ledger, Torn
from kept.verify.model import Effect, Hit, Intent, Part, Told
from support import eventually

WRITER = """
import sys
from itertools import count
from pathlib import Path
from kept.verify.ledger import Ledger
book = Ledger(Path(sys.argv[1]))
for n in count():
    book.note("effect", n, n, 1)
"""


def test_what_was_written_is_read_again(tmp_path):
    book = Ledger(tmp_path)
    book.note("began", 7, 70, 1)
    book.note("effect", 7, 70, 1)
    first, second = ledger.effects(tmp_path)
    assert (first.what, first.token, first.job, first.attempt) == ("began", 7, 70, 1)
    assert second.at >= first.at > 0


def test_what_producers_were_told_is_read_again(tmp_path):
    journal = Journal(tmp_path / "producer-0-0", synced=True)
    lines = [Intent(1, 1, 10, (Part("plain", 5), Part("in_order", 2, "k"))), Told(2, 1, "unknown")]
    for line in lines:
        journal.write(line)
    journal.close()
    assert list(ledger.told(tmp_path)) == lines


def test_faults_are_read_again(tmp_path):
    assert ledger.hits(tmp_path) == []
    hit = Hit(fault="kill", group="worker", victim="worker 7", began=1, healed=2, killed=(7, 8), repeats="victims")
    journal = Journal(tmp_path / ledger.FAULTS)
    journal.write(hit)
    journal.close()
    assert ledger.hits(tmp_path) == [hit]


def test_a_torn_line_at_the_end_is_left_out(tmp_path):
    path = tmp_path / "ledger-1-1"
    path.write_bytes(b'["effect",1,1,1,9,5]\n["effect",2,2')
    assert [each.token for each in ledger.read(path, Effect)] == [1]


def test_a_torn_line_in_the_middle_says_which(tmp_path):
    path = tmp_path / "ledger-1-1"
    path.write_bytes(b'["effect",1,1,1,9,5]\n["effect",2\n["effect",3,3,1,9,5]\n')
    with pytest.raises(Torn, match="ledger-1-1, line 2"):
        list(ledger.read(path, Effect))


@pytest.mark.acceptance
def test_a_killed_process_leaves_whole_lines(tmp_path):
    process = subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path)])
    try:
        eventually(lambda: sum(path.stat().st_size for path in tmp_path.iterdir()) > 20_000, 30)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    tokens = [each.token for each in ledger.effects(tmp_path)]
    assert tokens == list(range(len(tokens)))
    assert len(tokens) > 100
