"""Where is measured: on a server of our own, and on somebody else's."""

from __future__ import annotations

from kept.bench.place import place, site

IN_FILES = "select string_agg(setting, ', ') from pg_file_settings where name = 'autovacuum' and applied"


def test_autovacuum_is_off_on_a_server_of_our_own_while_statements_are_counted() -> None:
    with site(None) as there, place(there) as made:
        with made.without_autovacuum():
            assert made.one(IN_FILES) == "off"
        assert made.one(IN_FILES) == "on"


def test_autovacuum_of_somebody_elses_server_is_left_alone(empty_database: str) -> None:
    with site(empty_database) as there, place(there) as made:
        before = made.one(IN_FILES)
        with made.without_autovacuum():
            assert made.one(IN_FILES) == before
