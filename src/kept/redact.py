"""Passwords never reach a log line, an error or a history row. Pure.

Everything here runs in linear time: the text may be a 10 MB exception message.
"""

from __future__ import annotations

import re

HIDDEN = "***"

# libpq reads "password = x", "password='it\'s x'" and "password=a\ b"; a quote may be cut off.
_KEYWORD = re.compile(
    r"""
      (?P<query> (?<=[?&]) (?:ssl)?password=) [^\s&\#]*
    | (?P<quoted> (?:password|passwd|pwd) \s* = \s* (?P<quote>['"])) (?: \\. | (?!(?P=quote)). )* (?P=quote)?
    | (?P<plain> (?:password|passwd|pwd) \s* = (?!=) \s*) (?: \\. | \S )+
    """,
    re.VERBOSE | re.IGNORECASE | re.DOTALL,
)

# The last "@" of the authority ends the password: a raw "@" in it is a common mistake.
_USERINFO = re.compile(r"(://[^\s:@/?#]*):[^\s/?#]*@")

# A PostgreSQL URL whose authority shows no password yet has something else than ports after a colon:
# the password holds a raw "/", "?" or "#", or the text was cut inside it. Hide more rather than less.
_BROKEN = re.compile(
    r"""
    (postgres(?:ql)?(?:\+\w+)?://[^\s:@/?\#\[]*):
    (?!\*\*\*@)
    (?!\d{1,5}(?:/[^\s@?\#]{0,200})?(?:[,?\#\s'")\]]|$))
    (?:\S*(@)|\S+)
    """,
    re.VERBOSE | re.IGNORECASE,
)

# A raw "@" and after it a raw "/": another "@" before the query says that this was still the password.
_REST = re.compile(
    r"(postgres(?:ql)?(?:\+\w+)?://[^\s:@/?#\[]*:\*\*\*)@(?:(?!://)[^\s?#])*@",
    re.IGNORECASE,
)


def redact(text: str) -> str:
    """*text* with the passwords of URLs and ``key=value`` connection strings hidden; user and host stay.

    Redacting twice changes nothing more.
    """
    # Keywords first: what they leave behind can still be part of a URL's password, never the other way round.
    text = _KEYWORD.sub(_hide_value, text)
    text = _USERINFO.sub(rf"\1:{HIDDEN}@", text)
    text = _BROKEN.sub(lambda found: f"{found[1]}:{HIDDEN}{found[2] or ''}", text)
    return _REST.sub(r"\1@", text)


def _hide_value(found: re.Match[str]) -> str:
    if found["quoted"] is not None:
        return f"{found['quoted']}{HIDDEN}{found['quote']}"
    return f"{found['query'] or found['plain']}{HIDDEN}"
