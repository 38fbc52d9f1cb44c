"""What deploy/ starts is what Kept knows, is asked where it answers, and is not killed before it had its grace."""

from __future__ import annotations

import json
import re

import click
import pytest
from prometheus_client import CollectorRegistry

from deployed import (
    AFTER_GRACE,
    DEPLOY,
    FILES,
    STARTED,
    URL,
    Started,
    compose,
    image_env,
    instructions,
    last,
    objects,
    pod,
    text_of,
    unit,
)
from kept.config import Settings
from kept.config_names import VARIABLES
from kept.integrations.health import HealthServer

WORKERS = [each for each in STARTED if each.name == "worker"]
INSIDE = [each for each in WORKERS if each.where.startswith(("Dockerfile", "compose", "Deployment"))]
every_command = pytest.mark.parametrize("started", STARTED, ids=str)


def test_the_check_sees_every_way_to_start() -> None:
    assert {(each.where.split()[0], each.name) for each in STARTED} == {
        ("Dockerfile", "worker"),
        ("compose.yaml", "migrate"),
        ("compose.yaml", "worker"),
        ("Job", "migrate"),
        ("Deployment", "worker"),
        ("CronJob", "tick"),
        ("kept-worker.service", "migrate"),
        ("kept-worker.service", "worker"),
        ("kept-tick.service", "tick"),
        ("Procfile", "migrate"),
        ("Procfile", "worker"),
    }


@every_command
def test_every_command_is_one_that_kept_accepts(started: Started) -> None:
    started.options()


def test_the_check_would_notice_an_option_that_there_is_not() -> None:
    with pytest.raises(click.UsageError):
        Started("here", ("kept", "worker", "--metrics-hots", "0.0.0.0")).options()


@every_command
def test_every_setting_has_a_value_that_kept_accepts_and_names_the_app(started: Started) -> None:
    settings = started.settings()
    assert settings.unknown == ()
    if started.name != "migrate":
        assert started.options()["app"] == "shop:app" or settings.app == "shop:app"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(DEPLOY)))
def test_every_setting_named_is_one(path) -> None:
    named = set(re.findall(r"\bKEPT_[A-Z0-9_]*", text_of(path)))
    assert named - {variable.name for variable in VARIABLES} == set()


# --- stopping


@pytest.mark.parametrize("started", [each for each in WORKERS if each.patience is not None], ids=str)
def test_whoever_stops_a_worker_waits_for_longer_than_its_grace(started: Started) -> None:
    assert started.patience > started.settings().grace.total_seconds() + AFTER_GRACE


def test_a_tick_ends_by_itself_before_it_is_ended() -> None:
    (cron,) = [each for each in objects() if each["kind"] == "CronJob"]
    (tick,) = [each for each in STARTED if each.where == "CronJob tick"]
    budget = tick.settings().tick_overall.total_seconds()
    assert cron["spec"]["jobTemplate"]["spec"]["activeDeadlineSeconds"] >= budget + 60
    usual = Settings.from_env(URL).tick_overall.total_seconds()
    assert float(unit("kept-tick.service")["TimeoutStartSec"]) >= usual + 60


def test_signals_reach_kept_itself() -> None:
    assert last("STOPSIGNAL") == "SIGTERM"
    for instruction in ("ENTRYPOINT", "CMD", "HEALTHCHECK"):
        assert isinstance(json.loads(last(instruction).rpartition("CMD ")[2]), list), "the exec form"
    service = unit("kept-worker.service")
    assert (service["KillSignal"], service["KillMode"]) == ("SIGTERM", "mixed")


def test_a_wrong_setting_is_not_tried_again_and_an_absent_database_is() -> None:
    service = unit("kept-worker.service")
    assert service["Restart"] == "on-failure"
    assert service["RestartPreventExitStatus"].split() == ["2"], "and not 75"
    assert unit("kept-tick.service")["SuccessExitStatus"] == "75"


# --- probes


def probes() -> list[tuple[str, str, int]]:
    """(where, path, port) of every probe."""
    found = []
    for each in INSIDE:
        names = {port["name"]: port["containerPort"] for port in each.part.get("ports", ()) if isinstance(port, dict)}
        for kind in ("readinessProbe", "livenessProbe"):
            if kind in each.part:
                get = each.part[kind]["httpGet"]
                found.append((f"{each.where} {kind}", get["path"], names.get(get["port"], get["port"])))
    path, port = re.search(r":(\d+)(/\w+)'", last("HEALTHCHECK")).group(2, 1)
    return [*found, ("Dockerfile", path, int(port))]


def test_every_probe_asks_for_what_a_worker_serves() -> None:
    server = HealthServer(port=0, registry=CollectorRegistry(), beat_age=lambda: 0.0, limit=10.0, ready=lambda: None)
    try:
        answers = {where: server.answer(path, "")[0] for where, path, _port in probes()}
    finally:
        server.close()
    assert len(answers) == 3
    assert set(answers.values()) == {200}
    paths = {path for where, path, _ in probes() if "readiness" in where}
    assert paths == {"/readyz"}, "a broker that is away must not have the worker killed"


@pytest.mark.parametrize("started", INSIDE, ids=str)
def test_inside_a_container_a_worker_can_be_asked_from_outside(started: Started) -> None:
    assert started.options()["metrics_host"] == "0.0.0.0"
    assert started.settings().metrics_port == 9100
    assert started.settings().processes == 1, "each process has a port of its own"


def test_the_port_that_is_asked_is_the_one_that_is_served() -> None:
    assert {port for _where, _path, port in probes()} == {int(image_env()["KEPT_METRICS_PORT"])}
    assert last("EXPOSE") == image_env()["KEPT_METRICS_PORT"]
    (published,) = compose()["services"]["worker"]["ports"]
    assert published.endswith(":9100:9100")


# --- what they have in common


def test_all_run_one_image_and_nobody_is_root() -> None:
    images = {each.part["image"] for each in STARTED if each.part}
    assert images == {"registry.example.com/shop:1.4"}
    assert last("USER").isdigit() and last("USER") != "0"
    for thing in objects():
        assert pod(thing)["securityContext"]["runAsNonRoot"] is True
        for container in pod(thing)["containers"]:
            assert container["securityContext"]["allowPrivilegeEscalation"] is False
            assert container["resources"]["limits"]["memory"]


def test_no_password_stands_in_a_manifest() -> None:
    for thing in objects():
        for container in pod(thing)["containers"]:
            (url,) = [each for each in container["env"] if each["name"] == "KEPT_DATABASE_URL"]
            assert set(url) == {"name", "valueFrom"}


def test_migrations_come_before_workers() -> None:
    worker = compose()["services"]["worker"]
    assert worker["depends_on"] == {"migrate": {"condition": "service_completed_successfully"}}
    assert unit("kept-worker.service")["ExecStartPre"].endswith("kept migrate")


def test_what_the_dockerfile_copies_is_there_and_not_ignored() -> None:
    let_in = re.findall(r"^!(.+)$", text_of(DEPLOY / "Dockerfile.dockerignore"), re.MULTILINE)
    copied = [rest.split()[:-1] for name, rest in instructions() if name == "COPY" and not rest.startswith("--from")]
    sources = [source for line in copied for source in line]
    assert sorted(sources) == sorted(let_in)
    assert all((DEPLOY.parent / source).exists() for source in sources)
