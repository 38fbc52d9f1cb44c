"""How answers look."""

from __future__ import annotations

import io
import sys

import pytest

from kept.cli import show


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        *((None, ""), (0, "0s"), (119.9, "119s"), (120, "2min"), (7199, "119min"), (7200, "2h")),
        *((48 * 3600 - 1, "47h"), (48 * 3600, "2d"), (-90, "-90s")),
    ],
)
def test_a_stretch_of_time_is_told_in_its_largest_fitting_unit(seconds, text):
    assert show.brief(seconds) == text


def test_a_pipe_gets_aligned_text(capsys):
    show.echo_table(("name", "n"), [("a", 1), ("long name", None), ("漢字", 100)], right=("n",))
    assert capsys.readouterr().out == "name         n\na            1\nlong name\n漢字       100\n"


def test_a_terminal_gets_a_table_in_which_nothing_is_markup(monkeypatch):
    screen = Terminal()
    monkeypatch.setattr(sys, "stdout", screen)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "dumb")
    show.echo_table(("key", "n"), [("[red]a[/red] \x1b[31m\u202e", 1)], right=("n",))
    out = screen.getvalue()
    assert r"[red]a[/red] \x1b[31m\u202e" in out
    assert "\x1b[31m\u202e" not in out


def test_a_cell_is_cut(capsys):
    show.echo_table(("key",), [("x" * 500,)])
    assert capsys.readouterr().out.splitlines()[1] == "x" * 59 + "…"


def test_counts_know_their_plural():
    assert (show.count(1, "job"), show.count(0, "job"), show.count(2, "job")) == ("1 job", "0 jobs", "2 jobs")
