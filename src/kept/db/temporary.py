"""A schema that is there for a while, to measure or to verify in; at the end all is gone that came with it."""

from __future__ import annotations

import secrets
from contextlib import suppress
from typing import Any, LiteralString

import psycopg
from psycopg import errors
from psycopg.sql import SQL, Identifier

from kept.db import migrate

Conn = psycopg.Connection[Any]

# Held by whoever uses the schema, as long as that connection lives: whoever gets it may drop the schema.
_HOLD: LiteralString = "select pg_try_advisory_lock(hashtextextended(%(schema)s, 0))"
_LEFT: LiteralString = "select nspname::text from pg_namespace where nspname ~ %(pattern)s order by 1"
_PATIENT: LiteralString = (
    "select set_config('lock_timeout', '20s', false), set_config('client_min_messages', 'error', false)"
)

# Roles belong to the whole server, so one that our migrations made does not go with the schema. The schema says so
# from its first moment: a run that is killed cannot.
_ROLE = "kept_producer"
_BROUGHT = f"the role {_ROLE} came with this schema"
_HAS_ROLE: LiteralString = "select exists (select from pg_roles where rolname = %(role)s)"
_SAYS: LiteralString = "select obj_description(oid, 'pg_namespace') from pg_namespace where nspname = %(schema)s"
# What uses a role and would not keep it from being dropped: whoever may log in as it, its members, and the roles it
# is a member of. Since PostgreSQL 16, whoever made it without being superuser is a member.
_UNUSED: LiteralString = """
select exists (select from pg_roles where rolname = %(role)s and not rolcanlogin)
   and not exists (
     select from pg_auth_members m join pg_roles r on r.rolname = %(role)s and r.oid in (m.roleid, m.member)
      where m.member = r.oid or m.member <> (select oid from pg_roles where rolname = current_user))
"""


def new_name(prefix: str) -> str:
    """A name that no schema has."""
    return f"{prefix}_{secrets.token_hex(4)}"


def hold(conn: Conn, schema: str) -> bool:
    """Show, for as long as *conn* lives, that *schema* is in use; False if somebody else does."""
    return bool(_one(conn, _HOLD, schema=schema))


def build(conn: Conn, schema: str) -> None:
    """Make *schema* and all that Kept has in one."""
    if not _one(conn, _HAS_ROLE, role=_ROLE):
        with conn.transaction():
            conn.execute(SQL("create schema {}").format(Identifier(schema)))
            conn.execute(SQL("comment on schema {} is {}").format(Identifier(schema), _BROUGHT))
    migrate.apply(conn, schema)


def drop(conn: Conn, schema: str) -> None:
    """Drop *schema* with all it holds, and the role that came with it, unless somebody has begun to use that."""
    conn.execute(_PATIENT)
    with conn.transaction():
        brought = _one(conn, _SAYS, schema=schema) == _BROUGHT
        conn.execute(SQL("drop schema if exists {} cascade").format(Identifier(schema)))
        if brought and _one(conn, _UNUSED, role=_ROLE):
            _drop_role(conn)


def sweep(conn: Conn, prefix: str) -> list[str]:
    """Drop the schemas named *prefix* that nobody uses any more; their names."""
    left = conn.execute(_LEFT, {"pattern": f"^{prefix}_[0-9a-f]{{8}}$"}).fetchall()
    gone = [str(name) for (name,) in left if hold(conn, str(name))]
    for name in gone:
        drop(conn, name)
    return gone


def _drop_role(conn: Conn) -> None:
    # Not if another schema, of any database, lets it in; nor is it ours alone to drop: somebody may be quicker.
    refused = (errors.DependentObjectsStillExist, errors.InsufficientPrivilege, errors.UndefinedObject)
    with suppress(*refused, errors.InternalError_), conn.transaction():
        conn.execute(SQL("drop role {}").format(Identifier(_ROLE)))


def _one(conn: Conn, query: LiteralString, **params: object) -> object:
    row = conn.execute(query, params).fetchone()
    return None if row is None else row[0]
