"""What the source must not do: read code out of data, import by a name that data holds, or ask a shell."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from pages import ROOT

SOURCE = ROOT / "src" / "kept"
EVERY = sorted(SOURCE.rglob("*.py"))

# Modules that make code or objects out of bytes.
MODULES = {"pickle", "cPickle", "_pickle", "marshal", "shelve", "dill", "cloudpickle", "jsonpickle", "code", "codeop"}
MODULES |= {"yaml", "multiprocessing", "xmlrpc", "imp", "pty", "telnetlib", "xml"}
CALLS = {"eval", "exec", "compile", "__import__", "breakpoint"}
SHELL = {
    "os.system",
    "os.popen",
    "subprocess.getoutput",
    "subprocess.getstatusoutput",
    "asyncio.create_subprocess_shell",
}
# Where a name becomes a module, each with who says the name.
IMPORTING = {
    "loading.py": {"importlib.import_module", "runpy.run_path"},  # the operator: an argument, or KEPT_APP
    "app.py": {"importlib.import_module"},  # the program: App(imports=…)
    "__init__.py": {"importlib.import_module"},  # our own table of names
}
IMPORTERS = {
    "importlib.import_module",
    "importlib.__import__",
    "runpy.run_path",
    "runpy.run_module",
    "pkgutil.resolve_name",
}


def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def imported(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


def called(path: Path) -> Iterator[tuple[str, ast.Call]]:
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func), node


def forbidden(path: Path) -> set[str]:
    """What is in *path* and must not be."""
    found = {name for name in imported(path) if name.partition(".")[0] in MODULES}
    for name, call in called(path):
        if name in CALLS | SHELL | {f"builtins.{each}" for each in CALLS}:
            found.add(name)
        if any(each.arg == "shell" for each in call.keywords):
            found.add(f"{name}(shell=…)")
    return found


@pytest.mark.parametrize("path", EVERY, ids=lambda path: str(path.relative_to(SOURCE)))
def test_nothing_makes_code_out_of_data_or_asks_a_shell(path: Path) -> None:
    assert forbidden(path) == set()


def test_a_name_becomes_a_module_in_three_places_only() -> None:
    found = {
        str(path.relative_to(SOURCE)): names
        for path in EVERY
        if (names := IMPORTERS & ({name for name, _ in called(path)} | imported(path)))
    }
    assert found == IMPORTING


def test_what_names_the_app_comes_from_the_operator() -> None:
    """``load`` is called with what the command line, the environment or the parent process says."""
    callers = {
        str(path.relative_to(SOURCE))
        for path in EVERY
        if "kept.loading.load" in imported(path) and any(name == "load" for name, _ in called(path))
    }
    assert callers == {"cli/main.py", "worker/alone.py"}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("import pickle", "pickle"),
        ("from yaml import load", "yaml"),
        ("import xml.etree", "xml.etree"),
        ("eval('1')", "eval"),
        ("import os\nos.system('x')", "os.system"),
        ("import subprocess\nsubprocess.run('x', shell=True)", "subprocess.run(shell=…)"),
    ],
)
def test_the_check_would_notice(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "planted.py").write_text(text)
    assert says in forbidden(tmp_path / "planted.py")
