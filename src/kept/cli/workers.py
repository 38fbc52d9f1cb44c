"""``kept workers``: who works, and on what lease."""

from __future__ import annotations

import click

from kept.admin import store
from kept.admin.model import WorkerRow
from kept.cli.main import Session
from kept.cli.show import as_dict, brief, echo_json, echo_table, json_option, moment


def add_to(group: click.Group) -> None:
    group.add_command(workers)


@click.command()
@click.option("--all", "everyone", is_flag=True, help="Also workers that stopped or were lost, within a day.")
@json_option
@click.pass_obj
def workers(session: Session, /, everyone: bool, as_json: bool) -> None:
    """List the workers, live ones first, with the lease each lives by."""
    with session.desk() as desk:
        found = desk.ask(store.workers(desk.sql, all=everyone))
    if as_json:
        shown = [as_dict(each, without=("declared",)) | {"tasks": sorted(each.declared)} for each in found]
        echo_json({"workers": shown})
        return
    if not found:
        click.echo("no worker is alive" if not everyone else "there is no worker")
        return
    echo_table(
        ("name", "host", "pid", "version", "queues", "state", "lease", "running", "started"),
        [_row(each) for each in found],
        right=("pid", "running"),
    )


def _row(worker: WorkerRow) -> tuple[object, ...]:
    return (
        worker.name,
        worker.host,
        worker.pid,
        worker.version,
        "all" if worker.queues is None else ",".join(worker.queues),
        worker.state,
        _lease(worker),
        worker.running,
        moment(worker.started_at),
    )


def _lease(worker: WorkerRow) -> str:
    if worker.state == "live" and worker.lease_left > 0:
        return f"{brief(worker.lease_left)} left"
    return f"ended {brief(-worker.lease_left)} ago" if worker.lease_left <= 0 else "ended"
