"""What the files in deploy/ start, with which settings, and how long whoever stops it waits."""

from __future__ import annotations

import configparser
import json
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
import yaml

from kept.cli import main
from kept.config import Settings
from kept.durations import parse
from kept.worker.post import CLEAN_UP
from pages import ROOT

DEPLOY = ROOT / "deploy"
AFTER_GRACE = 2 * CLEAN_UP  # seconds for handlers to tidy up, and for the last words to the database
HEROKU = 30.0  # seconds from its SIGTERM to its SIGKILL
URL = {"KEPT_DATABASE_URL": "postgresql://somewhere/shop"}


@dataclass(frozen=True, slots=True)
class Started:
    """One ``kept`` command of a file: its words, its environment, and when it is killed after it was told to stop."""

    where: str
    words: tuple[str, ...]
    env: dict[str, str] = field(default_factory=dict)
    patience: float | None = None  # seconds
    part: dict[str, Any] = field(default_factory=dict)  # the container it runs in

    @property
    def name(self) -> str:
        return self.words[1]

    def options(self) -> dict[str, Any]:
        """What click makes of the words; it raises on one that it does not know."""
        assert self.words[0].rpartition("/")[2] == "kept", self.words
        command: click.Command = main
        rest = list(self.words[1:])
        while isinstance(command, click.Group):
            command = command.commands[rest.pop(0)]
        return command.make_context(command.name, rest).params

    def settings(self) -> Settings:
        """The settings it runs with; they raise on a value that is not one."""
        known = set(Settings.__dataclass_fields__)
        given = {name: value for name, value in self.options().items() if name in known and value is not None}
        return Settings.from_env(URL | self.env, **given)

    def __str__(self) -> str:
        return f"{self.where}: {' '.join(self.words)}"


# --- the Dockerfile


def instructions() -> list[tuple[str, str]]:
    """The Dockerfile, as pairs of an instruction and the rest of its line."""
    text = re.sub(r"^#.*\n", "", (DEPLOY / "Dockerfile").read_text(encoding="utf-8"), flags=re.MULTILINE)
    lines = [line for line in text.replace("\\\n", " ").splitlines() if line.strip()]
    return [(line.split(maxsplit=1)[0], line.split(maxsplit=1)[1]) for line in lines]


def last(instruction: str) -> str:
    return [rest for name, rest in instructions() if name == instruction][-1]


def image_env() -> dict[str, str]:
    return dict(pair.split("=", 1) for pair in shlex.split(last("ENV")) if pair.startswith("KEPT_"))


def image() -> Iterator[Started]:
    yield Started("Dockerfile", (*json.loads(last("ENTRYPOINT")), *json.loads(last("CMD"))), image_env())


# --- compose


def compose() -> dict[str, Any]:
    return yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))


def services() -> Iterator[Started]:
    head = json.loads(last("ENTRYPOINT"))
    for name, service in compose()["services"].items():
        if "build" in service:
            told = service.get("stop_grace_period")
            patience = parse(told).total_seconds() if told else 10.0
            words = (*head, *service["command"])
            yield Started(f"compose.yaml {name}", words, image_env() | service["environment"], patience, service)


# --- Kubernetes


def objects() -> Iterator[dict[str, Any]]:
    for path in sorted((DEPLOY / "kubernetes").glob("*.yaml")):
        yield from yaml.safe_load_all(path.read_text(encoding="utf-8"))


def pod(thing: dict[str, Any]) -> dict[str, Any]:
    inner = thing["spec"]["jobTemplate"] if thing["kind"] == "CronJob" else thing
    return inner["spec"]["template"]["spec"]


def containers() -> Iterator[Started]:
    for thing in objects():
        spec = pod(thing)
        for each in spec["containers"]:
            env = {one["name"]: one["value"] for one in each["env"] if "value" in one}
            patience = float(spec.get("terminationGracePeriodSeconds", 30))
            yield Started(f"{thing['kind']} {each['name']}", tuple(each["command"]), env, patience, each)


# --- systemd and the Procfile


def unit(name: str) -> configparser.SectionProxy:
    parser = configparser.ConfigParser(interpolation=None, strict=True)
    parser.optionxform = str  # type: ignore[assignment]
    parser.read_string((DEPLOY / "systemd" / name).read_text(encoding="utf-8"))
    return parser["Service"]


def units() -> Iterator[Started]:
    for path in sorted((DEPLOY / "systemd").glob("*.service")):
        service = unit(path.name)
        for key in ("ExecStartPre", "ExecStart"):
            if key in service:
                words = tuple(shlex.split(service[key]))
                yield Started(f"{path.name} {key}", words, patience=float(service.get("TimeoutStopSec", "90")))


def procfile() -> Iterator[Started]:
    text = (DEPLOY / "Procfile").read_text(encoding="utf-8")
    for name, words in re.findall(r"^(\w+): (.+)$", text, re.MULTILINE):
        yield Started(f"Procfile {name}", tuple(shlex.split(words)), patience=HEROKU)


STARTED = [*image(), *services(), *containers(), *units(), *procfile()]
FILES = sorted(path for path in DEPLOY.rglob("*") if path.is_file() and "__pycache__" not in path.parts)


def text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8")
