"""The command line as real processes, on free ports, ended by the test that began them."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import anyio


def tailrace(*arguments: str, python: str = sys.executable) -> list[str]:
    """The command line of the program under test, as it is installed for an interpreter."""
    return [python, "-m", "tailrace.server.cli", *arguments]


class Served:
    """A ``tailrace serve`` process.

    Attributes:
        url: Where it answers.
        process: The process.
        log: The file that its output goes to.
    """

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.process = process
        self.log = log
        self.url = ""

    async def ready(self) -> None:
        """Until the server says where it listens; an error with its log when it ends first."""
        with anyio.fail_after(30):
            while True:
                found = re.search(r"running on (http://[\d.]+:\d+)", self.log.read_text())
                if found:
                    self.url = found[1]
                    return
                if self.process.poll() is not None:
                    raise RuntimeError(f"the server ended: {self.log.read_text()}")
                await anyio.sleep(0.02)  # its log is the only thing to wait on

    def kill(self) -> None:
        """End it as a crash would."""
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.wait()


@contextmanager
def served(log: Path, *arguments: str, python: str = sys.executable, **environment: str) -> Generator[Served]:
    """Run ``tailrace serve`` on a free port while the block runs, as it is installed for an interpreter."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            tailrace("serve", "--port", "0", *arguments, python=python),
            stdout=output,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            env={**os.environ, "TAILRACE_API_KEY": "none", **environment},
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
