"""A server for three agents with different providers, and a reload of its configuration."""

import logging
import signal
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import anyio

from support.live_server import serving
from support.provider_cases import CASES
from support.upstream import Head, ScriptedUpstream, Step
from tailrace.server import Settings
from tailrace.server.config_file import read_config
from tailrace.server.several_agents import create_several_agents_app

PROVIDERS = {"support": "openai", "code": "anthropic", "legal": "gemini"}
"""The agents, and the formats of their models."""

KEYS = {"ann": "key-of-ann", "bob": "key-of-bob"}
"""The callers: ann may use all agents, bob only ``support``."""


def headers_of(caller: str) -> dict[str, str]:
    """The headers that authenticate a caller; none for the empty name."""
    return {"X-API-Key": KEYS[caller], "A2A-Version": "1.0"} if caller else {"A2A-Version": "1.0"}


def steps_of(provider: str) -> list[Step]:
    """A response with the text ``Hello``, 3 input and 2 output tokens."""
    case = CASES[provider]
    return [Head(200, {"content-type": case.content_type}), case.begin, case.rest]


class SeveralAgents:
    """The server.

    Attributes:
        url: Its URL.
        upstreams: The providers, by agent.
        path: The configuration file.
    """

    def __init__(self, path: Path, upstreams: dict[str, ScriptedUpstream]) -> None:
        self.url = ""
        self.path = path
        self.upstreams = upstreams
        self.members: dict[str, str] = {"support": 'callers = ["ann", "bob"]', "code": 'callers = ["ann"]'}

    def write(
        self, *names: str, server: str = "", keys: dict[str, str] | None = None, **members: str
    ) -> None:
        """Write the file.

        Args:
            names: The agents.
            server: Members of ``[server]``.
            keys: The callers; `KEYS` when None.
            members: Further members of agents.
        """
        tables = [f"[server]\nstore = 'sqlite://'\n{server}"]
        for name in names:
            provider, base_url = PROVIDERS[name], self.upstreams[name].base_url
            access = f"model = '{provider}:m-{name}'\nbase_url = '{base_url}'\napi_key = 'none'"
            given = members.get(name, self.members.get(name, ""))
            tables.append(f"[agents.{name}]\n{access}\ninstructions = 'You are {name}.'\n{given}")
        tables += [
            f"[callers.{name}]\nkeys = ['{key}']" for name, key in (KEYS if keys is None else keys).items()
        ]
        self.path.write_text("\n\n".join(tables))

    async def reload(self) -> str:
        """Send SIGHUP, and return the line that the server logs."""
        with _logged() as (lines, has_line):
            signal.raise_signal(signal.SIGHUP)
            with anyio.fail_after(30):
                await has_line.wait()
        return lines[0]

    async def post(
        self, path: str, body: dict[str, Any], caller: str = "ann", **headers: str
    ) -> tuple[int, str]:
        """Post JSON as a caller; return the status and the body."""
        given = {**headers_of(caller), **headers}
        async with (
            aiohttp.ClientSession() as http,
            http.post(self.url + path, json=body, headers=given) as response,
        ):
            return response.status, await response.text()

    async def get(self, path: str, caller: str = "ann") -> tuple[int, str]:
        """Get a path as a caller; return the status and the body."""
        async with (
            aiohttp.ClientSession() as http,
            http.get(self.url + path, headers=headers_of(caller)) as response,
        ):
            return response.status, await response.text()


class _logged(logging.Handler):
    """Collects the log lines about a reload."""

    def __init__(self) -> None:
        super().__init__()
        self._lines: list[str] = []
        self._event = anyio.Event()

    def __enter__(self) -> tuple[list[str], anyio.Event]:
        logger = logging.getLogger("tailrace.server")
        self._level = logger.level
        logger.setLevel(logging.INFO)
        logger.addHandler(self)
        return self._lines, self._event

    def __exit__(self, *_: object) -> None:
        logger = logging.getLogger("tailrace.server")
        logger.removeHandler(self)
        logger.setLevel(self._level)

    def emit(self, record: logging.LogRecord) -> None:
        line = record.getMessage()
        if "the configuration is" in line:
            self._lines.append(line)
            self._event.set()


@asynccontextmanager
async def serving_agents(
    folder: Path,
    scripts: dict[str, Sequence[Any]] | None = None,
    *,
    keys: dict[str, str] | None = None,
    **members: str,
) -> AsyncGenerator[SeveralAgents]:
    """Serve the three agents.

    Args:
        folder: The folder for the configuration file.
        scripts: Scripts of the providers, by agent; `steps_of` for the others.
        keys: As for `SeveralAgents.write`.
        members: Further members of agents in the file, by agent.
    """
    async with AsyncExitStack() as stack:
        upstreams = {
            name: await stack.enter_async_context(
                ScriptedUpstream(*(scripts or {}).get(name, [steps_of(provider)]))
            )
            for name, provider in PROVIDERS.items()
        }
        server = SeveralAgents(folder / "tailrace.toml", upstreams)
        server.members |= members
        server.write(*PROVIDERS, keys=keys)
        given = Settings()
        config = read_config(server.path, given)
        app = create_several_agents_app(config, lambda running: read_config(server.path, given, running))
        server.url = await stack.enter_async_context(serving(app))
        yield server
