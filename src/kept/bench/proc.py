"""What processes use and where files are, as Linux tells it in /proc."""

from __future__ import annotations

import os
from pathlib import Path

from kept.errors import Refused

PROC = Path("/proc")
MIB = 1024  # kB


def family(pid: int) -> dict[str, int]:
    """*pid* and its children, by what they are."""
    if not (PROC / str(pid) / "stat").exists():
        raise Refused("this measurement reads /proc, which only Linux has")
    names = {"worker": pid}
    for child in (PROC / str(pid) / "task" / str(pid) / "children").read_text().split():
        name = "keeper" if b"keeper" in (PROC / child / "cmdline").read_bytes() else f"child {len(names)}"
        names[name] = int(child)
    return names


def cpu_seconds(pid: int) -> float:
    """Processor time used so far."""
    after_name = (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    return (int(after_name[11]) + int(after_name[12])) / os.sysconf("SC_CLK_TCK")


def running_seconds(pid: int) -> float:
    """:func:`cpu_seconds` of the threads there are, by a finer clock where the system has one."""
    try:
        tasks = (PROC / str(pid) / "task").iterdir()
        return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9
    except FileNotFoundError:
        return cpu_seconds(pid)


def is_server(pid: int) -> bool:
    """Whether *pid* is a PostgreSQL server process of this machine."""
    try:
        return (PROC / str(pid) / "cmdline").read_bytes().startswith(b"postgres")
    except FileNotFoundError:
        return False


def rss_mib(pid: int) -> float:
    """Memory in use, shared pages included."""
    lines = (PROC / str(pid) / "status").read_text().splitlines()
    found = next(line for line in lines if line.startswith("VmRSS:"))
    return round(int(found.split()[1]) / MIB, 1)


def is_in_memory(folder: Path) -> bool:
    """Whether *folder* is on a file system without a disk; where the system does not tell: no."""
    mounts = PROC / "self" / "mounts"
    if not mounts.exists():
        return False
    lines = [line.split() for line in mounts.read_text().splitlines()]
    above = [(len(where), what) for _, where, what, *_ in lines if folder.resolve().is_relative_to(where)]
    return bool(above) and max(above)[1] in ("tmpfs", "ramfs")
