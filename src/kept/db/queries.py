"""SQL lives in ``.sql`` files; here it is loaded, once, with the schema's name put in.

The files are written for a schema called ``kept`` and run as they stand in psql. Three spellings stand for
the schema's name and nothing else does: ``kept.`` before a relation, ``schema kept``, and the wake-up channel
``kept:wake``. A line ``-- include: NAME`` stands for another statement of the same file.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from importlib import resources
from typing import LiteralString

DEFAULT_SCHEMA = "kept"
_HEADER = re.compile(r"^-- name: (\w+)\s*$", re.MULTILINE)
_INCLUDE = re.compile(r"^ *-- include: (\w+)$", re.MULTILINE)
_names: dict[str, str] = {}


def in_schema(text: str, schema: str) -> str:
    """*text* with every mention of the schema turned into *schema*, quoted."""
    quoted = '"' + schema.replace('"', '""') + '"'
    text = re.sub(r"\bkept\.(?=[a-z_])", f"{quoted}.", text)
    text = re.sub(r"\bschema kept\b", f"schema {quoted}", text)
    return text.replace("kept:wake", wake_channel(schema))


def wake_channel(schema: str) -> str:
    """The NOTIFY channel of a schema: two Kepts in one database do not wake each other."""
    return f"{schema}:wake"


class Queries:
    """The named statements of one ``queries.sql``: ``queries["claim"]``."""

    def __init__(self, package: str, schema: str = DEFAULT_SCHEMA) -> None:
        text = resources.files(package).joinpath("queries.sql").read_text(encoding="utf-8")
        parts = _HEADER.split(in_schema(text, schema))[1:]
        names = parts[0::2]
        if len(set(names)) != len(names):
            raise ValueError(f"{package}/queries.sql names a statement twice")
        written = dict(zip(names, (part.strip() for part in parts[1::2]), strict=True))
        self._statements = {
            name: _INCLUDE.sub(lambda found: written[found[1]], statement) for name, statement in written.items()
        }
        feature = package.rpartition(".")[2]
        _names.update({statement: f"{feature}.{name}" for name, statement in self._statements.items()})

    def __getitem__(self, name: str) -> LiteralString:
        # Literal in every sense that matters: it comes from our own files and holds no value of a caller.
        return self._statements[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._statements)


def name_of(statement: str) -> str | None:
    """What a statement that was loaded is called: ``jobs.claim``."""
    return _names.get(statement)


@cache
def load(package: str, schema: str = DEFAULT_SCHEMA) -> Queries:
    """The statements of *package* for *schema*, read once per process."""
    return Queries(package, schema)
