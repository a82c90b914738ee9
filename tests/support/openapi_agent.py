"""An agent with every route of the OpenAPI description, and the program that tests it against the description."""

import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from fastapi import FastAPI
from pydantic import SecretStr

from tailrace.server import Bounds, Settings, Turn, create_app
from tailrace.server.protocols.a2a.card import build_card
from tailrace.server.settings import ENDPOINTS
from tailrace.streaming import ArtifactUpdate, Update
from tailrace.streaming.a2a.models import Artifact, Message, Part

KEY = "alice-key-0123456789"
"""The API key of a caller."""

SETTINGS = Settings(
    store="sqlite://",
    endpoints=ENDPOINTS,
    push_notifications="private",
    bounds=Bounds(push_attempts=1),
    shutdown_grace=0,
    caller_keys=SecretStr(f"alice:{KEY},bob:bob-key-0123456789"),
)

CONFIG = """
[checks]
# A schema cannot say all that a request needs: that a task exists, that a part has one content, that a URL is reachable.
positive_data_acceptance.enabled = false

[[operations]]
include-name = "POST /"
# JSON-RPC sends its errors with status 200.
checks.negative_data_rejection.expected-statuses = ["200", "4xx"]
"""


async def echo(turn: Turn) -> AsyncIterator[Update | Message]:
    """Respond with a text."""
    yield ArtifactUpdate(Artifact(artifact_id="text", parts=(Part(text="there"),)))


def create_described_app(settings: Settings = SETTINGS) -> FastAPI:
    """The application."""
    card = build_card(settings, "http://127.0.0.1/", has_extended=True)
    return create_app(settings, handler=echo, extended_card=card)


def run_schemathesis(url: str, folder: Path, *arguments: str) -> tuple[int, str]:
    """Run schemathesis on a server as an authenticated caller; return its exit status and output."""
    config = folder / "schemathesis.toml"
    config.write_text(CONFIG, encoding="utf-8")
    command: Sequence[str] = (
        *(
            sys.executable,
            "-m",
            "schemathesis.cli",
            "--config-file",
            str(config),
            "run",
            f"{url}/openapi.json",
        ),
        *("--url", url, "--header", f"X-API-Key: {KEY}", "--no-color", "--generation-database", "none"),
        *("--continue-on-failure", *arguments),
    )
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, check=False)
    return done.returncode, done.stdout + done.stderr
