"""Which partitions there must be, without a database."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from kept.archive.rules import AHEAD, Parent, Partition, Retention, Stray, parents, to_drop, to_make

NOW = datetime(2026, 12, 31, 23, 30, tzinfo=UTC)
EPOCH = datetime(2001, 1, 1, tzinfo=UTC)
moments = st.timedeltas(timedelta(), timedelta(days=36_000)).map(lambda passed: EPOCH + passed)
stray_days = st.lists(moments.map(lambda at: at.replace(hour=0, minute=0, second=0, microsecond=0)), max_size=5)


def made(makes) -> list[Partition]:
    return [Partition(f"{m.parent} {m.starts_at}", m.parent, m.starts_at, m.ends_at, False) for m in makes]


@given(moments, stray_days)
def test_what_is_made_covers_the_next_thirty_days_and_every_stray(now, days):
    strays = [Stray(parent.name, day) for parent in parents(Retention()) for day in days]
    makes = to_make(now, [], strays, parents(Retention()))
    for parent in parents(Retention()):
        ours = [m for m in makes if m.parent == parent.name]
        for moment in (now, now + AHEAD / 2, now + AHEAD, *days):
            assert sum(m.starts_at <= moment < m.ends_at for m in ours) == 1


@given(moments, stray_days, st.timedeltas(timedelta(), timedelta(days=90)))
def test_partitions_of_one_parent_never_overlap_however_late_the_next_pass_comes(now, days, later):
    strays = [Stray("history_failed", day) for day in days] + [Stray("job_log", day) for day in days]
    first = made(to_make(now, [], strays, parents(Retention())))
    both = first + made(to_make(now + later, first, strays, parents(Retention())))
    for parent in parents(Retention()):
        ours = sorted((p.starts_at, p.ends_at) for p in both if p.parent == parent.name)
        assert all(end <= start for (_, end), (start, _) in pairwise(ours))


@given(moments)
def test_a_second_pass_at_the_same_moment_makes_nothing(now):
    first = made(to_make(now, [], [], parents(Retention())))
    assert to_make(now, first, [], parents(Retention())) == []


def test_a_month_ends_where_the_next_one_starts_also_in_december():
    makes = to_make(NOW, [], [], [Parent("history_failed", "month", timedelta(days=90))])
    assert [(m.starts_at.month, m.ends_at.month) for m in makes] == [(12, 1), (1, 2)]


def test_what_settling_needs_next_is_made_before_what_is_long_past():
    day = NOW.replace(hour=0, minute=0) - timedelta(days=40)
    makes = to_make(NOW, [], [Stray("history_done", day)], parents(Retention()))
    assert makes[0].ends_at > NOW
    assert makes[-1].starts_at == day


def test_only_partitions_that_are_due_are_dropped_oldest_first():
    def part(name: str, day: int, *, due: bool) -> Partition:
        starts = datetime(2026, 1, day, tzinfo=UTC)
        return Partition(name, "history_done", starts, starts + timedelta(days=1), due)

    found = to_drop([part("b", 2, due=True), part("held", 1, due=False), part("a", 1, due=True)])
    assert [p.name for p in found] == ["a", "b"]
