"""Public names of ``tailrace.server``, which are imported on first use."""

import subprocess
import sys
from typing import get_args

import pytest

import tailrace.server as package


def test_every_public_name_is_there_and_no_other() -> None:
    values = {name: getattr(package, name) for name in package.__all__}
    union = values.pop("Item")
    assert get_args(union)  # a union has no name
    assert {value.__name__ for value in values.values()} == set(values)
    assert set(package.__all__) <= set(dir(package))
    with pytest.raises(AttributeError, match="has no attribute 'create'"):
        getattr(package, "create")  # noqa: B009


def test_the_package_alone_brings_nothing_in() -> None:
    code = "import sys; before = {*sys.modules}; import tailrace.server.cli; print(*{*sys.modules} - before)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"typing", "typer", "fastapi", "pydantic"} & {*done.stdout.split()}


def test_a_started_server_has_not_loaded_modules_of_unused_features() -> None:
    code = """
import asyncio, sys
import tailrace.server.cli.serve
from tailrace.server import Settings, create_app

async def start():
    app = create_app(Settings(model='openai:gpt-4o', api_key='none', store='sqlite://'))
    async with app.router.lifespan_context(app):
        print(*sys.modules)

asyncio.run(start())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = {*done.stdout.split()}
    assert "tailrace.server.app" in loaded
    assert not loaded & {"aiohttp", "yarl"}  # webhooks
    assert not loaded & {"docstring_parser", "mcp", "tailrace.streaming.tools.mcp"}  # tools
    assert not loaded & {"genai_prices", "httpx2"}  # the first response needs the prices
    assert not loaded & {
        "tailrace.server.cli.workers",
        "tailrace.server.config_file",
        "tailrace.server.protocols.openapi",
        "tailrace.server.runtime.json_schema_filter",
        "tailrace.server.several_agents",
        "tailrace.wrappers.cassettes",
    }
