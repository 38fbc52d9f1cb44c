"""No queue at all: one INSERT, and one COPY, of a row like a job's. The limit for everybody who adds a row."""

from __future__ import annotations

import json
import os
import sys
import time

import psycopg

from tally import PAYLOAD, answer, chunks

TABLE = """create table bench_row (
  id bigint generated always as identity primary key, due_at timestamptz not null default now(),
  created_at timestamptz not null default now(), payload json not null)"""


def payload(n: int) -> str:
    return json.dumps({"n": n, "text": PAYLOAD})


def one(conn: psycopg.Connection, total: int) -> None:
    for n in range(total):
        with conn.transaction():
            conn.execute("insert into bench_order (note) values (%s)", ["an order"])
            conn.execute("insert into bench_row (payload) values (%s)", [payload(n)])


def bulk(conn: psycopg.Connection, total: int) -> None:
    for numbers in chunks(total):
        with conn.cursor() as cursor, cursor.copy("copy bench_row (payload) from stdin") as copy:
            for n in numbers:
                copy.write_row([payload(n)])


def main(verb: str, *args: str) -> None:
    with psycopg.connect(os.environ["BENCH_URL"], autocommit=True) as conn:
        if verb == "prepare":
            conn.execute(TABLE)
            answer(ok=True)
            return
        start = time.monotonic()
        {"one": one, "bulk": bulk}[verb](conn, int(args[0]))
        answer(seconds=time.monotonic() - start)


if __name__ == "__main__":
    main(*sys.argv[1:])
