"""The doctor's judgement, without a database."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kept.admin import rules
from kept.admin.facts import Clock, Facts, Server, Session
from kept.admin.model import Finding, LaneRow, WorkerRow
from kept.archive.rules import Make
from kept.outbox.inbox.model import ConsumerRow
from kept.outbox.rows import SinkRow, SubscriptionRow
from kept.schedules.model import Definition, Every, Target, Terms
from kept.schedules.rows import Failing, ScheduleRow

NOW = datetime(2026, 3, 1, tzinfo=UTC)
HEALTHY = Facts(
    server=Server("18.1 (Debian)", True, True, "on", 1),
    pooled=False,
    now=NOW,
    clock=Clock(0.0, 0.001),
    migrations=2,
    dead_rows=10,
    live_rows=10,
    sessions=(),
    hidden_sessions=0,
    strays=(),
    missing=(),
    lanes=(),
    workers=(),
    consumers=(),
)


def facts(**changes) -> Facts:
    return msgspec.structs.replace(HEALTHY, **changes)


def lane(queue: str = "mail", task: str = "send", **changes) -> LaneRow:
    plain = LaneRow(1, queue, task, 0, 0, 0, None, False, None, True)
    return msgspec.structs.replace(plain, **changes)


def worker(name: str = "host:1", **changes) -> WorkerRow:
    plain = WorkerRow("id", name, "host", 1, "0.1.0", None, "live", 50.0, NOW, 0, {"send": "d1"})
    return msgspec.structs.replace(plain, **changes)


def codes(findings: list[Finding], level: str) -> list[str]:
    return [finding.code for finding in findings if finding.level == level]


def subscription(**changes) -> SubscriptionRow:
    plain = SubscriptionRow(1, "tell", ["a.*"], "mail", False, None, NOW, NOW, None, 1, True, True)
    return msgspec.structs.replace(plain, **changes)


def sink(**changes) -> SinkRow:
    return msgspec.structs.replace(SinkRow("nats", "nats", 0, None, None, None, None, None, [1], 0.0), **changes)


@pytest.mark.parametrize(
    ("known", "code"),
    [
        ({"subscriptions": (subscription(declared=False),)}, "subscription_undeclared"),
        ({"sinks": (sink(opened_at=NOW, last_code="away", last_error="no answer"),)}, "sink_open"),
    ],
)
def test_what_is_fanned_out_to_nobody_and_what_rests_is_worth_a_warning(known, code):
    assert codes(rules.judge(msgspec.structs.replace(HEALTHY, **known)), "warning") == [code]


def test_a_retired_subscription_and_one_without_any_worker_are_not():
    for each in (subscription(declared=False, retired_at=NOW), subscription(declared=False, anybody=False)):
        assert codes(rules.judge(msgspec.structs.replace(HEALTHY, subscriptions=(each,))), "warning") == []


def test_a_sink_that_is_gone_is_a_problem():
    gone = sink(disabled_at=NOW, last_code="gone", last_error="410")
    assert codes(rules.judge(msgspec.structs.replace(HEALTHY, sinks=(gone,))), "problem") == ["sink_disabled"]


def test_the_healthy_are_told_so_in_every_matter():
    findings = rules.judge(HEALTHY)
    assert {finding.level for finding in findings} == {"ok"}
    assert len(findings) == 13
    assert not rules.is_sick(findings)


def test_whatever_is_not_ok_says_what_to_do_and_all_say_it_in_sentences():
    sick = facts(
        server=Server("15", False, False, "off", 1),
        pooled=True,
        clock=Clock(9.0, 0.0),
        dead_rows=10**6,
        sessions=(Session(7, "app", "idle in transaction", 90.0), Session(8, "", "active", 900.0)),
        strays=("job_log_default",),
        missing=(Make("job_log", NOW, NOW, timedelta(days=1)),),
        lanes=(lane(due=1), lane("pdf", "render", due=3, declared=False), lane("mail", "unknown", due=2)),
        workers=(
            worker("a", queues=("mail",)),
            worker("b", queues=("mail",), declared={"send": "d2"}),
            worker("c", lease_left=-90.0, running=1),
        ),
        consumers=(ConsumerRow("mailer", 5, True, 3, NOW, NOW, 3 * 86_400.0),),
    )
    findings = rules.judge(sick)
    assert set(codes(findings, "warning")) == {
        *("not_durable", "pooling", "clock", "bloat", "idle_in_transaction", "held_snapshot"),
        *("default_partition", "partition_missing", "undeclared", "declarations_differ", "inbox_unpurged"),
    }
    assert set(codes(findings, "problem")) == {"lease_expired", "queue_unserved", "task_unhandled"}
    for finding in findings:
        assert finding.message.endswith(".") and finding.message[0].isupper()
        assert finding.level == "ok" or finding.advice.endswith(".")


@pytest.mark.parametrize(("offset", "side"), [(2.5, "behind"), (-2.5, "ahead of")])
def test_a_clock_that_is_off_by_more_than_two_seconds_is_told_on_which_side(offset, side):
    (finding,) = rules.clock(facts(clock=Clock(offset, 0.01)))
    assert finding.level == "warning"
    assert f"2.5 s {side}" in finding.message


def test_a_slow_network_is_not_taken_for_a_wrong_clock():
    (finding,) = rules.clock(facts(clock=Clock(2.5, 2.0)))
    assert finding.level == "ok"


@given(st.floats(-1e9, 1e9), st.floats(0, 1e6))
def test_the_clock_is_judged_whatever_it_says(offset, round_trip):
    assert len(rules.clock(facts(clock=Clock(offset, round_trip)))) == 1


def test_dead_rows_are_bloat_when_they_are_many_and_outnumber_the_live():
    assert rules.bloat(facts(dead_rows=10**6, live_rows=10**6 + 1))[0].level == "ok"
    assert rules.bloat(facts(dead_rows=5_000, live_rows=0))[0].level == "ok"
    assert rules.bloat(facts(dead_rows=10**6, live_rows=5))[0].level == "warning"


def test_a_short_transaction_is_nobodys_business():
    (finding,) = rules.transactions(facts(sessions=(Session(7, "app", "active", 100.0),)))
    assert finding.level == "ok"


def test_sessions_that_cannot_be_seen_are_not_vouched_for():
    (finding,) = rules.transactions(facts(hidden_sessions=3))
    assert "3 are hidden" in finding.message


def test_a_partition_that_is_missing_a_month_ahead_is_upkeeps_business():
    ahead = Make("history_done", NOW + timedelta(days=30), NOW + timedelta(days=31), timedelta(days=7))
    assert rules.partitions(facts(missing=(ahead,)))[0].level == "ok"


def consumer(overdue: float) -> ConsumerRow:
    return ConsumerRow("mailer", 5, True, 3, NOW, NOW, overdue)


def test_markers_that_expired_today_are_upkeeps_business_and_older_ones_are_named():
    assert rules.markers(facts(consumers=(consumer(3600.0),)))[0].level == "ok"
    (found,) = rules.markers(facts(consumers=(consumer(3 * 86_400.0),)))
    assert (found.level, found.code) == ("warning", "inbox_unpurged")
    assert found.message == "The inbox of mailer has 3 expired markers, the oldest for 3 d."


def test_each_table_names_the_first_partition_that_is_missing():
    days = [NOW + timedelta(days=n) for n in (3, 2, 9)]
    missing = tuple(Make("history_done", day, day + timedelta(days=1), timedelta(days=7)) for day in days)
    (finding,) = rules.partitions(facts(missing=missing))
    assert "Table history_done has no partition for 2026-03-03" in finding.message


def test_due_jobs_without_any_worker_are_a_problem():
    findings = rules.service(facts(lanes=(lane(due=1), lane("pdf", due=2))))
    assert codes(findings, "problem") == ["no_worker"]
    assert "3 jobs are due" in findings[0].message


def test_due_jobs_of_a_dead_worker_do_not_look_served():
    found = facts(lanes=(lane(due=1, running=1),), workers=(worker(lease_left=-1.0),))
    assert codes(rules.service(found), "problem") == ["no_worker"]


@pytest.mark.parametrize("quiet", [{"due": 0, "parked": 5}, {"due": 5, "paused": True}])
def test_a_lane_with_nothing_to_claim_needs_nobody(quiet):
    assert rules.service(facts(lanes=(lane(**quiet),)))[0].level == "ok"


def test_a_lane_is_served_by_a_worker_of_its_queue_that_declares_its_task():
    waiting = (lane(due=1),)
    assert rules.service(facts(lanes=waiting, workers=(worker(),)))[0].level == "ok"
    other_queue = worker(queues=("pdf",))
    assert codes(rules.service(facts(lanes=waiting, workers=(other_queue,))), "problem") == ["queue_unserved"]
    other_task = worker(declared={"render": "d"})
    assert codes(rules.service(facts(lanes=waiting, workers=(other_task,))), "problem") == ["task_unhandled"]


def test_a_lane_in_which_something_runs_is_served():
    found = facts(lanes=(lane(due=1, running=1),), workers=(worker(declared={"new_name": "d"}),))
    assert rules.service(found)[0].level == "ok"


def test_a_task_is_undeclared_only_if_no_queue_has_it_declared():
    found = facts(lanes=(lane("mail", "send"), lane("bulk", "send", declared=False)))
    assert codes(rules.service(found), "warning") == []
    found = facts(lanes=(lane("mail", "sned", declared=False),))
    assert codes(rules.service(found), "warning") == ["undeclared"]


def test_a_lease_that_just_ended_is_a_warning_and_one_nobody_takes_back_a_problem():
    def level(**state):
        return rules.leases(facts(workers=(worker(**state),)))[0].level

    assert level(lease_left=-3.0, running=5) == "warning"
    assert level(lease_left=-300.0, running=0) == "warning"
    assert level(lease_left=-300.0, running=5) == "problem"
    assert level(lease_left=-300.0, running=5, state="lost") == "problem"
    assert level(lease_left=-300.0, running=0, state="lost") == "ok"


def test_declarations_of_dead_workers_do_not_count():
    workers = (worker("a"), worker("b", declared={"send": "d2"}, lease_left=-1.0))
    assert rules.declarations(facts(workers=workers))[0].level == "ok"


def test_a_server_that_may_lose_commits_is_named_for_each_reason():
    findings = rules.server(facts(server=Server("18.1", True, False, "off", 1)))
    assert "full_page_writes and synchronous_commit are off" in findings[-1].message


def test_an_unfit_schema_or_server_is_a_problem():
    assert rules.unfit("this connection is read-only", read_only=True).code == "read_only"
    finding = rules.unfit('schema "kept" is not set up', read_only=False)
    assert (finding.level, finding.message) == ("problem", 'Schema "kept" is not set up.')
    assert rules.is_sick([rules.unreachable("the database is not available: refused")])


# --- schedules


def schedule(name: str = "beat", **changes) -> ScheduleRow:
    rule = Every(timedelta(hours=1))
    target = Target(task="send", queue="mail", payload="{}")
    plain = ScheduleRow(
        id=1, revision=1, origin="added", definition=Definition(name=name, rule=rule, terms=Terms(), target=target),
        anchor=NOW, last_slot=NOW, next_slot=NOW + timedelta(hours=1), queued_slot=None, paused_at=None,
        retired_at=None, created_at=NOW, changed_at=NOW, last_fired=None, last_job=None, last_outcome=None,
    )  # fmt: skip
    return msgspec.structs.replace(plain, **changes)


def told(level: str, *schedules: ScheduleRow, **changes) -> list[str]:
    return codes(rules.judge(facts(schedules=schedules, **{"workers": (worker(),)} | changes)), level)


def test_a_slot_that_nobody_fires_while_workers_live_is_a_problem():
    assert told("problem", schedule(next_slot=NOW - timedelta(seconds=61))) == ["schedule_late"]
    assert told("problem", schedule(next_slot=NOW - timedelta(seconds=59))) == []
    assert told("problem", schedule(next_slot=NOW - timedelta(seconds=61), paused_at=NOW)) == []


def test_late_schedules_without_any_worker_are_one_problem():
    late = [schedule(name, next_slot=NOW - timedelta(hours=1)) for name in "abc"]
    assert told("problem", *late, workers=()) == ["no_worker"]


def test_a_schedule_whose_task_no_live_worker_declares_is_worth_a_warning():
    assert told("warning", schedule(), workers=(worker(declared={"other": "d1"}),)) == ["schedule_unhandled"]
    assert told("warning", schedule(), workers=()) == []


def test_a_schedule_that_is_ahead_of_the_clock_is_worth_a_warning():
    ahead = {"last_slot": NOW + timedelta(hours=1), "next_slot": NOW + timedelta(hours=2)}
    assert told("warning", schedule(**ahead)) == ["schedule_ahead"]
    assert told("warning", schedule()) == []


def test_a_schedule_that_keeps_failing_is_worth_a_warning():
    found = rules.judge(facts(failing=(Failing("beat", "boom", "no luck"),)))
    assert codes(found, "warning") == ["schedule_failing"]
    assert "Boom: no luck." in next(each.message for each in found if each.code == "schedule_failing")
