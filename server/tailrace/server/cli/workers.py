"""``tailrace serve --workers N``: several processes at one address, each of which is a node.

The address is opened before they start, and each accepts connections from it. A process that ends by itself is started
again; a process that cannot start ends them all.

SIGHUP is sent to each of them. A terminal sends Ctrl-C to all of them, but they ignore it: the first process sends each of them SIGTERM. A second signal ends
them at once.
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
"""Seconds before a process that ended is started again."""

CANNOT_START = (2, 3)
"""The exit statuses of a process that cannot start: invalid settings, and a failed application."""

Work = Callable[[Sequence[socket.socket]], None]
"""The function of a process; at the top of a module, or `functools.partial` of one."""


def run_workers(work: Work, listeners: Sequence[socket.socket], count: int) -> None:
    """Run processes until SIGTERM or SIGINT, which they receive, too.

    Args:
        work: The function of each process.
        listeners: The sockets that they listen on.
        count: The number of processes.

    Raises:
        SystemExit: One of them could not start; with its exit status.
    """
    workers = _Workers(work, listeners)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, workers.stop)
    if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:  # otherwise it ends the processes
        signal.signal(signal.SIGHUP, workers.forward)
    for _ in range(count):
        workers.start()
    workers.watch()


class _Workers:
    def __init__(self, work: Work, listeners: Sequence[socket.socket]) -> None:
        self._work = work
        self._listeners = listeners
        self._context = multiprocessing.get_context("spawn")
        self._running: dict[int, SpawnProcess] = {}
        self._first = True
        self._stopping = False
        self._failed: int | None = None

    def start(self) -> None:
        if self._stopping:
            return
        process = self._context.Process(target=_run, args=(self._work, self._listeners))
        with _interrupts_held():
            process.start()
        self._running[process.sentinel] = process
        if self._stopping:  # a signal came before the process was registered
            process.terminate()

    def stop(self, number: int, _frame: FrameType | None) -> None:
        """Handle SIGTERM or SIGINT; a second one ends the processes at once."""
        self._send(signal.SIGKILL if self._stopping else signal.SIGTERM)
        self._stopping = True

    def forward(self, number: int, _frame: FrameType | None) -> None:
        """Handle SIGHUP, which the processes ignore until they can handle it."""
        self._send(signal.Signals(number))

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
def _interrupts_held() -> Generator[None]:
    """Block Ctrl-C during the block, and permanently in the processes that are started in it."""
    resource_tracker.ensure_running()  # it would unblock Ctrl-C after starting its own process
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _run(work: Work, listeners: Sequence[socket.socket]) -> None:
    """Run in the process; end when the parent process ends."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        work(listeners)
    except TailraceError as error:
        print(f"tailrace: {printable(error)}", file=sys.stderr)  # noqa: T201
        sys.exit(2)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)
