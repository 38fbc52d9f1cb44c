"""A real PostgreSQL of one's own: ``embedded:`` instead of the URL of a server.

The first process that needs it starts it, others join, the last one out stops it. ``binaries`` says which
programs run, ``account`` as whom, ``places`` where the files go, ``cluster`` looks after one data directory,
``launcher`` counts the users.
"""

from __future__ import annotations

from kept.db.embedded.account import Mode
from kept.db.embedded.launcher import Embedded
from kept.db.embedded.places import is_embedded, let_through, location

__all__ = ["Embedded", "Mode", "is_embedded", "let_through", "location"]
