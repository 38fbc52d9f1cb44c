"""No password survives; what helps to find the fault does."""

from __future__ import annotations

import time
from urllib.parse import quote

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from kept.redact import redact

# A letter that is nowhere else: what a test looks for must not be in the output for another reason.
secrets = st.text(st.characters(codec="utf-8") | st.sampled_from("@:/?#%&='\"\\ "), max_size=20).map(
    lambda text: f"Ω{text}Ω"
)
raw_secrets = secrets.map(lambda secret: "".join(secret.split()))
words = st.from_regex(r"[a-z][a-z0-9_.-]{0,10}", fullmatch=True).filter(lambda word: "pwd" not in word)
schemes = st.sampled_from(["postgresql", "postgres", "POSTGRESQL", "postgresql+psycopg", "redis", "https"])
signs = st.sampled_from(""":@/?#&,='"\\[] \n""")
pieces = st.sampled_from(["postgresql://", "postgres://", "x://", "u", "password", "pwd", "ssl", "***", "5432", "%40"])
nearly = st.lists(signs | pieces, max_size=14).map("".join)


@given(st.one_of(st.text(), nearly))
@example("x://u:password='a b'@h")
@example("password='a', host='h'")
@example("postgresql://u:***@h/db?x=a@b")
def test_redacting_twice_changes_nothing_more(text: str) -> None:
    once = redact(text)
    assert redact(once) == once


@given(schemes, words, secrets, words, nearly, nearly)
def test_an_encoded_password_in_a_url_is_hidden_and_user_and_host_stay(
    scheme: str, user: str, secret: str, host: str, before: str, after: str
) -> None:
    encoded = quote(secret, safe="")
    url = f"{scheme}://{user}:{encoded}@{host}:5432/db"
    assert redact(url) == f"{scheme}://{user}:***@{host}:5432/db"
    assert encoded not in redact(f"{before} {url} {after}")


@given(words, raw_secrets, words)
def test_a_raw_password_is_hidden_unless_it_looks_like_an_end_of_the_url(user: str, secret: str, host: str) -> None:
    assume("@" not in secret or not ("?" in secret or "#" in secret or "://" in secret))
    assert redact(f"postgresql://{user}:{secret}@{host}/db") == f"postgresql://{user}:***@{host}/db"


@given(words, raw_secrets, st.integers(1, 20))
def test_a_password_cut_off_in_the_middle_is_hidden(user: str, secret: str, kept: int) -> None:
    assert redact(f"postgresql://{user}:{secret.replace('@', '')[:kept]}") == f"postgresql://{user}:***"


@given(words, secrets)
def test_a_quoted_password_of_a_connection_string_is_hidden(host: str, secret: str) -> None:
    quoted = secret.replace("\\", "\\\\").replace("'", "\\'")
    assert redact(f"host={host} password='{quoted}' user=u") == f"host={host} password='***' user=u"
    assert redact(f"password = '{quoted}") == "password = '***'"


@given(words, secrets)
def test_a_plain_password_of_a_connection_string_is_hidden(host: str, secret: str) -> None:
    escaped = "".join(f"\\{sign}" if sign.isspace() or sign in "\\'" else sign for sign in secret)
    assert redact(f"password={escaped} host={host}") == f"password=*** host={host}"


@given(words, secrets, words)
def test_a_password_in_the_query_of_a_url_is_hidden(user: str, secret: str, host: str) -> None:
    url = f"postgresql:///db?user={user}&password={quote(secret, safe='')}&host={host}"
    assert redact(url) == f"postgresql:///db?user={user}&password=***&host={host}"


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (
            "no route to postgresql://ana:s3cret@db/app: timeout",
            "no route to postgresql://ana:***@db/app: timeout",
        ),
        ("postgresql://u:p@h1:1,h2:2/db", "postgresql://u:***@h1:1,h2:2/db"),
        ("postgresql://u:p@[::1]:5432/db", "postgresql://u:***@[::1]:5432/db"),
        ("postgresql://u:p@ss@h/db", "postgresql://u:***@h/db"),
        ("postgresql://u:12/34@h/db", "postgresql://u:***@h/db"),
        ("postgresql://u:a@b/c@h/db?x=d@e", "postgresql://u:***@h/db?x=d@e"),
        ("redis://:p@h/0 and amqp://g:g@h", "redis://:***@h/0 and amqp://g:***@h"),
        ("postgresql://u:p@h/a,postgresql://u:q@i/b", "postgresql://u:***@h/a,postgresql://u:***@i/b"),
        ("PGPASSWORD=x psql", "PGPASSWORD=*** psql"),
        (
            "postgresql://h/d?sslpassword=x&sslmode=require",
            "postgresql://h/d?sslpassword=***&sslmode=require",
        ),
        ("connect(host='h', password='x', user='u')", "connect(host='h', password='***', user='u')"),
        ('password="x y" host=h', 'password="***" host=h'),
    ],
)
def test_the_forms_people_write_are_known(text: str, wanted: str) -> None:
    assert redact(text) == wanted


@pytest.mark.parametrize(
    "text",
    [
        "",
        "nothing to hide: 12:30, a@b.c",
        "postgresql://ana@db.example.com:5432/app?options=x@y",
        "postgresql://db:5432/app",
        "postgresql://h1:5432,h2:5433/app",
        "('postgresql://h:5432') postgresql://h:5432/app, next",
        "postgresql:///app?host=/run/postgresql",
        "http://[::1]:8080/x and https://example.com:8080/@someone",
        'password authentication failed for user "ana"',
        "if password == given: pass",
        "embedded:/var/lib/app",
    ],
)
def test_a_text_without_a_password_stays_as_it_is(text: str) -> None:
    assert redact(text) == text


@pytest.mark.parametrize(
    "piece",
    [
        "a",
        "://a:b",
        "postgres",
        "postgresql://h:1/",
        "postgresql://u:",
        "postgresql://u:p@",
        "password ",
        "password='",
        "pwd=\\",
        " ",
    ],
)
def test_a_huge_text_is_redacted_in_linear_time(piece: str) -> None:
    huge = piece * (1_000_000 // len(piece))
    began = time.process_time()
    redact(huge)
    assert time.process_time() - began < 5
