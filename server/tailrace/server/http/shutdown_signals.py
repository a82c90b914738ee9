"""Handles SIGTERM and SIGINT before the HTTP server handles them.

uvicorn ends the lifespan of the application only after all connections are closed, and open streams keep their connections open.
This module therefore calls ``stop``, which ends the streams, before it calls the signal handler of the server.
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
"""Names of signal handler methods of uvicorn, gunicorn and `_SignalInterceptor`."""


@contextmanager
def handle_signals(stop: Callable[[], object]) -> Generator[None]:
    """On SIGTERM and SIGINT during the block, call ``stop``, and then the previous handler of the signal.

    Do nothing outside the main thread, or if the previous handler is not a method of uvicorn's server or gunicorn's worker.

    Args:
        stop: Called in the running event loop. It may be called several times.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    interceptors = [
        interceptor
        for number in SIGNALS
        if (interceptor := _SignalInterceptor.before(number, stop)) is not None
    ]
    try:
        yield
    finally:
        for interceptor in interceptors:
            interceptor.remove()


class _SignalInterceptor:
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
    def before(cls, number: signal.Signals, stop: Callable[[], object]) -> "_SignalInterceptor | None":
        handler = signal.getsignal(number)
        # Another application in this process may have its own handler.
        if not (inspect.ismethod(handler) and handler.__name__ in _HANDLERS):
            return None
        interceptor = cls(number, handler, stop)
        signal.signal(number, interceptor.handle_exit)
        return interceptor

    def handle_exit(self, number: int, frame: FrameType | None) -> None:
        if self._stop is not None:
            self._loop.call_soon_threadsafe(self._stop)
        self._handler(number, frame)

    def remove(self) -> None:
        self._stop = None
        # A newer interceptor remains, and still calls this one.
        if signal.getsignal(self._number) == self.handle_exit:
            signal.signal(self._number, self._handler)
