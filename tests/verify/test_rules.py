"""The oracle: each way in which a promise can break is seen, and nothing else is taken for one."""

from __future__ import annotations

from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kept.verify import tables
from kept.verify.books import Books, Deeds
from kept.verify.model import Effect, Hit, Intent, Once, Part, Report, Row, Slot, Told
from kept.verify.rules import Evidence, Terms, judge

SECOND = 1_000_000_000


class World:
    """A run in which all is well, until a test changes a record."""

    def __init__(self) -> None:
        self.lines: list[Intent | Told] = []
        self.effects: list[Effect] = []
        self.hits: list[Hit] = []
        self.rows: list[Row] = []
        self.once: list[Once] = []
        self.slots: list[Slot] = []
        self.asked: tuple[str, ...] = ()
        self.jobs = 0
        self._tx = count(1)

    def sent(self, *parts: Part, first: int, answer: str | None = "committed", at: int = 1) -> None:
        tx = next(self._tx)
        self.lines.append(Intent(at * SECOND, tx, first, parts))
        if answer is not None:
            self.lines.append(Told(at * SECOND, tx, answer))

    def job(self, token: int, task: str = "plain", at: int = 2, **row: object) -> None:
        """Sent, done, and written down by its handler."""
        self.sent(Part(task, 1), first=token)
        self.did(token, at=at)
        self.row(token, task, **row)

    def did(self, token: int, what: str = "effect", *, at: float = 2, pid: int = 10, attempt: int = 1) -> None:
        self.effects.append(Effect(what, token, token, attempt, pid, int(at * SECOND)))

    def row(self, token: int, task: str = "plain", state: str = "done", reason: str | None = None, **more) -> None:
        given = {"id": token, "attempt": 1} | more
        self.rows.append(Row(given["id"], task, state, reason, given["attempt"], token))

    def hit(self, fault: str = "kill", *, began: float = 2, healed: float = 3, **more) -> None:
        window = {"began": int(began * SECOND), "healed": int(healed * SECOND)}
        self.hits.append(Hit(fault=fault, group="worker", victim="worker 10", **window, **more))

    def judged(self) -> Report:
        evidence = Evidence(
            books=Books(self.lines),
            deeds=Deeds(self.effects),
            hits=self.hits,
            rows=self.rows,
            once=self.once,
            slots=self.slots,
        )
        return judge(evidence, Terms(seed=7, lease=3, scan=1, seconds=10, asked=self.asked, jobs=self.jobs))

    def broken(self) -> set[int]:
        return {breach.promise for breach in self.judged().breaches}


@pytest.fixture
def world() -> World:
    return World()


def test_where_all_is_well_nothing_is_broken(world):
    for token in range(1, 6):
        world.job(token)
    report = world.judged()
    assert report.breaches == ()
    assert (report.accepted, report.done, report.effects, report.duplicates) == (5, 5, 5, 0)
    assert tables.means(report) == "No promise was broken after 5 jobs and 0 faults in 10 s (seed 7)."


# --- lost and phantom


def test_an_acknowledged_job_that_is_gone_is_lost(world):
    world.sent(Part("plain", 3), first=1)
    for token in (1, 3):
        world.did(token)
        world.row(token)
    report = world.judged()
    assert report.lost == 1
    (breach,) = report.breaches
    assert (breach.promise, breach.items) == (2, ("token 2, a plain job",))
    assert "Promise 2 was broken" in tables.means(report)


def test_a_job_that_is_done_without_its_handler_is_lost(world):
    world.sent(Part("plain", 1), first=1)
    world.row(1)
    assert world.judged().lost == 1
    assert world.broken() == {3}


def test_a_job_that_nobody_finished_is_told(world):
    world.sent(Part("plain", 2), first=1)
    world.row(1, state="pending")
    world.row(2, state="running")
    assert world.broken() == {3}


@pytest.mark.parametrize("answer", ["unknown", None])
def test_what_became_of_an_unknown_commit_is_no_breach_either_way(world, answer):
    world.sent(Part("plain", 1), first=1, answer=answer)
    world.sent(Part("plain", 1), first=2, answer=answer)
    world.did(2)
    world.row(2)
    report = world.judged()
    assert report.breaches == ()
    assert report.unknown == 2


def test_a_job_of_a_transaction_that_was_rolled_back_is_a_phantom(world):
    world.sent(Part("plain", 1), first=1, answer="refused")
    world.row(1)
    world.did(1)
    assert world.judged().phantom == 2
    assert world.broken() == {1}


def test_a_handler_that_ran_for_nobody_is_a_phantom(world):
    world.did(99, "began")
    assert world.judged().phantom == 1


def test_a_key_that_became_two_jobs_is_told(world):
    world.sent(Part("keyed", 1), first=1, answer="unknown")
    world.sent(Part("keyed", 1), first=1)
    world.did(1)
    world.row(1, "keyed", id=11)
    assert world.broken() == set()
    world.row(1, "keyed", id=12)
    assert world.broken() == {1}


def test_a_job_that_is_both_live_and_settled_is_told(world):
    world.job(1)
    world.row(1)
    assert world.broken() == {2}


def test_an_unknown_commit_stays_possible_when_a_later_try_was_refused(world):
    world.sent(Part("keyed", 1), first=1, answer="unknown")
    world.sent(Part("keyed", 1), first=1, answer="refused")
    world.did(1)
    world.row(1, "keyed")
    assert world.broken() == set()


def test_what_a_server_lost_of_its_own_commits_is_counted_apart(world):
    world.sent(Part("plain", 1), first=1, at=5)
    world.hit("promote", began=6, healed=8, loses=True, gone=(1,))
    report = world.judged()
    assert (report.lost, report.lost_with_commits, report.breaches) == (0, 1, ())


def test_a_loss_is_not_excused_by_a_failover_that_did_not_lose_it(world):
    world.sent(Part("plain", 1), first=1, at=5)
    world.hit("promote", began=6, healed=8, loses=True, gone=(2,))
    assert world.broken() == {2}


def test_a_standby_that_is_waited_for_may_lose_nothing(world):
    world.sent(Part("plain", 1), first=1, at=5)
    world.hit("promote-sync", began=6, healed=8, gone=(1,))
    assert world.broken() == {2}


# --- failures


def test_poison_has_to_fail_as_what_it_is(world):
    world.sent(Part("poison", 1), first=1)
    world.row(1, "poison", "failed", "worker_died")
    report = world.judged()
    assert (report.failed_by_design, report.breaches) == (1, ())


@pytest.mark.parametrize(("state", "reason"), [("done", None), ("failed", "exhausted"), ("running", None)])
def test_poison_that_ends_otherwise_is_told(world, state, reason):
    world.sent(Part("poison", 1), first=1)
    world.row(1, "poison", state, reason)
    assert world.broken() == {5}


def test_a_neighbour_that_failed_is_told(world):
    world.sent(Part("plain", 1), first=1)
    world.row(1, state="failed", reason="worker_died")
    assert world.broken() == {5}


# --- exactly once, and the fence


def test_an_effect_with_its_completion_is_there_once(world):
    world.job(1, "completes")
    world.once.append(Once(1, 1, 1))
    assert world.judged().once == 1
    assert world.broken() == set()


def test_an_effect_that_is_there_twice_is_told(world):
    world.job(1, "completes", attempt=2)
    world.once += [Once(1, 1, 1), Once(1, 1, 2)]
    assert world.broken() == {4, 8}
    assert world.judged().zombies_written == 1


def test_a_completion_without_its_effect_is_lost(world):
    world.job(1, "completes")
    assert world.judged().lost == 1
    assert world.broken() == {8}


def test_an_effect_without_its_completion_is_told(world):
    world.sent(Part("completes", 1), first=1)
    world.row(1, "completes", "pending")
    world.once.append(Once(1, 1, 1))
    assert 8 in world.broken()


def test_a_zombie_that_was_refused_is_counted_and_no_breach(world):
    world.job(1, "completes", attempt=2)
    world.once.append(Once(1, 1, 2))
    world.did(1, "lost", attempt=1)
    assert world.judged().zombies_refused == 1
    assert world.broken() == set()


def test_a_zombie_that_was_refused_and_wrote_all_the_same_is_told(world):
    world.job(1, "completes", attempt=1)
    world.once.append(Once(1, 1, 1))
    world.did(1, "lost", attempt=1)
    assert world.broken() == {4}


# --- twice


def test_a_duplicate_is_attributed_to_the_fault_in_whose_time_it_was_not_settled(world):
    world.job(1, at=5)
    world.did(1, at=9, pid=11, attempt=2)
    world.hit("host", began=5.5, healed=6)
    report = world.judged()
    assert (report.duplicates, report.duplicates_by_fault) == (1, {"host": 1})
    assert report.duplicates_per_million == 500_000
    assert report.breaches == ()


def test_of_two_faults_the_nearer_one_explains_a_duplicate(world):
    world.job(1, at=10)
    world.did(1, at=15, pid=11, attempt=2)
    world.hit("blackhole", began=7, healed=9.8)
    world.hit("child", began=11, healed=11)
    assert world.judged().duplicates_by_fault == {"blackhole": 1}


@pytest.mark.parametrize(("task", "promise"), [("plain", 3), ("holds_gil", 7), ("blocks", 7)])
def test_a_duplicate_that_no_fault_explains_is_told(world, task, promise):
    world.job(1, task, at=50)
    world.did(1, at=60)
    world.hit("kill", began=2, healed=3)
    assert world.broken() == {promise}


# --- order


def ordered(world: World, *effects: tuple[int, float, float]) -> None:
    world.sent(Part("in_order", len(effects), "k"), first=1)
    for token, began, done in effects:
        world.did(token, "began", at=began)
        world.did(token, at=done)
        world.row(token, "in_order")


def test_one_after_the_other_is_in_order(world):
    ordered(world, (1, 1, 2), (2, 2, 3), (3, 5, 6))
    assert world.broken() == set()


def test_one_that_begins_before_the_one_in_front_is_done_is_out_of_order(world):
    ordered(world, (1, 1, 4), (2, 3, 5))
    assert world.broken() == {3}


def test_a_second_run_of_an_earlier_one_is_not_out_of_order(world):
    ordered(world, (1, 1, 2), (2, 3, 4))
    world.did(1, "began", at=5, pid=11)
    world.did(1, at=6, pid=11)
    world.hit(began=1.5, healed=5)
    assert world.broken() == set()


# --- recovery


def test_recovery_is_from_the_death_to_the_start_elsewhere(world):
    world.sent(Part("slow", 1), first=1)
    world.did(1, "began", at=1, pid=10)
    world.did(1, "began", at=2.5, pid=11)
    world.did(1, at=3, pid=11)
    world.row(1, "slow")
    world.hit(began=2, healed=2, killed=(10,))
    found = world.judged().recovery["kill"]
    assert (found.jobs, found.p50, found.most) == (1, 0.5, 0.5)
    assert world.broken() == set()


def died(world, *after: float, **hit: float) -> None:
    """A worker died with a job for each of these, which was begun elsewhere so many seconds later."""
    world.sent(Part("slow", len(after)), first=1)
    for token, seconds in enumerate(after, 1):
        world.did(token, "began", at=1, pid=10)
        world.did(token, "began", at=2 + seconds, pid=11)
        world.did(token, at=3 + seconds, pid=11)
        world.row(token, "slow")
    world.hit(began=2, healed=2, killed=(10,), **hit)


def test_what_is_taken_over_later_than_promised_is_told_where_nothing_else_went_wrong(world):
    died(world, 0.5, 7.5, promised=1)
    (breach,) = world.judged().breaches
    assert (breach.promise, breach.items) == (6, ("token 2, after kill: 7.5 s",))


def test_what_is_taken_over_later_than_promised_in_the_midst_of_other_faults_is_timed(world):
    died(world, 0.5, 60)
    report = world.judged()
    assert report.breaches == ()
    assert report.recovery["kill"].most == 60
    assert report.undisturbed == {}


def test_most_are_to_be_taken_over_as_soon_as_promised(world):
    died(world, 0.5, 0.5, 2.5, 2.5, 2.5, promised=1)
    report = world.judged()
    assert [(breach.promise, breach.items) for breach in report.breaches] == [(6, ("most, after kill: 2.5 s",))]
    assert dict(tables.of(report))["… after kill with no other fault near"] == "2.50 / 2.50 / 2.50"


def test_a_few_that_are_taken_over_a_little_late_say_nothing_of_most(world):
    died(world, 2.5, 2.5, 2.5, 2.5, promised=1)
    assert world.broken() == set()


def test_what_a_process_began_after_the_fault_was_not_taken_over_because_of_it(world):
    world.job(1, "slow", at=40)
    world.did(1, "began", at=20, pid=10)
    world.did(1, "began", at=39, pid=11)
    world.hit("supervisor", began=3, killed=(10,))
    assert world.judged().recovery == {}


def test_what_ended_before_its_process_died_was_not_taken_over(world):
    world.job(1, "slow")
    world.did(1, "began", at=1, pid=10)
    world.hit(began=3, killed=(10,))
    assert world.judged().recovery == {}


# --- slots


def test_every_slot_that_fired_once_is_as_it_should_be(world):
    for at in range(100, 105):
        world.slots.append(Slot(at, "fired", 0, at))
        world.effects.append(Effect("slot", at, at, 1, 10, SECOND))
    report = world.judged()
    assert (report.slots_due, report.slots_fired, report.slots_twice, report.breaches) == (5, 5, 0, ())


def test_a_slot_that_fired_twice_is_told(world):
    world.slots += [Slot(100, "fired", 0, 1)]
    world.effects += [Effect("slot", 100, job, 1, 10, SECOND) for job in (1, 2)]
    assert world.broken() == {9}
    assert world.judged().slots_twice == 1


def test_a_slot_that_did_not_fire_is_told(world):
    world.slots += [Slot(at, "fired", 0, at) for at in (100, 102)]
    assert world.broken() == {9}


# --- the run itself


def test_a_fault_that_was_asked_for_and_never_hit_is_told(world):
    world.asked = ("kill", "stop")
    world.hit("kill")
    (breach,) = world.judged().breaches
    assert (breach.promise, breach.items) == (0, ("stop",))
    assert "not complete" in tables.means(world.judged())


def test_a_run_that_enqueued_less_than_it_should_is_told(world):
    world.job(1)
    world.jobs = 2
    assert world.broken() == {0}


def test_a_breach_names_some_of_its_items_and_counts_all(world):
    world.sent(Part("plain", 100), first=1)
    (breach,) = world.judged().breaches
    assert len(breach.items) == 20
    assert "(100)" in breach.sentence


def test_the_table_has_a_line_for_everything_that_was_counted(world):
    world.job(1)
    world.hit("stop")
    lines = dict(tables.of(world.judged()))
    assert lines["lost"] == lines["phantom"] == lines["duplicates"] == "0"
    assert lines["… stop"] == "1"


@given(
    tokens=st.lists(st.tuples(st.booleans(), st.integers(0, 3)), max_size=30),
)
def test_lost_and_duplicates_are_differences_of_sets(tokens):
    world = World()
    for token, (there, times) in enumerate(tokens, 1):
        world.sent(Part("plain", 1), first=token)
        if there:
            world.row(token)
        for n in range(times):
            world.did(token, at=2 + n)
    world.hit(began=1, healed=9)
    report = world.judged()
    gone = sum(not there for there, _ in tokens)
    undone = sum(there and not times for there, times in tokens)
    assert report.lost == gone + undone
    assert report.duplicates == sum(max(0, times - 1) for _, times in tokens)
    assert report.accepted == len(tokens)
