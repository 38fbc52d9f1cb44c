"""Finding a user's App: ``module:attribute``, or ``path/to/script.py:attribute``."""

from __future__ import annotations

import importlib
import os
import runpy
import sys
from pathlib import Path

from kept.errors import Misconfigured
from kept.jobs.text import message_of


def load(location: str) -> object:
    """The object that *location* names; the current directory is importable, as it is for a script."""
    module, _, attribute = location.rpartition(":")
    if not module or not attribute:
        raise Misconfigured(f"{location!r} does not name an app; write it like 'package.module:app'")
    here = os.getcwd()  # noqa: PTH109
    if here not in sys.path:
        sys.path.insert(0, here)
    names = _names_of(module, location)
    if attribute not in names:
        raise Misconfigured(f"{module!r} has no attribute {attribute!r}")
    return names[attribute]


def _names_of(module: str, location: str) -> dict[str, object]:
    try:
        if module.endswith(".py"):
            return runpy.run_path(module, run_name="__kept__")
        return vars(importlib.import_module(module))
    except ModuleNotFoundError as error:
        if error.name is not None and (module == error.name or module.startswith(f"{error.name}.")):
            raise Misconfigured(
                f"cannot import {module!r} (from {location!r}): no such module here or on the path"
            ) from None
        raise Misconfigured(f"{module!r} does not import: {type(error).__name__}: {message_of(error)}") from error
    except Exception as error:
        raise Misconfigured(f"{module!r} does not import: {type(error).__name__}: {message_of(error)}") from error


def locate(thing: object, module: str) -> str | None:
    """The location by which another process can load *thing*, which was made in *module*; None if it cannot."""
    found = sys.modules.get(module)
    if found is None:
        return None
    for name, value in vars(found).items():
        if value is thing:
            if module != "__main__":
                return f"{module}:{name}"
            file = getattr(found, "__file__", None)
            return f"{Path(file).resolve()}:{name}" if file and file.endswith(".py") else None
    return None
