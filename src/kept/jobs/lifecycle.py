"""The states of a job and what moves it from one to the next, as a table. Pure.

Documentation, not machinery: ``rules`` decides. A test holds the two together, and docs/lifecycle.md shows
what is made here.
"""

from __future__ import annotations

from typing import NamedTuple

from kept.jobs.model import State


class Transition(NamedTuple):
    """One arrow. *charged* is None where no attempt ended."""

    source: State | None  # None: the job does not exist yet
    event: str  # the outcome's name, or what was done to the job
    target: State
    charged: bool | None
    when: str


# An attempt that lost its lease has no arrow: it changes nothing, whatever it does.
TRANSITIONS = (
    Transition(None, "enqueue", "pending", None, "the caller's transaction commits"),
    Transition("pending", "claim", "running", None, "it is due and a worker has room"),
    Transition("pending", "cancel", "cancelled", None, "somebody cancels it"),
    Transition("running", "returned", "done", True, "the handler returns"),
    Transition("running", "completed", "done", True, "the handler's own transaction settles it and commits"),
    Transition("running", "raised", "pending", True, "the attempt fails and another one is allowed"),
    Transition("running", "died", "pending", True, "its process dies; from then on it runs alone in one"),
    Transition("running", "deferred", "pending", False, "the handler raises Defer"),
    Transition("running", "released", "pending", False, "shutdown, or claimed and never started"),
    Transition("running", "skipped", "skipped", True, "the handler raises Skip"),
    Transition("running", "raised", "failed", True, "fatal, attempts exhausted, or out of time"),
    Transition("running", "died", "failed", True, "it ran alone, its process died, no attempt is left"),
)


def mermaid() -> str:
    """The table as a state diagram; arrows between the same two states are one, unless charging differs."""
    merged: dict[tuple[str, str, bool], list[str]] = {}
    for source, event, target, charged, _ in TRANSITIONS:
        merged.setdefault((source or "[*]", target, charged is False), []).append(event)
    lines = ["stateDiagram-v2", "    direction LR"]
    for (start, end, free), events in merged.items():
        lines.append(f"    {start} --> {end}: {', '.join(events)}{' (not charged)' if free else ''}")
    ends = [state for state in _targets() if state not in {arrow.source for arrow in TRANSITIONS}]
    lines += [f"    {state} --> [*]" for state in ends]
    return "\n".join(lines) + "\n"


def table() -> str:
    """The table as Markdown."""
    lines = ["| from | event | to | charged | when |", "| --- | --- | --- | --- | --- |"]
    for source, event, target, charged, when in TRANSITIONS:
        told = {None: "", True: "yes", False: "no"}[charged]
        lines.append(f"| {source or ''} | {event} | {target} | {told} | {when} |")
    return "\n".join(lines) + "\n"


def _targets() -> list[str]:
    return list(dict.fromkeys(arrow.target for arrow in TRANSITIONS))
