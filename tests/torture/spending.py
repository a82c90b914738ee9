"""Where the time of the cores goes: the CPU that the processes of a measurement use, each for itself."""

import os
import time
from collections.abc import Mapping

import anyio
import psutil

from torture.clusters import Cluster


class Spending:
    """The CPU that is used by nodes and by all else that a measurement runs on the same cores.

    Args:
        nodes: Whose processes.

    Attributes:
        seconds: Of CPU, by who used it; filled by `during` or `stop`.
        lasted: Seconds that passed.
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
        self._before: dict[str, float] = {}
        self._begun = 0.0

    def start(self) -> None:
        """Count from now on."""
        self._before, self._begun = self._used(), time.monotonic()

    def stop(self) -> None:
        """Count no further."""
        self.seconds = {name: used - self._before[name] for name, used in self._used().items()}
        self.lasted = time.monotonic() - self._begun

    async def during(self, begins_at: float, seconds: float) -> None:
        """Count from a moment of the monotonic clock on, for some time."""
        await anyio.sleep(begins_at - time.monotonic())
        self.start()
        await anyio.sleep(begins_at + seconds - time.monotonic())
        self.stop()

    def told(self, count: float) -> str:
        """What was used for each of so many things, in words."""
        shares = ", ".join(f"{name} {1e6 * used / count:.0f}" for name, used in self.seconds.items())
        return f"{shares} µs of CPU each, {sum(self.seconds.values()) / self.lasted:.2f} cores in all"

    def _used(self) -> dict[str, float]:
        return {
            name: sum(sum(each.cpu_times()[:2]) for top in of for each in (top, *_workers(name, top)))
            for name, of in self._of.items()
        }


def _workers(name: str, top: psutil.Process) -> list[psutil.Process]:
    # A process a session; the children of the others are not theirs to count.
    return top.children() if name == "PostgreSQL" else []
