"""Jobs in Django's current transaction, with either psycopg below it and with time zones on or off."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from ways import for_django

PROGRAM = """
import json, sys

driver, use_tz, parts, database = json.loads(sys.argv[1])
if driver == "psycopg2":
    sys.modules["psycopg"] = None  # Django takes the newer one that it finds
import django
from django.conf import settings

settings.configure(
    DATABASES={"default": {"ENGINE": "django.db.backends.postgresql", **parts}},
    USE_TZ=use_tz, TIME_ZONE="America/Santiago", INSTALLED_APPS=[],
)
django.setup()
from django.db import connection, transaction

connection.ensure_connection()
if driver == "psycopg2":
    del sys.modules["psycopg"]
assert type(connection.connection).__module__.partition(".")[0] == driver

from kept import App, NotFound
from kept.integrations.django import current_tx

app = App(database, default_tx=current_tx)


@app.task()
def note(text: str) -> None: ...


def undone():
    with transaction.atomic():
        note.enqueue("undone")
        raise ZeroDivisionError


with transaction.atomic():
    first = note.using(key="k", headers={"a": "b"}).enqueue("inside")
    try:
        undone()
    except ZeroDivisionError:
        pass
    same = note.using(key="k").enqueue("inside")
    app.enqueue_many([note.bind(f"many {n}") for n in range(60)])
    beside = App(database)
    try:
        beside.job(first.id)
    except NotFound:
        print("not yet")
try:
    undone()
except ZeroDivisionError:
    pass
note.enqueue("outside")
found = beside.job(first.id)
print(same.created, same.headers, same.created_at == found.created_at, same.due_at == found.due_at)
"""


@pytest.mark.parametrize("use_tz", [True, False])
@pytest.mark.parametrize("driver", ["psycopg", "psycopg2"])
def test_calls_inside_atomic_are_part_of_it_and_others_stand_alone(driver, use_tz, database, conn):
    said = subprocess.run(
        [sys.executable, "-W", "error", "-c", PROGRAM, json.dumps([driver, use_tz, for_django(database), database])],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert said.returncode == 0, said.stderr
    assert said.stdout.splitlines() == ["not yet", "False {'a': 'b'} True True"]
    texts = [text for (text,) in conn.execute("select payload ->> 'text' from kept.job order by id").fetchall()]
    assert texts == ["inside", *(f"many {n}" for n in range(60)), "outside"]
