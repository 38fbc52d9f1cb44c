"""A database's password is in the environment of Kept's processes, and nowhere that others can look."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest
from psycopg.sql import SQL, Identifier

from fleet import Fleet, Jobs, fleet_of
from support import eventually

pytestmark = pytest.mark.acceptance

SECRET = "Tr0ub4dor-and-3"
FORGED = '\r\n{"event": "forged"}\n2026-01-01T00:00:00Z [info     ] forged\x1b[2J'
TALKATIVE = f"""
import os
from errands import QUICKLY, Context, app

FORGED = {FORGED!r}

@app.task(retry=QUICKLY)
async def talk(ctx: Context) -> None:
    url = os.environ["KEPT_DATABASE_URL"]
    ctx.logger.warning(f"connecting to {{url}}", url=url, dsn="host=h password='{SECRET}'")
    try:
        raise ConnectionError(f"cannot reach {{url}}" + FORGED)
    except ConnectionError as error:
        ctx.logger.exception("no luck")
        raise RuntimeError(f"gave up on {{url}} (password={SECRET})") from error
"""
TABLES = """
select c.relname from pg_class c
 where c.relnamespace = 'kept'::regnamespace and c.relkind in ('r', 'p') and not c.relispartition
"""


def with_password(url: str) -> str:
    """*url* with a password, which a server that trusts everybody does not ask for."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=f"{parts.username}:{SECRET}@{parts.netloc.rpartition('@')[2]}"))


def commands(pids: list[int]) -> dict[int, str]:
    """What ``ps`` shows of these processes."""
    found = {}
    for pid in pids:
        with contextlib.suppress(OSError):
            found[pid] = Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    return found


def stored(conn: psycopg.Connection) -> str:
    """Everything that is in Kept's tables, and what the server knows of its sessions."""
    texts = [str(conn.execute("select query, application_name from pg_stat_activity").fetchall())]
    for (table,) in conn.execute(TABLES).fetchall():
        texts += [str(conn.execute(SQL("select t::text from kept.{} t").format(Identifier(table))).fetchall())]
    return "".join(texts)


@pytest.mark.parametrize("format", ["json", "console"])
def test_a_password_stays_out_of_processes_logs_tables_and_answers(
    database: str, conn: psycopg.Connection, tmp_path: Path, format: str
) -> None:
    (tmp_path / "talkative.py").write_text(TALKATIVE)
    jobs = Jobs(conn)
    url = with_password(database)
    with fleet_of(url, tmp_path, KEPT_SPARE="on", KEPT_LOG_LEVEL="debug", KEPT_LOG_FORMAT=format) as fleet:
        member = fleet.start("--processes", "2", app="talkative:app", wait=False)
        eventually(lambda: len(spares(fleet)) == 2, 30, what="two workers, each with a keeper and a spare")
        shown = commands(fleet.alive)
        assert len(shown) >= 7, "a supervisor, two workers, two keepers, two spares"
        assert SECRET not in str(shown)
        job = jobs.enqueue("talk")
        with conn.transaction():
            suspect = jobs.enqueue("talk")  # which runs in the spare
            conn.execute("update kept.job set suspect = true, ready = false where id = %s", [suspect])
        jobs.settled(job, "failed")
        jobs.settled(suspect, "failed")
        for words in ("status", "doctor", "workers --json", f"jobs show {job}", f"jobs show {suspect} --json"):
            said = fleet.run(*words.split())
            assert SECRET not in said.stdout + said.stderr, words
        assert SECRET not in stored(conn)
        log = member.log.read_text() + member.printed
        assert "gave up on" in log
        assert "cannot reach" in log
    assert SECRET not in log
    assert "\x1b" not in log
    assert not any(says_forged(line) for line in log.splitlines())
    assert format == "console" or all(line.startswith("{") for line in log.splitlines())


def says_forged(line: str) -> bool:
    """Whether a line passes for one about nothing but what a payload said."""
    return line.startswith("2026-01-01") or (line.startswith("{") and json.loads(line)["event"] == "forged")


def spares(fleet: Fleet) -> list[str]:
    return [text for text in commands(fleet.alive).values() if "worker.alone" in text]


@pytest.mark.parametrize(("words", "code"), [("status", 75), ("doctor", 1), ("worker errands:app", 75)])
def test_a_server_that_refuses_is_told_of_without_the_password(tmp_path: Path, words: str, code: int) -> None:
    with fleet_of(f"postgresql://ana:{SECRET}@127.0.0.1:1/shop?password={SECRET}", tmp_path) as fleet:
        said = fleet.run(*words.split())
        assert said.returncode == code
        assert SECRET not in said.stdout + said.stderr
        assert "Traceback" not in said.stderr


SMALL = {
    "bench": ("enqueue", "--jobs", "50", "--rounds", "1", "--clients", "2", "--many", "100"),
    "verify": ("--seconds=4", "--jobs", "20", "--workers", "1", "--faults", "kill"),
}


@pytest.mark.parametrize("command", SMALL)
def test_processes_that_are_measured_or_verified_show_no_password(database: str, tmp_path: Path, command: str) -> None:
    """What stands on a command line is for everybody to see: it goes no further than that one."""
    first, *options = SMALL[command]
    with fleet_of(database, tmp_path) as fleet:
        top = fleet.start(*options, "--database", with_password(database), wait=False, app=first, command=command)
        seen: dict[int, str] = {}

        def over() -> bool:
            seen.update({pid: text for pid, text in commands(fleet.alive).items() if text})  # none: it has just ended
            return top.process.poll() is not None

        eventually(over, 100, what="its end")
        said = top.log.read_text() + top.printed
    assert SECRET not in said
    del seen[top.pid]
    assert any(f"kept.{command}.producer" in text for text in seen.values()), seen
    assert SECRET not in str(seen)
