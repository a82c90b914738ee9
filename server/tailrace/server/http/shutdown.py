"""Detects the signal to end the process, while connections are still open.

A server notifies its application after all connections are closed, which streams and pending responses prevent. The signals are
therefore handled here first, and then by the server.
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
"""Public methods that handle these signals: of `uvicorn.Server`, of gunicorn's workers, and of `_Listener`."""


@contextmanager
def handle_signals(stop: Callable[[], object]) -> Generator[None]:
    """While the block runs, SIGTERM and SIGINT call ``stop`` first, and then their former handler.

    Only signals that uvicorn's server or gunicorn's worker handles are intercepted. Only the main thread can handle
    signals.

    Args:
        stop: Called in the running event loop; may be called several times.
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
        # Another application of the same process may have intercepted it already.
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
        # A later interceptor calls this one, and this one the former handler.
        if signal.getsignal(self._number) == self.handle_exit:
            signal.signal(self._number, self._handler)
