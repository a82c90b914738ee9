"""``tailrace serve --workers N``: several processes that serve one address; each process is a node of the cluster.

All processes accept connections on the same sockets. A process that ends unexpectedly is started again. If the first process that
ends could not start, all processes end.

On SIGHUP, the parent process reads the configuration again and forwards the signal to all workers. Ctrl-C reaches all processes,
but only the parent handles it: it sends SIGTERM to the workers. A second signal ends all processes immediately.
"""

import logging
import multiprocessing
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from multiprocessing import resource_tracker
from multiprocessing.connection import wait
from multiprocessing.context import SpawnProcess
from types import FrameType
from typing import cast

from tailrace.wrappers import TailraceError
from tailrace.wrappers.redaction.log_escaping import printable

logger = logging.getLogger("tailrace.server")

RESTART_PAUSE = 1.0
"""Seconds before a process that ended unexpectedly is started again."""

CANNOT_START = (2, 3)
"""The exit statuses of a process that cannot start: 2 for invalid settings, 3 if the application cannot start."""

Work = Callable[[Sequence[socket.socket]], None]
"""The function of a process. It must be picklable."""


def run_workers(
    work: Work,
    listeners: Sequence[socket.socket],
    count: int,
    reload: Callable[[], Work] | None = None,
) -> None:
    """Run processes until SIGTERM or SIGINT.

    Args:
        work: The function of each process.
        listeners: The sockets on which the processes listen.
        count: The number of processes.
        reload: Called on SIGHUP: reads the configuration again, and returns the function for processes that start later. If it is
            valid, the running processes receive the signal. None to leave the handling of SIGHUP unchanged.

    Raises:
        SystemExit: The first process that ended could not start; with its exit status.
    """
    workers = _Workers(work, listeners, reload)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, workers.stop)
    if reload is not None:
        signal.signal(signal.SIGHUP, workers.reload)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})
    for _ in range(count):
        workers.start()
    try:
        workers.watch()
    finally:
        if reload is not None:
            signal.signal(signal.SIGHUP, signal.SIG_IGN)  # the default action of SIGHUP would end the process


class _Workers:
    def __init__(
        self, work: Work, listeners: Sequence[socket.socket], reload: Callable[[], Work] | None
    ) -> None:
        self._work = work
        self._reload = reload
        self._listeners = listeners
        self._context = multiprocessing.get_context("spawn")
        self._running: dict[int, SpawnProcess] = {}
        self._first = True
        self._stopping = False
        self._reload_requests = 0
        self._failed: int | None = None

    def start(self) -> None:
        if self._stopping:
            return
        work = self._work
        arguments = work, self._listeners, self._reload is not None
        process = self._context.Process(target=_run, args=arguments)
        with _signals_blocked():
            process.start()
        self._running[process.sentinel] = process
        if self._stopping:  # a signal arrived before the process was registered
            process.terminate()
        elif self._work is not work and process.pid is not None:  # the configuration was read again meanwhile
            os.kill(process.pid, signal.SIGHUP)

    def stop(self, number: int, _frame: FrameType | None) -> None:
        """Handle SIGTERM or SIGINT. A second signal kills the processes."""
        self._send(signal.SIGKILL if self._stopping else signal.SIGTERM)
        self._stopping = True

    def reload(self, number: int, _frame: FrameType | None) -> None:
        """Handle SIGHUP: read the configuration again, and forward the signal."""
        self._reload_requests += 1
        if self._reload_requests > 1:
            return  # the interrupted call reads the configuration once more
        while self._reload_requests and not self._stopping:
            self._reload_requests = 1
            self._read_again(signal.Signals(number))
            self._reload_requests -= 1
        self._reload_requests = 0

    def _read_again(self, number: signal.Signals) -> None:
        assert self._reload is not None  # noqa: S101 — without `_reload`, SIGHUP has no handler
        try:
            self._work = self._reload()
        except TailraceError as error:
            logger.error("the configuration is not reloaded: %s", error)
            return
        self._send(number)

    def watch(self) -> None:
        while self._running:
            for sentinel in wait(list(self._running)):
                process = self._running.pop(cast("int", sentinel))
                process.join()
                self._ended(process)
        if self._failed is not None:
            sys.exit(self._failed)

    def _ended(self, process: SpawnProcess) -> None:
        code = process.exitcode or 0
        if self._stopping:
            return
        if code in CANNOT_START and self._first:
            self._failed, self._stopping = code, True
            self._send(signal.SIGTERM)
            return
        self._first = False
        logger.error("a process ended (status %d) and is started again", code)
        time.sleep(RESTART_PAUSE)
        self.start()

    def _send(self, number: signal.Signals) -> None:
        for process in list(self._running.values()):
            if process.pid is not None and process.is_alive():
                os.kill(process.pid, number)


@contextmanager
def _signals_blocked() -> Generator[None]:
    """Block Ctrl-C and SIGHUP in this thread, and in processes that the block starts."""
    resource_tracker.ensure_running()  # if the tracker started in the block, it would unblock Ctrl-C
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGHUP})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _run(work: Work, listeners: Sequence[socket.socket], reloads: bool) -> None:
    """Run the function in a worker process."""
    if reloads:
        # `SIG_IGN` would discard a signal that arrives before the application unblocks it.
        signal.signal(signal.SIGHUP, _ignore)
    else:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        work(listeners)
    except TailraceError as error:
        print(f"tailrace: {printable(error)}", file=sys.stderr)  # noqa: T201
        sys.exit(2)
    finally:
        if reloads:
            signal.signal(signal.SIGHUP, signal.SIG_IGN)  # the default action of SIGHUP would end the process


def _ignore(_number: int, _frame: FrameType | None) -> None:
    """Ignore a signal."""


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)
