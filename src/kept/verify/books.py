"""Producers' logs and handlers' ledgers, put together so that each record is read once. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import pairwise

from kept.verify.model import Effect, Intent, Line, Moment, Told

RANK = {"refused": 0, "unknown": 1, "committed": 2}


class Sent:
    """One transaction: what its producer meant, and what it was told."""

    __slots__ = ("answer", "at", "parts")

    def __init__(self) -> None:
        self.answer = "unknown"  # until somebody says otherwise: the producer may have been killed
        self.at = 0


class Entry:
    """What the tokens of one part have in common."""

    __slots__ = ("order", "sent", "task")

    def __init__(self, task: str, order: str | None, sent: Sent) -> None:
        self.task = task
        self.order = order
        self.sent = sent


class Books:
    """What producers meant and were told, by token."""

    def __init__(self, lines: Iterable[Line] = ()) -> None:
        self._entries: dict[int, Entry] = {}
        open: dict[int, tuple[Sent, list[tuple[int, Entry | None]]]] = {}
        for line in lines:
            match line:
                case Intent():
                    self._intend(line, open)
                case Told():
                    self._tell(line, open)

    def _intend(self, line: Intent, open: dict[int, tuple[Sent, list[tuple[int, Entry | None]]]]) -> None:
        sent, token = Sent(), line.first
        before: list[tuple[int, Entry | None]] = []
        for part in line.parts:
            entry = Entry(part.task, part.order, sent)
            for each in range(token, token + part.count):
                if each in self._entries:  # tried again
                    before.append((each, self._entries[each]))
                self._entries[each] = entry
            token += part.count
        open[line.tx] = (sent, before)

    def _tell(self, line: Told, open: dict[int, tuple[Sent, list[tuple[int, Entry | None]]]]) -> None:
        sent, before = open.pop(line.tx)
        sent.answer, sent.at = line.answer, line.at
        for token, entry in before:
            if entry is not None and RANK[entry.sent.answer] > RANK[line.answer]:
                self._entries[token] = entry  # refused now, but unknown before: it may exist

    def may_exist(self, token: int) -> bool:
        """Whether a job with this token was committed, or may have been."""
        entry = self._entries.get(token)
        return entry is not None and entry.sent.answer != "refused"

    def committed(self) -> Iterator[tuple[int, int]]:
        """The tokens of acknowledged jobs, and when that was."""
        for token, entry in self._entries.items():
            if entry.sent.answer == "committed":
                yield token, entry.sent.at

    def answer(self, token: int) -> str | None:
        """What the producer was told of it; None if nobody ever meant to send it."""
        entry = self._entries.get(token)
        return None if entry is None else entry.sent.answer

    def task(self, token: int) -> str:
        entry = self._entries.get(token)
        return "unknown" if entry is None else entry.task

    def counts(self) -> Counter[str]:
        """Jobs by what their producer was told."""
        return Counter(entry.sent.answer for entry in self._entries.values())

    def orders(self) -> dict[str, list[int]]:
        """By order key, the acknowledged tokens in the order of their commits.

        Those whose commit nobody can vouch for are left out: it may have come later than what was sent after it.
        """
        found: dict[str, list[int]] = {}
        for token, entry in self._entries.items():
            if entry.order is not None and entry.sent.answer == "committed":
                found.setdefault(entry.order, []).append(token)
        return {key: sorted(tokens) for key, tokens in found.items()}


class Deeds:
    """What handlers did, by token."""

    def __init__(self, effects: Iterable[Effect] = ()) -> None:
        self.first: dict[int, Moment] = {}  # its first effect
        self.again: dict[int, list[Moment]] = {}  # later ones
        self.began: dict[int, int] = {}  # the moment it first began, of those that say so
        self.lost: set[tuple[int, int]] = set()  # token and attempt that were told LeaseLost
        self.slots: dict[int, dict[int, list[Moment]]] = {}  # by slot its jobs, and when each ran
        self._starts: dict[int, list[Moment]] = {}
        self._failed: dict[int, list[Moment]] = {}  # where it failed, as it was meant to or because of what it met
        self._attempts: dict[int, int] = {}  # those that had the effect: a bit for each
        self._parents: dict[int, int] = {}  # by process, who started it
        self._tokens: dict[int, int] = {}  # by job, of those that say when they begin
        self._open: dict[int, set[int]] = {}  # by process, what it began and did not end
        for effect in effects:
            self._add(effect)

    def _add(self, effect: Effect) -> None:
        token, at, pid = effect.token, effect.at, effect.pid
        self._parents.setdefault(pid, effect.parent)
        match effect.what:
            case "effect":
                self._effect(token, (at, pid))
                self._attempts[token] = self._attempts.get(token, 0) | 1 << effect.attempt
                self._open.get(pid, set()).discard(token)
            case "began":
                self.began[token] = min(at, self.began.get(token, at))
                self._starts.setdefault(token, []).append((at, pid))
                self._tokens[effect.job] = token
                self._open.setdefault(pid, set()).add(token)
            case "failed":
                self._failed.setdefault(token, []).append((at, pid))
                self._open.get(pid, set()).discard(token)
            case "lost":
                self.lost.add((token, effect.attempt))
                self._open.get(pid, set()).discard(token)
            case "slot":
                self.slots.setdefault(token, {}).setdefault(effect.job, []).append((at, pid))

    def _effect(self, token: int, moment: Moment) -> None:
        first = self.first.get(token)
        if first is None:
            self.first[token] = moment
            return
        self.first[token] = min(first, moment)
        self.again.setdefault(token, []).append(max(first, moment))

    def tokens(self) -> Iterator[int]:
        """Every token that a handler was given."""
        yield from self.first
        yield from (token for token in self.began if token not in self.first)

    def repeated(self) -> Iterator[tuple[int, Moment, Moment]]:
        """For each effect beyond the first: its token, the effect before it, and itself."""
        for token, later in self.again.items():
            moments = sorted([self.first[token], *later])
            yield from ((token, *pair) for pair in pairwise(moments))

    def restarted(self) -> Iterator[tuple[int, Moment, Moment]]:
        """The same of beginnings, of those that say when they begin; without those that follow a failure."""
        for token, starts in self._starts.items():
            for one, other in pairwise(sorted(starts)):
                failed = self._failed.get(token, ())
                if not any(one[0] <= at <= other[0] and pid == one[1] for at, pid in failed):
                    yield token, one, other

    def did(self, token: int, attempt: int) -> bool:
        """Whether it was this attempt that had the effect, or this one as well."""
        return bool(self._attempts.get(token, 0) >> attempt & 1)

    def starts(self, token: int) -> list[Moment]:
        """When a job was begun, and by which process."""
        return self._starts.get(token, [])

    def vain(self, jobs: Iterable[int]) -> Iterator[tuple[int, Moment]]:
        """Of *jobs*, by their ids in the database, each beginning that came to no effect."""
        for job in jobs:
            token = self._tokens.get(job, 0)
            moments = (self.first.get(token), *self.again.get(token, ()))
            did = {moment[1] for moment in moments if moment is not None}
            yield from ((job, start) for start in self.starts(token) if start[1] not in did)

    def family(self, pids: Iterable[int]) -> frozenset[int]:
        """These processes and all that they started, as far as these did anything."""
        found, more = frozenset[int](), frozenset(pids)
        while more:
            found |= more
            more = frozenset(pid for pid, parent in self._parents.items() if parent in more) - found
        return found

    def unfinished(self, pid: int, at: int) -> list[int]:
        """What process *pid* had begun before *at* and not ended when it was last heard of, and nobody after it."""
        last = ((token, self._last(token, at)) for token in sorted(self._open.get(pid, ())))
        return [token for token, start in last if start is not None and start[1] == pid]

    def _last(self, token: int, at: int) -> Moment | None:
        """When and where it began last before *at*."""
        return max((start for start in self._starts[token] if start[0] <= at), default=None)
