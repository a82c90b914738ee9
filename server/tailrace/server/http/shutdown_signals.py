"""Handles SIGTERM and SIGINT before the HTTP server, so that streams can end while their connections are still open.

uvicorn ends the lifespan of the application only after all connections are closed, but open streams keep their connections open.
This module therefore calls ``stop`` first, and then the signal handler of the server.
"""

import asyncio
import inspect
import signal
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGTERM, signal.SIGINT)

_HANDLERS = ("handle_exit", "handle_quit")
"""Names of the signal handler methods of `uvicorn.Server`, of gunicorn's workers, and of `_Listener`."""


@contextmanager
def handle_signals(stop: Callable[[], object]) -> Generator[None]:
    """On SIGTERM and SIGINT during the block, call ``stop``, and then the previous handler of the signal.

    A signal is intercepted only if uvicorn's server or gunicorn's worker handles it, and only in the main thread.

    Args:
        stop: Called in the running event loop, possibly several times.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    listeners = [listener for number in SIGNALS if (listener := _Listener.before(number, stop)) is not None]
    try:
        yield
    finally:
        for listener in listeners:
            listener.leave()


class _Listener:
    """Intercepts one signal."""

    def __init__(
        self,
        number: signal.Signals,
        handler: Callable[[int, FrameType | None], object],
        stop: Callable[[], object],
    ) -> None:
        self._number = number
        self._handler = handler
        self._stop: Callable[[], object] | None = stop
        self._loop = asyncio.get_running_loop()

    @classmethod
    def before(cls, number: signal.Signals, stop: Callable[[], object]) -> "_Listener | None":
        handler = signal.getsignal(number)
        # Another application in this process may have intercepted the signal already.
        if not (inspect.ismethod(handler) and handler.__name__ in _HANDLERS):
            return None
        listener = cls(number, handler, stop)
        signal.signal(number, listener.handle_exit)
        return listener

    def handle_exit(self, number: int, frame: FrameType | None) -> None:
        if self._stop is not None:
            self._loop.call_soon_threadsafe(self._stop)
        self._handler(number, frame)

    def leave(self) -> None:
        self._stop = None
        # An interceptor that was added later still calls this one. Therefore only the newest one restores the previous handler.
        if signal.getsignal(self._number) == self.handle_exit:
            signal.signal(self._number, self._handler)
