"""The start of a server, and errors that prevent it, as the operator sees them."""

import json
import logging
import socket
import subprocess
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette

from support.processes import served, tailrace
from tailrace.server import Settings
from tailrace.server.cli.serve import STARTUP_FAILURE, closing_all, listen, read_settings, run_app
from tailrace.server.cli.startup_summary import summary
from tailrace.wrappers import ConfigurationError, StoreError

SETTINGS = Settings(model="openai:x", port=0)


@pytest.fixture(autouse=True)
def _logging() -> Generator[None]:  # pyright: ignore[reportUnusedFunction]
    """Restore the handlers and levels that a server in this process replaces; its handler writes to a captured stream."""
    root, named = (
        logging.getLogger(),
        [logging.getLogger(name) for name in ("tailrace", "uvicorn", "uvicorn.access")],
    )
    handlers, levels = root.handlers[:], [(logger, logger.level) for logger in (root, *named)]
    yield
    root.handlers[:] = handlers
    for logger, level in levels:
        logger.setLevel(level)


def starting(*errors: Exception) -> Callable[[object], AbstractAsyncContextManager[None]]:
    """A lifespan that fails inside nested task groups."""

    @asynccontextmanager
    async def lifespan(_app: object) -> AsyncGenerator[None]:
        raise ExceptionGroup("outer", [ExceptionGroup("inner", errors)])
        yield

    return lifespan


def test_an_error_of_ours_at_the_start_is_raised_and_nothing_printed(
    capfd: pytest.CaptureFixture[str],
) -> None:
    for error in (ConfigurationError("no such program"), StoreError("no such place")):
        with (
            closing_all(listen(SETTINGS)) as listeners,
            pytest.raises(type(error), match="no such") as raised,
        ):
            run_app(Starlette(lifespan=starting(error)), SETTINGS, listeners)
        assert raised.value is error
    assert capfd.readouterr() == ("", "")


def test_any_other_error_at_the_start_is_shown_whole(capfd: pytest.CaptureFixture[str]) -> None:
    for errors in ((KeyError("x"),), (ConfigurationError("no such program"), KeyError("x"))):
        with closing_all(listen(SETTINGS)) as listeners, pytest.raises(SystemExit) as raised:
            run_app(Starlette(lifespan=starting(*errors)), SETTINGS, listeners)
        assert raised.value.code == STARTUP_FAILURE
        assert "KeyError: 'x'" in capfd.readouterr().err


def test_a_setting_that_is_not_json_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TAILRACE_BOUNDS", "{x")
    with pytest.raises(ConfigurationError, match=r"^TAILRACE_BOUNDS: not valid JSON \(Expecting .*\)$"):
        read_settings()


def test_localhost_is_listened_on_with_both_families_on_one_port() -> None:
    with closing_all(listen(SETTINGS.model_copy(update={"host": "localhost"}))) as listeners:
        addresses = {listener.getsockname()[:2] for listener in listeners}
        port = listeners[0].getsockname()[1]
        expected = {("127.0.0.1", port)}
        if socket.has_dualstack_ipv6():
            expected.add(("::1", port))
        assert addresses == expected
        for address in addresses:
            socket.create_connection(address).close()


def test_a_taken_port_is_one_line_before_anything_is_started(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        options = ["--model", "ollama:none", "--store", f"sqlite:///{tmp_path}/tasks.db", "--port", port]
        done = subprocess.run(tailrace("serve", *options), capture_output=True, text=True, check=False)
    advice = "set another one (--port, TAILRACE_PORT)"
    line = f"tailrace: cannot listen on 127.0.0.1 port {port}: Address already in use: {advice}\n"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", line)
    assert list(tmp_path.iterdir()) == []  # the store was not opened


async def test_it_prints_addresses_model_store_and_callers_when_it_accepts_connections(
    tmp_path: Path,
) -> None:
    store = f"sqlite:///{tmp_path}/tasks.db"
    with served(tmp_path / "log", "--model", "ollama:none", "--store", store) as server:
        await server.ready()
        lines = server.log.read_text().splitlines()
    assert lines[0].startswith("tailrace 0.")
    rows = [line.split() for line in lines[1:8]]
    assert rows[0] == ["Chat", f"{server.url}/"]
    assert rows[1] == ["Card", f"{server.url}/.well-known/agent-card.json"]
    assert rows[2][:2] == ["API", f"{server.url}/"]
    assert rows[3][0] == f"{server.url}/v1"
    assert rows[4:6] == [["Model", "ollama:none"], ["Store", store]]
    assert " ".join(rows[6]) == "Callers programs on this machine, without authentication"
    assert lines[8] == "Press Ctrl+C to stop."


async def test_with_json_logs_the_summary_is_one_record(tmp_path: Path) -> None:
    options = ["--model", "ollama:none", "--store", "sqlite://"]
    with served(tmp_path / "log", *options, TAILRACE_LOG_FORMAT="json") as server:
        await server.ready()
        [record] = map(json.loads, server.log.read_text().splitlines())
    assert record["logger"] == "tailrace.server"
    assert "store: in memory, until the server stops; callers: programs on" in record["message"]


@pytest.mark.parametrize(
    ("settings", "label", "value"),
    [
        ({"store": "postgresql://u:secret@db/tasks"}, "Store", "postgresql://u:***@db/tasks"),
        ({"base_url": "http://u:secret@host/v1"}, "Model", "openai:x at http://u:***@host/v1"),
        ({"model": None, "agent": "https://u:secret@host/a"}, "Model", "agent at https://u:***@host/a"),
        ({"host": "0.0.0.0", "allow_anonymous": True}, "Chat", "http://127.0.0.1:1/"),
        ({"host": "::1"}, "Chat", "http://[::1]:1/"),
        ({"public_url": "https://a.example/"}, "Public", "https://a.example/"),
        ({"grpc_port": 50051}, "gRPC", "127.0.0.1:50051"),
        ({"caller_keys": "alice:k"}, "Callers", "with API keys (X-API-Key)"),
        (
            {
                "caller_keys": "alice:k",
                "caller_jwt": {"jwks_url": "https://i/k", "issuer": "i", "audience": "a"},
            },
            "Callers",
            "with API keys (X-API-Key) or bearer tokens (JWT)",
        ),
        (
            {"allow_anonymous": True},
            "Callers",
            "every client that can reach the address, without authentication",
        ),
    ],
)
def test_the_summary_has_no_secrets(settings: dict[str, Any], label: str, value: str) -> None:
    rows = summary(Settings.model_validate({"model": "openai:x", "store": "sqlite://", **settings}), 1)
    assert (label, value) in rows
    assert "secret" not in str(rows)


def test_the_chat_is_only_printed_where_it_is_served() -> None:
    labels = dict(summary(Settings(model="openai:x", endpoints=("metrics",)), 1))
    assert "Chat" not in labels
    assert "" not in labels  # the OpenAI-compatible API
