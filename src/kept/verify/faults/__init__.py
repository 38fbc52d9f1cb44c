"""What can go wrong, by name. A fault is one small class; the lists of the modules are put together here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kept.errors import Refused
from kept.verify.database import Database
from kept.verify.faults import clock, failover, handlers, network, processes, server
from kept.verify.faults.fault import Fault

__all__ = ["ALL", "Fault", "chosen", "known", "possible"]

MANY = 2  # workers, from which on some of them are under a supervisor
CLEAR = "needs a connection that is not encrypted (sslmode=disable)"

ALL: tuple[Fault, ...] = (
    *processes.FAULTS,
    *handlers.FAULTS,
    *server.FAULTS,
    *failover.FAULTS,
    *network.FAULTS,
    *clock.FAULTS,
)


def chosen(names: Iterable[str] | None) -> Sequence[Fault]:
    """The faults of these names and groups; without any, all but those that must be asked for by name."""
    if names is None:
        return [fault for fault in ALL if not fault.by_name_only]
    found: dict[str, Fault] = {}
    for name in names:
        these = [f for f in ALL if f.name == name or (f.group == name and not f.by_name_only)]
        if not these:
            raise Refused(f"faults: there is no {name!r}; there are {', '.join(known())}", field="faults")
        found |= {fault.name: fault for fault in these}
    return list(found.values())


def possible(
    names: Sequence[str] | None, database: Database, workers: int = MANY
) -> tuple[list[Fault], dict[str, str]]:
    """The faults of these names that can be injected here, and why the others cannot; not those asked for by name."""
    asked: list[Fault] = []
    left_out: dict[str, str] = {}
    for fault in chosen(names):
        why = _hindrance(fault, database, workers)
        if why is None:
            asked.append(fault)
        elif names is not None and fault.name in names:
            raise Refused(f"faults: {fault.name} cannot be injected here: {why}", field="faults")
        else:
            left_out[fault.name] = why
    return asked, left_out


def _hindrance(fault: Fault, database: Database, workers: int) -> str | None:
    """Why it cannot be injected with so many workers on *database*, if it cannot."""
    if "own_server" in fault.needs and database.url is not None:
        return "needs a server of its own"
    if "clear" in fault.needs and database.encrypted:
        return CLEAR
    if "several" in fault.needs and workers < MANY:
        return "needs more than one worker"
    return fault.missing()


def known() -> list[str]:
    """Every name that can be asked for: groups, then faults."""
    return [*dict.fromkeys(fault.group for fault in ALL), *(fault.name for fault in ALL)]
