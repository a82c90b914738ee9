"""The lag of an event loop: the longest time for which one callback blocked all others."""

import asyncio
import threading
import time
from pathlib import Path
from typing import Self

INTERVAL = 0.002
"""Seconds between two measurements, which is also the maximum error of a measurement."""


class LoopLag:
    """Measures the event loop that enters this async context manager.

    The lag is the delay of a timer that is due every `INTERVAL`. Run the client in another process or thread.

    Attributes:
        worst: The longest delay so far, in seconds.
        worst_cpu: The longest part of a delay in which this process computed (on Linux), without the load of other processes.
        worst_own: The part of `worst_cpu` in which the loop's own thread computed.
        total: The sum of all delays above 10 ms, in seconds.
    """

    def __init__(self) -> None:
        self.worst = 0.0
        self.worst_cpu = 0.0
        self.worst_own = 0.0
        self.total = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0
        self._cpu = 0.0
        self._own = 0.0
        self._queued = 0.0
        self._scheduling = Path()

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        self._scheduling = Path(f"/proc/self/task/{threading.get_native_id()}/schedstat")
        self._schedule()
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._measure()

    def reset(self) -> None:
        """Discard the measurements so far."""
        self.worst = self.worst_cpu = self.worst_own = self.total = 0.0

    def _schedule(self) -> None:
        self._queued = self._time_queued()  # other threads may run while the file is read
        self._cpu, self._own = time.process_time(), time.thread_time()
        self._due = time.perf_counter() + INTERVAL
        self._timer = self._loop.call_later(INTERVAL, self._tick)

    def _tick(self) -> None:
        self._measure()
        self._schedule()

    def _measure(self) -> None:
        delay = time.perf_counter() - self._due
        if delay > 0.01:
            self.total += delay
        self.worst = max(self.worst, delay)
        if delay <= self.worst_cpu:
            return
        lag = min(delay - (self._time_queued() - self._queued), time.process_time() - self._cpu)
        if lag > self.worst_cpu:
            self.worst_cpu, self.worst_own = lag, time.thread_time() - self._own

    def _time_queued(self) -> float:
        """The seconds for which the thread waited for a processor; 0 if they are unknown."""
        try:
            return int(self._scheduling.read_bytes().split()[1]) / 1e9
        except (OSError, IndexError):
            return 0.0
