"""The lines that ``tailrace serve`` prints when it accepts connections."""

import logging
import socket
import sys
from collections.abc import Sequence
from importlib.metadata import version

from tailrace.server.server_config import AgentConfig
from tailrace.server.settings import Settings
from tailrace.server.store.database import parse_url

_ALL_ADDRESSES = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104


def print_summary(settings: Settings, listener: socket.socket, agents: Sequence[AgentConfig] = ()) -> None:
    """Print the summary to standard error. With JSON logs, log it as one record instead."""
    rows = summary(settings, listener.getsockname()[1], agents)
    if settings.log_format == "json":
        text = "; ".join(f"{label.lower()}: {value}" for label, value in rows)
        logging.getLogger("tailrace.server").info("serving: %s", text)
        return
    lines = [f"tailrace {version('tailrace')}", *(f"  {label:<8} {value}" for label, value in rows)]
    print(*lines, "Press Ctrl+C to stop.", sep="\n", file=sys.stderr, flush=True)  # noqa: T201


def summary(settings: Settings, port: int, agents: Sequence[AgentConfig] = ()) -> list[tuple[str, str]]:
    """Return the rows of the summary, as pairs of a label and a value."""
    host = _ALL_ADDRESSES.get(settings.host, settings.host)
    url = f"http://{f'[{host}]' if ':' in host else host}:{port}"
    rows: list[tuple[str, str]] = []
    if "playground" in settings.endpoints:
        rows.append(("Chat", f"{url}/"))
    if agents:
        rows.append(("Agents", f"{url}/.well-known/api-catalog"))
        rows += [("", f"{url}/agents/{agent.name}/  ({_model(agent.settings)})") for agent in agents]
    else:
        rows.append(("Card", f"{url}/.well-known/agent-card.json"))
        rows.append(("API", f"{url}/  (A2A)"))
    if "openai" in settings.endpoints:
        rows.append(("API" if agents else "", f"{url}/v1  (OpenAI-compatible)"))
    if settings.grpc_port is not None:
        rows.append(("gRPC", f"{host}:{settings.grpc_port}" if settings.grpc_port else "a free port"))
    if settings.public_url:
        rows.append(("Public", settings.public_url))
    if not agents:
        rows.append(("Model", _model(settings)))
    rows.append(("Store", _store(settings.store)))
    rows.append(("Callers", _callers(settings)))
    return rows


def _model(settings: Settings) -> str:
    if settings.agent:
        return f"agent at {_without_credentials(settings.agent)}"
    at = f" at {_without_credentials(settings.base_url)}" if settings.base_url else ""
    return f"{settings.model}{at}"


def _without_credentials(url: str) -> str:
    return parse_url(url).render_as_string(hide_password=True)


def _store(url: str) -> str:
    database = parse_url(url)
    if database.get_backend_name() == "sqlite" and database.database in (None, "", ":memory:"):
        return "in memory, until the server stops"
    return database.render_as_string(hide_password=True)


def _callers(settings: Settings) -> str:
    found: list[str] = []
    if settings.caller_keys is not None:
        found.append("API keys (X-API-Key)")
    if settings.caller_jwt.jwks_url:
        found.append("bearer tokens (JWT)")
    if found:
        return f"with {' or '.join(found)}"
    if settings.allow_anonymous:
        return "every client that can reach the address, without authentication"
    return "programs on this machine, without authentication"
