"""Whatever a failure says, made fit to be recorded: recording a failure cannot fail (promise 16). Pure."""

from __future__ import annotations

import re
import traceback

from kept.redact import redact

MOST_MESSAGE = 4_000
MOST_DETAIL = 32_000
_UNFIT = re.compile("[\x00\ud800-\udfff]")
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_CODE = re.compile(r"[a-z0-9_.:-]{1,100}")
_NO_CODE = re.compile(r"[^a-z0-9_.:-]")


def clean(text: str, most: int) -> str:
    """*text* without what PostgreSQL refuses, without passwords, at most *most* long: head and tail stay."""
    if len(text) <= 4 * most:
        head = tail = redact(_UNFIT.sub("\ufffd", text))
        length = len(head)
    else:  # ten megabytes of message are not worth reading
        head, tail = (redact(_UNFIT.sub("\ufffd", part)) for part in (text[: 2 * most], _end(text, 2 * most)))
        length = len(text)
    if length <= most:
        return head
    gap = f"\n… {length - most} more characters …\n"
    room = most - len(gap)
    if room <= 0:
        return head[:most]
    return head[: room // 2] + gap + tail[len(tail) - min(len(tail), room - room // 2) :]


def _end(text: str, most: int) -> str:
    """The last *most* characters, from a new word on: half a connection string hides its password from us."""
    first, _, rest = text[-most:].partition(" ")
    return rest or first


def message_of(said_by: object) -> str:
    """What an exception (or whatever a handler gave as a reason) says, even if it cannot."""
    try:
        said = str(said_by)
    except BaseException as unspeakable:  # noqa: BLE001  # a handler's exception may do anything
        said = f"<the message of {type(said_by).__name__} could not be read: {type(unspeakable).__name__}>"
    return clean(said, MOST_MESSAGE)


def detail_of(error: BaseException) -> str:
    """The traceback, as far as it can be told."""
    try:
        lines = traceback.format_exception(type(error), error, error.__traceback__, limit=-30)
    except BaseException:  # noqa: BLE001  # format_exception calls str() on the handler's exception
        lines = traceback.format_tb(error.__traceback__, limit=-30)
        lines.append(type(error).__name__)
    return clean("".join(lines), MOST_DETAIL)


def code_of(error: BaseException) -> str:
    """A stable code: the exception's own, else its class name in lower_snake."""
    own = attribute_of(error, "code")
    if isinstance(own, str) and _CODE.fullmatch(own):
        return own
    snake = _CAMEL.sub("_", type(error).__name__).lower()
    return _NO_CODE.sub("_", snake)[:100]


def attribute_of(error: BaseException, name: str) -> object:
    """An attribute of somebody else's exception; None if there is none or it cannot be read."""
    try:
        return getattr(error, name, None)
    except Exception:  # noqa: BLE001  # a property may raise anything
        return None
