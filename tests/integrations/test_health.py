"""Probes and scrapes: a plain answer to every question, whatever goes on inside."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from http.client import HTTPConnection

import pytest

from kept.errors import Misconfigured
from kept.integrations.health import HealthServer
from kept.integrations.prometheus import Metrics
from kept.signals import LeaseRenewed


class Inside:
    """What the probes ask, and a server that asks it."""

    def __init__(self) -> None:
        self.age: float = 0.1
        self.reason: str | Exception | None = None
        self.metrics = Metrics()
        self.server = HealthServer(
            port=0,
            registry=self.metrics.registry,
            beat_age=lambda: self.age,
            limit=30,
            ready=self._ready,
        )

    def ask(self, path: str, method: str = "GET", **headers: str) -> tuple[int, str, dict[str, str]]:
        conn = HTTPConnection("127.0.0.1", self.server.port, timeout=10)
        try:
            conn.request(method, path, headers=headers)
            answer = conn.getresponse()
            return answer.status, answer.read().decode(), dict(answer.getheaders())
        finally:
            conn.close()

    def _ready(self) -> str | None:
        if isinstance(self.reason, Exception):
            raise self.reason
        return self.reason


@pytest.fixture
def inside() -> Iterator[Inside]:
    inside = Inside()
    yield inside
    inside.server.close()


def test_a_loop_that_moves_is_alive(inside: Inside) -> None:
    status, text, _ = inside.ask("/livez")

    assert (status, text) == (200, "alive: the loop moved 0.1 s ago\n")


@pytest.mark.parametrize("age", [30.0, 75.2, float("inf"), float("nan")])
def test_a_loop_that_stands_still_is_not_alive(inside: Inside, age: float) -> None:
    inside.age = age
    status, text, _ = inside.ask("/livez")

    assert status == 503
    assert text == f"the loop has not moved for {age:.1f} s; the limit is 30 s\n"


def test_readiness_gives_the_reason_when_it_is_missing(inside: Inside) -> None:
    assert inside.ask("/readyz")[:2] == (200, "ready\n")

    inside.reason = "the database does not answer"

    assert inside.ask("/readyz")[:2] == (503, "the database does not answer\n")


def test_a_check_that_raises_is_an_answer_on_one_line_without_a_password(inside: Inside) -> None:
    inside.reason = ConnectionError("postgresql://u:s3cret@h/db\nHTTP/1.1 200 OK")

    status, text, _ = inside.ask("/readyz")

    assert status == 503
    assert text.startswith("ConnectionError: postgresql://u:***@h/db")
    assert text.count("\n") == 1
    assert "s3cret" not in text


def test_metrics_are_prometheus_text(inside: Inside) -> None:
    inside.metrics(LeaseRenewed(name="w", count=7))

    status, text, headers = inside.ask("/metrics")

    assert status == 200
    assert headers["Content-Type"].startswith("text/plain; version=")
    assert "kept_lease_renewals_total 7.0" in text.splitlines()


def test_a_scraper_may_ask_for_openmetrics(inside: Inside) -> None:
    status, text, headers = inside.ask("/metrics", Accept="application/openmetrics-text; version=1.0.0")

    assert status == 200
    assert headers["Content-Type"].startswith("application/openmetrics-text")
    assert text.endswith("# EOF\n")


def test_a_scrape_that_fails_leaves_the_server_alive(inside: Inside) -> None:
    inside.metrics.running = lambda: int("many")

    assert inside.ask("/metrics")[0] == 503
    assert inside.ask("/livez")[0] == 200


def test_a_query_does_not_change_the_path(inside: Inside) -> None:
    assert inside.ask("/livez?verbose=1")[0] == 200


@pytest.mark.parametrize("path", ["/", "/livez/", "/metrics.txt", "/../livez", "/%2flivez"])
def test_other_paths_are_not_found(inside: Inside, path: str) -> None:
    assert inside.ask(path)[0] == 404


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS", "BREW"])
def test_other_methods_are_refused(inside: Inside, method: str) -> None:
    status, text, headers = inside.ask("/livez", method)

    assert status == 405
    assert headers["Allow"] == "GET"
    assert text == ("" if method == "HEAD" else "only GET is served\n")


def test_it_names_neither_python_nor_its_version(inside: Inside) -> None:
    _, _, headers = inside.ask("/livez")

    assert headers["Server"].strip() == "kept"


def test_nonsense_on_the_wire_is_survived_in_silence(inside: Inside, capfd: pytest.CaptureFixture[str]) -> None:
    for nonsense in (b"\x16\x03\x01\x02\x00\x01\n\n", b"GET\r\n\r\n", b"GET /livez HTTP/9.9\r\n\r\n", b""):
        with socket.create_connection(("127.0.0.1", inside.server.port), timeout=10) as raw:
            raw.sendall(nonsense)
            raw.shutdown(socket.SHUT_WR)
            raw.recv(1000)

    assert inside.ask("/livez")[0] == 200
    assert capfd.readouterr() == ("", "")


def test_a_taken_port_is_a_sentence(inside: Inside) -> None:
    with pytest.raises(Misconfigured, match=rf"port {inside.server.port} of 127\.0\.0\.1 is taken .* choose another"):
        _serve(port=inside.server.port)


@pytest.mark.parametrize(("host", "port"), [("192.0.2.1", 0), ("127.0.0.1", 70000)])
def test_an_address_that_cannot_be_is_a_sentence(host: str, port: int) -> None:
    with pytest.raises(Misconfigured, match=rf"port {port} of {host} cannot be listened on"):
        _serve(host=host, port=port)


def test_closing_frees_the_port_and_may_be_repeated(inside: Inside) -> None:
    port = inside.server.port

    inside.server.close()
    inside.server.close()

    again = _serve(port=port)
    assert again.port == port
    again.close()


def _serve(*, port: int, host: str = "127.0.0.1") -> HealthServer:
    return HealthServer(
        host=host,
        port=port,
        registry=Metrics().registry,
        beat_age=lambda: 0.0,
        limit=30,
        ready=lambda: None,
    )
