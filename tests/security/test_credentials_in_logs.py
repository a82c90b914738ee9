"""Credentials in a request's URL appear in no log."""

import logging
from typing import Any

import aiohttp
import pytest
from fastapi import FastAPI

from support.agents import Scripted
from support.live_server import serving
from tailrace.server import Settings, create_app, create_router

SECRET = "s3cret-key"


@pytest.mark.parametrize("mounted", [False, True])
@pytest.mark.parametrize("name", ["api_key", "access_token", "api%5Fkey"])
async def test_a_servers_access_log_has_no_key(
    name: str, *, mounted: bool, caplog: pytest.LogCaptureFixture
) -> None:
    settings: Any = Settings(store="sqlite://", caller_keys=f"alice:{SECRET}")  # pyright: ignore[reportArgumentType]
    app = FastAPI() if mounted else create_app(settings, handler=Scripted())
    if mounted:
        app.include_router(create_router(settings, handler=Scripted()), prefix="/agent")
    with caplog.at_level(logging.INFO):
        # The format of plain uvicorn.
        options: dict[str, Any] = {"access_log": True, "log_config": None, "log_level": "info"}
        async with serving(app, **options) as url, aiohttp.ClientSession() as http:
            base = f"{url}/agent" if mounted else url
            for path in ("/tasks", "/tasks/none", "/.well-known/agent-card.json", "/metrics"):
                address = f"{base}{path}?pageSize=5&{name}={SECRET}"
                async with http.get(address) as response:
                    status = response.status
                assert status == (200 if name != "access_token" or "card" in path else 401) or (
                    path == "/tasks/none" and status == 404
                )
            if not mounted:
                async with http.get(f"{base}/no/such/page?{name}={SECRET}") as response:
                    assert response.status == 404
    lines = [record.getMessage() for record in caplog.records if record.name == "uvicorn.access"]
    assert len(lines) >= 4
    assert SECRET not in caplog.text
    assert any("pageSize=5" in line and "REDACTED" in line for line in lines)
