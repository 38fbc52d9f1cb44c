"""Runners that call an API: what it is asked, what its answers mean, and where the token goes."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from desk import make
from endpoint import Endpoint, Request, answering, silent
from kept import App, Misconfigured, Refused, Settings
from kept.runners import http
from kept.signals import RunFinished
from recurrent import runs
from support import aeventually

TOKEN = "s3cret-t0ken"
REQUEST = http.Request("POST", "/internal/reminders")


def json_answer(text: str, status: int = 200):
    return answering(status, body=text.encode(), content_type="application/json")


async def passed(database: str, conn, handler, *, max_time: str = "10s"):
    """One pass against an endpoint that answers so: the endpoint, the run's row if there is one, the signal."""
    async with Endpoint() as endpoint:
        endpoint.handler = handler
        app, told = make(database, api_url=endpoint.url("/v1/"), api_token=TOKEN)
        app.call("reminders", "post", "/internal/reminders", every="1m", max_time=max_time)
        async with app.worker():
            await aeventually(lambda: told.of(RunFinished))
        found = runs(conn)
        return endpoint, found[0] if found else None, told.of(RunFinished)[0]


async def test_the_api_is_called_with_the_token_and_its_numbers_are_counters(database, conn):
    endpoint, run, _ = await passed(database, conn, json_answer('{"sent": 3, "skipped": 0.5}'))
    assert (run["state"], run["counters"]) == ("done", {"sent": 3, "skipped": 0.5})
    (request,) = endpoint.requests
    assert (request.method, request.path) == ("POST", "/v1/internal/reminders")
    assert request.headers["x-service-token"] == TOKEN


@pytest.mark.parametrize(
    ("text", "counters"), [("7", {"items": 7}), ("0", None), ("", None), ("null", None), ('{"a": 0}', None)]
)
async def test_an_answer_without_work_leaves_no_record(database, conn, text, counters):
    _, run, finished = await passed(database, conn, json_answer(text))
    assert (run and run["counters"]) == counters
    assert finished.state == ("done" if counters else "idle")


FATAL = [(status, False) for status in (301, 302, 400, 401, 404)]
PASSING = [(status, True) for status in (408, 425, 429, 500, 502, 503)]


@pytest.mark.parametrize(("status", "retryable"), [*FATAL, *PASSING])
async def test_a_status_says_whether_another_try_may_help(database, conn, status, retryable):
    elsewhere = "http://127.0.0.1:9/elsewhere"
    endpoint, run, _ = await passed(database, conn, answering(status, location=elsewhere))
    assert (run["state"], run["code"]) == ("failed", f"http_{status}")
    assert run["reason"] == ("retryable" if retryable else "fatal")
    assert len(endpoint.requests) == 1, "no redirect is followed"


async def test_retry_after_moves_the_next_pass(database, conn):
    await passed(database, conn, answering(503, retry_after="600"))
    wait = conn.execute("select next_at - kept.now() from kept.runner where name = 'reminders'").fetchone()[0]
    assert timedelta(minutes=9) < wait <= timedelta(minutes=10)


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        *(("5", 5), ("99999999999", 86_400), (None, None), ("", None), ("soon", None)),
        *(("Thu, 01 Jan 1970 00:01:40 GMT", 90), ("Thu, 01 Jan 1970 00:00:01 GMT", 0)),
        ("Thu, 01 Jan 1970 00:01:40 -0000", 90),
    ],
)
def test_retry_after_is_seconds_or_a_date(header, seconds):
    date = "Thu, 01 Jan 1970 00:00:10 GMT"
    assert http.wait_of(header, date) == (None if seconds is None else timedelta(seconds=seconds))


@pytest.mark.parametrize("date", [None, "", "today"])
def test_a_date_to_wait_for_says_nothing_without_the_apis_own(date):
    assert http.wait_of("Thu, 01 Jan 1970 00:01:40 GMT", date) is None
    assert http.wait_of("5", date) == timedelta(seconds=5)


async def test_a_date_in_retry_after_is_one_of_the_apis_clock(database, conn):
    its = {"date": "Fri, 01 Jan 2100 00:00:00 GMT", "retry_after": "Fri, 01 Jan 2100 00:10:00 GMT"}
    await passed(database, conn, answering(503, **its))
    wait = conn.execute("select next_at - kept.now() from kept.runner where name = 'reminders'").fetchone()[0]
    assert timedelta(minutes=9) < wait <= timedelta(minutes=10)


async def test_an_api_that_hangs_is_out_of_time(database, conn):
    _, run, _ = await passed(database, conn, silent, max_time="300ms")
    assert (run["state"], run["code"]) == ("failed", "timeout")


async def test_an_answer_that_never_ends_is_cut(database, conn):
    async def endless(request: Request, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
        while True:
            writer.write(b"1000\r\n" + b"7" * 0x1000 + b"\r\n")
            await writer.drain()

    _, run, _ = await passed(database, conn, endless)
    assert (run["state"], run["code"]) == ("failed", "answer_too_large")


@pytest.mark.parametrize("text", ["[1]", '"x"', "{", "true", '{"a": "b"}', "[" * 10_000])
async def test_an_answer_that_is_no_number_is_a_failure(database, conn, text):
    _, run, _ = await passed(database, conn, json_answer(text))
    assert (run["state"], run["code"]) == ("failed", "bad_answer")


async def test_nobody_there_is_a_failure_that_may_pass(database, conn):
    async with Endpoint() as endpoint:
        url = endpoint.url("")
    app, told = make(database, api_url=url, api_token=TOKEN)
    app.call("reminders", "GET", "/x")
    async with app.worker():
        await aeventually(lambda: told.of(RunFinished))
    (run,) = runs(conn)
    assert (run["code"], run["reason"]) == ("no_connection", "retryable")


async def test_the_token_is_shown_nowhere(database, conn):
    async def echo(request: Request, writer: asyncio.StreamWriter) -> None:
        writer.write(f"HTTP/1.1 500 {TOKEN}\r\nx: {TOKEN}\r\ncontent-length: 12\r\n\r\n{TOKEN}".encode())

    _, run, finished = await passed(database, conn, echo)
    assert TOKEN not in str(run)
    assert TOKEN not in repr(finished)
    settings = Settings(api_url="http://api", api_token=TOKEN)
    assert TOKEN not in repr(settings)
    assert TOKEN not in str(App(settings=settings).runners)
    with pytest.raises(Misconfigured) as refused:
        Settings.from_env({"KEPT_API_TOKEN": f"{TOKEN} and more"})
    assert TOKEN not in str(refused.value)


# --- what stops the start


@pytest.mark.parametrize(
    ("given", "missing"), [({"api_token": TOKEN}, "KEPT_API_URL"), ({"api_url": "http://api"}, "KEPT_API_TOKEN")]
)
async def test_a_missing_setting_stops_the_start_with_a_sentence(database, given, missing):
    app, _ = make(database, **given)
    app.call("reminders", "POST", "/x")
    with pytest.raises(Misconfigured, match=f"{missing} is not set; the runner reminders"):
        app.worker()


def test_a_runner_that_is_not_chosen_needs_no_settings(database):
    app, _ = make(database, tick_runners=("jobs",))
    app.call("reminders", "POST", "/x")
    app.worker()


@pytest.mark.parametrize("path", ["", "x", "//evil/x", "http://evil/", "/a b", "/ä", "/x\r\ny", "/a#b", None])
def test_a_path_that_is_none_is_refused(path):
    with pytest.raises(Refused, match="path"):
        App(settings=Settings()).call("reminders", "POST", path)


@pytest.mark.parametrize("method", ["", "CONNECT", "P OST", None])
def test_a_method_that_is_none_is_refused(method):
    with pytest.raises(Refused, match="method"):
        App(settings=Settings()).call("reminders", method, "/x")


@pytest.mark.parametrize("url", ["api", "ftp://api", "http://me:secret@api", "http://api?x=1"])
def test_an_odd_url_of_the_api_is_refused(url):
    with pytest.raises(Misconfigured, match="KEPT_API_URL") as refused:
        Settings.from_env({"KEPT_API_URL": url})
    assert "secret" not in str(refused.value)
