"""Unknown addresses and unsupported methods, in the agent's own application and mounted in another."""

import httpx
import pytest
from fastapi import FastAPI, HTTPException

from support.agents import nothing
from support.http_json import HttpJson
from support.live_server import serving
from support.rpc import Rpc, message
from tailrace.server import Settings, create_app, create_router

SETTINGS = Settings(store="sqlite://")


@pytest.mark.parametrize("path", ["/nothing", "/tasks/a/b/c/d", "/message:nothing", "/v1"])
async def test_an_unknown_address_is_an_error_of_the_protocol(path: str) -> None:
    async with serving(create_app(SETTINGS, handler=nothing)) as url, Rpc(url) as rpc:
        status, answer = await HttpJson(rpc).ask("GET", path)
    assert (status, answer["error"]["code"], answer["error"]["status"]) == (404, 404, "NOT_FOUND")
    assert path in answer["error"]["message"]


@pytest.mark.parametrize(
    ("method", "path", "status", "allowed"),
    [
        ("GET", "/v1/chat/nothing", 404, None),
        ("POST", "/v1/files", 404, None),
        ("PUT", "/v1/responses", 405, "POST"),
        ("PUT", "/v1/conversations/c", 405, "DELETE, GET, POST"),
    ],
)
async def test_an_unknown_address_of_the_openai_api_is_an_error_of_that_api(
    method: str, path: str, status: int, allowed: str | None
) -> None:
    async with serving(create_app(SETTINGS, handler=nothing)) as url, httpx.AsyncClient(base_url=url) as http:
        response = await http.request(method, path)
    assert (response.status_code, response.headers.get("allow")) == (status, allowed)
    error = response.json()["error"]
    assert path in error.pop("message")
    assert error == {"type": "invalid_request_error", "param": None, "code": None}


async def test_without_the_openai_api_its_addresses_are_unknown_to_a2a() -> None:
    app = create_app(SETTINGS.model_copy(update={"endpoints": frozenset[str]()}), handler=nothing)
    async with serving(app) as url, Rpc(url) as rpc:
        status, answer = await HttpJson(rpc).ask("POST", "/v1/responses")
    assert (status, answer["error"]["status"]) == (404, "NOT_FOUND")


async def test_other_errors_of_the_application_stay_as_they_are() -> None:
    app = create_app(SETTINGS, handler=nothing)

    @app.get("/teapot")
    async def teapot() -> None:  # pyright: ignore[reportUnusedFunction]
        raise HTTPException(418, "short and stout")

    async with serving(app) as url, Rpc(url) as rpc:
        assert await HttpJson(rpc).ask("GET", "/teapot") == (418, {"detail": "short and stout"})


async def test_another_application_keeps_its_own_answers_and_addresses() -> None:
    app = FastAPI()
    app.include_router(create_router(SETTINGS, handler=nothing))

    @app.get("/")
    async def home() -> str:  # pyright: ignore[reportUnusedFunction]
        return "home"

    @app.put("/tasks/{name}")
    async def rename(name: str) -> str:  # pyright: ignore[reportUnusedFunction]
        return name

    async with serving(app) as url, Rpc(url) as rpc:
        http = HttpJson(rpc)
        assert await http.ask("GET", "/nothing") == (404, {"detail": "Not Found"})
        assert await http.ask("GET", "/") == (200, "home")
        assert await http.ask("PUT", "/tasks/a") == (200, "a")
        await http.ok("POST", "/message:send", message())
