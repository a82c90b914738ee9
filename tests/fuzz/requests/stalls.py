"""The causes of event-loop lag: the longest hold of the interpreter's lock, and stacks of threads.

A call of C code that holds the interpreter's lock delays the event loop from any thread. A thread that only wakes up
periodically is delayed by such calls alone: Python code releases the lock every five milliseconds.
"""

import sys
import threading
import time
import traceback
from collections import Counter
from types import FrameType
from typing import Self

INTERVAL = 0.002
"""Seconds between two checks."""

_LATE = 0.02  # seconds without a tick of the event loop before stacks are collected
_SHOWN = 6  # maximum depth of a stack, and number of stacks
_IDLE = frozenset(
    {"wait", "_worker", "select", "run", "run_forever", "_bootstrap_inner"}
)  # where threads wait


class Stalls:
    """Observes the event loop of this thread from another one; use as a context manager.

    Attributes:
        longest_hold: The longest hold of the interpreter's lock in seconds; at most the CPU time of the process
            in that time.
    """

    def __init__(self) -> None:
        self.longest_hold = 0.0
        self._stacks: Counter[str] = Counter()
        self._loop_thread = threading.get_ident()
        self._ticked = time.perf_counter()
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="stalls", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    def tick(self) -> None:
        """Record that the event loop runs; call it every few milliseconds."""
        self._ticked = time.perf_counter()

    def reset(self) -> None:
        """Discard the measurements so far."""
        self.longest_hold = 0.0
        self._stacks = Counter()

    def stacks(self) -> list[str]:
        """Return the most frequent stacks while the event loop lagged."""
        return [stack for stack, _ in self._stacks.most_common(_SHOWN)]

    def _watch(self) -> None:
        while not self._is_over.is_set():
            due, cpu = time.perf_counter() + INTERVAL, time.process_time()
            time.sleep(INTERVAL)  # no lock: this thread must not depend on another one to wake up
            now = time.perf_counter()
            held = min(now - due, time.process_time() - cpu)
            self.longest_hold = max(self.longest_hold, held)
            if now - self._ticked > _LATE:
                self._collect(held)

    def _collect(self, held: float) -> None:
        for thread, frame in sys._current_frames().items():  # pyright: ignore[reportPrivateUsage]
            if thread == threading.get_ident() or frame.f_code.co_name in _IDLE:
                continue
            where = "event loop" if thread == self._loop_thread else "thread"
            self._stacks[f"{where}, lock held {held * 1000:.0f} ms: {_stack(frame)}"] += 1


def _stack(frame: FrameType) -> str:
    frames = reversed(traceback.extract_stack(frame)[-_SHOWN:])
    return " < ".join(
        f"{'/'.join(each.filename.split('/')[-2:])}:{each.lineno} {each.name}" for each in frames
    )
