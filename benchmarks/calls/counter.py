"""``python -m benchmarks.calls.counter FOLDER serve …``: the ``tailrace`` command with counted function calls.

SIGUSR1 begins a window, in which the calls in the thread of the event loop are counted. SIGUSR2 ends the window, and writes
``FOLDER/window-N.json``. This module imports no other module of the benchmarks, so that it also runs with another version of
tailrace.
"""

import asyncio
import inspect
import json
import os
import signal
import sys
import time
from collections import Counter
from importlib.util import find_spec
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

_READS = frozenset({"data_received", "buffer_updated"})
"""Methods of an asyncio protocol that receive data."""

_NAMESPACE = find_spec("tailrace")
_PACKAGE_FOLDERS = tuple(_NAMESPACE.submodule_search_locations or ()) if _NAMESPACE is not None else ()

_Call = tuple[int, CodeType | str]
"""The depth of a call below the event loop, and the Python function's code or the C function's name."""

_Callback = tuple[_Call, ...]


class CallCounter:
    """Counts the calls of one window.

    A *callback* is all code that runs in one call from the event loop. The *path of a token* is a callback that begins with a
    read from a socket, and all following callbacks up to the next read.
    """

    def __init__(self) -> None:
        self._loop_frame: FrameType | None = None
        self._begun = 0
        self._callback: list[_Call] = []
        self._path: list[_Callback] = []
        self._known: dict[_Callback, _Callback] = {}
        self._callbacks: Counter[_Callback] = Counter()
        self._paths: Counter[tuple[_Callback, ...]] = Counter()

    def start(self) -> None:
        """Begin to count. Must be called by the event loop."""
        frame = inspect.currentframe()
        self._loop_frame = frame and frame.f_back
        self._begun = time.monotonic_ns()
        sys.setprofile(self._make_profile())

    def stop(self) -> dict[str, Any]:
        """Stop counting; return the window."""
        sys.setprofile(None)
        ended = time.monotonic_ns()
        calls: Counter[CodeType | str] = Counter()
        for callback, times in self._callbacks.items():
            for _, function in callback:
                calls[function] += times
        path, times = self._paths.most_common(1)[0] if self._paths else ((), 0)
        return {
            "begun_ns": self._begun,
            "ended_ns": ended,
            "callbacks": self._callbacks.total(),
            "calls": [[*_label(function), times] for function, times in calls.most_common()],
            "paths": self._paths.total(),
            "path_times": times,
            "path": [[[depth, *_label(function)] for depth, function in callback] for callback in path],
        }

    def _make_profile(self) -> Any:
        """Create the profile function."""
        loop_frame = self._loop_frame
        callback = self._callback
        append = callback.append
        depth = 0

        def profile(frame: FrameType, event: str, function: Any) -> None:
            nonlocal depth
            if event == "call":
                if frame.f_back is loop_frame:
                    if callback:
                        self._end_callback()
                    depth = 0
                append((depth, frame.f_code))
                depth += 1
            elif event == "return":
                depth -= 1
            elif event == "c_call":
                append((depth, function.__qualname__))

        return profile

    def _end_callback(self) -> None:
        callback = tuple(self._callback)
        self._callback.clear()
        callback = self._known.setdefault(callback, callback)
        self._callbacks[callback] += 1
        function = callback[0][1]
        if isinstance(function, CodeType) and function.co_name in _READS:
            if self._path:
                self._paths[tuple(self._path)] += 1
            self._path = [callback]
        elif self._path:
            self._path.append(callback)


def _label(function: CodeType | str) -> tuple[str, str]:
    """Return the file of a function (empty for a C function), and its name."""
    if isinstance(function, str):
        return "", function
    path = Path(function.co_filename)
    for folder in _PACKAGE_FOLDERS:
        if path.is_relative_to(folder):
            return f"tailrace/{path.relative_to(folder).as_posix()}", function.co_qualname
    parts = path.parts
    for root in ("site-packages", f"python{sys.version_info.major}.{sys.version_info.minor}"):
        if root in parts:
            return "/".join(parts[parts.index(root) + 1 :]), function.co_qualname
    return function.co_filename, function.co_qualname


def _count_on_signals(folder: Path) -> None:
    counters: list[CallCounter] = []

    def start(_number: int, _frame: FrameType | None) -> None:
        counters.append(CallCounter())
        asyncio.get_running_loop().call_soon_threadsafe(counters[-1].start)

    def stop(_number: int, _frame: FrameType | None) -> None:
        window = counters[-1].stop()
        file = folder / f"window-{len(counters)}.json"
        part = file.with_suffix(".part")
        part.write_text(json.dumps(window), encoding="utf-8")
        os.replace(part, file)

    signal.signal(signal.SIGUSR1, start)
    signal.signal(signal.SIGUSR2, stop)


def main() -> None:
    folder = Path(sys.argv.pop(1))
    from tailrace.server.cli import main as tailrace

    _count_on_signals(folder)
    tailrace()


if __name__ == "__main__":
    main()
