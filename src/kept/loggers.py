"""Loggers: lines go where the program's own lines go, and cannot be forged by what a job says."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import MutableMapping
from typing import Any, Literal, NamedTuple, TextIO, cast

import structlog
from structlog.typing import EventDict, FilteringBoundLogger, Processor, WrappedLogger

from kept.errors import Misconfigured
from kept.redact import redact
from kept.showable import escape

Format = Literal["auto", "json", "console"]
Level = Literal["debug", "info", "warning", "error"]

FORMATS = ("auto", "json", "console")
LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


class Manner(NamedTuple):
    """How the lines of a process are written to its stderr."""

    format: Format
    level: str


_manner: Manner | None = None  # ours, if this process is ours


def manner() -> Manner | None:
    """How :func:`configure` was told to write to stderr, for processes that share it; None: the process is not ours."""
    return _manner


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


# --- configuration of a process that is ours


class Lines:
    """Writes whole lines to a stream; drops one that cannot be written: telling must not stop the work."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def msg(self, line: str) -> None:
        """Write *line* in one call, so that lines of several threads do not mix."""
        try:
            self._stream.write(line + "\n")
            self._stream.flush()
        except (OSError, ValueError):  # a closed pipe, a closed file
            return

    debug = info = warning = error = critical = msg


class _Handler(logging.StreamHandler[TextIO]):
    """Ours, so that configuring again replaces it and leaves everyone else's alone."""


def configure(format: Format = "auto", level: str = "info", stream: TextIO | None = None) -> None:
    """Send all log lines of this process to *stream* (stderr): for a terminal on ``auto``, as JSON otherwise.

    Lines of the standard ``logging`` go the same way unless the application has set up handlers of its own.
    """
    stream = sys.stderr if stream is None else stream
    if format not in FORMATS:
        raise Misconfigured(f"log format: {format!r} is not known; use one of {', '.join(FORMATS)}")
    if level.lower() not in LEVELS:
        raise Misconfigured(f"log level: {level!r} is not known; use one of {', '.join(LEVELS)}")
    global _manner  # noqa: PLW0603  # as structlog's own configuration is
    _manner = Manner(format, level) if stream is sys.stderr else None
    console = stream.isatty() if format == "auto" else format == "console"
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
        structlog.processors.format_exc_info,
    ]
    last = _for_console(stream) if console else _for_machines()
    structlog.configure(
        processors=[*shared, *last],
        wrapper_class=structlog.make_filtering_bound_logger(LEVELS[level.lower()]),
        logger_factory=lambda *_args: Lines(stream),
        cache_logger_on_first_use=False,
    )
    _configure_standard(shared, last, LEVELS[level.lower()], stream)


def _configure_standard(shared: list[Processor], last: list[Processor], level: int, stream: TextIO) -> None:
    root = logging.getLogger()
    for handler in [handler for handler in root.handlers if isinstance(handler, _Handler)]:
        root.removeHandler(handler)
    if root.handlers:
        return
    handler = _Handler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[structlog.stdlib.add_logger_name, *shared],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *last],
        )
    )
    root.addHandler(handler)
    root.setLevel(level)


def _for_console(stream: TextIO) -> list[Processor]:
    # Plain tracebacks: the pretty ones print local variables, and those hold secrets.
    renderer = structlog.dev.ConsoleRenderer(
        colors=stream.isatty(), sort_keys=False, exception_formatter=structlog.dev.plain_traceback
    )
    return [_readable, renderer]


def _for_machines() -> list[Processor]:
    return [_redacted, structlog.processors.JSONRenderer(_json)]


_MANY_LINES = ("exception", "stack")


def _redacted(_logger: WrappedLogger, _method: str, event: EventDict) -> MutableMapping[str, Any]:
    """JSON escapes by itself; what is left to do is to hide passwords."""
    return {key: redact(value) if isinstance(value, str) else value for key, value in event.items()}


def _readable(_logger: WrappedLogger, _method: str, event: EventDict) -> MutableMapping[str, Any]:
    """One line whatever the values hold; a traceback is indented, so that it cannot pass for other lines."""
    shown: dict[str, Any] = {}
    for key, value in event.items():
        if key in _MANY_LINES:
            shown[key] = "\n".join(f"    {escape(line)}" for line in redact(str(value)).split("\n"))
        elif key == "event":
            shown[key] = escape(redact(str(value)))
        else:
            shown[escape(key)] = escape(redact(value)) if isinstance(value, str) else value
    return shown


def _json(event: dict[str, object], **options: Any) -> str:
    try:
        return json.dumps(event, allow_nan=False, **options)
    except (TypeError, ValueError, RecursionError):  # NaN, keys that are no names, a value that holds itself
        return json.dumps({key: _plain(value) for key, value in event.items()})


def _plain(value: object) -> object:
    return value if value is None or isinstance(value, str | int) else repr(value)
