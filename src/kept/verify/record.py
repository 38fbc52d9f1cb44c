"""The record of a run: all that is judged, in one folder, so that it can be judged again, later and elsewhere."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec

from kept.errors import Refused
from kept.verify import ledger, rules
from kept.verify.app import SCHEDULE
from kept.verify.books import Books, Deeds
from kept.verify.evidence import Evidence, Terms
from kept.verify.model import Once, Report, Row, Slot
from kept.verify.place import Place

ROWS, ONCE, SLOTS, TERMS = "rows", "once", "slots", "terms"  # what the database says, and what the run was set to
AT_ONCE = 5000  # rows
_encode = msgspec.json.Encoder().encode


def judged(where: Place, terms: Terms) -> Report:
    """Write down what the database says of the run in *where*, and judge it."""
    with where.connect() as conn, conn.transaction():
        with conn.cursor(name=ROWS) as cursor:
            cursor.itersize = AT_ONCE
            _write(where.folder / ROWS, cursor.execute(where.sql["rows"]))
        _write(where.folder / ONCE, conn.execute(where.sql["once"]))
        _write(where.folder / SLOTS, conn.execute(where.sql["slots"], {"schedule": SCHEDULE}))
    _write(where.folder / TERMS, [terms])  # last: with it, the record is complete
    return judged_again(where.folder)


def judged_again(folder: Path) -> Report:
    """Judge the record in *folder*, whoever wrote it and whenever."""
    for name in (ROWS, ONCE, SLOTS, TERMS):
        if not (folder / name).is_file():
            raise _no_record(folder, f"there is no file {name!r}")
    terms = next(ledger.read(folder / TERMS, Terms), None)
    if terms is None:
        raise _no_record(folder, f"its file {TERMS!r} is not whole")
    evidence = Evidence(
        books=Books(ledger.told(folder)),
        deeds=Deeds(ledger.effects(folder)),
        hits=ledger.hits(folder),
        rows=ledger.read(folder / ROWS, Row),
        once=list(ledger.read(folder / ONCE, Once)),
        slots=list(ledger.read(folder / SLOTS, Slot)),
    )
    return rules.judge(evidence, terms)


def _no_record(folder: Path, why: str) -> Refused:
    return Refused(f"judge: {folder} is no record of a run that came to its end: {why}", field="judge")


def _write(path: Path, lines: Iterable[object]) -> None:
    path.touch(mode=0o600)
    with path.open("wb") as file:
        for line in lines:
            file.write(_encode(line) + b"\n")
