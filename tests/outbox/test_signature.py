"""Standard Webhooks signatures."""

from __future__ import annotations

import base64

import pytest

from kept.errors import Refused
from kept.outbox.signature import keys_of, sign, verify

# From OpenSSL: printf '%s' 'ID.TIMESTAMP.BODY' | openssl dgst -sha256 -mac HMAC -macopt hexkey:KEY -binary | base64
SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
OLD = "whsec_" + base64.b64encode(bytes(range(32))).decode()
ID, AT, BODY = "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}'
SIGNED = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
SIGNED_BY_OLD = "v1,O4Gjv1HqPqsMrjmczoggs/sWA8gZD0VyHG+fLh4+ktI="


def signed(signature: str = SIGNED, **changed: str) -> dict[str, str]:
    headers = {"Webhook-Id": ID, "Webhook-Timestamp": str(AT), "Webhook-Signature": signature}
    return headers | changed


def test_a_signature_is_what_others_compute() -> None:
    assert sign(keys_of(SECRET), ID, AT, BODY) == SIGNED
    assert sign(keys_of([SECRET, OLD]), ID, AT, BODY) == f"{SIGNED} {SIGNED_BY_OLD}"


def test_either_key_verifies_while_one_replaces_the_other() -> None:
    both = signed(f"{SIGNED} {SIGNED_BY_OLD}")
    assert verify(both, BODY, OLD, now=AT) == verify(both, BODY, SECRET, now=AT) == ID
    assert verify(signed(), BODY, [OLD, SECRET], now=AT) == ID


@pytest.mark.parametrize("now", [AT - 300, AT + 300])
def test_the_timestamp_may_be_five_minutes_away(now: int) -> None:
    assert verify(signed(), BODY, SECRET, now=now) == ID


@pytest.mark.parametrize(
    ("headers", "body", "now", "field"),
    [
        (signed(), BODY + b" ", AT, "webhook-signature"),
        (signed(**{"Webhook-Id": "msg_other"}), BODY, AT, "webhook-signature"),
        (signed(**{"Webhook-Timestamp": str(AT + 1)}), BODY, AT, "webhook-signature"),
        (signed("v1a," + SIGNED[3:]), BODY, AT, "webhook-signature"),
        (signed("v1,"), BODY, AT, "webhook-signature"),
        (signed("v1,ü"), BODY, AT, "webhook-signature"),
        (signed("v2,x " * 30 + SIGNED), BODY, AT, "webhook-signature"),
        (signed(), BODY, AT + 301, "webhook-timestamp"),
        (signed(), BODY, AT - 301, "webhook-timestamp"),
        (signed(**{"Webhook-Timestamp": "soon"}), BODY, AT, "webhook-timestamp"),
        (signed(**{"Webhook-Timestamp": "²"}), BODY, AT, "webhook-timestamp"),
        (signed(**{"Webhook-Id": ""}), BODY, AT, "webhook-id"),
        ({}, BODY, AT, "webhook-id"),
    ],
)
def test_what_was_changed_or_is_old_is_refused(headers: dict[str, str], body: bytes, now: int, field: str) -> None:
    with pytest.raises(Refused) as refused:
        verify(headers, body, SECRET, now=now)
    assert refused.value.field == field


@pytest.mark.parametrize(
    "secret", ["", "hunter2", "whsec_", "whsec_c2hvcnQ=", "whsec_not base64 at all, and long", "whsec_" + "A" * 92]
)
def test_a_secret_that_is_none_is_refused_and_not_shown(secret: str) -> None:
    with pytest.raises(Refused) as refused:
        keys_of(secret)
    shown = secret.removeprefix("whsec_")
    assert not shown or shown not in str(refused.value)


def test_there_is_at_least_one_secret() -> None:
    with pytest.raises(Refused, match="at least one"):
        keys_of([])
