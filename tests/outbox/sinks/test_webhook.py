"""Webhooks: posted once, signed, to nobody's private address, and answered for what they are."""

from __future__ import annotations

import asyncio
import base64
import socket
import ssl
import subprocess
import sys
import time
from email.utils import formatdate
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokers import kinds, message
from endpoint import Endpoint, Handler, Request, answering, certificate, silent
from kept.errors import Refused
from kept.outbox.signature import verify
from kept.outbox.sink import HELD, PUBLISHED, Gone, Rejected, Unreachable
from kept.outbox.sinks.webhook import LONGEST_WAIT, WebhookSink, judge

SECRET = "whsec_" + base64.b64encode(b"k" * 32).decode()
OTHER = "whsec_" + base64.b64encode(b"o" * 32).decode()


def to(endpoint: Endpoint, path: str = "/hooks", **options: object) -> WebhookSink:
    """A sink that may post to this test's endpoint."""
    options = {"secret": SECRET, "allow_private": ["127.0.0.0/8"], "allow_http": True, "timeout": "5s"} | options
    return WebhookSink(endpoint.url(path), **options)


async def answer_to(handler: Handler) -> object:
    """What an endpoint that behaves so makes of an event."""
    async with Endpoint() as endpoint:
        endpoint.handler = handler
        sink = to(endpoint)
        answer = await sink.send(message(endpoint.url()))
        await sink.close()
        return answer


class Resolver:
    """Answers for names ending in ``.test``: one list of addresses for each time it is asked, the last one for ever."""

    def __init__(self) -> None:
        self.answers: dict[str, list[list[str]]] = {}
        self.asked: list[str] = []
        self._real = socket.getaddrinfo

    def __call__(self, host: str, port: int, *args: object, **kwargs: object) -> object:
        self.asked.append(host)
        if host.endswith(".invalid"):
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        if host not in self.answers:
            return self._real(host, port, *args, **kwargs)
        answers = self.answers[host]
        found = answers.pop(0) if len(answers) > 1 else answers[0]
        return [
            (socket.AF_INET6 if ":" in each else socket.AF_INET, socket.SOCK_STREAM, 6, "", (each, port))
            for each in found
        ]


@pytest.fixture
def resolver(monkeypatch: pytest.MonkeyPatch) -> Resolver:
    resolver = Resolver()
    monkeypatch.setattr(socket, "getaddrinfo", resolver)
    return resolver


# --- what arrives


async def test_an_event_arrives_as_a_signed_post() -> None:
    async with Endpoint() as endpoint:
        sink = to(endpoint)
        sent = message(endpoint.url(), body=b'{"n": 1}', aggregate_id="Müller 100%", traceparent="00-ab-cd-01")
        assert await sink.publish([sent], ordered=False) == [PUBLISHED]
        await sink.close()
    (got,) = endpoint.requests
    assert (got.method, got.path, got.body) == ("POST", "/hooks", b'{"n": 1}')
    assert verify(got.headers, got.body, SECRET) == got.headers["webhook-id"] == sent.event_id
    assert got.headers["content-type"] == "application/json"
    assert got.headers["event-type"] == "invoice.created"
    assert got.headers["traceparent"] == "00-ab-cd-01"
    assert got.headers["aggregate-id"] == "M%C3%BCller%20100%25"


async def test_while_a_key_is_changed_receivers_of_either_key_can_verify() -> None:
    async with Endpoint() as endpoint:
        sink = to(endpoint, secret=[SECRET, OTHER])
        assert await sink.send(message(endpoint.url())) == PUBLISHED
        await sink.close()
    (got,) = endpoint.requests
    assert verify(got.headers, got.body, SECRET) == verify(got.headers, got.body, OTHER)
    with pytest.raises(Refused, match="webhook-signature"):
        verify(got.headers, got.body, "whsec_" + base64.b64encode(b"x" * 32).decode())


async def test_the_path_is_filled_in_and_cannot_be_broken_out_of() -> None:
    async with Endpoint() as endpoint:
        sink = to(endpoint, "/hooks/{aggregate_id}?v=1")
        topics = [sink.topics.of("invoice.created", None, id) for id in ("7", "a/b?c#d", "é\r\nx: y", "..")]
        answers = await sink.publish([message(topic) for topic in topics], ordered=True)
        await sink.close()
    assert kinds(answers) == ["Published"] * 3 + ["Rejected:bad_topic"]
    assert not answers[3].retryable
    paths = {request.path for request in endpoint.requests}
    assert paths == {"/hooks/7?v=1", "/hooks/a%2Fb%3Fc%23d?v=1", "/hooks/%C3%A9%0D%0Ax%3A%20y?v=1"}


async def test_a_header_cannot_be_smuggled_in() -> None:
    async with Endpoint() as endpoint:
        sink = to(endpoint)
        assert await sink.send(message(endpoint.url(), aggregate_id="7\r\nx-admin: yes")) == PUBLISHED
        await sink.close()
    assert "x-admin" not in endpoint.requests[0].headers


async def test_many_events_share_few_connections() -> None:
    async with Endpoint() as endpoint:
        sink = to(endpoint, connections=5)
        answers = await sink.publish([message(endpoint.url()) for _ in range(200)], ordered=False)
        await sink.close()
    assert answers == [PUBLISHED] * 200
    assert len({request.headers["webhook-id"] for request in endpoint.requests}) == 200
    assert endpoint.connections <= 5


async def test_a_sink_that_was_closed_and_one_whose_endpoint_restarted_work_again() -> None:
    async with Endpoint() as endpoint:
        sink = to(endpoint)
        assert await sink.send(message(endpoint.url())) == PUBLISHED
        await sink.close()
        assert await sink.send(message(endpoint.url())) == PUBLISHED
        await endpoint.stop()
        assert kinds([await sink.send(message(endpoint.url())), await sink.ping()]) == ["Unreachable:no_connection"] * 2
        await endpoint.start()
        assert await sink.ping() is None
        assert await sink.send(message(endpoint.url())) == PUBLISHED
        await sink.close()


def test_a_sink_may_be_used_in_one_loop_after_another() -> None:
    endpoint = Endpoint()
    sinks: list[WebhookSink] = []

    async def once() -> list[object]:
        async with endpoint:
            sinks.append(sinks[0] if sinks else to(endpoint, connections=1))
            answers = await sinks[0].publish([message(endpoint.url()) for _ in range(3)], ordered=False)
            await sinks[0].close()
            return answers

    assert asyncio.run(once()) == asyncio.run(once()) == [PUBLISHED] * 3


# --- what endpoints answer


@pytest.mark.parametrize(
    ("handler", "expected"),
    [
        (answering(200, body=b"thanks"), PUBLISHED),
        (answering(202), PUBLISHED),
        (answering(302, location="http://127.0.0.1:1/"), Rejected),
        (answering(400), Rejected),
        (answering(500), Rejected),
        (answering(410), Gone),
        (answering(429, retry_after="7"), Unreachable),
        (answering(503, retry_after="7"), Unreachable),
        (answering(502), Unreachable),
    ],
)
async def test_the_status_is_the_answer(handler: Handler, expected: object) -> None:
    async with Endpoint() as endpoint:
        endpoint.handler = handler
        sink = to(endpoint, "/hooks/s3cret")
        answer = await sink.send(message(endpoint.url("/hooks/s3cret")))
        await sink.close()
    assert answer == expected or type(answer) is expected
    assert "s3cret" not in str(answer)
    assert len(endpoint.requests) == 1


@pytest.mark.parametrize(
    ("status", "answer"),
    [
        (204, "Published"),
        (301, "Rejected:redirect"),
        (401, "Unreachable:http_401"),
        (403, "Rejected:http_403"),
        (404, "Rejected:http_404"),
        (410, "Gone:gone"),
        (413, "Rejected:message_too_large"),
        (429, "Unreachable:http_429"),
        (500, "Rejected:http_500"),
        (503, "Unreachable:http_503"),
    ],
)
def test_what_a_status_means(status: int, answer: str) -> None:
    judged = judge(status, None, "https://example.com")
    assert kinds([judged]) == [answer]
    assert getattr(judged, "retryable", True) == (status != 413)


@given(st.integers(200, 999))
def test_every_status_has_an_answer(status: int) -> None:
    assert (judge(status, 1.0, "https://example.com") == PUBLISHED) == (status < 300)


@pytest.mark.parametrize(
    ("wait", "least", "most"),
    [("7", 7, 7), (+1000, 900, 1000), (-1000, 0, 0), ("99999999999999999999", LONGEST_WAIT, LONGEST_WAIT)],
    ids=["seconds", "a date to come", "a date gone by", "too long"],
)
async def test_an_endpoint_may_ask_to_wait_but_not_for_ever(wait: str | int, least: float, most: float) -> None:
    header = wait if isinstance(wait, str) else formatdate(time.time() + wait, usegmt=True)
    answer = await answer_to(answering(429, retry_after=header))
    assert isinstance(answer, Unreachable)
    assert least <= answer.after <= most


@pytest.mark.parametrize("header", ["soon", "-5", "Tue, 99 Foo 2026 00:00:00 GMT", "1e3"])
async def test_a_wait_that_cannot_be_read_is_none(header: str) -> None:
    answer = await answer_to(answering(503, retry_after=header))
    assert isinstance(answer, Unreachable)
    assert answer.after is None


async def test_a_redirect_is_not_followed() -> None:
    async with Endpoint() as inner, Endpoint() as endpoint:
        endpoint.handler = answering(307, location=inner.url("/admin"))
        sink = to(endpoint)
        answer = await sink.send(message(endpoint.url()))
        await sink.close()
    assert kinds([answer]) == ["Rejected:redirect"]
    assert inner.connections == 0


# --- what fails


async def test_an_endpoint_that_never_answers_is_unreachable_in_time_and_not_asked_for_each_event() -> None:
    async with Endpoint() as endpoint:
        endpoint.handler = silent
        sink = to(endpoint, timeout="300ms", connections=2)
        begun = time.monotonic()
        answers = await sink.publish([message(endpoint.url()) for _ in range(50)], ordered=False)
        assert time.monotonic() - begun < 3
        assert kinds(answers) == ["Unreachable:timeout"] * 50
        assert len(endpoint.requests) == 2
        endpoint.handler = answering(204)
        assert await sink.send(message(endpoint.url())) == PUBLISHED
        await sink.close()


async def test_an_event_that_the_endpoint_chokes_on_is_charged_while_others_are_answered() -> None:
    async def choke(request: Request, writer: asyncio.StreamWriter) -> None:
        await {b"hang": silent, b"break": broken}.get(request.body, answering(204))(request, writer)

    async def broken(request: Request, writer: asyncio.StreamWriter) -> None:
        await asyncio.wait_for(answered.wait(), 5)
        raise ConnectionResetError

    answered = asyncio.Event()
    async with Endpoint() as endpoint:
        endpoint.handler = choke
        sink = to(endpoint, timeout="500ms")
        poison = [asyncio.create_task(sink.send(message(endpoint.url(), body=each))) for each in (b"hang", b"break")]
        while len(endpoint.requests) < 2:
            await asyncio.sleep(0)
        assert await sink.send(message(endpoint.url())) == PUBLISHED
        answered.set()
        assert kinds(await asyncio.gather(*poison)) == ["Rejected:timeout", "Rejected:disconnected"]
        await sink.close()


async def test_an_endpoint_killed_in_the_middle_has_every_event_that_counts_as_published() -> None:
    async with Endpoint() as endpoint:

        async def die(request: Request, writer: asyncio.StreamWriter) -> None:
            if len(endpoint.requests) > 50:
                stopping.set()
                await asyncio.Event().wait()
            await answering(204)(request, writer)

        stopping = asyncio.Event()
        endpoint.handler = die
        sink = to(endpoint)
        sent = [message(endpoint.url()) for _ in range(200)]
        publishing = asyncio.create_task(sink.publish(sent, ordered=False))
        await stopping.wait()
        await endpoint.stop()
        answers = await publishing
        await sink.close()
    there = {request.headers["webhook-id"] for request in endpoint.requests}
    published = {each.event_id for each, answer in zip(sent, answers, strict=True) if answer == PUBLISHED}
    assert 0 < len(published) < 200
    assert published <= there
    assert all(isinstance(answer, Unreachable) for answer in answers if answer != PUBLISHED)


async def test_in_order_an_event_that_fails_holds_those_of_its_key_and_no_others() -> None:
    async def fail_bad(request: Request, writer: asyncio.StreamWriter) -> None:
        await answering(500 if request.body == b"bad" else 204)(request, writer)

    async with Endpoint() as endpoint:
        endpoint.handler = fail_bad
        sink = to(endpoint)
        bodies = [("a", b"1"), ("b", b"1"), ("a", b"bad"), ("b", b"2"), ("a", b"3"), ("b", b"3")]
        sent = [message(endpoint.url(), key=key, body=body) for key, body in bodies]
        answers = await sink.publish(sent, ordered=True)
        await sink.close()
    assert kinds(answers) == ["Published", "Published", "Rejected:http_500", "Published", "Held", "Published"]
    assert answers[4] == HELD
    of_b = [request.headers["webhook-id"] for request in endpoint.requests]
    assert [each for each in of_b if each in {m.event_id for m in sent[1::2]}] == [m.event_id for m in sent[1::2]]


def dripping(head: bytes, drop: bytes) -> Handler:
    async def drip(request: Request, writer: asyncio.StreamWriter) -> None:
        writer.write(head)
        while not writer.transport.is_closing():
            writer.write(drop)
            await writer.drain()
            await asyncio.sleep(0.02)

    return drip


async def test_a_head_that_drips_runs_out_of_time() -> None:
    async with Endpoint() as endpoint:
        endpoint.handler = dripping(b"HTTP/1.1 200 OK\r\n", b"x: y\r\n")
        sink = to(endpoint, timeout="300ms")
        begun = time.monotonic()
        assert kinds([await sink.send(message(endpoint.url()))]) == ["Unreachable:timeout"]
        assert time.monotonic() - begun < 2
        await sink.close()


@pytest.mark.parametrize("drop", [b".", b"x" * 10_000])
async def test_a_body_that_drips_or_never_ends_is_not_waited_for(drop: bytes) -> None:
    async with Endpoint() as endpoint:
        endpoint.handler = dripping(b"HTTP/1.1 200 OK\r\ncontent-length: 9999999999\r\n\r\n", drop)
        sink = to(endpoint, timeout="300ms")
        begun = time.monotonic()
        assert await sink.send(message(endpoint.url())) == PUBLISHED
        assert time.monotonic() - begun < 3
        await sink.close()


async def test_of_a_flood_only_the_beginning_is_read() -> None:
    written = 0

    async def flood(request: Request, writer: asyncio.StreamWriter) -> None:
        nonlocal written
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 9999999999\r\n\r\n")
        while not writer.transport.is_closing():
            writer.write(b"x" * 65536)
            await writer.drain()
            written += 65536

    assert await answer_to(flood) == PUBLISHED
    assert written < 16 * 1024 * 1024, "more than the buffers between us hold"


@pytest.mark.parametrize("said", [b"SSH-2.0-OpenSSH_9.2\r\n", b"HTTP/1.1 999999 OK\r\n\r\n", b"", b"\x00" * 200_000])
async def test_what_is_not_http_is_an_answer_too(said: bytes) -> None:
    async def speak(request: Request, writer: asyncio.StreamWriter) -> None:
        writer.write(said)
        raise ConnectionResetError

    assert kinds([await answer_to(speak)]) == ["Unreachable:disconnected"]


# --- where events may go


@pytest.mark.parametrize(
    "url",
    [
        "https://127.0.0.1/", "https://[::1]/", "https://[::ffff:127.0.0.1]/", "https://169.254.169.254/latest",
        "https://[64:ff9b::7f00:1]/", "https://100.64.0.1/", "https://10.0.0.1/", "https://0.0.0.0/", "https://[fe80::1]/",
        "http://example.com/", "ftp://example.com/", "file:///etc/passwd", "//example.com/", "example.com", "",
        "https://", "https://user:hunter2@example.com/", "https://user@example.com/", "https://example.com/#top",
        "https://exa mple.com/", "https://example.com/\r\nx: y", "https://ex\u00e4mple.com/", "https://example.com\\@127.0.0.1/",
        "https://example.com:99999/", "https://example.com:hunter2/", "https://[::1/", "https://example.com/a/../b",
        "https://example.com/%2e%2E/b", "https://{type}.example.com/", "https://example.com/?type={type}",
        "https://example.com/{unknown}", "https://example.com/{", "https://example.com/" + "a" * 3000,
    ],
)  # fmt: skip
def test_a_url_that_events_must_not_go_to_is_refused(url: str) -> None:
    with pytest.raises(Refused) as refused:
        WebhookSink(url, secret=SECRET)
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize(
    "options", [{"secret": "hunter2"}, {"secret": []}, {"connections": 0}, {"allow_private": ["x"]}]
)
def test_bad_options_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(Refused):
        WebhookSink("https://example.com/", **{"secret": SECRET, **options})


@pytest.mark.parametrize("host", ["localhost", "0", "2130706433", "0x7f.1", "127.1", "017700000001"])
async def test_other_spellings_of_a_private_address_are_blocked_when_resolved(host: str) -> None:
    async with Endpoint() as endpoint:
        sink = WebhookSink(endpoint.url(host=host), secret=SECRET, allow_http=True)
        answers = [await sink.send(message(endpoint.url(host=host))), await sink.ping()]
        await sink.close()
        assert set(kinds(answers)) <= {"Unreachable:blocked_address", "Unreachable:no_address"}
        assert endpoint.connections == 0


@pytest.mark.parametrize(
    "addresses",
    [["10.0.0.7"], ["93.184.215.14", "127.0.0.1"], ["::ffff:169.254.169.254"], ["64:ff9b::a00:1"], ["fd00::1"]],
)
async def test_one_private_address_among_those_of_a_name_blocks_it(resolver: Resolver, addresses: list[str]) -> None:
    resolver.answers["evil.test"] = [addresses]
    sink = WebhookSink("https://evil.test/", secret=SECRET)
    assert kinds([await sink.send(message("https://evil.test/"))]) == ["Unreachable:blocked_address"]
    await sink.close()


async def test_an_answer_that_changes_after_the_check_changes_nothing(resolver: Resolver) -> None:
    async with Endpoint() as endpoint, Endpoint(host="127.0.0.66", port=endpoint.port) as trap:
        resolver.answers["rebind.test"] = [["127.0.0.1"], ["127.0.0.66"]]
        endpoint.handler = answering(204, connection="close")
        sink = WebhookSink(
            endpoint.url(host="rebind.test"), secret=SECRET, allow_http=True, allow_private=["127.0.0.1/32"]
        )
        sent = [message(endpoint.url(host="rebind.test")) for _ in range(2)]
        assert await sink.send(sent[0]) == PUBLISHED
        assert resolver.asked == ["rebind.test"]
        assert kinds([await sink.send(sent[1])]) == ["Unreachable:blocked_address"]
        assert resolver.asked == ["rebind.test"] * 2
        await sink.close()
        assert (len(endpoint.requests), trap.connections) == (1, 0)
        assert endpoint.requests[0].headers["host"] == f"rebind.test:{endpoint.port}"


async def test_a_dead_address_of_a_name_leaves_the_others(resolver: Resolver) -> None:
    async with Endpoint() as endpoint:
        resolver.answers["two.test"] = [["127.0.0.99", "127.0.0.1"]]
        sink = WebhookSink(endpoint.url(host="two.test"), secret=SECRET, allow_http=True, allow_private=True)
        assert await sink.send(message(endpoint.url(host="two.test"))) == PUBLISHED
        await sink.close()


async def test_a_name_that_stands_for_nothing_is_unreachable(resolver: Resolver) -> None:
    for host in ("nowhere.invalid", "a" * 70 + ".test"):
        sink = WebhookSink(f"https://{host}/", secret=SECRET)
        assert kinds([await sink.send(message(f"https://{host}/"))]) == ["Unreachable:no_address"]
        await sink.close()


async def test_an_event_cannot_name_another_host() -> None:
    sink = WebhookSink("https://example.com/", secret=SECRET)
    assert kinds([await sink.send(message("https://other.example.com/"))]) == ["Rejected:bad_topic"]
    await sink.close()


async def test_proxies_of_the_environment_are_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Endpoint() as proxy, Endpoint() as endpoint:
        for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, proxy.url("/"))
        sink = to(endpoint)
        assert await sink.send(message(endpoint.url())) == PUBLISHED
        await sink.close()
        assert proxy.connections == 0


# --- TLS


async def post_over_tls(
    resolver: Resolver, contexts: tuple[ssl.SSLContext, ssl.SSLContext], host: str, names: list[str | None]
) -> list[object]:
    server, client = contexts
    server.sni_callback = lambda _socket, name, _context: names.append(name)
    resolver.answers[host] = [["127.0.0.1"]]
    async with Endpoint(tls=server) as endpoint:
        sink = WebhookSink(endpoint.url(host=host), secret=SECRET, allow_private=True, tls=client)
        answers = [await sink.ping(), await sink.send(message(endpoint.url(host=host)))]
        await sink.close()
        return [*answers, len(endpoint.requests)]


async def test_tls_is_verified_against_the_name_although_the_connection_is_to_an_address(
    resolver: Resolver, tmp_path: Path
) -> None:
    contexts, names = certificate(tmp_path, "hooks.test"), []
    assert await post_over_tls(resolver, contexts, "hooks.test", names) == [None, PUBLISHED, 1]
    assert set(names) == {"hooks.test"}


async def test_a_certificate_of_another_name_is_not_trusted(resolver: Resolver, tmp_path: Path) -> None:
    ping, answer, requests = await post_over_tls(resolver, certificate(tmp_path, "hooks.test"), "other.test", [])
    assert kinds([ping, answer]) == ["Unreachable:tls"] * 2
    assert requests == 0


async def test_a_certificate_that_nobody_vouches_for_is_not_trusted(resolver: Resolver, tmp_path: Path) -> None:
    server, _ = certificate(tmp_path, "hooks.test")
    contexts = server, ssl.create_default_context()
    ping, answer, requests = await post_over_tls(resolver, contexts, "hooks.test", [])
    assert kinds([ping, answer]) == ["Unreachable:tls"] * 2
    assert requests == 0


# --- set-up


async def test_cancellation_passes() -> None:
    async with Endpoint() as endpoint:
        endpoint.handler = silent
        sink = to(endpoint)
        sending = asyncio.create_task(sink.send(message(endpoint.url())))
        while not endpoint.requests:
            await asyncio.sleep(0)
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending
        await sink.close()


def test_without_the_library_it_says_what_to_install() -> None:
    code = "import sys; sys.modules['httpcore2'] = None; import kept.outbox.sinks.webhook"
    told = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert 'Misconfigured: httpx2 is not installed; this sink needs it: pip install "kept[webhooks]"' in told.stderr
