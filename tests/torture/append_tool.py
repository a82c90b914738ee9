"""The tool of the scenario `approvals`: it appends a line to a file, and may be killed before or after that."""

import os
import random
from pathlib import Path

import anyio

FILE = "TORTURE_FILE"
"""The environment variable with the name of the file."""

_LONGEST = 0.3  # seconds before and after the effect


async def append(line: str) -> str:
    """Append a line to the file."""
    await anyio.sleep(random.random() * _LONGEST)
    write_line(Path(os.environ[FILE]), line)
    await anyio.sleep(random.random() * _LONGEST)
    return f"appended {line}"


def write_line(file: Path, line: str) -> None:
    """Append a line in one system call, so that a killed process leaves all of it or nothing."""
    descriptor = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(descriptor, f"{line}\n".encode())
    finally:
        os.close(descriptor)
