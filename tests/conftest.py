"""Fixtures and hooks of all tests."""

import gc
import os
import signal
import sys
import tempfile
from collections.abc import Generator

import pytest
from hypothesis import is_hypothesis_test, settings

from support.postgres import PostgresServer, running_postgres
from support.random_seeds import EVERY_TIME_OTHERS
from support.valkey import ValkeyServer, running_valkey

# Shared machines pause for longer than any reasonable deadline.
settings.register_profile(
    "tailrace",
    deadline=None,
    derandomize=not EVERY_TIME_OTHERS,
    max_examples=300 if EVERY_TIME_OTHERS else 60,
)
settings.load_profile("tailrace")

# Tests start programs from processes in which gRPC runs. Its fork handlers would run between fork and exec, where they can
# end the child; they are for processes that fork without exec.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

_IN_MEMORY = "/dev/shm"
_ENOUGH = 2 * 1024**3  # bytes: the tests use a tenth of it


def _keep_files_in_memory() -> None:
    """Keep temporary files in memory: tests create hundreds of databases, each with durable writes.

    Not on systems with little space there, or without permission to run programs there (as in many containers), and not if
    the environment already sets a folder for temporary files.
    """
    if sys.platform != "linux" or "TMPDIR" in os.environ or not os.access(_IN_MEMORY, os.W_OK):
        return
    there = os.statvfs(_IN_MEMORY)
    if there.f_bavail * there.f_frsize >= _ENOUGH and not there.f_flag & os.ST_NOEXEC:
        os.environ["TMPDIR"] = tempfile.tempdir = _IN_MEMORY


def _let_programs_be_interrupted() -> None:
    """Restore the default action of Ctrl-C, which shells ignore in background jobs and which started programs would inherit."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


_keep_files_in_memory()
_let_programs_be_interrupted()


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Disable garbage collection while modules are loaded, and exclude them from later collections.

    They stay loaded and are hundreds of megabytes, which each test that collects garbage to find leaks would traverse.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(50_000, 20, 100)  # as the server does
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Disable coverage in tests with generated cases, which repeat the lines of the example-based tests.

    They take half of the time of all codec tests, and the tracer doubles it. A line that only generated cases reach needs
    an example.
    """
    for item in items:
        if is_hypothesis_test(getattr(item, "function", None)):
            item.add_marker(pytest.mark.no_cover)


@pytest.fixture(scope="session")
def postgres() -> Generator[PostgresServer]:
    """A PostgreSQL server."""
    with running_postgres() as server:
        yield server


@pytest.fixture(scope="session")
def valkey() -> Generator[ValkeyServer]:
    """A Valkey server."""
    with running_valkey() as server:
        yield server
