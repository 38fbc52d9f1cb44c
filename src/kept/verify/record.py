"""The record of a run: all that is judged, in one folder, so that it can be judged again, later and elsewhere."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import cast

import msgspec
from msgspec import Struct

from kept.errors import Refused
from kept.verify import ledger, rules
from kept.verify.app import SCHEDULE
from kept.verify.books import Books, Deeds
from kept.verify.evidence import Evidence, Terms
from kept.verify.ledger import FAULTS, LEDGER, PRODUCER
from kept.verify.model import Once, Report, Row, Slot
from kept.verify.place import Place
from kept.worker.lease import own_version

ROWS, ONCE, SLOTS = "rows", "once", "slots"  # what the database says
PARTS = {PRODUCER, LEDGER, FAULTS, ROWS, ONCE, SLOTS}  # a file's name up to its first dash
COVER = "cover"
AT_ONCE = 5000  # rows
_encode = msgspec.json.Encoder().encode


class Cover(Struct, frozen=True, kw_only=True):
    """What the run was set to, and all that its record consists of. Written last: with it, the record is complete."""

    kept: str  # the version that wrote it, for whoever wonders: another may judge otherwise
    terms: Terms
    bytes: dict[str, int]  # by file


def judged(where: Place, terms: Terms) -> Report:
    """Write down what the database says of the run in *where*, and judge it."""
    with where.connect() as conn, conn.transaction():
        with conn.cursor(name=ROWS) as cursor:
            cursor.itersize = AT_ONCE
            _write(where.folder / ROWS, cursor.execute(where.sql["rows"]))
        _write(where.folder / ONCE, conn.execute(where.sql["once"]))
        _write(where.folder / SLOTS, conn.execute(where.sql["slots"], {"schedule": SCHEDULE}))
    cover(where.folder, terms)
    return _judged(where.folder, terms)


def cover(folder: Path, terms: Terms) -> None:
    """Complete the record in *folder*."""
    _write(folder / COVER, [Cover(kept=own_version(), terms=terms, bytes=_bytes(folder))])


def judged_again(folder: Path) -> Report:
    """Judge the record in *folder*, whoever wrote it and whenever; one of which a part is missing is refused."""
    try:
        found = _cover(folder)
        other = sorted(dict(found.bytes.items() ^ _bytes(folder).items()))
        if other:
            raise _no_record(folder, f"{other[0]!r} was cut, added or removed")
        return _judged(folder, found.terms)
    except OSError as error:
        raise _no_record(folder, f"{Path(error.filename or folder).name!r}: {error.strerror}") from None


def _cover(folder: Path) -> Cover:
    with suppress(ledger.Torn):
        for found in ledger.read(folder / COVER, Cover):
            return cast("Cover", found)
    raise _no_record(folder, f"its {COVER!r} cannot be read")


def _judged(folder: Path, terms: Terms) -> Report:
    evidence = Evidence(
        books=Books(ledger.told(folder)),
        deeds=Deeds(ledger.effects(folder)),
        hits=ledger.hits(folder),
        rows=ledger.read(folder / ROWS, Row),
        once=list(ledger.read(folder / ONCE, Once)),
        slots=list(ledger.read(folder / SLOTS, Slot)),
    )
    return rules.judge(evidence, terms)


def _bytes(folder: Path) -> dict[str, int]:
    """How long each part of the record is."""
    return {path.name: path.stat().st_size for path in folder.iterdir() if path.name.partition("-")[0] in PARTS}


def _no_record(folder: Path, why: str) -> Refused:
    return Refused(f"judge: {folder} is no record of a run that came to its end: {why}", field="judge")


def _write(path: Path, lines: Iterable[object]) -> None:
    path.touch(mode=0o600)
    with path.open("wb") as file:
        for line in lines:
            file.write(_encode(line) + b"\n")
