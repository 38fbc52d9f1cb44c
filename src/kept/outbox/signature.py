"""Standard Webhooks signatures: made by the sink, checked by whoever receives a webhook."""

from __future__ import annotations

import hmac
import time
from base64 import b64decode, b64encode
from binascii import Error as NotBase64
from collections.abc import Mapping, Sequence

from kept.durations import Duration, duration
from kept.errors import Refused

PREFIX = "whsec_"
FEWEST_BYTES, MOST_BYTES = 24, 64
_MOST_SIGNATURES = 20  # in one header; each costs a comparison


def keys_of(secrets: str | Sequence[str]) -> list[bytes]:
    """The keys of one or more secrets like ``whsec_…``. What is refused is never shown."""
    given = [secrets] if isinstance(secrets, str) else list(secrets)
    if not given:
        raise Refused("secret: there must be at least one", field="secret")
    return [_key_of(each) for each in given]


def sign(keys: Sequence[bytes], id: str, timestamp: int, body: bytes) -> str:
    """The value of ``webhook-signature``: one signature for each key, so that keys can be changed without a gap."""
    return " ".join(f"v1,{b64encode(_digest(key, id, str(timestamp), body)).decode()}" for key in keys)


def verify(
    headers: Mapping[str, str],
    body: bytes,
    secrets: str | Sequence[str],
    *,
    tolerance: Duration = "5min",
    now: float | None = None,
) -> str:
    """The id of a webhook that one of *secrets* signed within *tolerance* of *now*, else :class:`Refused`.

    *body* is the body as it came, before any parsing. The id is the event's: keep it to tell repeats.
    """
    keys = keys_of(secrets)
    found = {name.lower(): value for name, value in headers.items()}
    id, sent, signatures = (_header(found, f"webhook-{what}") for what in ("id", "timestamp", "signature"))
    if not (sent.isascii() and sent.isdigit() and len(sent) <= 12):
        raise Refused("webhook-timestamp: is not a number of seconds", field="webhook-timestamp")
    away = abs((time.time() if now is None else now) - int(sent))
    if away > duration(tolerance, field="tolerance").total_seconds():
        raise Refused(f"webhook-timestamp: is {away:.0f} s away from now", field="webhook-timestamp")
    digests = [_digest(key, id, sent, body) for key in keys]
    if not any(_matches(each, digests) for each in signatures.split(" ")[:_MOST_SIGNATURES]):
        raise Refused("webhook-signature: none of the signatures is ours", field="webhook-signature")
    return id


def _key_of(secret: str) -> bytes:
    try:
        key = b64decode(secret.removeprefix(PREFIX), validate=True) if secret.startswith(PREFIX) else b""
    except (NotBase64, ValueError):
        key = b""
    if not FEWEST_BYTES <= len(key) <= MOST_BYTES:
        raise Refused(
            f"secret: must be {PREFIX!r} and then {FEWEST_BYTES} to {MOST_BYTES} bytes in base64", field="secret"
        )
    return key


def _digest(key: bytes, id: str, timestamp: str, body: bytes) -> bytes:
    return hmac.digest(key, f"{id}.{timestamp}.".encode() + body, "sha256")


def _matches(signature: str, digests: Sequence[bytes]) -> bool:
    version, _, value = signature.partition(",")
    if version != "v1":
        return False
    try:
        given = b64decode(value, validate=True)
    except (NotBase64, ValueError):
        return False
    # All of them, in constant time: how long it took says nothing about any.
    return sum(hmac.compare_digest(given, digest) for digest in digests) > 0


def _header(headers: Mapping[str, str], name: str) -> str:
    value = headers.get(name)
    if not value:
        raise Refused(f"{name}: the header is missing", field=name)
    return value
