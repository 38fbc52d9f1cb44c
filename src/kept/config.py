"""Settings: typed, frozen, checked once; a wrong value says which one it is and what to write instead.

Every setting is a field of :class:`Settings` and a ``KEPT_*`` variable; the tables of docs/configuration.md
are made from this module (``python -m kept.config_docs docs/configuration.md``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import InitVar, dataclass, fields
from datetime import timedelta
from typing import Any, Literal, TypeVar

from kept.config_names import ALIASES, VARIABLES, Variable, near, ours
from kept.errors import Misconfigured
from kept.redact import redact

T = TypeVar("T")
LogFormat = Literal["auto", "json", "console"]
LogLevel = Literal["debug", "info", "warning", "error"]

MS = timedelta(milliseconds=1)
SECOND = timedelta(seconds=1)
HOUR = timedelta(hours=1)
DAY = timedelta(days=1)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Settings:
    """Everything that can be configured, checked as a whole when it is made.

    A duration is a timedelta or a string with a unit; a bare number is a TypeError. *names* are how errors
    call the settings, if not by their field names.
    """

    database: str | None = None
    app: str | None = None
    schema: str = "kept"

    queues: tuple[str, ...] | None = None
    concurrency: int = 10
    processes: int = 1
    batch: int = 500
    poll_only: bool = False
    grace: timedelta = 30 * SECOND
    spare: bool = True

    lease: timedelta = 60 * SECOND
    renew: timedelta = 15 * SECOND
    reclaim_scan: timedelta = 5 * SECOND

    idle_min: timedelta = MS
    idle_max: timedelta = SECOND
    idle_jitter: timedelta = 500 * MS
    busy_delay: timedelta = timedelta()
    error_backoff: timedelta = 30 * SECOND
    error_jitter: timedelta = 2 * SECOND

    max_attempts: int = 3
    retry_base: timedelta = 5 * SECOND
    retry_max: timedelta = 120 * SECOND
    retry_jitter: timedelta = 500 * MS
    timeout: timedelta = 600 * SECOND
    unique_for: timedelta = 24 * HOUR
    payload_limit: int = 1024**2
    inbox_ttl: timedelta = 720 * HOUR

    retention_done: timedelta = 7 * DAY
    retention_failed: timedelta = 90 * DAY
    retention_log: timedelta = 90 * DAY
    retention_events: timedelta = 30 * DAY
    retention_runs: timedelta = 90 * DAY
    sink_attempts: int = 25
    sink_batch: int | None = None
    sink_pause: timedelta = timedelta(milliseconds=500)
    sink_pause_max: timedelta = timedelta(seconds=10)

    tick_overall: timedelta = 480 * SECOND
    tick_runner: timedelta = 60 * SECOND
    tick_items: int = 200
    tick_runners: tuple[str, ...] | None = None
    shard_index: int | None = None
    shard_count: int | None = None
    api_url: str | None = None
    api_token: str | None = None

    log_format: LogFormat = "auto"
    log_level: LogLevel = "info"
    metrics_port: int | None = None

    unknown: tuple[str, ...] = ()
    names: InitVar[Mapping[str, str] | None] = None

    def __post_init__(self, names: Mapping[str, str] | None) -> None:
        for variable in VARIABLES:
            value = getattr(self, variable.field)
            if value is not None or DEFAULTS[variable.field] is not None:
                object.__setattr__(self, variable.field, variable.take(value, variable.field))
        for rule in RULES:
            if not rule.holds(self):
                raise Misconfigured(_contradiction(self, rule, names or {}))

    def __repr__(self) -> str:
        """The settings that differ from their defaults; never a password."""
        changed = (v for v in VARIABLES if getattr(self, v.field) != DEFAULTS[v.field])
        shown = (f"{v.field}={redact(v.show(getattr(self, v.field)))}" for v in changed)
        return f"Settings({', '.join(shown)})"

    @classmethod
    def from_env(cls, environ: Mapping[str, str], **overrides: object) -> Settings:
        """Settings from *environ*; an override that is not None wins over KEPT_*, that over an alias."""
        environ, unknown = _sort_out(environ)
        given: dict[str, Any] = {name: value for name, value in overrides.items() if value is not None}
        found = {v.field: _find(v, environ) for v in VARIABLES if v.field not in given}
        values: dict[str, Any] = {name: value for name, (_, value) in found.items() if value is not None}
        names = {name: source for name, (source, _) in found.items()}
        return cls(**values, **given, unknown=unknown, names=names)

    def require_database(self) -> str:
        """The database, or an error that names both ways to have one."""
        if self.database is None:
            raise Misconfigured(
                "no database is configured: set KEPT_DATABASE_URL=postgresql://user@host/name, "
                "or KEPT_DATABASE_URL=embedded: to start a PostgreSQL of your own"
            )
        return self.database


DEFAULTS: Mapping[str, object] = {f.name: f.default for f in fields(Settings)}


@dataclass(frozen=True, slots=True)
class Rule:
    """Something that must hold between or within settings."""

    fields: tuple[str, ...]
    holds: Callable[[Settings], bool]
    says: str


def _within(name: str, low: T, high: T | None = None) -> Rule:
    show = next(v.show for v in VARIABLES if v.field == name)
    says = f"at least {show(low)}" if high is None else f"between {show(low)} and {show(high)}"

    def holds(settings: Settings) -> bool:
        value: Any = getattr(settings, name)
        return value is None or bool(low <= value and (high is None or value <= high))

    return Rule((name,), holds, f"{name} must be {says}")


def _shard_is_whole(settings: Settings) -> bool:
    index, count = settings.shard_index, settings.shard_count
    return index is count is None or (index is not None and count is not None and index < count)


RULES = (
    _within("lease", SECOND),
    _within("renew", 10 * MS),
    Rule(
        ("renew", "lease"),
        lambda s: s.renew * 2 <= s.lease,
        "renew must be at most half of lease, so that one renewal may fail and the next is still in time",
    ),
    _within("reclaim_scan", 10 * MS),
    _within("concurrency", 1, 10_000),
    _within("processes", 1, 256),
    _within("batch", 1, 1000),
    _within("idle_min", MS),
    Rule(("idle_min", "idle_max"), lambda s: s.idle_min <= s.idle_max, "idle_min must be at most idle_max"),
    _within("max_attempts", 1, 1000),
    Rule(
        ("retry_base", "retry_max"),
        lambda s: s.retry_base <= s.retry_max,
        "retry_base must be at most retry_max",
    ),
    _within("sink_attempts", 1, 1000),
    _within("sink_batch", 1, 1000),
    _within("sink_pause", 10 * MS),
    Rule(
        ("sink_pause", "sink_pause_max"),
        lambda s: s.sink_pause <= s.sink_pause_max,
        "sink_pause must be at most sink_pause_max",
    ),
    _within("timeout", MS),
    _within("payload_limit", 1024, 256 * 1024**2),
    _within("inbox_ttl", SECOND),
    _within("tick_overall", MS),
    _within("tick_runner", MS),
    _within("tick_items", 1),
    Rule(
        ("shard_index", "shard_count"),
        _shard_is_whole,
        "shard_index and shard_count must be set together, and shard_index be below shard_count",
    ),
    _within("metrics_port", 0, 65_535),
)


def _contradiction(settings: Settings, rule: Rule, names: Mapping[str, str]) -> str:
    facts = []
    for name in rule.fields:
        value = getattr(settings, name)
        shown = next(v.show(value) for v in VARIABLES if v.field == name)
        default = " (the default)" if value == DEFAULTS[name] is not None else ""
        facts.append(f"{names.get(name, name)} is {shown}{default}")
    return f"{' and '.join(facts)}, but {rule.says}"


def _sort_out(environ: Mapping[str, str]) -> tuple[dict[str, str], tuple[str, ...]]:
    """The variables that say something, and the KEPT_* names that mean nothing; a near miss is an error."""
    known = {v.name: v.field for v in VARIABLES}
    wanted = ours(environ)
    unknown = tuple(sorted(wanted.keys() - known.keys()))
    for name in unknown:
        if meant := near(name, known):
            raise Misconfigured(f"{name} is not a setting; did you mean {meant}?")
    others = {a.name: environ[a.name] for a in ALIASES if a.name in environ}
    return {name: text.strip() for name, text in (wanted | others).items() if text.strip()}, unknown


def _find(variable: Variable, environ: Mapping[str, str]) -> tuple[str, object]:
    """Which name sets *variable*, and its value: its own, else an alias, else its own and None."""
    if variable.name in environ:
        return variable.name, variable.read(environ[variable.name])
    found = [
        (alias.name, variable.read(environ[alias.name], alias))
        for alias in ALIASES
        if alias.field == variable.field and alias.name in environ
    ]
    if not found:
        return variable.name, None
    first, value = found[0]
    for other, differs in found[1:]:
        if differs != value:
            raise Misconfigured(
                f"{first} says {variable.show(value)} and {other} says {variable.show(differs)}; "
                f"set {variable.name}, which wins over both"
            )
    return first, value
