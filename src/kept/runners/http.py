"""A runner that calls an API: one request with the service token, and what its answer means."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from functools import cache
from importlib.util import find_spec
from ssl import SSLContext, create_default_context

import msgspec
from msgspec import Struct

from kept.config import Settings
from kept.errors import Failure, Misconfigured, Refused
from kept.jobs.text import message_of

MOST_READ = 64 * 1024  # bytes of an answer
LONGEST_WAIT = timedelta(hours=24)  # however long an API asks us to wait
_METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")
_PATH = re.compile(r"/(?!/)[!-~]{0,1999}")
_RETRYABLE = {408, 425, 429}


class Request(Struct, frozen=True):
    """What is asked for, below the API's URL."""

    method: str
    path: str


def check_method(method: object) -> str:
    if not isinstance(method, str) or method.upper() not in _METHODS:
        raise Refused(f"method: {str(method)[:40]!r} is none of {', '.join(_METHODS)}", field="method")
    return method.upper()


def check_path(path: object) -> str:
    if not isinstance(path, str) or not _PATH.fullmatch(path) or "#" in path:
        raise Refused(f"path: {str(path)[:80]!r} is no path; write it like '/internal/reminders'", field="path")
    return path


def check_settings(runner: str, settings: Settings) -> None:
    """What a call needs is there, or the start is stopped with a sentence."""
    if find_spec("httpx2") is None:
        raise Misconfigured(f'httpx2 is not installed; the runner {runner} needs it: pip install "kept[http]"')
    for name, value in (("KEPT_API_URL", settings.api_url), ("KEPT_API_TOKEN", settings.api_token)):
        if value is None:
            raise Misconfigured(f"{name} is not set; the runner {runner} calls your API with it")


async def call(request: Request, url: str | None, token: str | None, seconds: float) -> object:
    """The counters that the API answers with; :class:`Failure` if it does not answer well.

    No redirect is followed, and no proxy or cookie known: the token goes nowhere but to the API.
    """
    import httpx2

    assert url is not None
    assert token is not None
    where = url.rstrip("/") + request.path
    headers = {"x-service-token": token, "accept": "application/json", "user-agent": "kept"}
    try:
        async with (
            asyncio.timeout(seconds),
            httpx2.AsyncClient(verify=_tls(), trust_env=False, follow_redirects=False, timeout=seconds) as client,
            client.stream(request.method, where, headers=headers) as response,
        ):
            judge(response.status_code, _wait(response.headers), request)
            return _counters(await _read(response.aiter_bytes(), request), request)
    except (TimeoutError, httpx2.TimeoutException):
        raise Failure(f"{_said(request)}: no answer within {seconds:.3g} s", code="timeout") from None
    except httpx2.HTTPError as error:
        told = message_of(error).replace(token, "…")
        raise Failure(f"{_said(request)}: no answer: {told}", code="no_connection") from None


def judge(status: int, after: timedelta | None, request: Request) -> None:
    """Nothing, if *status* says that it was done; else a :class:`Failure` with a code of its own."""
    if 200 <= status < 300:
        return
    again = status in _RETRYABLE or status >= 500
    hint = "; redirects are not followed" if 300 <= status < 400 else ""
    raise Failure(
        f"{_said(request)}: the API answered {status}{hint}",
        code=f"http_{status}",
        retryable=again,
        after=after if again else None,
    )


def _wait(headers: Mapping[str, str]) -> timedelta | None:
    return wait_of(headers.get("retry-after"), headers.get("date"))


def wait_of(header: str | None, date: str | None) -> timedelta | None:
    """How long ``Retry-After`` asks us to wait: seconds, or until a date.

    That is one of the API's clock, which tells in *date* what time it is; ours may be another.
    """
    if not header:
        return None
    try:
        if header.strip().isdecimal():
            wait = timedelta(seconds=min(float(header), LONGEST_WAIT.total_seconds()))
        elif date:
            wait = _moment(header) - _moment(date)
        else:
            return None
    except (ValueError, OverflowError):
        return None
    return min(max(wait, timedelta()), LONGEST_WAIT)


def _moment(header: str) -> datetime:
    moment = parsedate_to_datetime(header)
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


async def _read(parts: AsyncIterator[bytes], request: Request) -> bytes:
    body = b""
    async for part in parts:
        body += part
        if len(body) > MOST_READ:
            raise Failure(
                f"{_said(request)}: the answer has more than 64 KiB", code="answer_too_large", retryable=False
            )
    return body


def _counters(body: bytes, request: Request) -> object:
    """Numbers by name, or one; an answer without a body counts nothing. Anything else is a :class:`Failure`."""
    if not body.strip():
        return None
    with suppress(msgspec.DecodeError, RecursionError):
        return msgspec.json.decode(body, type=dict[str, int | float] | int | None)
    raise Failure(
        f"{_said(request)}: the answer is neither a whole number nor an object of numbers",
        code="bad_answer",
        retryable=False,
    )


def _said(request: Request) -> str:
    return f"{request.method} {request.path.partition('?')[0]}"


@cache
def _tls() -> SSLContext:
    return create_default_context()  # made once: reading the certificates takes longer than a call
