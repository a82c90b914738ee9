"""The command line as real processes on free ports."""

import os
import re
import resource
import signal
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import anyio


def tailrace(*arguments: str, python: str = sys.executable) -> list[str]:
    """The installed command line of the program under test, for an interpreter."""
    return [python, "-m", "tailrace.server.cli", *arguments]


class Served:
    """A ``tailrace serve`` process.

    Attributes:
        url: The base URL.
        process: The process.
        log: The file with its output.
    """

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.process = process
        self.log = log
        self.url = ""

    async def ready(self) -> None:
        """Wait until the server prints its address."""
        with anyio.fail_after(120):  # a busy machine starts several servers slowly
            while True:
                found = re.search(r"(?:^  API +|api: )(http://[\d.]+:\d+)/", self.log.read_text(), re.M)
                if found:
                    self.url = found[1]
                    return
                if self.process.poll() is not None:
                    raise RuntimeError(f"the server ended: {self.log.read_text()}")
                await anyio.sleep(0.02)  # the log is the only observable state

    def kill(self) -> None:
        """Kill the process, as a crash would."""
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.wait()


@contextmanager
def served(
    log: Path,
    *arguments: str,
    command: str = "serve",
    python: str = sys.executable,
    open_files: str = "",
    **environment: str,
) -> Generator[Served]:
    """Run the installed ``tailrace serve`` on a free port until the block ends.

    Args:
        log: The file for its output.
        arguments: The arguments of the command line.
        command: The command, ``serve`` or another one that serves.
        python: The interpreter.
        open_files: The limit on open files (``ulimit -n``); that of the tests if empty.
        environment: Environment variables.
    """

    def limit() -> None:
        if open_files:
            resource.setrlimit(resource.RLIMIT_NOFILE, (int(open_files), int(open_files)))

    # With a configuration file, the keys of the models are in the file.
    key = {} if "--config" in arguments else {"TAILRACE_API_KEY": "none"}
    with log.open("wb") as output:
        process = subprocess.Popen(
            tailrace(command, "--port", "0", *arguments, python=python),
            stdout=output,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            preexec_fn=limit,
            env={**os.environ, **key, **environment},
        )
        try:
            yield Served(process, log)
        finally:
            if process.poll() is None:
                process.terminate()
                try:
                    process.wait(15)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
