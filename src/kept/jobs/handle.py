"""What a caller holds: a frozen snapshot of a job that can be asked for its result."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Generic, Protocol, Self, TypeVar

from msgspec import Struct

from kept.durations import Duration
from kept.jobs.model import State

R_co = TypeVar("R_co", covariant=True)


class Asked(Protocol):
    """Who answers a handle's questions: the App."""

    def result_of(self, job: Job[Any], timeout: Duration) -> Any: ...
    async def aresult_of(self, job: Job[Any], timeout: Duration) -> Any: ...
    def cancel_job(self, job: Job[Any]) -> Job[Any]: ...
    async def acancel_job(self, job: Job[Any]) -> Job[Any]: ...


class Job(Struct, Generic[R_co], frozen=True, kw_only=True, gc=False):
    """A job as it was when it was looked at. ``created`` is False if its key already had a job."""

    # A Struct outside the garbage collector: a bulk enqueue makes many, and a frozen dataclass takes 4 µs each.

    id: int
    task: str
    queue: str
    state: State
    key: str | None = None
    code: str | None = None
    reason: str | None = None
    message: str | None = None
    created: bool = True
    attempt: int = 0
    priority: int | None = None
    created_at: datetime | None = None
    due_at: datetime | None = None
    settled_at: datetime | None = None
    retry_of: int | None = None
    headers: Mapping[str, str] = {}
    _app: Asked | None = None

    def result(self, timeout: Duration = "15s") -> R_co:
        """Wait until the job is settled and return its result; raises JobFailed, JobCancelled or ResultPending."""
        result: R_co = self._asked().result_of(self, timeout)
        return result

    async def aresult(self, timeout: Duration = "15s") -> R_co:
        """:meth:`result`, for async code."""
        result: R_co = await self._asked().aresult_of(self, timeout)
        return result

    def cancel(self) -> Self:
        """Settle a pending job as ``cancelled``; a running one is refused. Returns a new snapshot."""
        return self._asked().cancel_job(self)  # type: ignore[return-value]

    async def acancel(self) -> Self:
        """:meth:`cancel`, for async code."""
        return await self._asked().acancel_job(self)  # type: ignore[return-value]

    def __repr__(self) -> str:
        known = (f"{name}={getattr(self, name)!r}" for name in self.__struct_fields__ if name != "_app")
        return f"Job({', '.join(known)})"

    def _asked(self) -> Asked:
        if self._app is None:
            raise RuntimeError("this job was run right here and never stored; there is nobody to ask")
        return self._app
