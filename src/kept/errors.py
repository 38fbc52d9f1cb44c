"""Every error Kept raises: one root, a stable code, the facts.

A code is lower_snake and never changes its meaning; a message may get better at any time.
"""

from __future__ import annotations

from datetime import datetime, timedelta


class Error(Exception):
    """The root: ``except kept.Error`` catches all of ours and nothing else."""

    code: str = "error"


class Refused(Error):
    """Bad input, turned away at the door; nothing was stored."""

    code = "refused"

    def __init__(self, message: str, *, field: str | None = None) -> None:
        super().__init__(message)
        self.field = field


class Misconfigured(Error):
    """A setting is missing, unreadable or contradicts another; nothing was started."""

    code = "misconfigured"


class Unavailable(Error):
    """The database did not answer, or answered that it cannot serve us now; try later."""

    code = "unavailable"


class SchemaMismatch(Error):
    """The schema is missing, older than this code needs, or newer in a way it does not know."""

    code = "schema_mismatch"


class NotFound(Error):
    """No such job, lane or task."""

    code = "not_found"


class LeaseLost(Error):
    """The lease is gone; whatever this attempt (or this run of a runner) does from now on changes nothing in Kept."""

    code = "lease_lost"

    def __init__(
        self,
        *,
        worker: str,
        job_id: int | None = None,
        attempt: int | None = None,
        runner: str | None = None,
        run: int | None = None,
    ) -> None:
        whose = f"job {job_id}, attempt {attempt}" if runner is None else f"runner {runner}, run {run}"
        super().__init__(f"{whose}: the lease of worker {worker} is gone")
        self.job_id = job_id
        self.attempt = attempt
        self.runner = runner
        self.run = run
        self.worker = worker


class ResultPending(Error):
    """The job was not settled within the time given; it goes on."""

    code = "result_pending"


class JobFailed(Error):
    """The job whose result was asked for ended ``failed``."""

    code = "job_failed"

    def __init__(self, message: str, *, job_id: int, job_code: str | None, reason: str | None) -> None:
        super().__init__(message)
        self.job_id = job_id
        self.job_code = job_code
        self.reason = reason


class JobCancelled(Error):
    """The job whose result was asked for ended ``cancelled`` or ``skipped``: there is no result."""

    code = "job_cancelled"


class Failure(Error):
    """Raised by a handler: this attempt failed, for this reason; *retryable* says whether another may help."""

    def __init__(
        self, message: str, *, code: str, retryable: bool = True, after: str | timedelta | None = None
    ) -> None:
        super().__init__(message)
        self.code = code
        self.retryable = retryable
        self.after = after


class Defer(BaseException):
    """Raised by a handler: not now. Runs again after *delay*; no attempt is charged.

    A BaseException, so that a handler's ``except Exception`` cannot swallow it.
    """

    def __init__(self, delay: str | timedelta | datetime, reason: str = "") -> None:
        super().__init__(reason)
        self.delay = delay
        self.reason = reason


class Skip(BaseException):
    """Raised by a handler: no longer needed. Settles the job as ``skipped``."""

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
