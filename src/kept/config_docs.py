"""The tables of docs/configuration.md; remake: ``python -m kept.config_docs docs/configuration.md``."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from pathlib import Path

from kept.config import DEFAULTS, RULES
from kept.config_names import ALIASES, VARIABLES

_TABLE = re.compile(r"(<!-- table: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
_UNITS = {"ms": "milliseconds", "s": "seconds", "": ""}


def tables() -> dict[str, str]:
    """The tables by name, as Markdown."""
    variables = {v.field: v for v in VARIABLES}
    return {
        "settings": _table(
            ("variable", "field of `Settings`", "default", "what it is"),
            ((_code(v.name), _code(v.field), v.show(DEFAULTS[v.field]), v.says) for v in VARIABLES),
        ),
        "rules": _table(
            ("variables", "rule"),
            ((", ".join(_code(variables[name].name) for name in r.fields), r.says) for r in RULES),
        ),
        "aliases": _table(
            ("name", "sets", "a bare number counts"),
            ((_code(a.name), _code(variables[a.field].name), _UNITS[a.unit]) for a in ALIASES),
        ),
    }


def fill(page: str) -> str:
    """*page* with the text between ``<!-- table: NAME -->`` and ``<!-- end -->`` replaced by the table."""
    made = tables()
    return _TABLE.sub(lambda found: f"{found[1]}{made[found[2]]}{found[3]}", page)


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _code(text: str) -> str:
    return f"`{text}`"


if __name__ == "__main__":
    target = Path(sys.argv[1])
    target.write_text(fill(target.read_text(encoding="utf-8")), encoding="utf-8")
