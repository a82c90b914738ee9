"""The tutorial works: its commands are run in order with the real program.

Differences from the page: the port is a free one, the demo replays the recorded response (the local model is tested by
`tests/e2e/test_demo_process.py`), and the provider of the step with a tool is scripted.
"""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Generator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import anyio.from_thread
import pytest

from support.pages import Block, blocks
from support.rounds import answer
from support.upstream import Received, ScriptedUpstream

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/tutorial.md"

SERVER = re.compile(r"^(make demo|tailrace serve .*|uvicorn .*)$", re.MULTILINE)
"""Commands that run until they are stopped: a block for the first terminal."""


def _say(request: Received) -> list[bytes]:
    """The provider's response, including the tool's result."""
    last = request.json["messages"][-1]
    if last["role"] == "tool":
        return answer(f"It is {last['content']}.")
    return answer(calls=[("a", "get_weather", {"city": "Paris"})])


class Shell:
    """A terminal: a shell that keeps its variables between blocks of commands."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process

    def run(self, commands: str) -> str:
        """Return the output of commands on both streams; the last command must succeed."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f'{commands}\nprintf "\\n<<ended: %s>>\\n" $?\n')
        self._process.stdin.flush()
        printed = ""
        for line in self._process.stdout:
            if line.startswith("<<ended: "):
                assert line == "<<ended: 0>>\n", printed
                return printed.removesuffix("\n")
            printed += line
        pytest.fail(f"the shell ended; its output: {printed}")


@contextmanager
def shell(environment: Mapping[str, str], folder: Path) -> Generator[Shell]:
    with subprocess.Popen(
        ["bash"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=folder,
        env=environment,
    ) as process:
        yield Shell(process)


@contextmanager
def server(commands: str, environment: Mapping[str, str], folder: Path) -> Generator[str]:
    """Run a server in a separate terminal until Ctrl-C; yield its output until it was ready."""
    with subprocess.Popen(
        ["bash", "-c", commands],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=folder,
        env=environment,
        start_new_session=True,
    ) as process:
        try:
            yield _printed_until_ready(process)
        finally:
            os.killpg(process.pid, signal.SIGINT)


def _printed_until_ready(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    printed = ""
    for line in process.stdout:
        printed += line
        if re.search(r"serving at http|running on http|^Press Ctrl", line):
            return printed
    pytest.fail(f"the server ended; its output: {printed}")


def _commands(block: Block, port: int) -> str:
    """The commands of a block with the changes for this test."""
    text = block.text.replace("127.0.0.1:8000", f"127.0.0.1:{port}").replace("--port 8000", f"--port {port}")
    text = re.sub(r"^tailrace serve", f"\\g<0> --port {port}", text, flags=re.MULTILINE)
    return re.sub(r"^make demo$", f"{_program_of('demo')} --recorded --port {port}", text, flags=re.MULTILINE)


def _program_of(target: str) -> str:
    """The last command of a make target, without the part that finds the program."""
    result = subprocess.run(
        ["make", "-n", "--no-print-directory", target], cwd=ROOT, check=True, capture_output=True, text=True
    )
    return "tailrace" + result.stdout.strip().splitlines()[-1].partition(" tailrace")[2]


def _assert_says(printed: str, block: Block, port: int) -> None:
    """Compare printed text with the page, on which ``…`` matches any text."""
    if block.output is None:
        return
    shown = block.output.replace("127.0.0.1:8000", f"127.0.0.1:{port}").strip()
    pattern = ".*".join(re.escape(piece) for piece in re.split(r"\s*…\s*", shown))
    assert re.fullmatch(rf"\s*{pattern}\s*", printed, re.DOTALL), printed


def _curl(folder: Path) -> Path:
    """Return a folder with a curl if the machine has none."""
    stand_in = folder / "curl"
    stand_in.write_text(f'#!/bin/sh\nexec {sys.executable} {ROOT / "tests/support/curl.py"} "$@"\n')
    stand_in.chmod(0o755)
    return folder


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


@pytest.fixture
def environment(tmp_path: Path) -> Generator[dict[str, str]]:
    """The environment of the terminals: the program, curl, and the scripted provider's address."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "work").mkdir()
    (tmp_path / "work/.venv").symlink_to(sys.prefix)
    with (
        anyio.from_thread.start_blocking_portal() as portal,
        portal.wrap_async_context_manager(ScriptedUpstream(_say)) as upstream,
    ):
        path = [str(Path(sys.executable).parent), os.environ["PATH"]]
        if shutil.which("curl") is None:
            path.append(str(_curl(tmp_path / "bin")))
        ours = {name: value for name, value in os.environ.items() if not name.startswith("TAILRACE_")}
        yield {**ours, "PATH": os.pathsep.join(path), "OPENAI_BASE_URL": upstream.base_url}


def test_the_commands_of_the_tutorial_work_as_documented(environment: dict[str, str], tmp_path: Path) -> None:
    folder = tmp_path / "work"
    port = _free_port()
    ran = 0
    with ExitStack() as servers, shell(environment, folder) as terminal:
        for block in blocks(PAGE, "sh", "python", "html"):
            if block.title is not None:
                (folder / block.title).write_text(block.text, encoding="utf-8")
            elif block.language == "html":
                [source] = re.findall(r'src="([^"]*)"', block.text)
                with urllib.request.urlopen(source.replace("8000", str(port))) as response:
                    assert b'customElements.define("tailrace-chat"' in response.read()
            elif SERVER.search(block.text):
                servers.close()
                printed = servers.enter_context(server(_commands(block, port), environment, folder))
                _assert_says(printed, block, port)
                ran += 1
            else:
                _assert_says(terminal.run(_commands(block, port)), block, port)
                ran += 1
    assert ran == len(blocks(PAGE, "sh"))
    numbers = re.findall(
        r"^id: (\d+)$", (folder / "cut.txt").read_text() + (folder / "rest.txt").read_text(), re.MULTILINE
    )
    assert numbers == [str(number) for number in range(1, len(numbers) + 1)]
    assert "TASK_STATE_COMPLETED" in (folder / "rest.txt").read_text()


def test_the_stand_in_for_curl_does_what_the_documents_use_of_it(
    environment: dict[str, str], tmp_path: Path
) -> None:
    def say(request: Received) -> list[bytes]:
        return [request.headers["x-word"].encode(), b" ", request.body]

    with (
        anyio.from_thread.start_blocking_portal() as portal,
        portal.wrap_async_context_manager(ScriptedUpstream(say)) as upstream,
    ):
        command = [str(_curl(tmp_path) / "curl"), "-sN", upstream.base_url, "-H", "X-Word: one", "-d", "two"]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "one two"
