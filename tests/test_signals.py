"""The hub: everyone is told, in order, and nobody can spoil it for the others."""

from __future__ import annotations

import logging

import pytest

from kept.signals import Signal, Signals, Warned

NEWS = Warned(code="news", message="something happened")


def test_subscribers_are_told_in_the_order_they_came() -> None:
    told: list[str] = []
    hub = Signals(lambda _: told.append("given at construction"))
    hub.subscribe(lambda _: told.append("first"))
    hub.subscribe(lambda _: told.append("second"))

    hub.report(NEWS)

    assert told == ["given at construction", "first", "second"]


def test_a_subscriber_gets_the_signal_itself() -> None:
    told: list[Signal] = []
    Signals(told.append).report(NEWS)

    assert told[0] is NEWS


def test_a_failing_subscriber_harms_nobody_and_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    def fail(_: Signal) -> None:
        raise RuntimeError("no room on the disk")

    told: list[Signal] = []
    hub = Signals(fail, told.append)

    with caplog.at_level(logging.ERROR, logger="kept.signals"):
        hub.report(NEWS)

    assert told == [NEWS]
    assert "Warned" in caplog.text
    assert "no room on the disk" in caplog.text


def test_who_unsubscribed_hears_no_more() -> None:
    told: list[Signal] = []
    others: list[Signal] = []
    hub = Signals()
    leave = hub.subscribe(told.append)
    hub.subscribe(others.append)
    hub.report(NEWS)

    leave()
    hub.report(NEWS)

    assert told == [NEWS]
    assert others == [NEWS, NEWS]


def test_who_unsubscribes_while_being_told_does_not_make_the_next_one_miss_it() -> None:
    told: list[str] = []
    hub = Signals()

    def once(_: Signal) -> None:
        told.append("once")
        leave()

    leave = hub.subscribe(once)
    hub.subscribe(lambda _: told.append("always"))

    hub.report(NEWS)
    hub.report(NEWS)

    assert told == ["once", "always", "always"]


def test_who_subscribes_while_another_is_told_hears_from_the_next_signal_on() -> None:
    told: list[Signal] = []
    hub = Signals()

    def bring_another(_: Signal) -> None:
        leave()
        hub.subscribe(told.append)

    leave = hub.subscribe(bring_another)

    hub.report(NEWS)
    assert told == []
    hub.report(NEWS)
    assert told == [NEWS]


def test_a_signal_cannot_be_changed_by_one_subscriber_for_the_next() -> None:
    with pytest.raises(AttributeError):
        NEWS.code = "other"  # type: ignore[misc]
