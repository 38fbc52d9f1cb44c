"""The ``kept`` command: one file per group of commands."""

from kept.cli.main import main

__all__ = ["main"]
