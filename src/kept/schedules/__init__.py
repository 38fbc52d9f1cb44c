"""Schedules: rules by which jobs come into being again and again."""
