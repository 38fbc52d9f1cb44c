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


def clean(text: str, most: int) -> str:
    """*text* without what PostgreSQL refuses, without passwords, and no longer than *most*: head and tail stay."""
    if len(text) > 4 * most:  # before the costly part: ten megabytes of message are not worth reading
        text = text[: 2 * most] + text[-2 * most :]
    text = redact(_UNFIT.sub("\ufffd", text))
    if len(text) <= most:
        return text
    gap = f"\n… {len(text) - most} more characters …\n"
    head = (most - len(gap)) // 2
    return text[:head] + gap + text[len(text) - (most - len(gap) - head) :]


def message_of(error: BaseException) -> str:
    """What the exception says, even if it cannot."""
    try:
        said = str(error)
    except BaseException as unspeakable:  # noqa: BLE001  # a handler's exception may do anything
        said = f"<the message of {type(error).__name__} could not be read: {type(unspeakable).__name__}>"
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
    own = getattr(error, "code", None)
    if isinstance(own, str) and _CODE.fullmatch(own):
        return own
    return _CAMEL.sub("_", type(error).__name__).lower()[:100]
