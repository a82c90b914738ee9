"""Foreign A2A agents as programs: each runs as a process, behind ``tailrace serve --agent``.

The folder of such a program has ``server.py`` or ``server.mjs``. It is started with the port to listen on, the address that
its card must name (a proxy, which can cut connections), the base URL of the scripted model, and a folder of its own. The
agent has two tools where its framework has tools: ``get_weather`` (returns ``sunny``) and ``ask_user``, which waits for the
caller.
"""

import os
import socket
import subprocess
from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import anyio

from compat.agent_model import AgentModel
from compat.programs import Program
from e2e.clients.programs import TESTS
from e2e.ui_streams.node import NODE
from support.processes import served
from support.proxy import CuttingProxy
from support.upstream import ScriptedUpstream

CARD = "/.well-known/agent-card.json"


@dataclass(frozen=True)
class RunningAgent:
    """A foreign agent, and the server in front of it.

    Attributes:
        url: The server in front of it.
        remote_url: The agent, as `TAILRACE_AGENT` names it.
        folder: A folder for files of the test.
        model: The agent's model.
        upstream: The requests to it.
        proxy: The proxy between the server and the agent.
        ends: The state in which its tasks end a response.
    """

    url: str
    remote_url: str
    folder: Path
    model: AgentModel
    upstream: ScriptedUpstream
    proxy: CuttingProxy
    ends: str


@asynccontextmanager
async def running_agent(program: Program, folder: Path) -> AsyncGenerator[RunningAgent]:
    """Run the model, the agent and the server while the block runs."""
    model = AgentModel()
    port = _free_port()
    async with ScriptedUpstream(model.answer) as upstream, CuttingProxy(f"http://127.0.0.1:{port}") as proxy:
        public = proxy.url if program.proxied else f"http://127.0.0.1:{port}"
        arguments = [str(port), public, upstream.base_url, str(folder)]
        with _process(_command(program, arguments), folder) as agent:
            remote_url = public + program.path
            await _ready(remote_url, agent, folder / "agent.log")
            options = ["--agent", remote_url, "--store", f"sqlite:///{folder / 'front.db'}"]
            with served(folder / "front.log", *options, **program.settings) as server:
                await server.ready()
                yield RunningAgent(server.url, remote_url, folder, model, upstream, proxy, program.ends)
            log = server.log.read_text()
            assert "Traceback" not in log, log


def _command(program: Program, arguments: Sequence[str]) -> list[str]:
    if program.is_python:
        python = str(program.environment / "bin/python")
        return [python, "-m", f"compat.{program.name}.server", *arguments]
    return [NODE, str(program.folder / "server.mjs"), *arguments]


@contextmanager
def _process(command: Sequence[str], folder: Path) -> Generator[subprocess.Popen[bytes]]:
    home = folder / "home"
    home.mkdir()
    environment = {**os.environ, "PYTHONPATH": str(TESTS), "HOME": str(home)}
    with (folder / "agent.log").open("wb") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=home,
            env=environment,
        )
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


async def _ready(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    """Wait until the agent returns its card; raise an error with its log if it ends first."""
    with anyio.fail_after(120):
        async with aiohttp.ClientSession() as session:
            while process.poll() is None:
                try:
                    async with session.get(url + CARD) as response:
                        if response.status == 200:
                            return
                except aiohttp.ClientError:
                    pass  # it does not listen yet
                await anyio.sleep(0.1)
    raise RuntimeError(f"the agent ended: {await anyio.Path(log).read_text()}")


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]
