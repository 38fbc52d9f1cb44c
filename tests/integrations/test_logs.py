"""Log lines: stable events and fields, safe text, and no cost for plain success."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st

from kept import signals
from kept.errors import Misconfigured
from kept.integrations.logs import RAN, SENT, LogSubscriber
from kept.loggers import configure, job_logger
from kept.showable import LONGEST, clean, escape
from kept.signals import EventsSent, JobsClaimed, JobsSettled, PickUp, Settled, Signal

EVIL = "boom\n2026-01-01T00:00:00Z [error] worker_stopped\r\x1b[2J\x9b31m\u2028\u202e\ud800\x00"
KINDS = [
    kind
    for kind in vars(signals).values()
    if isinstance(kind, type) and issubclass(kind, Signal) and kind is not Signal
]
STATES = ("done", "failed", "cancelled", "skipped", "pending")


class Terminal(io.StringIO):
    """A stream that says it is one."""

    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """Structlog unconfigured, before and after."""
    structlog.reset_defaults()
    yield
    structlog.reset_defaults()


@contextmanager
def no_standard_handlers() -> Iterator[None]:
    """A root logger as a process of ours finds it; pytest puts its own handlers there."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    root.handlers.clear()
    try:
        yield
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)


def lines(stream: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def logged(*reported: Signal, level: str = "debug") -> list[dict[str, object]]:
    """The JSON lines that *reported* makes, without their time."""
    stream = io.StringIO()
    configure("json", level, stream)
    subscriber = LogSubscriber()
    for signal in reported:
        subscriber(signal)
    return [{key: value for key, value in line.items() if key != "timestamp"} for line in lines(stream)]


def settled(state: str = "done", *, charged: bool = True, **changes: object) -> Settled:
    given: dict[str, object] = {
        "job_id": 7,
        "queue": "mail",
        "task": "send",
        "attempt": 2,
        "state": state,
        "code": "timeout",
        "reason": "exhausted",
        "message": "too slow",
        "charged": charged,
        "duration": 0.25,
        "delay": 5.0,
    }
    return Settled(**(given | changes))


def batch(*jobs: Settled) -> JobsSettled:
    return JobsSettled(jobs=jobs)


def sent(outcome: str) -> Signal:
    each = signals.Sending("0190-7", "invoice.made", "invoice", "7", outcome, "refused", "no")
    return signals.EventsSent(sink="nats", subscription="publish", batch_size=1, duration=0.1, events=[each])


def ran(state: str) -> Signal:
    return signals.RunFinished(
        name="sweep", run=7, state=state, duration=0.5, counters={"swept": 3}, code="timeout", message="too slow"
    )


def samples() -> list[Signal]:
    """One of every signal, and of every way to settle."""
    plain: list[Signal] = [
        signals.WorkerStarted(worker="u", name="w", queues=("mail",), tasks=("send",), concurrency=10),
        signals.WorkerStopped(worker="u", name="w", released=2),
        signals.WorkerDraining(name="w", running=3, grace=30.0),
        signals.WorkerFenced(name="w", old="u", new="v", cancelled=3),
        JobsClaimed(jobs=[PickUp(7, "mail", "send", 1, 0.01)] * 3),
        signals.JobLeaseLost(job_id=7, queue="mail", task="send", attempt=2),
        signals.LeaseRenewed(name="w", count=4),
        signals.RenewalFailed(name="w", count=1),
        signals.KeeperRestarted(name="w", exit_code=-9),
        signals.SpareReady(name="w", pid=4711, duration=0.4),
        signals.JobsReclaimed(worker="u", name="w", reason="expired", jobs=5, failed=1),
        signals.TickDone(duration=0.5, items=20),
        signals.RunnerFailed(runner="schedules", error="ValueError: x"),
        *(ran(state) for state in RAN),
        signals.RunLeaseLost(name="sweep", run=7),
        signals.RunnerSkipped(name="sweep", holder="host:7"),
        signals.ConnectionLost(error="server closed the connection", delay=1.0),
        signals.ConnectionRestored(down_for=2.5),
        signals.SinkOpened(sink="nats", code="no_broker", message="refused", failures=2, pause=1.0),
        signals.SinkClosed(sink="nats"),
        signals.SinkDisabled(sink="hook", code="gone", message="410"),
        *(sent(outcome) for outcome in SENT),
        signals.TaskUnknown(queue="mail", task="gone"),
        signals.EventSeen(consumer="mailer", answer="first"),
        signals.Figures(lanes=[signals.Waiting("mail", "send", 3, 0.5)], live=2, expired=1),
        signals.ScheduleFigures(active=3, paused=1, retired=0, late=1, lateness=90.5),
        signals.RunFigures(succeeded=[("nightly", 1.7e9)]),
        signals.Warned(code="default_partition", message="the default partition holds rows"),
    ]
    ways = [settled(state) for state in STATES] + [settled("pending", charged=False)]
    return [*plain, *(batch(way) for way in ways)]


# --- which lines


def test_the_samples_hold_every_signal() -> None:
    assert {type(signal) for signal in samples()} == set(KINDS)


@pytest.mark.parametrize("signal", samples(), ids=lambda signal: type(signal).__name__)
def test_every_signal_makes_one_line(signal: Signal) -> None:
    assert len(logged(signal)) == 1


def test_the_documented_table_is_what_is_logged(documented: Callable[[str], list[dict[str, str]]]) -> None:
    made = set()
    for signal in samples():
        (line,) = logged(signal)
        fields = ", ".join(key for key in line if key not in ("event", "level"))
        made.add((line["event"], line["level"], type(signal).__name__, fields))

    told = {(row["event"], row["level"], row["signal"], row["fields"]) for row in documented("log events")}
    assert told == made


def test_a_retry_is_a_warning_with_code_attempt_and_delay() -> None:
    (line,) = logged(batch(settled("pending")), level="info")

    assert (line["event"], line["level"]) == ("job_retrying", "warning")
    assert (line["code"], line["attempt"], line["delay"]) == ("timeout", 2, 5.0)


def test_a_final_failure_is_an_error_with_code_and_reason() -> None:
    (line,) = logged(batch(settled("failed")), level="info")

    assert (line["event"], line["level"]) == ("job_failed", "error")
    assert (line["code"], line["reason"], line["attempt"]) == ("timeout", "exhausted", 2)


def test_a_claim_is_told_as_a_count() -> None:
    (line,) = logged(JobsClaimed(jobs=[PickUp(7, "mail", "send", 1, 0.01)] * 3))

    assert line["jobs"] == 3


def test_at_info_level_only_what_is_not_plain_success_is_told() -> None:
    told = logged(
        batch(settled("done"), settled("failed"), settled("pending", charged=False), settled("done")),
        signals.TickDone(duration=0.5, items=20),
        level="info",
    )

    assert [line["event"] for line in told] == ["job_failed"]


def test_at_info_level_nothing_of_a_done_job_is_looked_at_but_its_state() -> None:
    class OnlyState:
        __slots__ = ()
        state = "done"

    done = JobsSettled(jobs=[OnlyState()] * 500)  # type: ignore[list-item]

    assert logged(done, level="info") == []
    with pytest.raises(AttributeError):
        logged(done, level="debug")


def test_at_error_level_a_retry_is_not_told() -> None:
    told = logged(batch(settled("pending"), settled("failed")), level="ERROR")

    assert [line["event"] for line in told] == ["job_failed"]


class Foreign(signals.Warned, frozen=True, kw_only=True):
    """A signal of an application's own."""


def test_a_signal_of_someone_elses_is_left_to_them() -> None:
    assert logged(Foreign(code="x", message="y")) == []


# --- text that nobody can misuse


@pytest.mark.parametrize("format", ["json", "console"])
@given(signal=st.one_of([st.from_type(kind) for kind in KINDS if kind not in (JobsSettled, EventsSent)]))
def test_whatever_a_signal_holds_it_stays_one_line(format: str, signal: Signal) -> None:
    stream = io.StringIO()
    configure(format, "debug", stream)
    LogSubscriber()(signal)

    assert len(stream.getvalue().splitlines()) == 1


@pytest.mark.parametrize("format", ["json", "console"])
@pytest.mark.parametrize("field", ["message", "code", "reason", "task", "queue"])
def test_no_field_of_a_failed_job_can_forge_a_line_or_steer_a_terminal(format: str, field: str) -> None:
    stream = io.StringIO()
    configure(format, "debug", stream)
    LogSubscriber()(batch(settled("failed", **{field: EVIL})))

    text = stream.getvalue()
    assert len(text.splitlines()) == 1
    assert escape(text.removesuffix("\n")) == text.removesuffix("\n")


def test_a_long_message_is_cut() -> None:
    (line,) = logged(batch(settled("failed", message="x" * 10_000_000)))

    assert line["message"] == "x" * LONGEST + "… (10000000 characters)"


def test_a_password_is_not_shown_even_where_the_text_is_cut() -> None:
    url = "amqp://app:s3cret@broker/shop"
    for before in range(LONGEST - len(url) - 2, LONGEST + 2):
        assert "s3c" not in clean("x" * before + " " + url)


@pytest.mark.parametrize("format", ["json", "console"])
def test_passwords_of_errors_and_of_handlers_lines_are_hidden(format: str) -> None:
    stream = io.StringIO()
    configure(format, "info", stream)
    LogSubscriber()(signals.ConnectionLost(error="cannot reach postgresql://app:s3cret@db/shop", delay=1.0))
    log = job_logger(7, "send", 1, "mail")
    log.info("trying postgresql://app:s3cret@db/shop", dsn="host=db password=s3cret")
    try:
        raise ConnectionError("postgresql://app:s3cret@db/shop")
    except ConnectionError:
        log.exception("failed")

    text = stream.getvalue()
    assert text.count("app:***@db/shop") >= 3
    assert "s3cret" not in text


def test_a_traceback_on_a_console_is_indented_so_that_it_forges_no_line() -> None:
    stream = io.StringIO()
    configure("console", "info", stream)
    try:
        raise ValueError(EVIL)
    except ValueError:
        job_logger(7, "send", 1, "mail").exception("it broke\nbadly", **{"key\n": "value\n"})

    first, *rest = stream.getvalue().splitlines()
    assert "it broke\\nbadly" in first
    assert rest
    assert all(line.startswith("    ") and escape(line) == line for line in rest)


@given(st.text())
def test_escaping_leaves_nothing_that_ends_a_line_and_changes_nothing_twice(text: str) -> None:
    once = escape(text)

    assert len(once.splitlines()) <= 1
    assert escape(once) == once


def test_escaping_leaves_words_of_any_language_alone() -> None:
    words = "grüße, 世界 👩\u200d🚀 naïve\u00a0café"

    assert escape(words) == words


# --- where lines go


def test_auto_is_for_people_on_a_terminal_and_for_machines_elsewhere() -> None:
    for stream, machine in ((Terminal(), False), (io.StringIO(), True)):
        configure("auto", "info", stream)
        LogSubscriber()(signals.ConnectionRestored(down_for=2.5))
        assert stream.getvalue().startswith("{") is machine
        assert "connection_restored" in stream.getvalue()


def test_colours_are_for_terminals_only() -> None:
    for stream, coloured in ((Terminal(), True), (io.StringIO(), False)):
        configure("console", "info", stream)
        LogSubscriber()(signals.ConnectionRestored(down_for=2.5))
        assert ("\x1b[" in stream.getvalue()) is coloured


@pytest.mark.parametrize(("format", "level"), [("xml", "info"), ("json", "loud"), ("json", "")])
def test_an_unknown_format_or_level_is_a_sentence_and_changes_nothing(format: str, level: str) -> None:
    with pytest.raises(Misconfigured, match=r"^log (format|level): '.*' is not known; use one of "):
        configure(format, level, io.StringIO())  # type: ignore[arg-type]

    assert not structlog.is_configured()


def test_lines_of_standard_logging_go_the_same_way() -> None:
    stream = io.StringIO()
    with no_standard_handlers():
        configure("json", "info", stream)
        logging.getLogger("shop").warning("stock of %s is low", "tea\n")
        logging.getLogger("shop").debug("not this one")

    (line,) = lines(stream)
    assert (line["event"], line["level"], line["logger"]) == ("stock of tea\n is low", "warning", "shop")


def test_configuring_again_replaces_the_first() -> None:
    first, second = io.StringIO(), io.StringIO()
    with no_standard_handlers():
        configure("json", "info", first)
        configure("json", "info", second)
        logging.getLogger("shop").warning("once")
        LogSubscriber()(signals.ConnectionRestored(down_for=2.5))

    assert first.getvalue() == ""
    assert [line["event"] for line in lines(second)] == ["once", "connection_restored"]


def test_standard_handlers_of_the_application_stay_in_charge() -> None:
    theirs, ours = io.StringIO(), io.StringIO()
    with no_standard_handlers():
        logging.getLogger().addHandler(logging.StreamHandler(theirs))
        configure("json", "info", ours)
        logging.getLogger("shop").warning("low stock")

    assert (theirs.getvalue(), ours.getvalue()) == ("low stock\n", "")


def test_a_stream_that_is_gone_stops_nobody() -> None:
    stream = io.StringIO()
    configure("json", "info", stream)
    log = job_logger(7, "send", 1, "mail")
    stream.close()

    assert log.info("to nobody") is None


@pytest.mark.parametrize("value", [float("nan"), {(1, 2): 3}, object(), {"self"}, b"\xff"])
def test_a_value_that_json_does_not_know_is_still_logged(value: object) -> None:
    stream = io.StringIO()
    configure("json", "info", stream)
    job_logger(7, "send", 1, "mail").info("odd", value=value)

    (line,) = lines(stream)
    assert (line["event"], line["job_id"]) == ("odd", 7)
    assert "NaN" not in stream.getvalue()


# --- without any configuration of ours


def test_unconfigured_lines_go_to_the_standard_logger_and_its_level(caplog: pytest.LogCaptureFixture) -> None:
    subscriber = LogSubscriber()
    with caplog.at_level(logging.INFO, logger="kept"):
        subscriber(batch(settled("done"), settled("failed", message=EVIL)))

    (record,) = caplog.records
    assert (record.name, record.levelno) == ("kept", logging.ERROR)
    assert record.getMessage().startswith("job_failed job_id=7 queue='mail' task='send' attempt=2")
    assert len(record.getMessage().splitlines()) == 1


def test_an_applications_own_structlog_gets_the_lines() -> None:
    with structlog.testing.capture_logs() as captured:
        structlog.configure(processors=structlog.get_config()["processors"])
        LogSubscriber()(signals.TaskUnknown(queue="mail", task="gone"))

    assert captured == [{"event": "task_unknown", "log_level": "warning", "queue": "mail", "task": "gone"}]


# --- a handler's logger


def test_a_handlers_line_names_its_job() -> None:
    stream = io.StringIO()
    log = job_logger(7, "send", 2, "mail")
    configure("json", "info", stream)  # a logger made before is not stale
    log.info("sent %d of %d", 3, 4, to="ada")
    log.bind(step="b").warning("slow")

    first, second = lines(stream)
    named = {"job_id": 7, "task": "send", "attempt": 2, "queue": "mail"}
    assert first.items() >= {**named, "event": "sent 3 of 4", "to": "ada", "level": "info"}.items()
    assert second.items() >= {**named, "event": "slow", "step": "b", "level": "warning"}.items()


def test_a_handlers_exception_reaches_the_standard_logger(caplog: pytest.LogCaptureFixture) -> None:
    try:
        raise ValueError("no such card")
    except ValueError:
        job_logger(7, "send", 2, "mail").exception("could not pay %s", "ada")

    (record,) = caplog.records
    assert record.getMessage() == "could not pay ada job_id=7 task='send' attempt=2 queue='mail'"
    assert record.exc_info is not None
    assert "no such card" in caplog.text
