"""CPU time of each process of a measurement, and the time that Valkey waits for its disk."""

import os
import re
import time
from collections.abc import Mapping

import anyio
import psutil

from torture.clusters import Cluster

STALL = 5
"""The bound on a write to the disk in milliseconds: every client with a pending write waits for it."""


class Spending:
    """CPU time of nodes and of other processes of a measurement on the same cores.

    Args:
        nodes: The measured nodes.

    Attributes:
        seconds: CPU time by process; set by `during` or `stop`.
        lasted: The duration in seconds.
        stalls: The seconds in which a write to Valkey's disk took longer than `STALL`: the longest in each, in milliseconds.
    """

    def __init__(self, nodes: Cluster) -> None:
        self._of: Mapping[str, list[psutil.Process]] = {
            "nodes": [psutil.Process(nodes.node(index).process.pid) for index in range(nodes.size)],
            "Valkey": [psutil.Process(nodes.valkey.pid)],
            "PostgreSQL": [psutil.Process(nodes.postgres.pid)],
            "provider": [psutil.Process(nodes.provider.pid)],
            "readers": [psutil.Process(os.getpid())],
        }
        self.seconds = dict.fromkeys(self._of, 0.0)
        self.lasted = 0.0
        self.stalls: list[int] = []
        self._valkey = nodes.valkey
        self._before: dict[str, float] = {}
        self._begun = 0.0

    def start(self) -> None:
        """Start the measurement."""
        self._valkey.command("CONFIG", "SET", "latency-monitor-threshold", str(STALL))
        self._valkey.command("LATENCY", "RESET")
        self._before, self._begun = self._used(), time.monotonic()

    def stop(self) -> None:
        """Stop the measurement."""
        self.seconds = {name: used - self._before[name] for name, used in self._used().items()}
        self.lasted = time.monotonic() - self._begun
        # Pairs of a time and a duration in milliseconds.
        stalls = re.findall(
            rb":(\d+)\r\n:(\d+)\r\n", self._valkey.command("LATENCY", "HISTORY", "aof-fsync-always")
        )
        self.stalls = [int(longest) for _, longest in stalls]

    async def during(self, begins_at: float, seconds: float) -> None:
        """Measure for some time from a moment of the monotonic clock."""
        await anyio.sleep(begins_at - time.monotonic())
        self.start()
        await anyio.sleep(begins_at + seconds - time.monotonic())
        self.stop()

    def describe(self, count: float) -> str:
        """A description of the CPU time per item."""
        shares = ", ".join(f"{name} {1e6 * used / count:.0f}" for name, used in self.seconds.items())
        cores = sum(self.seconds.values()) / self.lasted
        return (
            f"{shares} µs of CPU each, {cores:.2f} cores in all; in {len(self.stalls)} of {self.lasted:.0f} s a write to "
            f"the disk took more than {STALL} ms, {max(self.stalls, default=0)} ms at most"
        )

    def _used(self) -> dict[str, float]:
        return {
            name: sum(sum(each.cpu_times()[:2]) for top in of for each in (top, *_workers(name, top)))
            for name, of in self._of.items()
        }


def _workers(name: str, top: psutil.Process) -> list[psutil.Process]:
    # PostgreSQL has a process for each session; children of other processes are not theirs to count.
    return top.children() if name == "PostgreSQL" else []
