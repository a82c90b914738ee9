"""What the operating system says of a server: CPU time and memory of its process and of all that it started."""

import time
from collections.abc import Iterable
from pathlib import Path

_PROC = Path("/proc")


def tree(root: int) -> list[int]:
    """A process and its descendants; without those that are gone."""
    found = [root]
    for process in found:
        for children in (_PROC / str(process) / "task").glob("*/children"):
            try:
                found += map(int, children.read_text().split())
            except OSError:
                continue  # a thread that has ended
    return found


def cpu_ns(root: int) -> int:
    """CPU time of a process tree so far, all its threads with those that have ended."""
    return sum(_cpu_ns(process) for process in tree(root))


def _cpu_ns(process: int) -> int:
    # The clock of another process, as clock_getcpuclockid(3) names it: exact to the nanosecond, unlike the ticks in /proc.
    try:
        return time.clock_gettime_ns((~process << 3) | 2)
    except OSError:
        return 0  # it has ended


def memory(root: int) -> dict[str, int]:
    """Bytes of a process tree: resident, and its share of what processes share."""
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
    """CPU time of a process tree once it does nothing more: what an answer costs after its last byte counts, too."""
    until = time.monotonic() + seconds
    before = cpu_ns(root)
    while time.monotonic() < until:
        time.sleep(0.02)
        now = cpu_ns(root)
        if now - before < 200_000:  # a server that idles wakes up now and then
            return now
        before = now
    return before
