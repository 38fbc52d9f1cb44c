"""Kept keeps promises: durable background work on the PostgreSQL you already run.

What this module exports is the public API; everything else may change.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kept.app import App
    from kept.config import Settings
    from kept.errors import (
        Defer,
        Error,
        Failure,
        JobCancelled,
        JobFailed,
        LeaseLost,
        Misconfigured,
        NotFound,
        Refused,
        ResultPending,
        SchemaMismatch,
        Skip,
        Unavailable,
    )
    from kept.jobs.context import Context
    from kept.jobs.handle import Job
    from kept.jobs.retry import Retry
    from kept.outbox.inbox.inbox import Inbox
    from kept.outbox.model import Event
    from kept.runners.context import RunnerContext
    from kept.schedules.cron import cron, every
    from kept.signals import Signal
    from kept.tasks import Call
    from kept.worker.worker import Worker

__all__ = [
    "App",
    "Call",
    "Context",
    "Defer",
    "Error",
    "Event",
    "Failure",
    "Inbox",
    "Job",
    "JobCancelled",
    "JobFailed",
    "LeaseLost",
    "Misconfigured",
    "NotFound",
    "Refused",
    "ResultPending",
    "Retry",
    "RunnerContext",
    "SchemaMismatch",
    "Settings",
    "Signal",
    "Skip",
    "Unavailable",
    "Worker",
    "cron",
    "every",
]

# Where each name comes from. Loaded on first use: a keeper, started beside every worker, needs none of them.
_HOMES = {
    "App": "kept.app",
    "Call": "kept.tasks",
    "Context": "kept.jobs.context",
    "Defer": "kept.errors",
    "Error": "kept.errors",
    "Event": "kept.outbox.model",
    "Failure": "kept.errors",
    "Inbox": "kept.outbox.inbox.inbox",
    "Job": "kept.jobs.handle",
    "JobCancelled": "kept.errors",
    "JobFailed": "kept.errors",
    "LeaseLost": "kept.errors",
    "Misconfigured": "kept.errors",
    "NotFound": "kept.errors",
    "Refused": "kept.errors",
    "ResultPending": "kept.errors",
    "Retry": "kept.jobs.retry",
    "RunnerContext": "kept.runners.context",
    "SchemaMismatch": "kept.errors",
    "Settings": "kept.config",
    "Signal": "kept.signals",
    "Skip": "kept.errors",
    "Unavailable": "kept.errors",
    "Worker": "kept.worker.worker",
    "cron": "kept.schedules.cron",
    "every": "kept.schedules.cron",
}


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'kept' has no attribute {name!r}")
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
