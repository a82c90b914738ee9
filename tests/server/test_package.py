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


def test_a_server_that_calls_no_webhook_and_no_agent_does_not_load_their_http_client() -> None:
    code = (
        "import sys; from tailrace.server import Settings, create_app\n"
        "create_app(Settings(model='ollama:none', store='sqlite://'))\n"
        "print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = done.stdout.split()
    assert "tailrace.server.app" in loaded
    assert "aiohttp" not in loaded
