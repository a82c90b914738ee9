"""A program of several processes on one address: ``python -m support.worker_processes HOW FOLDER``, with ``tests`` on the path.

It prints its port. Each process sends its id to each client and then executes one command: ``exit STATUS`` or ``stubborn``
(ignore SIGTERM).
"""

import os
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from tailrace.server.cli.workers import Work, run_workers
from tailrace.wrappers import ConfigurationError


def answer(listeners: Sequence[socket.socket]) -> None:
    """Accept connections."""
    while True:
        connection, _ = listeners[0].accept()
        with connection, connection.makefile("rw") as both:
            both.write(f"{os.getpid()}\n")
            both.flush()
            match both.readline().split():
                case ["exit", status]:
                    sys.exit(int(status))
                case ["stubborn"]:
                    signal.signal(signal.SIGTERM, signal.SIG_IGN)
                case _:
                    pass
            both.write("done\n")


def refuse_once(folder: str, listeners: Sequence[socket.socket]) -> None:
    """As `answer`, except that one of the processes cannot start."""
    try:
        Path(folder, "refused").touch(exist_ok=False)
    except FileExistsError:
        answer(listeners)
    raise ConfigurationError("there is no ink")


class Stopped:
    """As `answer`. When this object is passed to the first process, the program receives its stop signal."""

    def __call__(self, listeners: Sequence[socket.socket]) -> None:
        answer(listeners)

    def __reduce__(self) -> tuple[type["Stopped"], tuple[()]]:
        signal.raise_signal(signal.SIGTERM)
        return Stopped, ()


class Interrupted:
    """As `answer`. Each process receives Ctrl-C while it loads its code."""

    def __reduce__(self) -> tuple[Callable[[], Work], tuple[()]]:
        return interrupt, ()

    def __call__(self, listeners: Sequence[socket.socket]) -> None:
        answer(listeners)


def interrupt() -> Work:
    signal.raise_signal(signal.SIGINT)
    return answer


class Reloaded:
    """As `answer`. Each process receives SIGHUP while it loads its code, and ends if the signal is lost."""

    def __reduce__(self) -> tuple[Callable[[], Work], tuple[()]]:
        return reload, ()

    def __call__(self, listeners: Sequence[socket.socket]) -> None:
        answer(listeners)


def reload() -> Work:
    signal.raise_signal(signal.SIGHUP)
    return answer_after_reload


def answer_after_reload(listeners: Sequence[socket.socket]) -> None:
    received: list[int] = []
    signal.signal(signal.SIGHUP, lambda number, _: received.append(number))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})
    if not received:
        raise ConfigurationError("the signal was lost")
    answer(listeners)


if __name__ == "__main__":
    listener = socket.create_server(("127.0.0.1", 0))
    print(listener.getsockname()[1], flush=True)
    hows: dict[str, Work] = {
        "answer": answer,
        "refuse-once": partial(refuse_once, sys.argv[-1]),
        "stopped": Stopped(),
        "interrupted": Interrupted(),
        "reloaded": Reloaded(),
    }
    how = hows[sys.argv[1]]
    run_workers(how, [listener], 2, (lambda: how) if sys.argv[1] == "reloaded" else None)
