"""Everything that knows how to reach PostgreSQL: connections, SQL files, migrations, callers' transactions."""
