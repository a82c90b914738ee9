"""Run the tests of the HTTP client on asyncio's event loop and on uvloop, which differ in how connections end."""

import asyncio
import sys
from collections.abc import Callable

import pytest

LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {"asyncio": asyncio.SelectorEventLoop}
if sys.platform != "win32":
    import uvloop

    LOOPS["uvloop"] = uvloop.new_event_loop


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    return LOOPS


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove proxies from the environment."""
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
