"""Every help screen renders, fits a terminal and speaks our words."""

from __future__ import annotations

import re
from collections.abc import Iterator

import click
import pytest

from kept.cli import main

NOT_OUR_WORDS = re.compile(
    r"\b(heart-?beats?|rescue\w*|snooze\w*|throttl\w*|entrypoints?|dead-?letters?|kinds?)\b", re.IGNORECASE
)


def commands(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    yield path
    if isinstance(command, click.Group):
        for name, each in command.commands.items():
            yield from commands(each, (*path, name))


def command_at(path: tuple[str, ...]) -> click.Command:
    command: click.Command = main
    for name in path:
        assert isinstance(command, click.Group)
        command = command.commands[name]
    return command


ALL = sorted(commands(main))
GROUPS = [
    (name,) for name in ("jobs", "events", "bench", "runs", "runners", "schedules")
]  # that say nothing themselves


def test_all_commands_are_there():
    assert {" ".join(path) for path in ALL} == {
        *("", "worker", "tick", "sync", "migrate", "workers", "status", "doctor", "verify"),
        *("jobs", "jobs list", "jobs show", "jobs retry", "jobs cancel", "jobs delete"),
        *("lanes", "lanes pause", "lanes resume", "inbox", "inbox forget", "inbox purge"),
        *("bench", "bench drain", "bench enqueue", "bench latency", "bench sustained", "bench growth", "bench idle"),
        *("bench outbox", "bench schedules", "bench clean"),
        *("events", "events list", "events show", "events replay"),
        *("subscriptions", "subscriptions retire", "sinks", "sinks enable"),
        *("runs", "runs list", "runs show", "runners", "runners list"),
        *("schedules", "schedules list", "schedules show", "schedules next", "schedules add", "schedules edit"),
        *("schedules pause", "schedules resume", "schedules run-now", "schedules remove"),
    }


@pytest.mark.parametrize("path", ALL, ids=" ".join)
def test_the_help_screen_renders_in_our_words(nowhere, path):
    said = nowhere(*path, "--help")
    assert said.code == 0
    assert said.out.startswith("Usage: kept")
    assert NOT_OUR_WORDS.search(said.out) is None
    assert max(map(len, said.out.splitlines())) <= 80


@pytest.mark.parametrize("path", ALL, ids=" ".join)
def test_every_command_says_in_a_sentence_what_it_does(path):
    text = (command_at(path).help or "").strip().split("\n\n")[0]
    assert text[:1].isupper()
    assert text.endswith(".")


@pytest.mark.parametrize(
    "path",
    [path for path in ALL if path not in {(), *GROUPS, ("worker",)}],
    ids=" ".join,
)
def test_every_command_that_answers_can_do_so_in_json(path):
    options = {name for option in command_at(path).params for name in option.opts}
    assert "--json" in options


def test_h_is_help_and_an_unknown_command_is_refused(nowhere):
    assert nowhere("jobs", "-h").code == 0
    said = nowhere("jbos")
    assert said.code == 2
    assert "No such command 'jbos'" in said.err
