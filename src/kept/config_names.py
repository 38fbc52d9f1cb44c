"""The environment variables: ours, other systems' names for the same settings, and near misses. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from kept.config_kinds import API, DATABASE, DURATION, FLAG, NAMES, SCHEMA, SIZE, TEXT, TOKEN, WHOLE, Kind, choice
from kept.errors import Misconfigured, Refused
from kept.redact import redact

_BARE = re.compile(r"[0-9]+(\.[0-9]+)?")
_SCHEME = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]{0,30}://")


@dataclass(frozen=True, slots=True)
class Alias:
    """Another system's name for a setting of ours; *unit* is what a bare number in it counts."""

    name: str
    field: str
    unit: str = ""


@dataclass(frozen=True, slots=True)
class Variable:
    """The environment variable of one setting: which field it sets, what it takes, what it is for."""

    name: str
    field: str
    kind: Kind
    says: str

    def read(self, text: str, alias: Alias | None = None) -> object:
        """The value of this variable, or of its *alias*, from the environment."""
        name, unit = (alias.name, alias.unit) if alias else (self.name, self.kind.unit)
        return self.take(text + unit if _BARE.fullmatch(text) else text, name)

    def take(self, value: object, name: str) -> object:
        """*value* as this setting's type; errors call the setting *name*."""
        try:
            return self.kind.take(value)
        except TypeError:
            raise TypeError(f"{name}: got {type(value).__name__}, which is not {self.kind.wants}") from None
        except (ValueError, Refused):
            raise Misconfigured(f"{name}={self._quote(str(value))} is not {self.kind.wants}") from None

    def show(self, value: object) -> str:
        """*value* as one would write it."""
        return "not set" if value is None else self.kind.show(value)

    def _quote(self, text: str) -> str:
        if self.kind.secret:  # who forgot the scheme wrote "user:password@host", which nothing can recognise
            scheme = _SCHEME.match(text)
            return f"'{scheme[0]}…'" if scheme else "…"
        shown = redact(text)
        return repr(shown if len(shown) <= 40 else f"{shown[:40]}…")


VARIABLES = (
    Variable("KEPT_DATABASE_URL", "database", DATABASE, "the database your own tables live in, or `embedded:`"),
    Variable("KEPT_APP", "app", TEXT, "`module:app`, saves repeating it on the command line"),
    Variable("KEPT_SCHEMA", "schema", SCHEMA, "the schema Kept keeps its tables in"),
    Variable("KEPT_QUEUES", "queues", NAMES, "the queues a worker serves; all if not set"),
    Variable("KEPT_CONCURRENCY", "concurrency", WHOLE, "handlers running at once in a process"),
    Variable("KEPT_PROCESSES", "processes", WHOLE, "worker processes under one supervisor"),
    Variable("KEPT_BATCH", "batch", WHOLE, "jobs claimed and settled by one statement, at most"),
    Variable("KEPT_POLL_ONLY", "poll_only", FLAG, "do without LISTEN, as behind a transaction pooler"),
    Variable("KEPT_SHUTDOWN_GRACE", "grace", DURATION, "how long a stop waits for running jobs"),
    Variable("KEPT_SPARE", "spare", FLAG, "a process that has loaded the App waits for jobs whose process died"),
    Variable("KEPT_LEASE", "lease", DURATION, "how long a silent worker keeps its jobs"),
    Variable("KEPT_RENEW", "renew", DURATION, "how often a worker extends its lease"),
    Variable("KEPT_RECLAIM_SCAN", "reclaim_scan", DURATION, "how often expired leases are looked for, ± 10 %"),
    Variable("KEPT_IDLE_MIN", "idle_min", DURATION, "first wait when there was nothing to do; doubles"),
    Variable(
        "KEPT_IDLE_MAX",
        "idle_max",
        DURATION,
        "longest wait when there was nothing to do; above 2s, delayed jobs may start late",
    ),
    Variable("KEPT_IDLE_JITTER", "idle_jitter", DURATION, "random part of an idle wait, at most"),
    Variable("KEPT_BUSY_DELAY", "busy_delay", DURATION, "wait when there was something to do"),
    Variable("KEPT_ERROR_BACKOFF", "error_backoff", DURATION, "wait after a tick that failed"),
    Variable("KEPT_ERROR_JITTER", "error_jitter", DURATION, "random part added to the error backoff, at most"),
    Variable("KEPT_MAX_ATTEMPTS", "max_attempts", WHOLE, "charged attempts of a job whose task does not say"),
    Variable("KEPT_RETRY_BASE", "retry_base", DURATION, "wait before the first retry; doubles"),
    Variable("KEPT_RETRY_MAX", "retry_max", DURATION, "longest wait before a retry"),
    Variable("KEPT_RETRY_JITTER", "retry_jitter", DURATION, "random part added to a retry's wait, at most"),
    Variable("KEPT_TIMEOUT", "timeout", DURATION, "limit of one attempt whose task does not say"),
    Variable("KEPT_UNIQUE_FOR", "unique_for", DURATION, "how long a key holds, from enqueue"),
    Variable("KEPT_PAYLOAD_LIMIT", "payload_limit", SIZE, "largest payload accepted"),
    Variable("KEPT_INBOX_TTL", "inbox_ttl", DURATION, "how long an inbox remembers an event"),
    Variable("KEPT_RETENTION_DONE", "retention_done", DURATION, "how long jobs that did not fail stay in history"),
    Variable("KEPT_RETENTION_FAILED", "retention_failed", DURATION, "how long failed jobs stay in history"),
    Variable("KEPT_RETENTION_LOG", "retention_log", DURATION, "how long the job log stays"),
    Variable("KEPT_RETENTION_EVENTS", "retention_events", DURATION, "how long events stay in their log"),
    Variable("KEPT_RETENTION_RUNS", "retention_runs", DURATION, "how long runs stay on record"),
    Variable("KEPT_SINK_ATTEMPTS", "sink_attempts", WHOLE, "charged attempts to publish an event"),
    Variable("KEPT_SINK_BATCH", "sink_batch", WHOLE, "events handed to a sink at once; by default what suits it"),
    Variable("KEPT_SINK_PAUSE", "sink_pause", DURATION, "first rest of a sink whose broker failed; doubles"),
    Variable("KEPT_SINK_PAUSE_MAX", "sink_pause_max", DURATION, "longest rest of a sink whose broker failed"),
    Variable("KEPT_TICK_OVERALL", "tick_overall", DURATION, "budget of one tick (tick mode)"),
    Variable(
        "KEPT_TICK_RUNNER",
        "tick_runner",
        DURATION,
        "budget of a runner of your own, or in tick mode of any",
    ),
    Variable(
        "KEPT_TICK_ITEMS",
        "tick_items",
        WHOLE,
        "items of a runner of your own, or in tick mode of any",
    ),
    Variable("KEPT_TICK_RUNNERS", "tick_runners", NAMES, "the runners of a tick, in order; all if not set"),
    Variable("KEPT_SHARD_INDEX", "shard_index", WHOLE, "which shard this worker is, from 0"),
    Variable("KEPT_SHARD_COUNT", "shard_count", WHOLE, "how many shards there are"),
    Variable("KEPT_API_URL", "api_url", API, "the API that HTTP runners call"),
    Variable("KEPT_API_TOKEN", "api_token", TOKEN, "what they show it, as `x-service-token`"),
    Variable(
        "KEPT_LOG_FORMAT",
        "log_format",
        choice("auto", "json", "console"),
        "`auto`: console on a terminal, else json",
    ),
    Variable(
        "KEPT_LOG_LEVEL",
        "log_level",
        choice("debug", "info", "warning", "error"),
        "least level that is logged",
    ),
    Variable("KEPT_METRICS_PORT", "metrics_port", WHOLE, "port of the metrics endpoint; none if not set"),
)

ALIASES = (
    Alias("WORKER_TICK_RUNNERS", "tick_runners"),
    Alias("WORKER_TICK_OVERALL_MAX_MS", "tick_overall", "ms"),
    Alias("WORKER_TICK_RUNNER_MAX_MS", "tick_runner", "ms"),
    Alias("WORKER_TICK_RUNNER_MAX_ITEMS", "tick_items"),
    Alias("WORKER_TICK_SHARD_INDEX", "shard_index"),
    Alias("WORKER_TICK_SHARD_COUNT", "shard_count"),
    Alias("WORKER_API_BASE_URL", "api_url"),
    Alias("WORKER_API_SERVICE_TOKEN", "api_token"),
    Alias("WORKER_BUSY_LOOP_DELAY_MS", "busy_delay", "ms"),
    Alias("WORKER_IDLE_BACKOFF_MIN_MS", "idle_min", "ms"),
    Alias("WORKER_IDLE_BACKOFF_MAX_MS", "idle_max", "ms"),
    Alias("WORKER_IDLE_BACKOFF_JITTER_MS", "idle_jitter", "ms"),
    Alias("WORKER_TICK_LOOP_ERROR_BACKOFF_MS", "error_backoff", "ms"),
    Alias("WORKER_TICK_LOOP_MAX_JITTER_MS", "error_jitter", "ms"),
    Alias("WORKER_SHUTDOWN_TIMEOUT_MS", "grace", "ms"),
    Alias("OUTBOX_BATCH_SIZE", "batch"),
    Alias("OUTBOX_CONCURRENCY", "concurrency"),
    Alias("OUTBOX_LEASE_DURATION_MS", "lease", "ms"),
    Alias("OUTBOX_LEASE_HEARTBEAT_MS", "renew", "ms"),
    Alias("OUTBOX_MAX_ATTEMPTS", "max_attempts"),
    Alias("OUTBOX_RETRY_BASE_MS", "retry_base", "ms"),
    Alias("OUTBOX_RETRY_MAX_MS", "retry_max", "ms"),
    Alias("OUTBOX_RETRY_JITTER_MS", "retry_jitter", "ms"),
    Alias("PACKFINDERZ_OUTBOX_MAX_ATTEMPTS", "sink_attempts"),
    Alias("PACKFINDERZ_OUTBOX_PUBLISH_BATCH_SIZE", "sink_batch"),
    Alias("PACKFINDERZ_OUTBOX_PUBLISH_POLL_MS", "sink_pause", "ms"),
    Alias("HEARTBEAT_INTERVAL_SEC", "renew", "s"),
    Alias("LEASE_TIMEOUT_SEC", "lease", "s"),
    Alias("RECOVERY_SCAN_INTERVAL_SEC", "reclaim_scan", "s"),
    Alias("MAX_ATTEMPTS", "max_attempts"),
    Alias("MAX_CONCURRENCY", "concurrency"),
    Alias("PACKFINDERZ_EVENTING_IDEMPOTENCY_TTL", "inbox_ttl"),
)

# Kubernetes describes a service called "kept" or "kept-something" in every container of its namespace; the
# rest belongs to the demo, the launcher of the embedded PostgreSQL, the supervisor and the tests.
_IGNORED = re.compile(
    r"KEPT_(SERVICE_|PORT|DEMO_|TEST_|PG_BIN$|PROCESS_(INDEX|PARENT)$|\w+_SERVICE_(HOST|PORT)|\w+_PORT_[0-9]+_(TCP|UDP|SCTP))"
)
_UNIT_SUFFIX = re.compile(r"_(MS|S|SEC|SECS|SECONDS|MIN|MINUTES|BYTES)$")


def ours(environ: Mapping[str, str]) -> dict[str, str]:
    """What *environ* says in variables called KEPT_* (in any case) that are meant for us."""
    return {
        name: text
        for name, text in environ.items()
        if name.upper().startswith("KEPT_") and not _IGNORED.match(name) and not _is_injected_port(name, text)
    }


def _is_injected_port(name: str, text: str) -> bool:
    # A service called "kept-metrics" makes KEPT_METRICS_PORT=tcp://10.0.0.1:9000.
    return name.endswith("_PORT") and _SCHEME.match(text) is not None


def near(name: str, known: Mapping[str, str]) -> str | None:
    """The known variable that *name* was probably meant to be; *known* maps variables to their fields."""
    name = name.upper()
    for variable, field in known.items():
        # KEPT_GRACE for KEPT_SHUTDOWN_GRACE, KEPT_LEASE_MS for KEPT_LEASE: nothing a distance would show.
        if {name, _UNIT_SUFFIX.sub("", name)} & {variable, f"KEPT_{field.upper()}"}:
            return variable
    closest = min(known, key=lambda variable: distance(name, variable))
    return closest if distance(name, closest) <= _tolerance(closest) else None


def _tolerance(variable: str) -> int:
    # Two changes make another word of a short one: KEPT_RELEASE is not a misspelt KEPT_LEASE.
    return 1 if len(variable) <= len("KEPT_LEASE") else 2


def distance(one: str, other: str) -> int:
    """How many letters to add, drop, replace or swap with a neighbour to make *one* the *other*."""
    before: list[int] = []
    row = list(range(len(other) + 1))
    for i, a in enumerate(one, 1):
        oldest, before, row = before, row, [i]
        for j, b in enumerate(other, 1):
            row.append(min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (a != b)))
            if i > 1 and j > 1 and (a, one[i - 2]) == (other[j - 2], b):
                row[j] = min(row[j], oldest[j - 2] + 1)
    return row[-1]
