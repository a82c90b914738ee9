"""Ctrl-C at any time: no traceback, and the conventional exit status."""

import signal
import subprocess
import sys

import anyio
import pytest

from support.processes import tailrace
from support.upstream import Head, ScriptedUpstream, SetEvent, Wait

INTERRUPTED = 130
NOWHERE = "http://127.0.0.1:1"
COMMANDS = {
    "ask": ["ask", NOWHERE, "hello"],
    "convert": ["convert", "-"],
    "demo": ["demo", "--once", "--recorded", "--port", "0"],
    "doctor": ["doctor", "--model", "openai:x", "--base-url", NOWHERE],
    "providers": ["providers"],
    "serve": ["serve", "--model", "openai:x", "--base-url", NOWHERE, "--store", "sqlite://", "--port", "0"],
    "all": ["--help"],
}


# Ctrl-C is pressed when a module is about to be imported.
PROGRAM = """
import signal, sys

def hear(event, arguments):
    if event == "import" and arguments[0] == module:
        signal.raise_signal(signal.SIGINT)

module = sys.argv.pop(1)
sys.addaudithook(hear)
from tailrace.server.cli import main
main()
"""


def interrupted_before(module: str, command: str) -> tuple[int, str]:
    """Return the exit status and standard error."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, module, *COMMANDS[command]],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stderr


@pytest.mark.parametrize("module", ["typer", "msgspec", "pydantic"])
@pytest.mark.parametrize("command", [name for name in COMMANDS if name != "all"])
def test_while_modules_are_imported(command: str, module: str) -> None:
    assert interrupted_before(module, command) == (INTERRUPTED, "")


def test_while_help_is_prepared() -> None:
    assert interrupted_before("typer", "all") == (INTERRUPTED, "")


def test_when_a_server_is_about_to_start() -> None:
    assert interrupted_before("uvicorn.loops.uvloop", "serve") == (INTERRUPTED, "")


def test_while_a_recorded_stream_is_read() -> None:
    with subprocess.Popen(
        tailrace("convert", "-"), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        chunk = b'data: {"id": "1", "choices": [{"index": 0, "delta": {"content": "x"}}]}\n\n'
        process.stdin.write(chunk * 2000)
        process.stdin.flush()
        assert process.stdout.read(1)  # the program waits for more
        process.send_signal(signal.SIGINT)
        assert process.communicate()[1] == b""
        assert process.returncode == INTERRUPTED


async def test_an_interrupt_while_the_model_is_checked() -> None:
    requested = anyio.Event()
    async with ScriptedUpstream([Head(), SetEvent(requested), Wait(anyio.Event())]) as upstream:
        command = tailrace("doctor", "--model", "openai:x", "--base-url", upstream.base_url)
        async with await anyio.open_process(command) as doctor:
            await requested.wait()
            doctor.send_signal(signal.SIGINT)
            assert doctor.stderr is not None
            output = b"".join([data async for data in doctor.stderr])
            assert (await doctor.wait(), output) == (INTERRUPTED, b"")
