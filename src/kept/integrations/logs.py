"""Every log line of Kept's runtime: which signal becomes which event, at which level, with which fields.

Text that came from a handler or a driver is redacted, cut and escaped before it leaves this file, so that no
payload can forge a line, move a terminal's cursor or show a password.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from kept import signals
from kept.loggers import LEVELS, Level, logger
from kept.showable import clean
from kept.signals import EventsSent, JobsClaimed, JobsSettled, RunFinished, Sending, Settled, Signal


class Line(NamedTuple):
    """One kind of log line."""

    level: Level
    event: str
    fields: tuple[str, ...]


def _line(level: Level, event: str, signal: type[Signal]) -> Line:
    return Line(level, event, signal.__struct_fields__)


LINES: Mapping[type[Signal], Line] = {
    signals.WorkerStarted: _line("info", "worker_started", signals.WorkerStarted),
    signals.WorkerStopped: _line("info", "worker_stopped", signals.WorkerStopped),
    signals.WorkerDraining: _line("info", "worker_draining", signals.WorkerDraining),
    signals.WorkerFenced: _line("error", "worker_fenced", signals.WorkerFenced),
    signals.JobsClaimed: _line("debug", "jobs_claimed", signals.JobsClaimed),
    signals.JobLeaseLost: _line("warning", "lease_lost", signals.JobLeaseLost),
    signals.LeaseRenewed: _line("debug", "lease_renewed", signals.LeaseRenewed),
    signals.RenewalFailed: _line("warning", "lease_renewal_failed", signals.RenewalFailed),
    signals.KeeperRestarted: _line("warning", "keeper_restarted", signals.KeeperRestarted),
    signals.SpareReady: _line("debug", "spare_ready", signals.SpareReady),
    signals.JobsReclaimed: _line("warning", "jobs_reclaimed", signals.JobsReclaimed),
    signals.TickDone: _line("debug", "tick_done", signals.TickDone),
    signals.RunnerFailed: _line("error", "runner_failed", signals.RunnerFailed),
    signals.RunLeaseLost: _line("warning", "run_lease_lost", signals.RunLeaseLost),
    signals.RunnerSkipped: _line("debug", "runner_skipped", signals.RunnerSkipped),
    signals.ConnectionLost: _line("warning", "connection_lost", signals.ConnectionLost),
    signals.ConnectionRestored: _line("info", "connection_restored", signals.ConnectionRestored),
    signals.SinkOpened: _line("warning", "sink_opened", signals.SinkOpened),
    signals.SinkClosed: _line("info", "sink_closed", signals.SinkClosed),
    signals.SinkDisabled: _line("error", "sink_disabled", signals.SinkDisabled),
    signals.TaskUnknown: _line("warning", "task_unknown", signals.TaskUnknown),
    signals.EventSeen: _line("debug", "event_seen", signals.EventSeen),
    signals.Figures: Line("debug", "figures_read", ("due", "live", "expired")),
    signals.ScheduleFigures: _line("debug", "schedules_read", signals.ScheduleFigures),
    signals.RunFigures: Line("debug", "runs_read", ("names",)),
    signals.Warned: _line("warning", "warned", signals.Warned),
}

_JOB = ("job_id", "queue", "task", "attempt")
DONE = Line("debug", "job_done", (*_JOB, "duration"))
FAILED = Line("error", "job_failed", (*_JOB, "code", "reason", "message", "duration"))
RETRYING = Line("warning", "job_retrying", (*_JOB, "code", "message", "delay", "duration"))
DEFERRED = Line("debug", "job_deferred", (*_JOB, "reason", "message", "delay", "duration"))
CANCELLED = Line("info", "job_cancelled", (*_JOB, "reason", "message", "duration"))
SKIPPED = Line("info", "job_skipped", (*_JOB, "reason", "message", "duration"))

_RUN = ("name", "run", "duration")
RAN = {
    "done": Line("info", "run_done", (*_RUN, "counters")),
    "idle": Line("debug", "run_idle", _RUN),
    "failed": Line("error", "run_failed", (*_RUN, "code", "message")),
    "cancelled": Line("warning", "run_cancelled", _RUN),
    "skipped": Line("info", "run_skipped", _RUN),
    "unknown": Line("warning", "run_unknown", _RUN),
    "abandoned": Line("warning", "run_abandoned", (*_RUN, "code", "message")),
}

_EVENT = ("event_id", "event_type", "aggregate_type", "aggregate_id")
SENT = {
    "published": Line("debug", "event_published", _EVENT),
    "rejected": Line("warning", "event_rejected", (*_EVENT, "code", "message")),
    "unreachable": Line("debug", "event_not_published", (*_EVENT, "code", "message")),
    "gone": Line("debug", "event_not_published", (*_EVENT, "code", "message")),
    "held": Line("debug", "event_held", _EVENT),
}


class LogSubscriber:
    """Writes a line for each signal that its level lets through.

    Through structlog where that is configured, by :func:`configure` or by the application; else through the
    standard ``kept`` logger: a worker inside someone's process says what that process wants to hear.
    """

    def __init__(self) -> None:
        self._log = logger("kept", {}).bind()

    def __call__(self, signal: Signal) -> None:
        """Tell the log about *signal*; plain success costs nothing unless debug is on."""
        if isinstance(signal, JobsSettled):
            self._settled(signal)
        elif isinstance(signal, EventsSent):
            self._sent(signal)
        elif isinstance(signal, RunFinished):
            self._ran(signal)
        elif (line := LINES.get(type(signal))) and self._enabled(line.level):
            fields = {"jobs": len(signal.jobs)} if isinstance(signal, JobsClaimed) else _fields(line, signal)
            self._write(line, fields)

    def _settled(self, signal: JobsSettled) -> None:
        # Asked once per batch: at info level 500 done jobs are one comparison each, no call, no line.
        debug = self._enabled("debug")
        for job in signal.jobs:
            if debug or job.state != "done":
                line = _settled_line(job)
                if debug or line.level != "debug":
                    self._write(line, _fields(line, job))

    def _sent(self, signal: EventsSent) -> None:
        debug = self._enabled("debug")
        batch = {"sink": signal.sink, "batch_size": signal.batch_size}
        for event in signal.events:
            line = _sent_line(event)
            if debug or line.level != "debug":
                self._write(line, _fields(line, event) | batch)

    def _ran(self, signal: RunFinished) -> None:
        line = RAN[signal.state]
        if self._enabled(line.level):
            self._write(line, _fields(line, signal))

    def _enabled(self, level: Level) -> bool:
        # A logger of the application's own choice may know only the standard spelling, or neither.
        ask = getattr(self._log, "is_enabled_for", None) or getattr(self._log, "isEnabledFor", None)
        return ask is None or bool(ask(LEVELS[level]))

    def _write(self, line: Line, fields: Mapping[str, object]) -> None:
        getattr(self._log, line.level)(line.event, **fields)


def _settled_line(job: Settled) -> Line:
    match job.state:
        case "done":
            return DONE
        case "failed":
            return FAILED
        case "cancelled":
            return CANCELLED
        case "skipped":
            return SKIPPED
        case "pending":
            return RETRYING if job.charged else DEFERRED


def _sent_line(event: Sending) -> Line:
    return SENT[event.outcome]


def _fields(line: Line, source: object) -> dict[str, object]:
    return {name: _value(getattr(source, name)) for name in line.fields}


def _value(value: object) -> object:
    match value:
        case str():
            return clean(value)
        case float():
            return round(value, 6)
        case tuple() | list():
            return [_value(item) for item in value]
        case dict():
            return {clean(str(name)): _value(item) for name, item in value.items()}
        case _:
            return value
