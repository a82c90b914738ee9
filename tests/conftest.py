"""What holds for every test."""

import gc
import os
import signal
import sys
import tempfile
from collections.abc import Generator

import pytest
from hypothesis import is_hypothesis_test, settings

from support.chance import EVERY_TIME_OTHERS

# Shared machines pause for longer than any sensible deadline.
settings.register_profile(
    "tailrace",
    deadline=None,
    derandomize=not EVERY_TIME_OTHERS,
    max_examples=300 if EVERY_TIME_OTHERS else 60,
)
settings.load_profile("tailrace")

_IN_MEMORY = "/dev/shm"
_ENOUGH = 2 * 1024**3  # bytes: the tests take a tenth of it


def _keep_files_in_memory() -> None:
    """Have no test wait for a disk: databases are made by the hundred, and each sees to it that what it has is there.

    Not where the system has little room there, or runs no program from there (as in many a container), and not where
    whoever runs the tests has said where files go.
    """
    if sys.platform != "linux" or "TMPDIR" in os.environ or not os.access(_IN_MEMORY, os.W_OK):
        return
    there = os.statvfs(_IN_MEMORY)
    if there.f_bavail * there.f_frsize >= _ENOUGH and not there.f_flag & os.ST_NOEXEC:
        os.environ["TMPDIR"] = tempfile.tempdir = _IN_MEMORY


def _let_programs_be_interrupted() -> None:
    """A shell has what runs in its background ignore Ctrl-C, and so would every program that the tests start there."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


_keep_files_in_memory()
_let_programs_be_interrupted()


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Look for no garbage while modules are loaded, and never again among them.

    They stay, and are hundreds of megabytes, which many a test would go through that looks whether it left anything open.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Measure no coverage in tests that make their cases up: theirs are the lines of the examples, many times over.

    They are half of the time of all tests of codecs, and the tracer doubles it. What only a made-up case reaches is
    for an example to show.
    """
    for item in items:
        if is_hypothesis_test(getattr(item, "function", None)):
            item.add_marker(pytest.mark.no_cover)
