"""CPU time and memory of a server's process tree, from the operating system."""

import time
from collections.abc import Iterable
from pathlib import Path

_PROC = Path("/proc")


def tree(root: int) -> list[int]:
    """Return a process and its descendants that still exist."""
    found = [root]
    for process in found:
        for children in (_PROC / str(process) / "task").glob("*/children"):
            try:
                found += map(int, children.read_text().split())
            except OSError:
                continue  # the thread has ended
    return found


def cpu_ns(root: int) -> int:
    """Return the CPU time of a process tree so far, including ended threads."""
    return sum(_cpu_ns(process) for process in tree(root))


def _cpu_ns(process: int) -> int:
    # The clock of another process (clock_getcpuclockid(3)), which is more precise than /proc.
    try:
        return time.clock_gettime_ns((~process << 3) | 2)
    except OSError:
        return 0  # the process has ended


def memory(root: int) -> dict[str, int]:
    """Return the memory of a process tree in bytes: resident, and its share of shared pages."""
    rss = pss = 0
    for process in tree(root):
        try:
            lines = (_PROC / str(process) / "smaps_rollup").read_text().splitlines()
        except OSError:
            continue
        rss += _kilobytes(lines, "Rss:")
        pss += _kilobytes(lines, "Pss:")
    return {"rss": rss * 1024, "pss": pss * 1024}


def _kilobytes(lines: Iterable[str], name: str) -> int:
    return next((int(line.split()[1]) for line in lines if line.startswith(name)), 0)


def settle(root: int, seconds: float = 1.0) -> int:
    """Wait until a process tree is idle, and return its CPU time."""
    until = time.monotonic() + seconds
    before = cpu_ns(root)
    while time.monotonic() < until:
        time.sleep(0.02)
        now = cpu_ns(root)
        if now - before < 200_000:  # an idle server wakes up occasionally
            return now
        before = now
    return before
