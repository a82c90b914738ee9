"""Loaded by Python in the server under test: on SIGUSR1 the process writes its resource counts to a file.

The server is otherwise unchanged and does not use this signal.
"""

import asyncio
import gc
import json
import os
import signal
import threading
from pathlib import Path


def _count(_signal: int, _frame: object) -> None:
    gc.collect()
    # By type(): isinstance() calls the object, and would load a lazily imported module.
    tasks = sum(issubclass(type(held), asyncio.Task) and not held.done() for held in gc.get_objects())
    found = {"tasks": tasks, "threads": threading.active_count()}
    path = Path(os.environ["TORTURE_PROBE"])
    half = path.with_suffix(".half")
    half.write_text(json.dumps(found))
    half.rename(path)


if "TORTURE_PROBE" in os.environ and "serve" in Path("/proc/self/cmdline").read_text().split("\0"):
    signal.signal(signal.SIGUSR1, _count)
