"""Where is measured: on a server of our own, and on somebody else's."""

from __future__ import annotations

from kept.bench.place import Place, place, site
from support import eventually

IN_FILES = "select string_agg(setting, ', ') from pg_file_settings where name = 'autovacuum' and applied"


def is_in_force(there: Place, name: str, value: str) -> bool:
    """By *there*'s own session, which hears of a reload between two of its statements."""
    return there.one("select setting from pg_settings where name = %(name)s", name=name) == value


def test_autovacuum_is_off_on_a_server_of_our_own_while_statements_are_counted() -> None:
    with site(None) as there, place(there) as made:
        with made.without_autovacuum():
            eventually(lambda: is_in_force(made, "autovacuum", "off"))
        eventually(lambda: is_in_force(made, "autovacuum", "on"))


def test_autovacuum_of_somebody_elses_server_is_left_alone(empty_database: str) -> None:
    with site(empty_database) as there, place(there) as made:
        before = made.one(IN_FILES)
        with made.without_autovacuum():
            assert made.one(IN_FILES) == before


def test_wal_that_was_made_before_is_kept_and_no_checkpoint_comes_while_it_lasts() -> None:
    with site(None) as there, place(there) as made:
        eventually(lambda: is_in_force(made, "max_wal_size", "4096"))
        made.keep_wal(6000)
        for name in ("max_wal_size", "min_wal_size"):
            eventually(lambda name=name: is_in_force(made, name, "6000"))
        files = "select count(*) from pg_ls_waldir() where name > pg_walfile_name(pg_current_wal_lsn())"
        assert int(str(made.one(files))) < 10
        made.have_wal(320)
        assert int(str(made.one(files))) >= 20
