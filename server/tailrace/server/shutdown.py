"""Learning that the process is to end, while there is still time to say so.

A server tells its application only once all connections are closed, which those that stream or wait for an answer are
not by themselves. So the signals are listened to here as well, in front of whoever handles them.
"""

import asyncio
import inspect
import signal
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGTERM, signal.SIGINT)

_SERVERS = ("uvicorn", "gunicorn")


@contextmanager
def told_of_signals(stop: Callable[[], object]) -> Generator[None]:
    """While the block runs, SIGTERM and SIGINT call ``stop`` first, and then what they were handled by before.

    Only a signal that uvicorn's server or gunicorn's worker handles is listened to: the rest are somebody else's. In
    another thread than the main one none can be handled.

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
    """In front of the handler of one signal."""

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
        if not (inspect.ismethod(handler) and _is_servers(handler.__self__)):
            return None
        listener = cls(number, handler, stop)
        signal.signal(number, listener.heard)
        return listener

    def heard(self, number: int, frame: FrameType | None) -> None:
        if self._stop is not None:
            self._loop.call_soon_threadsafe(self._stop)
        self._handler(number, frame)

    def leave(self) -> None:
        self._stop = None
        # Whoever came in front of us since then calls us, and we the one behind.
        if signal.getsignal(self._number) == self.heard:
            signal.signal(self._number, self._handler)


def _is_servers(handler: object) -> bool:
    # Another application of the same process may be in front of the server already.
    return isinstance(handler, _Listener) or any(
        base.__module__.partition(".")[0] in _SERVERS for base in type(handler).__mro__
    )
