"""Ends the process at Ctrl-C while modules are imported. An import may catch a `KeyboardInterrupt`."""

import os
import signal
from collections.abc import Callable, Generator
from contextlib import contextmanager
from importlib import import_module

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

INTERRUPTED = 130
"""Exit status after Ctrl-C, by the convention of shells."""


def import_command(name: str) -> "Callable[..., Any]":
    """Import the module of a command, and return its function of the same name."""
    with ending_at_once():
        return getattr(import_module(f"tailrace.server.cli.{name}"), name)


@contextmanager
def ending_at_once() -> Generator[None]:
    """End the process at Ctrl-C during the block, without an exception.

    If Ctrl-C is ignored, or has another handler than Python's, nothing changes.
    """
    before = signal.getsignal(signal.SIGINT)
    if before is not signal.default_int_handler:
        yield
        return
    signal.signal(signal.SIGINT, end_at_once)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def end_at_once(_signal: int, _frame: object) -> None:
    """End the process at Ctrl-C."""
    os._exit(INTERRUPTED)
