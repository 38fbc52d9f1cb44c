"""Webhooks: each event is a signed POST to somebody else's URL, by the rules of Standard Webhooks."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC
from email.utils import parsedate_to_datetime
from ipaddress import ip_address
from urllib.parse import quote

from kept.durations import Duration
from kept.errors import Refused
from kept.jobs.text import code_of, message_of
from kept.outbox.addresses import Allowed
from kept.outbox.signature import keys_of, sign
from kept.outbox.sink import PUBLISHED, Answer, Gone, Message, Rejected, Sink, Unreachable
from kept.outbox.sinks.parts import limit, missing
from kept.outbox.target import Target, take_apart, template_of

try:
    import httpcore2

    from kept.outbox.pinned import Blocked, NoAddress, PinnedBackend
except ImportError as error:
    raise missing("httpx2", extra="webhooks") from error

MOST_READ = 64 * 1024  # of a response's body; nobody looks at it, it is read so that the connection can be used again
READ_TIME = 1.0
LONGEST_WAIT = 3600.0  # however long an endpoint asks us to wait
KEPT_OPEN = 2.0  # less than any server's own limit, lest it close while we write
# All that is printable, without the three that stand for others or would end a value.
_PLAIN = "".join(chr(code) for code in range(0x21, 0x7F) if chr(code) not in '"%')


class WebhookSink(Sink):
    """Posts events to *url*, whose path may hold ``{type}``, ``{aggregate_type}``, ``{aggregate_id}``.

    *secret* signs, or several do while one replaces another. Only public addresses, and only https, unless
    *allow_private* (True, or networks like ``10.1.0.0/16``) and *allow_http* say otherwise. *tls* verifies servers.
    """

    kind = "webhook"
    batch = 100

    def __init__(
        self,
        url: str,
        *,
        secret: str | Sequence[str],
        name: str | None = None,
        topics: Mapping[str, str] | None = None,
        timeout: Duration = "10s",
        connections: int = 20,
        allow_private: bool | Iterable[str] = False,
        allow_http: bool = False,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        if connections < 1:
            raise Refused("connections: must be at least 1", field="connections")
        self._keys = keys_of(secret)
        self._timeout = limit(timeout)
        self._allowed = Allowed(allow_private)
        self._schemes = ("https", "http") if allow_http else ("https",)
        self._connections = connections
        self._tls = tls or ssl.create_default_context()
        templates = (url, *(topics or {}).values())
        self._origins = {template_of(each).origin for each in templates}
        super().__init__(name=name, topic=url, topics=topics)
        self._home = take_apart(url)
        self._open: _Open | None = None
        self._answered = float("-inf")  # when the endpoint last had a word of its own
        self._away: tuple[float, Unreachable] | None = None

    def check_topic(self, topic: str) -> None:
        target = take_apart(topic)
        if target.scheme not in self._schemes:
            raise Refused(f"url: {target.origin} is not https; allow_http=True permits http", field="url")
        if target.origin not in self._origins:
            raise Refused(f"url: {target.origin} is none of this sink's", field="url")
        with suppress(ValueError):
            ip_address(target.host)
            if (why := self._allowed.refuses(target.host)) is not None:
                raise Refused(f"url: the host is {target.host}, {why}; allow_private permits it", field="url")

    def fit(self, value: str) -> str:
        return quote(value, safe="")

    async def send(self, message: Message) -> Answer:
        if (misfit := self.misfit(message)) is not None:
            return misfit
        waiting, open = time.monotonic(), self._opened()
        async with open.slots:
            if self._away is not None and self._away[0] > waiting:
                return self._away[1]  # found out while we waited: no need to try
            answer = await self._deliver(open, message, take_apart(message.topic))
        if isinstance(answer, Unreachable):
            self._away = (time.monotonic(), answer)
        return answer

    async def ping(self) -> Unreachable | None:
        """Whether a connection can be had; nothing is posted."""
        home = self._home
        try:
            async with asyncio.timeout(self._timeout):
                stream = await self._opened().network.connect_tcp(home.host, home.port, self._timeout)
                try:
                    if home.scheme == "https":
                        stream = await stream.start_tls(self._tls, home.host, self._timeout)
                finally:
                    await stream.aclose()
        except Exception as error:  # noqa: BLE001
            return _no_connection(error, home)
        return None

    async def close(self) -> None:
        open, self._open = self._open, None
        if open is not None:
            await open.pool.aclose()

    def _opened(self) -> _Open:
        if self._open is None:
            self._open = _Open(self._allowed, self._tls, self._connections)
        return self._open

    async def _deliver(self, open: _Open, message: Message, target: Target) -> Answer:
        begun = time.monotonic()
        try:
            async with asyncio.timeout(self._timeout):
                response = await open.pool.handle_async_request(self._request(message, target))
        except TimeoutError:
            return await self._silent(begun, "timeout", f"{target.origin} did not answer within {self._timeout:g} s")
        except (httpcore2.ReadError, httpcore2.WriteError, httpcore2.RemoteProtocolError) as error:
            said = f"{target.origin} broke off: {type(error).__name__}: {message_of(error)}"
            return await self._silent(begun, "disconnected", said)
        except httpcore2.LocalProtocolError as error:
            return Rejected(code_of(error), f"this event does not fit into a request: {message_of(error)}")
        except Exception as error:  # noqa: BLE001
            return _no_connection(error, target)
        await _let_go(response)
        if response.status in (502, 504):
            said = f"{target.origin} answered {response.status}: nobody behind it did"
            return await self._silent(begun, f"http_{response.status}", said)
        self._answered = time.monotonic()
        return judge(response.status, _wait_of(_header(response, b"retry-after"), time.time()), target.origin)

    async def _silent(self, begun: float, code: str, said: str) -> Answer:
        """No answer: the event's fault if the endpoint answered others meanwhile and is still there, else its own.

        An event that the endpoint chokes on would stop the others for ever if it were never charged.
        """
        if self._answered > begun and (code != "disconnected" or await self.ping() is None):
            return Rejected(code, said)
        return Unreachable(code, said)

    def _request(self, message: Message, target: Target) -> httpcore2.Request:
        now = int(time.time())
        headers = {
            "host": target.authority,
            "content-type": "application/json",
            "user-agent": "kept",
            # Underscores are dropped by servers on the way.
            **{name.replace("_", "-"): quote(value, safe=_PLAIN) for name, value in message.headers.items()},
            "webhook-id": message.event_id,
            "webhook-timestamp": str(now),
            "webhook-signature": sign(self._keys, message.event_id, now, message.body),
            "content-length": str(len(message.body)),
        }
        return httpcore2.Request(
            "POST",
            httpcore2.URL(
                scheme=target.scheme.encode(), host=target.host.encode(), port=target.port, target=target.path.encode()
            ),
            headers=list(headers.items()),
            content=message.body,
            extensions={"timeout": {"connect": self._timeout}},
        )


class _Open:
    """What belongs to one event loop."""

    def __init__(self, allowed: Allowed, tls: ssl.SSLContext, connections: int) -> None:
        self.network = PinnedBackend(allowed)
        # A pool of its own for each sink knows no proxies, no cookies and no redirects.
        self.pool = httpcore2.AsyncConnectionPool(
            tls, max_connections=connections, keepalive_expiry=KEPT_OPEN, network_backend=self.network
        )
        self.slots = asyncio.Semaphore(connections)


def judge(status: int, wait: float | None, origin: str) -> Answer:
    """What an endpoint's status means for the event and for the sink."""
    said = f"{origin} answered {status}"
    answer: Answer
    match status:
        case _ if 200 <= status < 300:
            answer = PUBLISHED
        case _ if 300 <= status < 400:
            answer = Rejected("redirect", f"{said}; redirects are not followed, name the right URL")
        case 401:
            answer = Unreachable("http_401", f"{said}: it refuses our signature")
        case 410:
            answer = Gone("gone", f"{said}: it wants no more events")
        case 413:
            answer = Rejected("message_too_large", f"{said}: the event is too large for it", retryable=False)
        case 429 | 503:
            answer = Unreachable(f"http_{status}", f"{said}: it asks everybody to wait", after=wait)
        case _:
            answer = Rejected(f"http_{status}", said, after=wait)
    return answer


def _wait_of(header: str | None, now: float) -> float | None:
    """How long ``Retry-After`` asks us to wait: seconds, or until a date."""
    if not header:
        return None
    try:
        if header.strip().isdecimal():
            wait = float(header)
        else:
            moment = parsedate_to_datetime(header)
            wait = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() - now
    except (ValueError, OverflowError):
        return None
    return min(max(wait, 0.0), LONGEST_WAIT)


def _header(response: httpcore2.Response, wanted: bytes) -> str | None:
    return next((value.decode("latin-1") for name, value in response.headers if name.lower() == wanted), None)


async def _let_go(response: httpcore2.Response) -> None:
    """Read what is left, if it is little and comes soon; else the connection is closed. The answer is known already."""
    read = 0
    try:
        with suppress(Exception):
            async with asyncio.timeout(READ_TIME):
                async for part in response.aiter_stream():
                    read += len(part)
                    if read > MOST_READ:
                        break
    finally:
        with suppress(Exception):
            await response.aclose()


def _no_connection(error: Exception, target: Target) -> Unreachable:
    said = f"{target.origin}: {message_of(error)}"
    match error:
        case Blocked():
            return Unreachable("blocked_address", f"{said}; allow_private permits it")
        case NoAddress():
            return Unreachable("no_address", said)
        case TimeoutError() | httpcore2.ConnectTimeout():
            return Unreachable("timeout", f"{target.origin} does not take connections: out of time")
        case _ if isinstance(error.__context__ or error.__cause__, ssl.SSLError) or isinstance(error, ssl.SSLError):
            return Unreachable("tls", f"no secure connection to {said}")
        case _:
            return Unreachable("no_connection", f"no connection to {said or type(error).__name__}")
