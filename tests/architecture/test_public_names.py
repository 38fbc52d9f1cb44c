"""The public API: every exported name is there, documented, and the same object wherever it is asked for."""

from __future__ import annotations

import importlib
import subprocess
import sys

import kept


def test_every_exported_name_can_be_had_and_is_documented():
    for name in kept.__all__:
        assert getattr(kept, name).__doc__, name
    assert sorted(kept.__all__) == dir(kept) == sorted(kept._HOMES)


def test_a_name_is_the_object_of_its_home():
    for name, home in kept._HOMES.items():
        assert getattr(kept, name) is getattr(importlib.import_module(home), name)


def test_an_unknown_name_is_an_attribute_error():
    assert not hasattr(kept, "Celery")


def test_a_keeper_loads_neither_the_app_nor_the_command_line():
    code = "import kept.worker.keeper, sys; print([m for m in ('kept.app', 'click', 'rich') if m in sys.modules])"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == "[]"
