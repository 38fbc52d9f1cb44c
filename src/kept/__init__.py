"""Kept keeps promises: durable background work on the PostgreSQL you already run.

What this module exports is the public API; everything else may change.
"""

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
from kept.signals import Signal
from kept.tasks import Call
from kept.worker.worker import Worker

__all__ = [
    "App",
    "Call",
    "Context",
    "Defer",
    "Error",
    "Failure",
    "Job",
    "JobCancelled",
    "JobFailed",
    "LeaseLost",
    "Misconfigured",
    "NotFound",
    "Refused",
    "ResultPending",
    "Retry",
    "SchemaMismatch",
    "Settings",
    "Signal",
    "Skip",
    "Unavailable",
    "Worker",
]
