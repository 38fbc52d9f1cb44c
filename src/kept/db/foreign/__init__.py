"""The caller's transaction when it is not psycopg's: one small adapter for each kind of connection."""
