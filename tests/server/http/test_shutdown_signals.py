"""Signals reach the shutdown handler first, then the previous handler."""

import signal
import threading
from collections.abc import Generator
from threading import Event
from types import FrameType
from typing import Any

import anyio
import pytest
import uvicorn

from tailrace.server.http.shutdown_signals import handle_signals


class Server(uvicorn.Server):
    """Records signals; handles them as every uvicorn server does.

    Attributes:
        signals: The signals that it has handled.
    """

    def __init__(self) -> None:
        super().__init__(uvicorn.Config("nothing"))
        self.signals: list[int] = []

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.signals.append(sig)


@pytest.fixture
def handled() -> Generator[list[int]]:
    """Return the signals that the underlying server has handled."""
    server = Server()
    before = signal.signal(signal.SIGTERM, server.handle_exit)
    yield server.signals
    signal.signal(signal.SIGTERM, before)


async def test_a_signal_is_reported_and_handled(handled: list[int]) -> None:
    stop = anyio.Event()
    handler = signal.getsignal(signal.SIGTERM)
    with handle_signals(stop.set):
        signal.raise_signal(signal.SIGTERM)
        await stop.wait()
        signal.raise_signal(signal.SIGTERM)
    assert handled == [signal.SIGTERM] * 2
    assert signal.getsignal(signal.SIGTERM) == handler


async def test_the_handler_that_uvicorn_installs_is_recognised() -> None:
    server = uvicorn.Server(uvicorn.Config("nothing"))
    with server.capture_signals():
        installed = signal.getsignal(signal.SIGTERM)
        with handle_signals(lambda: None):
            assert signal.getsignal(signal.SIGTERM) != installed
        assert signal.getsignal(signal.SIGTERM) == installed


async def test_two_applications_of_one_process_are_notified_in_any_order_of_their_end(
    handled: list[int],
) -> None:
    first, second = anyio.Event(), anyio.Event()
    outer, inner = handle_signals(first.set), handle_signals(second.set)
    outer.__enter__()
    inner.__enter__()
    outer.__exit__(None, None, None)
    signal.raise_signal(signal.SIGTERM)
    await second.wait()
    inner.__exit__(None, None, None)
    assert not first.is_set()
    assert handled == [signal.SIGTERM]
    signal.raise_signal(signal.SIGTERM)
    assert handled == [signal.SIGTERM] * 2


@pytest.mark.parametrize(
    "handler", [signal.SIG_DFL, signal.SIG_IGN, signal.default_int_handler, print, Event().set]
)
async def test_a_signal_that_no_server_handles_is_left_alone(handler: Any) -> None:
    before = signal.signal(signal.SIGTERM, handler)
    try:
        with handle_signals(lambda: None):
            assert signal.getsignal(signal.SIGTERM) is handler
    finally:
        signal.signal(signal.SIGTERM, before)


def test_in_another_thread_nothing_is_listened_to(handled: list[int]) -> None:
    handler, found = signal.getsignal(signal.SIGTERM), list[object]()

    def run() -> None:
        with handle_signals(lambda: None):
            found.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert found == [handler]
    assert not handled
