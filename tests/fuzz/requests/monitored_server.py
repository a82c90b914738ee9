"""The fuzzed server: `tailrace serve` with every route, and a monitor of its event loop at a separate address.

``python -m fuzz.requests.monitored_server``; the environment holds the settings.
"""

import asyncio
import ctypes
import gc
import json
from contextlib import suppress
from functools import partial
from typing import Any

import anyio
from starlette.types import ASGIApp, Receive, Scope, Send

from fuzz.requests.seeds import create_fuzzed_app
from fuzz.requests.stalls import INTERVAL, Stalls
from support.loop_lag import LoopLag
from tailrace.server.cli.serve import listen, read_settings, run_app
from tailrace.server.cli.startup_summary import print_summary

STATE_PATH = "/-/state"
"""The worst lag since the last request for it, its causes, and the objects of the loop. ``?trim`` returns unused memory first."""


class Watched:
    """An application with a measured event loop.

    Args:
        app: The application.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._lag = LoopLag()
        self._stalls = Stalls()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            async with self._lag, anyio.create_task_group() as tasks:
                with self._stalls:
                    tasks.start_soon(self._tick)
                    await self._app(scope, receive, send)
                tasks.cancel_scope.cancel()
        elif scope["type"] == "http" and scope["path"] == STATE_PATH:
            await self._report(send, trim=scope["query_string"] == b"trim")
        else:
            await self._app(scope, receive, send)

    async def _tick(self) -> None:
        while True:
            await anyio.sleep(INTERVAL)
            self._stalls.tick()

    async def _report(self, send: Send, *, trim: bool) -> None:
        state: dict[str, Any] = {"lag": self._lag.worst_cpu, "wall": self._lag.worst}
        state |= {
            "own": self._lag.worst_own,
            "hold": self._stalls.longest_hold,
            "stacks": self._stalls.stacks(),
        }
        state["tasks"] = len(asyncio.all_tasks())
        if trim:
            gc.collect()
            with suppress(OSError, AttributeError):  # another C library
                ctypes.CDLL(None).malloc_trim(0)
        self._lag.reset()
        self._stalls.reset()
        body = json.dumps(state).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})


def main() -> None:
    """Serve until interrupted."""
    settings = read_settings()
    listeners = listen(settings)
    app = Watched(create_fuzzed_app(settings))
    run_app(app, settings, listeners, on_start=partial(print_summary, settings, listeners[0]))


if __name__ == "__main__":
    main()
