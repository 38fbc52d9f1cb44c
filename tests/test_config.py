"""Settings: every mistake is named in one sentence, and everything else is taken as it was meant."""

from __future__ import annotations

import pickle
from dataclasses import FrozenInstanceError, fields, replace
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kept.config import DEFAULTS, RULES, Settings
from kept.config_docs import fill, tables
from kept.config_names import ALIASES, VARIABLES, Variable, distance
from kept.errors import Misconfigured

PAGE = Path(__file__).parents[1] / "docs" / "configuration.md"


def seconds(number: float) -> timedelta:
    return timedelta(seconds=number)


def refusal(environ: dict[str, str], **overrides: object) -> str:
    with pytest.raises(Misconfigured) as refused:
        Settings.from_env(environ, **overrides)
    assert "\n" not in str(refused.value)
    return str(refused.value)


# --- what the settings are


def test_the_defaults_are_those_of_the_design() -> None:
    s = Settings()
    assert (s.lease, s.renew, s.reclaim_scan, s.grace) == (seconds(60), seconds(15), seconds(5), seconds(30))
    assert (s.idle_min, s.idle_max, s.idle_jitter) == (seconds(0.001), seconds(1), seconds(0.5))
    assert (s.busy_delay, s.error_backoff, s.error_jitter) == (seconds(0), seconds(30), seconds(2))
    assert (s.max_attempts, s.retry_base, s.retry_max, s.retry_jitter) == (
        3,
        seconds(5),
        seconds(120),
        seconds(0.5),
    )
    assert (s.concurrency, s.batch, s.processes, s.payload_limit) == (10, 500, 1, 1_048_576)
    assert (s.timeout, s.unique_for) == (timedelta(minutes=10), timedelta(hours=24))
    assert (s.retention_done.days, s.retention_failed.days, s.retention_log.days) == (7, 90, 90)
    assert (s.tick_overall, s.tick_runner, s.tick_items) == (seconds(480), seconds(60), 200)
    assert (s.schema, s.log_format, s.log_level, s.poll_only) == ("kept", "auto", "info", False)


def test_nothing_in_the_environment_gives_the_defaults() -> None:
    assert Settings.from_env({}) == Settings()
    assert Settings.from_env({"PATH": "/bin", "HOME": "/"}) == Settings()


def test_every_field_has_one_variable_and_a_default_that_can_be_written_in_it() -> None:
    assert [v.field for v in VARIABLES] == [f.name for f in fields(Settings) if f.name != "unknown"]
    written = {v.name: v.show(DEFAULTS[v.field]) for v in VARIABLES if DEFAULTS[v.field] is not None}
    assert Settings.from_env(written) == Settings()


def test_settings_cannot_be_changed_but_replaced_and_are_checked_again() -> None:
    settings = Settings.from_env({"KEPT_LEASE": "90s"})
    with pytest.raises(FrozenInstanceError):
        settings.lease = seconds(1)  # type: ignore[misc]
    assert replace(settings, concurrency=3) == Settings(lease=seconds(90), concurrency=3)
    with pytest.raises(Misconfigured):
        replace(settings, lease=seconds(20))


def test_settings_travel_to_another_process_and_hash() -> None:
    settings = Settings(queues=("a", "b"))
    assert pickle.loads(pickle.dumps(settings)) == settings
    assert hash(settings) == hash(Settings(queues=("a", "b")))


# --- how values are read


@pytest.mark.parametrize(
    ("text", "wanted"),
    [("90s", 90), ("2min", 120), ("1h30m", 5400), ("90000", 90), ("90000.5", 90.0005), (" 90s ", 90)],
)
def test_a_duration_has_a_unit_or_counts_milliseconds(text: str, wanted: float) -> None:
    assert Settings.from_env({"KEPT_LEASE": text}).lease == seconds(wanted)


@given(st.timedeltas(min_value=timedelta(), max_value=timedelta(days=3650)))
def test_any_duration_can_be_written_in_a_variable(value: timedelta) -> None:
    variable = next(v for v in VARIABLES if v.field == "retention_done")
    assert Settings.from_env({variable.name: variable.show(value)}).retention_done == value


@pytest.mark.parametrize(("text", "wanted"), [("2MiB", 2**21), ("512KiB", 2**19), ("4096", 4096), ("2 mib", 2**21)])
def test_a_size_has_a_unit_or_counts_bytes(text: str, wanted: int) -> None:
    assert Settings.from_env({"KEPT_PAYLOAD_LIMIT": text}).payload_limit == wanted


@given(st.integers(1024, 256 * 2**20))
def test_any_size_can_be_written_in_a_variable(size: int) -> None:
    variable = next(v for v in VARIABLES if v.field == "payload_limit")
    assert Settings.from_env({variable.name: variable.show(size)}).payload_limit == size


def test_a_list_keeps_its_order_and_drops_blanks_and_repetitions() -> None:
    assert Settings.from_env({"KEPT_QUEUES": "mail, default,,mail"}).queues == ("mail", "default")


@pytest.mark.parametrize(("text", "wanted"), [("1", True), ("TRUE", True), ("on", True), ("0", False), ("no", False)])
def test_a_flag_is_said_in_several_ways(text: str, wanted: bool) -> None:
    assert Settings.from_env({"KEPT_POLL_ONLY": text}).poll_only is wanted


def test_a_choice_is_read_in_any_case() -> None:
    settings = Settings.from_env({"KEPT_LOG_LEVEL": "WARNING", "KEPT_LOG_FORMAT": "Json"})
    assert (settings.log_level, settings.log_format) == ("warning", "json")


def test_a_variable_set_to_nothing_counts_as_not_set() -> None:
    empty = {v.name: " " for v in VARIABLES} | {a.name: "" for a in ALIASES}
    assert Settings.from_env(empty) == Settings()


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://h/d",
        "postgres://u:p@h/d",
        "host=h dbname=d",
        "service=x",
        "embedded:",
        "embedded:/data/pg",
    ],
)
def test_a_database_is_a_url_a_connection_string_or_embedded(url: str) -> None:
    assert Settings.from_env({"KEPT_DATABASE_URL": url}).require_database() == url


def test_no_database_is_an_error_that_names_both_ways() -> None:
    with pytest.raises(Misconfigured, match=r"KEPT_DATABASE_URL=postgresql://.* KEPT_DATABASE_URL=embedded:"):
        Settings().require_database()


# --- in Python


def test_python_takes_strings_with_units_and_timedeltas() -> None:
    settings = Settings.from_env({}, lease="90s", renew=seconds(20), payload_limit="2KiB", queues=["mail"])
    assert settings == Settings(lease=seconds(90), renew=seconds(20), payload_limit=2048, queues=("mail",))


@pytest.mark.parametrize("field", [v.field for v in VARIABLES if v.kind.unit])
def test_a_bare_number_for_a_duration_is_a_type_error_in_python(field: str) -> None:
    with pytest.raises(TypeError, match=rf"{field}: got int, which is not a duration.*write it like 250ms"):
        Settings.from_env({}, **{field: 60})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("concurrency", 1.5),
        ("concurrency", True),
        ("poll_only", 1),
        ("queues", 7),
        ("queues", [7]),
        ("app", b"x"),
    ],
)
def test_a_value_of_the_wrong_type_is_a_type_error(field: str, value: object) -> None:
    with pytest.raises(TypeError, match=rf"{field}: got {type(value).__name__}, which is not"):
        Settings.from_env({}, **{field: value})


def test_a_bare_number_in_a_string_has_no_unit_in_python() -> None:
    assert refusal({}, lease="60000").startswith("lease='60000' is not a duration")


def test_nothing_is_a_type_error_where_a_value_is_needed() -> None:
    with pytest.raises(TypeError, match="lease: got NoneType"):
        Settings(lease=None)  # type: ignore[arg-type]


def test_an_override_wins_over_the_environment_and_none_is_no_override() -> None:
    environ = {"KEPT_CONCURRENCY": "4", "KEPT_BATCH": "40"}
    settings = Settings.from_env(environ, concurrency=7, batch=None)
    assert (settings.concurrency, settings.batch) == (7, 40)


def test_an_override_nobody_knows_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="concurency"):
        Settings.from_env({}, concurency=7)


# --- values that cannot be read


@pytest.mark.parametrize(
    ("name", "text", "wants"),
    [
        ("KEPT_LEASE", "5 parsecs", "write it like 250ms, 60s, 10min or 24h"),
        ("KEPT_LEASE", "-5s", "write it like 250ms"),
        ("KEPT_LEASE", "20000d", "a duration of at most ten years"),
        ("KEPT_CONCURRENCY", "ten", "a whole number; write it like 10"),
        ("KEPT_CONCURRENCY", "1_0", "a whole number"),
        ("KEPT_CONCURRENCY", "-1", "a whole number"),
        ("KEPT_CONCURRENCY", "99999999999", "a whole number"),
        ("KEPT_PAYLOAD_LIMIT", "1MB", "write it like 1MiB, 512KiB or a number of bytes"),
        ("KEPT_POLL_ONLY", "maybe", "write true or false"),
        ("KEPT_QUEUES", ",", "write it like mail,default"),
        ("KEPT_LOG_FORMAT", "xml", "one of auto, json, console"),
        ("KEPT_LOG_LEVEL", "loud", "one of debug, info, warning, error"),
        ("KEPT_SCHEMA", "Kept", "lower-case identifier of at most 40 characters"),
        ("KEPT_SCHEMA", "a-b", "lower-case identifier"),
        ("KEPT_SCHEMA", "a" * 41, "lower-case identifier"),
        ("KEPT_SCHEMA", "pg_kept", "does not start with pg_"),
        ("HEARTBEAT_INTERVAL_SEC", "soon", "write it like 250ms"),
    ],
)
def test_an_unreadable_value_is_named_with_its_variable_and_what_to_write(name: str, text: str, wants: str) -> None:
    message = refusal({name: text})
    assert message.startswith(f"{name}='{text[:40]}")
    assert wants in message


def test_a_schema_of_forty_characters_is_fine() -> None:
    assert Settings.from_env({"KEPT_SCHEMA": "a" * 40}).schema == "a" * 40


@pytest.mark.parametrize("text", ["mysql://ana:s3cret@h/d", "ana:s3cret@h/d", "postgresql+psycopg://ana:s3cret@h/d"])
def test_a_database_of_another_kind_is_refused_without_telling_the_password(text: str) -> None:
    message = refusal({"KEPT_DATABASE_URL": text})
    assert "KEPT_DATABASE_URL" in message
    assert "write postgresql://user@host/name, or embedded:" in message
    assert "s3cret" not in message


@pytest.mark.parametrize("variable", [v.name for v in VARIABLES if v.field not in {"app", "queues", "tick_runners"}])
def test_a_password_in_the_wrong_variable_is_not_told(variable: str) -> None:
    assert "s3cret" not in refusal({variable: "x " * 15 + "postgres+x://ana:s3cret@h/d"})


def test_a_password_is_not_shown_with_the_settings() -> None:
    settings = Settings(database="postgresql://ana:s3cret@h/d", lease=seconds(90))
    assert repr(settings) == "Settings(database=postgresql://ana:***@h/d, lease=90s)"


def test_a_long_value_is_cut() -> None:
    assert len(refusal({"KEPT_LEASE": "x" * 10_000})) < 200


# --- contradictions


def test_renewing_too_seldom_is_refused_and_both_values_are_named() -> None:
    assert refusal({"KEPT_LEASE": "20s"}) == (
        "KEPT_RENEW is 15s (the default) and KEPT_LEASE is 20s, but renew must be at most half of lease, "
        "so that one renewal may fail and the next is still in time"
    )
    assert Settings.from_env({"KEPT_LEASE": "30s"}).renew == seconds(15)


def test_a_contradiction_is_told_in_the_names_that_were_used() -> None:
    message = refusal({"HEARTBEAT_INTERVAL_SEC": "40", "KEPT_LEASE": "50s"})
    assert message.startswith("HEARTBEAT_INTERVAL_SEC is 40s and KEPT_LEASE is 50s, but renew must")
    assert refusal({}, renew="40s", lease="50s").startswith("renew is 40s and lease is 50s, but renew must")


BROKEN: list[dict[str, object]] = [
    {"lease": "999ms", "renew": "20ms"},
    {"renew": "9ms"},
    {"renew": "31s"},
    {"reclaim_scan": "0s"},
    {"concurrency": 0},
    {"processes": 0},
    {"batch": 1001},
    {"batch": 0},
    {"idle_min": "0s"},
    {"idle_min": "2s"},
    {"max_attempts": 0},
    {"retry_base": "3min"},
    {"sink_attempts": 0},
    {"sink_batch": 1001},
    {"sink_pause": "9ms"},
    {"sink_pause": "11s"},
    {"timeout": "0s"},
    {"payload_limit": 1023},
    {"payload_limit": "257MiB"},
    {"inbox_ttl": "999ms"},
    {"tick_overall": "0s"},
    {"tick_runner": "0s"},
    {"tick_items": 0},
    {"shard_index": 0},
    {"shard_count": 2},
    {"shard_index": 2, "shard_count": 2},
    {"metrics_port": 65_536},
]


@pytest.mark.parametrize("values", BROKEN, ids=str)
def test_a_broken_rule_names_the_setting_and_says_what_must_hold(values: dict[str, object]) -> None:
    facts, _, says = refusal({}, **values).partition(", but ")
    assert any(f"{name} is " in facts and name in says for name in values)


def test_every_rule_can_be_broken() -> None:
    said = {refusal({}, **values).partition(", but ")[2] for values in BROKEN}
    assert said == {rule.says for rule in RULES}


@pytest.mark.parametrize(
    "values",
    [
        {"lease": "1s", "renew": "500ms"},
        {"batch": 1},
        {"batch": 1000},
        {"idle_min": "1s"},
        {"retry_base": "120s"},
        {"retry_base": "0s"},
        {"payload_limit": "1KiB"},
        {"payload_limit": "256MiB"},
        {"shard_index": 0, "shard_count": 1},
        {"metrics_port": 0},
        {"grace": "0s", "unique_for": "0s", "retention_done": "0s"},
    ],
    ids=str,
)
def test_the_edge_of_a_rule_is_allowed(values: dict[str, object]) -> None:
    assert Settings.from_env({}, **values) != Settings()


# --- names of other systems


def test_a_whole_configuration_in_worker_and_outbox_names_is_understood() -> None:
    settings = Settings.from_env(
        {
            "WORKER_TICK_RUNNERS": "outbox,invoiceReminders,classesBilling",
            "WORKER_TICK_OVERALL_MAX_MS": "480001",
            "WORKER_TICK_RUNNER_MAX_MS": "60001",
            "WORKER_TICK_RUNNER_MAX_ITEMS": "201",
            "WORKER_TICK_SHARD_INDEX": "1",
            "WORKER_TICK_SHARD_COUNT": "3",
            "WORKER_BUSY_LOOP_DELAY_MS": "250",
            "WORKER_IDLE_BACKOFF_MIN_MS": "1000",
            "WORKER_IDLE_BACKOFF_MAX_MS": "30000",
            "WORKER_IDLE_BACKOFF_JITTER_MS": "501",
            "WORKER_TICK_LOOP_ERROR_BACKOFF_MS": "30001",
            "WORKER_TICK_LOOP_MAX_JITTER_MS": "2001",
            "WORKER_SHUTDOWN_TIMEOUT_MS": "30001",
            "OUTBOX_BATCH_SIZE": "50",
            "OUTBOX_CONCURRENCY": "11",
            "OUTBOX_LEASE_DURATION_MS": "60001",
            "OUTBOX_LEASE_HEARTBEAT_MS": "15001",
            "OUTBOX_MAX_ATTEMPTS": "4",
            "OUTBOX_RETRY_BASE_MS": "5001",
            "OUTBOX_RETRY_MAX_MS": "120001",
            "OUTBOX_RETRY_JITTER_MS": "502",
        }
    )
    assert settings == Settings(
        tick_runners=("outbox", "invoiceReminders", "classesBilling"),
        tick_overall=seconds(480.001),
        tick_runner=seconds(60.001),
        tick_items=201,
        shard_index=1,
        shard_count=3,
        busy_delay=seconds(0.25),
        idle_min=seconds(1),
        idle_max=seconds(30),
        idle_jitter=seconds(0.501),
        error_backoff=seconds(30.001),
        error_jitter=seconds(2.001),
        grace=seconds(30.001),
        batch=50,
        concurrency=11,
        lease=seconds(60.001),
        renew=seconds(15.001),
        max_attempts=4,
        retry_base=seconds(5.001),
        retry_max=seconds(120.001),
        retry_jitter=seconds(0.502),
    )


def test_a_whole_configuration_in_names_that_count_seconds_is_understood() -> None:
    settings = Settings.from_env(
        {
            "HEARTBEAT_INTERVAL_SEC": "10",
            "LEASE_TIMEOUT_SEC": "45",
            "RECOVERY_SCAN_INTERVAL_SEC": "2.5",
            "MAX_ATTEMPTS": "5",
            "MAX_CONCURRENCY": "2",
        }
    )
    assert settings == Settings(
        renew=seconds(10), lease=seconds(45), reclaim_scan=seconds(2.5), max_attempts=5, concurrency=2
    )


def test_our_own_name_wins_over_an_alias_even_over_a_broken_one() -> None:
    environ = {"KEPT_CONCURRENCY": "4", "MAX_CONCURRENCY": "many", "OUTBOX_CONCURRENCY": "8"}
    assert Settings.from_env(environ).concurrency == 4


def test_two_aliases_that_disagree_are_refused_and_two_that_agree_are_not() -> None:
    message = refusal({"OUTBOX_LEASE_DURATION_MS": "60000", "LEASE_TIMEOUT_SEC": "90"})
    assert message == (
        "OUTBOX_LEASE_DURATION_MS says 1min and LEASE_TIMEOUT_SEC says 90s; set KEPT_LEASE, which wins over both"
    )
    agreeing = {"OUTBOX_LEASE_DURATION_MS": "90000", "LEASE_TIMEOUT_SEC": "90"}
    assert Settings.from_env(agreeing).lease == seconds(90)


def test_every_alias_sets_a_setting_that_exists() -> None:
    assert {a.field for a in ALIASES} <= {v.field for v in VARIABLES}
    assert len({a.name for a in ALIASES}) == len(ALIASES)
    # Where it comes from, a duration without a unit is an error too.
    numbered = [a for a in ALIASES if a.name != "PACKFINDERZ_EVENTING_IDEMPOTENCY_TTL"]
    assert all(bool(a.unit) == bool(v.kind.unit) for a in numbered for v in VARIABLES if v.field == a.field)


# --- names that are almost ours


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("KEPT_CONCURENCY", "KEPT_CONCURRENCY"),
        ("KEPT_LAESE", "KEPT_LEASE"),
        ("KEPT_LEASES", "KEPT_LEASE"),
        ("KEPT_LEASE_MS", "KEPT_LEASE"),
        ("kept_lease", "KEPT_LEASE"),
        ("KEPT_GRACE", "KEPT_SHUTDOWN_GRACE"),
        ("KEPT_DATABASE", "KEPT_DATABASE_URL"),
        ("KEPT_DATABSE_URL", "KEPT_DATABASE_URL"),
        ("KEPT_PAYLOAD_LIMIT_BYTES", "KEPT_PAYLOAD_LIMIT"),
        ("KEPT_RETRYBASE", "KEPT_RETRY_BASE"),
    ],
)
def test_a_near_miss_stops_the_start_and_names_what_was_meant(name: str, meant: str) -> None:
    assert refusal({name: "s3cret"}) == f"{name} is not a setting; did you mean {meant}?"


@given(st.sampled_from(VARIABLES), st.data())
def test_a_letter_dropped_from_any_name_is_a_near_miss(variable: Variable, data: st.DataObject) -> None:
    name = variable.name
    at = data.draw(st.integers(len("KEPT_"), len(name) - 1))
    typo = name[:at] + name[at + 1 :]
    if typo not in {v.name for v in VARIABLES}:
        assert "did you mean KEPT_" in refusal({typo: "1"})


def test_other_unknown_names_are_told_and_do_no_harm() -> None:
    settings = Settings.from_env({"KEPT_RELEASE": "v7", "KEPT_ZEBRA": "1", "KEPTSAKE": "x"})
    assert settings.unknown == ("KEPT_RELEASE", "KEPT_ZEBRA")
    assert replace(settings, unknown=()) == Settings()


def test_names_that_kubernetes_the_demo_and_the_tests_set_are_ignored() -> None:
    ignored = {
        "KEPT_SERVICE_HOST": "10.0.0.1",
        "KEPT_SERVICE_PORT_HTTP": "80",
        "KEPT_PORT": "tcp://10.0.0.1:80",
        "KEPT_PORT_80_TCP_ADDR": "10.0.0.1",
        "KEPT_METRICS_PORT": "tcp://10.0.0.1:9000",
        "KEPT_WORKER_SERVICE_HOST": "10.0.0.1",
        "KEPT_WORKER_PORT_80_TCP": "tcp://10.0.0.1:80",
        "KEPT_DEMO_JOBS": "5",
        "KEPT_TEST_SEED": "7",
        "KEPT_PG_BIN": "/usr/lib/postgresql/18/bin",
    }
    assert Settings.from_env(ignored) == Settings()


@given(st.text("ABC", max_size=6), st.text("ABC", max_size=6))
def test_the_distance_of_two_names_is_the_same_both_ways_and_zero_only_for_equals(one: str, other: str) -> None:
    far = distance(one, other)
    assert far == distance(other, one)
    assert abs(len(one) - len(other)) <= far <= max(len(one), len(other))
    assert (far == 0) == (one == other)


@pytest.mark.parametrize(
    ("one", "other", "far"),
    [("LEASE", "LEAS", 1), ("LEASE", "LAESE", 1), ("LEASE", "RELEASE", 2), ("", "AB", 2)],
)
def test_a_distance_counts_letters_added_dropped_replaced_and_swapped(one: str, other: str, far: int) -> None:
    assert distance(one, other) == far


# --- the page


def test_the_page_says_what_the_code_says() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert fill(page) == page, "run: python -m kept.config_docs docs/configuration.md"
    assert all(table in page for table in tables().values())
