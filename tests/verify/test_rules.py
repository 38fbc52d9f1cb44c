"""The oracle: each way in which a promise can break is seen, and nothing else is taken for one."""

from __future__ import annotations

from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kept.verify import faults, tables
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
        self.clock: tuple[int, int] | None = None  # of the database: workers at work, nothing breaks any more
        self._tx = count(1)

    def sent(self, *parts: Part, first: int, answer: str | None = "committed", at: int = 1) -> None:
        tx = next(self._tx)
        self.lines.append(Intent(at * SECOND, tx, first, parts))
        if answer is not None:
            self.lines.append(Told(at * SECOND, tx, answer))

    def job(self, token: int, task: str = "plain", at: float = 2, pid: int = 10, **row: object) -> None:
        """Sent, done, and written down by its handler."""
        self.sent(Part(task, 1), first=token)
        self.did(token, at=at, pid=pid)
        self.row(token, task, **row)

    def slot(self, moment: int, *, job: int = 0, state: str = "done", ran: bool = True, at: float = 2) -> None:
        """A slot that fired, and what became of its job."""
        job = job or moment
        self.slots.append(Slot(moment, "fired", 0, job))
        self.rows.append(Row(job, "beat", state, None, 1, 1, None))
        if ran:
            self.beat(moment, job, at=at)

    def beat(self, moment: int, job: int, *, at: float = 2, pid: int = 10) -> None:
        """The handler of a slot's job ran."""
        self.effects.append(Effect("slot", moment, job, 1, pid, int(at * SECOND)))

    def did(
        self, token: int, what: str = "effect", *, at: float = 2, pid: int = 10, attempt: int = 1, parent: int = 1
    ) -> None:
        self.effects.append(Effect(what, token, token, attempt, pid, int(at * SECOND), parent))

    def twice(self, token: int, *, at: float, then: float, pid: int = 10, by: int = 11, task: str = "plain") -> None:
        """Done, and done again elsewhere."""
        self.job(token, task, at=at, pid=pid)
        self.did(token, at=then, pid=by, attempt=2)

    def row(self, token: int, task: str = "plain", state: str = "done", reason: str | None = None, **more) -> None:
        given = {"id": token, "attempt": 1, "charged": 1} | more
        self.rows.append(Row(given["id"], task, state, reason, given["attempt"], given["charged"], token))

    def hit(self, fault: str = "kill", *, began: float = 2, healed: float = 3, **more) -> None:
        window = {"began": int(began * SECOND), "healed": int(healed * SECOND)}
        about = {"victim": "worker 10", "repeats": "everyone"} | window | more
        self.hits.append(Hit(fault=fault, group="worker", **about))

    def judged(self) -> Report:
        evidence = Evidence(
            books=Books(self.lines),
            deeds=Deeds(self.effects),
            hits=self.hits,
            rows=self.rows,
            once=self.once,
            slots=self.slots,
        )
        terms = Terms(seed=7, lease=3, scan=1, seconds=10, asked=self.asked, jobs=self.jobs, slots=self.clock)
        return judge(evidence, terms)

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
    report = world.judged()
    assert (report.lost, report.unsettled) == (0, 2)
    assert dict(tables.of(report))["not settled by the end"] == "2"


def test_a_job_whose_effect_is_there_and_nothing_else_is_lost_though_nobody_answered_its_commit(world):
    world.sent(Part("plain", 1), first=1, answer="unknown")
    world.did(1)
    report = world.judged()
    assert (report.lost, report.without_job) == (1, 1)
    assert world.broken() == {2}


def test_effects_and_done_jobs_are_compared_in_both_directions(world):
    world.sent(Part("plain", 3), first=1)
    world.row(1)
    world.row(2, state="pending")
    world.did(2)
    world.did(3)
    report = world.judged()
    assert (report.without_job, report.without_effect) == (2, 1)
    assert dict(tables.of(report))["effects without a done job / done jobs without one"] == "2 / 1"


def test_what_a_job_is_says_its_producer(world):
    world.sent(Part("poison", 1), first=1)
    world.row(1, "plain")
    world.did(1)
    assert world.broken() == {1, 5}


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
    poisoned(world)
    report = world.judged()
    assert (report.failed_by_design, report.breaches) == (1, ())


def poisoned(world: World, *, began: int = 3, charged: int = 3) -> None:
    """A job that killed its process so often, and failed."""
    for attempt in range(1, began + 1):
        world.did(1, "began", at=5 * attempt, pid=100 + attempt, attempt=attempt)
    world.row(1, "poison", "failed", "worker_died", attempt=began, charged=charged)


@pytest.mark.parametrize(("began", "charged"), [(2, 2), (50, 50), (50, 3)])
def test_poison_may_kill_as_often_as_its_attempts_say(world, began, charged):
    world.sent(Part("poison", 1), first=1)
    poisoned(world, began=began, charged=charged)
    world.hit("poison", began=4, healed=300, repeats="victims", jobs=(1,))
    assert world.broken() == {5}


def test_poison_that_began_where_its_holder_lost_its_lease_was_not_charged_for_that(world):
    world.sent(Part("poison", 1), first=1)
    poisoned(world, began=4)
    world.hit("blackhole", began=8, healed=11)
    assert world.broken() == set()


def test_one_fault_excuses_one_beginning_of_poison_and_no_more(world):
    world.sent(Part("poison", 1), first=1)
    poisoned(world, began=5)
    world.hit("blackhole", began=4, healed=26)
    assert world.broken() == {5}


@pytest.mark.parametrize(("state", "reason"), [("done", None), ("failed", "exhausted"), ("running", None)])
def test_poison_that_ends_otherwise_is_told(world, state, reason):
    world.sent(Part("poison", 1), first=1)
    world.row(1, "poison", state, reason, charged=3)
    assert world.broken() == {5}


def test_a_neighbour_that_failed_is_told(world):
    world.sent(Part("plain", 1), first=1)
    world.row(1, state="failed", reason="worker_died")
    assert world.broken() == {5}


# --- exactly once, and the fence


def test_a_job_that_is_done_by_an_attempt_that_never_did_it_was_settled_by_another(world):
    world.job(1, attempt=2)
    assert world.broken() == {4}


def test_a_job_may_be_done_by_its_second_attempt_if_that_did_it_as_well(world):
    world.twice(1, at=5, then=9)
    world.rows[-1] = Row(1, "plain", "done", None, 2, 2, 1)
    world.hit(began=6, healed=7)
    assert world.broken() == set()


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
    report = world.judged()
    assert report.zombies_refused == 1
    assert report.breaches == ()
    lines = dict(tables.of(report))
    assert (lines["zombie writes attempted"], lines["… refused"], lines["… that got through"]) == ("1", "1", "0")


def test_a_zombie_that_was_refused_and_wrote_all_the_same_is_told(world):
    world.job(1, "completes", attempt=1)
    world.once.append(Once(1, 1, 1))
    world.did(1, "lost", attempt=1)
    assert world.broken() == {4}


def test_a_job_that_outstays_its_time_is_begun_again_and_may_write_once_only(world):
    world.job(1, "overstays", attempt=2)
    world.did(1, "began", at=2)
    world.did(1, "began", at=4, attempt=2)
    world.did(1, "lost", at=5)
    world.once.append(Once(1, 1, 2))
    assert world.broken() == set()
    world.once[-1] = Once(1, 1, 1)
    assert world.broken() == {4}
    assert world.judged().zombies_written == 1


@pytest.mark.parametrize(("at", "broken"), [(2.01, {3}), (4, set())])
def test_a_job_that_outstays_its_time_is_not_begun_by_two_at_once(world, at, broken):
    world.job(1, "overstays", attempt=2)
    world.did(1, "began", at=2)
    world.did(1, "began", at=at, attempt=2, pid=11)
    world.once.append(Once(1, 1, 2))
    assert world.broken() == broken


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


@pytest.mark.parametrize("fault", ["gil", "block", "memory", "recursion", "snapshot", "latency", "deadlock"])
def test_what_cannot_cause_a_repeat_explains_none(world, fault):
    (found,) = (each for each in faults.ALL if each.name == fault)
    world.twice(1, at=5, then=6)
    world.hit(fault, began=4, healed=7, repeats=found.repeats, jobs=(1,))
    assert world.broken() == {3}


@pytest.mark.parametrize("task", ["holds_gil", "blocks"])
def test_a_job_that_blocks_does_not_explain_its_own_second_run(world, task):
    world.sent(Part(task, 1), first=1)
    world.row(1, task)
    for pid, at in ((10, 5), (11, 7)):
        world.did(1, "began", at=at, pid=pid)
    world.did(1, at=11, pid=11)
    world.hit("gil" if task == "holds_gil" else "block", began=4, healed=12, repeats="nobody", jobs=(1,))
    assert world.broken() == {7}
    world.hit("kill", began=6, healed=6, repeats="victims", killed=(11,))
    assert world.broken() == {7}, "somebody else died"
    world.hit("kill", began=6, healed=6, repeats="victims", killed=(10,))
    assert world.broken() == set()


def test_a_fault_explains_what_its_victims_did_and_nobody_elses(world):
    world.twice(1, at=5, then=9, pid=10)
    world.hit("kill", began=5.5, healed=5.5, repeats="victims", killed=(10,))
    assert world.judged().duplicates_by_fault == {"kill": 1}
    assert world.broken() == set()
    world.twice(2, at=5, then=9, pid=12)
    assert world.broken() == {3}


def test_what_the_frozen_do_when_they_go_on_is_explained(world):
    world.twice(1, at=7, then=8, pid=11, by=10)
    world.hit("stop", began=2, healed=7.5, repeats="victims", frozen=(10,))
    assert world.broken() == set()


def test_who_dies_takes_along_what_it_started(world):
    world.did(1, "began", at=4, pid=12, parent=11)
    world.did(9, "began", at=1, pid=11, parent=10)
    world.job(9, pid=11)
    world.twice(1, at=5, then=9, pid=12, by=13)
    world.hit("supervisor", began=5.5, healed=5.5, repeats="victims", killed=(10,))
    assert world.judged().duplicates_by_fault == {"supervisor": 1}


def test_whoever_was_told_to_leave_may_have_given_back_what_it_did(world):
    world.twice(1, at=5, then=9)
    world.hit("term", began=4, healed=4, repeats="victims", harmed=(10,))
    assert world.broken() == set()


@pytest.mark.parametrize(("then", "broken"), [(6, {3}), (8, set())])
def test_a_keeper_that_dies_explains_a_repeat_only_when_the_lease_may_be_over(world, then, broken):
    world.twice(1, at=5, then=then)
    world.hit("keeper", began=5.5, healed=5.5, repeats="starved", killed=(20,), harmed=(10,))
    assert world.broken() == broken


def test_a_job_that_ends_its_process_explains_what_that_did_and_when_it_ended(world):
    world.job(7, "exits", at=30, pid=13)
    world.did(7, "began", at=20, pid=10)
    world.hit("exit", began=1, healed=30, repeats="victims", jobs=(7,))
    world.twice(1, at=19.9, then=24)
    assert world.judged().duplicates_by_fault == {"exit": 1}
    assert world.broken() == set()
    world.twice(2, at=10, then=12)
    world.twice(3, at=19.9, then=24, pid=11, by=12)
    assert [breach.items for breach in world.judged().breaches] == [("token 2, a plain job", "token 3, a plain job")]


@pytest.mark.parametrize("victim", ["a worker", ""])  # without one, nobody saw it through to its end
def test_a_job_that_ends_its_process_explains_its_deaths_and_not_the_time_when_it_was_done(world, victim):
    world.job(7, "exits", at=40, pid=13)
    world.did(7, "began", at=20, pid=10)
    world.did(7, "began", at=38, pid=13)
    world.hit("exit", began=1, healed=50, repeats="victims", jobs=(7,), victim=victim)
    world.twice(1, at=19.9, then=24)
    assert world.broken() == set()
    world.twice(2, at=39, then=41, pid=13)
    assert world.broken() == {3}


def test_who_is_killed_with_a_suspect_is_explained_beside_the_death_that_the_suspect_caused(world):
    world.job(7, "exits", at=40, pid=14)
    for at, pid in ((20, 10), (22, 13), (39, 14)):
        world.did(7, "began", at=at, pid=pid)
    world.hit("child", began=23, healed=23, repeats="victims", jobs=(7,), killed=(13,))
    world.twice(1, at=19.9, then=24)
    world.twice(2, at=22.5, then=24, pid=13)
    assert world.judged().duplicates_by_fault == {"child": 2}
    assert world.broken() == set()


def test_a_fault_explains_no_repeat_that_came_before_it(world):
    world.twice(1, at=5, then=5.5)
    world.hit("reset", began=6, healed=6.1)
    assert world.broken() == {3}


def test_a_fault_does_not_explain_a_repeat_for_ever(world):
    world.twice(1, at=5, then=3600)
    world.hit("reset", began=6, healed=6.1)
    assert world.broken() == {3}


def begun_twice(world: World, task: str = "slow", *, failed: float | None = None) -> None:
    world.sent(Part(task, 1), first=1)
    world.did(1, "began", at=5, pid=10)
    if failed is not None:
        world.did(1, "failed", at=failed, pid=10)
    world.did(1, "began", at=7, pid=11, attempt=2, parent=3)
    world.did(1, at=8, pid=11, attempt=2, parent=3)
    world.row(1, task, attempt=2, charged=2)


def test_a_job_that_two_processes_began_is_told_though_only_one_had_its_effect(world):
    begun_twice(world)
    assert world.broken() == {3}


def test_a_job_that_was_begun_again_after_the_death_of_its_process_is_as_it_should_be(world):
    begun_twice(world)
    world.hit(began=6, healed=6.1, repeats="victims", killed=(10,))
    assert world.broken() == set()


@pytest.mark.parametrize(("frozen_at", "broken"), [(4.5, set()), (5.5, {3})])
@pytest.mark.parametrize("frozen", [11, 3])  # it, or who started it
def test_whoever_was_frozen_while_others_began_his_job_begins_it_late(world, frozen_at, broken, frozen):
    begun_twice(world)
    world.hit("stop", began=frozen_at, healed=6.9, repeats="victims", frozen=(frozen,))
    assert world.broken() == broken


@pytest.mark.parametrize(("failed", "broken"), [(6, set()), (4, {3}), (7.5, {3})])
def test_a_job_that_failed_is_begun_again_but_not_before(world, failed, broken):
    begun_twice(world, failed=failed)
    assert world.broken() == broken


def test_a_failure_explains_the_next_beginning_and_no_later_one(world):
    begun_twice(world, failed=6)
    world.did(1, "failed", at=8, pid=10)  # who failed late, as when he was frozen
    world.did(1, "began", at=9, pid=12, attempt=3)
    assert world.broken() == {3}


@pytest.mark.parametrize(("then", "broken"), [(7, {3}), (8, set())])
def test_what_cuts_anybody_off_explains_a_repeat_only_when_a_lease_may_be_over(world, then, broken):
    world.twice(1, at=5, then=then)
    world.hit("reset", began=5.5, healed=5.6, repeats="whoever starves")
    assert world.broken() == broken


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
    world.hit(began=2, healed=2, repeats="victims", killed=(10,), **hit)


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
    died(world, 3.5, 3.5, promised=1)
    assert world.broken() == set()


def test_of_four_the_late_two_are_not_most(world):
    died(world, 0.5, 0.5, 3.5, 3.5, promised=1)
    assert world.broken() == set()


def test_three_are_enough_to_say_what_is_true_of_most(world):
    died(world, 0.5, 3.5, 3.5, promised=1)
    assert world.broken() == {6}


def test_what_a_process_began_after_the_fault_was_not_taken_over_because_of_it(world):
    world.job(1, "slow", at=40)
    world.did(1, "began", at=20, pid=10)
    world.did(1, "began", at=39, pid=11)
    world.hit("supervisor", began=3, killed=(10,))
    assert world.judged().recovery == {}


def test_what_ran_elsewhere_when_its_first_process_died_was_not_taken_over(world):
    world.sent(Part("overstays", 1), first=1)
    for at, pid in ((1, 10), (3.2, 11), (9.7, 12)):
        world.did(1, "began", at=at, pid=pid)
    world.hit(began=3.5, killed=(10,))
    assert world.judged().recovery == {}


def test_what_ended_before_its_process_died_was_not_taken_over(world):
    world.job(1, "slow")
    world.did(1, "began", at=1, pid=10)
    world.hit(began=3, killed=(10,))
    assert world.judged().recovery == {}


# --- slots


@pytest.fixture
def beating(world: World) -> World:
    """A schedule that fired each second from the first to the last."""
    world.clock = (100, 110)
    for moment in range(101, 111):
        world.slot(moment)
    return world


def without(world: World, *moments: int) -> None:
    """Nothing is left of these slots."""
    world.slots = [each for each in world.slots if each.slot not in moments]
    world.rows = [each for each in world.rows if each.id not in moments]
    world.effects = [each for each in world.effects if each.token not in moments]


def test_every_slot_that_fired_once_is_as_it_should_be(beating):
    report = beating.judged()
    assert (report.slots_due, report.slots_fired, report.slots_twice, report.breaches) == (10, 10, 0, ())


def test_a_slot_that_fired_twice_is_told(beating):
    beating.beat(105, 999)
    assert beating.broken() == {9}
    assert beating.judged().slots_twice == 1


def test_a_slot_that_did_not_fire_is_told(beating):
    without(beating, 105)
    assert beating.broken() == {9}
    assert (beating.judged().slots_due, beating.judged().slots_fired) == (10, 9)


def test_a_schedule_that_never_fires_is_told(beating):
    without(beating, *range(101, 111))
    assert beating.broken() == {9}


def test_a_schedule_that_begins_late_is_told(beating):
    beating.clock = (90, 110)
    assert [breach.items for breach in beating.judged().breaches] == [tuple(map(str, range(95, 101)))]


def test_a_schedule_that_dies_is_told(beating):
    without(beating, 109, 110)
    (breach,) = beating.judged().breaches
    assert (breach.promise, breach.items) == (9, ("109", "110"))


def test_a_clock_that_went_back_leaves_slots_beyond_the_end(beating):
    beating.clock = (100, 104)
    assert (beating.judged().slots_due, beating.broken()) == (10, set())


def test_without_a_look_at_the_clock_slots_are_due_from_the_first_that_fired_to_the_last(beating):
    beating.clock = None
    assert (beating.judged().slots_due, beating.broken()) == (10, set())


@pytest.mark.parametrize(
    ("state", "ran", "promise"), [("pending", False, 3), ("running", True, 3), ("failed", True, 5), ("done", False, 3)]
)
def test_a_slot_whose_job_was_not_done_is_told(beating, state, ran, promise):
    without(beating, 105)
    beating.slot(105, state=state, ran=ran)
    assert beating.broken() == {promise}


def test_a_slot_whose_job_is_gone_is_told(beating):
    beating.rows = [row for row in beating.rows if row.id != 105]
    assert beating.broken() == {2}


def test_a_job_of_a_slot_that_ran_twice_is_told_unless_a_fault_explains_it(beating):
    beating.beat(105, 105, at=2.5, pid=11)
    assert beating.broken() == {3}
    beating.hit("kill", began=2.1, healed=2.1, repeats="victims", killed=(10,))
    assert beating.broken() == set()


def test_a_slot_that_a_server_forgot_may_fire_twice(beating):
    beating.beat(105, 999, at=5)
    beating.hit("promote", began=5.5, healed=7, loses=True)
    assert (beating.judged().slots_twice, beating.broken()) == (1, set())


@pytest.mark.parametrize(("at", "known"), [(20, False), (5, True)])
def test_a_server_that_forgets_does_not_excuse_what_it_did_not_forget(beating, at, known):
    beating.beat(105, 999, at=at)
    beating.hit("promote", began=5.5, healed=7, loses=True)
    if known:
        beating.rows.append(Row(999, "beat", "done", None, 1, 1, None))
    assert beating.broken() == {9}


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
