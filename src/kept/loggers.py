"""Loggers: lines go where the program's own lines go, and cannot be forged by what a job says."""

from __future__ import annotations

import logging
from typing import Any, cast

import structlog
from structlog.typing import EventDict, FilteringBoundLogger, Processor, WrappedLogger

from kept.redact import redact
from kept.showable import escape


class _JobLogger:
    """Stands for a bound logger until a line is written: most jobs never write one."""

    __slots__ = ("_named",)

    def __init__(self, named: tuple[int, str, int, str]) -> None:
        self._named = named

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # what copying and pickling look for is not there
            raise AttributeError(name)
        values = dict(zip(("job_id", "task", "attempt", "queue"), self._named, strict=True))
        return getattr(logger("kept.job", values), name)


def job_logger(job_id: int, task: str, attempt: int, queue: str) -> FilteringBoundLogger:
    """A structlog logger that names its job on every line; nothing is bound before the first one."""
    return cast("FilteringBoundLogger", _JobLogger((job_id, task, attempt, queue)))


def logger(name: str, values: dict[str, Any]) -> FilteringBoundLogger:
    """The program's structlog logger; where structlog is not set up, one that writes to the standard logger."""
    if structlog.is_configured():
        return cast("FilteringBoundLogger", structlog.get_logger(name, **values))
    proxy = structlog.wrap_logger(
        logging.getLogger(name),
        processors=_STANDARD,
        wrapper_class=structlog.stdlib.BoundLogger,
        **values,
    )
    return cast("FilteringBoundLogger", proxy)


def _as_standard_call(_logger: WrappedLogger, _method: str, event: EventDict) -> tuple[tuple[str], dict[str, object]]:
    """One line of text for a standard logger, whose handlers deal with the exception."""
    passed = {name: event.pop(name) for name in ("exc_info", "stack_info") if name in event}
    head = escape(redact(str(event.pop("event", ""))))
    fields = (f"{escape(key)}={redact(repr(value))}" for key, value in event.items())
    return (" ".join((head, *fields)),), passed


_STANDARD: list[Processor] = [
    structlog.stdlib.filter_by_level,
    structlog.stdlib.PositionalArgumentsFormatter(),
    _as_standard_call,
]
