"""The schedules that Apps declare, and how the database comes to know them: two versions must not fight."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from kept.db.connect import array
from kept.db.queries import Queries
from kept.db.tx import Rows, Steps
from kept.errors import Refused
from kept.schedules.catalogue import change, insert, note
from kept.schedules.model import Definition
from kept.schedules.rows import digest

GRACE = (
    600.0  # seconds for those who declare a schedule to start: until another definition, or none, is taken for theirs
)


class Definitions:
    """The schedules that an App declares, by name."""

    def __init__(self) -> None:
        self._by_name: dict[str, Definition] = {}

    def add(self, definition: Definition) -> None:
        """Declare one; the same name twice is refused."""
        if definition.name in self._by_name:
            same = self._by_name[definition.name] == definition
            message = f"schedule {definition.name!r} is declared twice" + ("" if same else ", with two definitions")
            raise Refused(f"{message}; give one of them another name", field="name")
        self._by_name[definition.name] = definition

    def __iter__(self) -> Iterator[Definition]:
        return iter(self._by_name.values())

    def __len__(self) -> int:
        return len(self._by_name)

    def digests(self) -> dict[str, str]:
        """Each schedule's name with a digest of its definition."""
        return {each.name: digest(each) for each in self._by_name.values()}


class Known(NamedTuple):
    """What the database knows of a schedule that an App declares."""

    name: str
    origin: str
    digest: str | None
    digests: list[str]  # of definitions that were in force before
    retired: bool
    undeclared: bool
    in_use: bool  # a live worker declares what is in force
    fresh: bool  # it was changed not long ago: whoever declares it may be about to start


@dataclass(slots=True)
class Synchronised:
    """What declaring changed, by name."""

    added: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    revived: list[str] = field(default_factory=list)
    taken: list[str] = field(default_factory=list)  # somebody added one of this name at run time: that one stands
    seen: list[str] = field(default_factory=list)  # no live worker had declared it for a while

    @property
    def changes(self) -> bool:
        """Whether there is anything to write."""
        return bool(self.added or self.changed or self.revived or self.seen)


def is_newer(known: Known, digest: str, *, exact: bool) -> bool:
    """Whether a definition with another *digest* is to replace the one in force.

    One that was never in force is news. One that was is an older version's, come back: it has to wait until no live
    worker declares what is in force now, and nobody put that in force just now, so that two versions do not fight
    during a deploy.
    """
    settled = not known.in_use and not known.fresh
    return digest != known.digest and (exact or digest not in known.digests or settled)


def synchronise(
    sql: Queries, definitions: Iterable[Definition], *, who: str, exact: bool = False
) -> Steps[Synchronised]:
    """Make the database know what is declared. One transaction; nothing is written if nothing is new."""
    declared = {each.name: each for each in sorted(definitions, key=lambda each: each.name)}
    if not declared:
        return Synchronised()
    names = {"names": array(list(declared)), "grace": GRACE}
    todo = sort_out(declared, (yield sql["declared"], names), exact=exact)
    if todo.changes:  # a look without locks is all that most starts need: whoever fires passes by what is locked
        made = []
        for name in todo.added:  # unless somebody is quicker, most likely a worker that starts beside us
            made += [name] if (yield from insert(sql, declared[name], origin="declared", who=who)) else []
        todo = sort_out(declared, (yield sql["lock_declared"], names), exact=exact, added=made)
        for definition in [declared[name] for name in todo.changed]:
            yield from change(sql, definition, who=who, what="declared")
        yield sql["revive"], {"names": array([*todo.revived, *todo.seen])}
        for name in todo.revived:
            yield from note(sql, name, who, what="declared again")
    return todo


def sort_out(declared: Mapping[str, Definition], rows: Rows, *, exact: bool, added: Sequence[str] = ()) -> Synchronised:
    """What is to be done, given what the database knows; *added* are those that it did not know before."""
    found = {row[0]: Known(*row) for row in rows}
    done = Synchronised(added=[name for name in declared if name not in found or name in added])
    for name, known in found.items():
        if known.origin != "declared":
            done.taken.append(name)
        elif is_newer(known, digest(declared[name]), exact=exact):
            done.changed.append(name)
        elif known.retired:
            done.revived.append(name)
        elif known.undeclared:
            done.seen.append(name)
    return done
