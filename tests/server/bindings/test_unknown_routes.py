"""Addresses that do not exist and methods that are not taken: in the agent's own application, and in another's."""

from collections.abc import AsyncIterator

import pytest
from fastapi import FastAPI, HTTPException

from support.http_json import HttpJson
from support.rpc import Rpc, message
from support.serving import serving
from tailrace.server import Settings, Turn, create_app, create_router
from tailrace.streaming import Update
from tailrace.streaming.a2a.models import Message

SETTINGS = Settings(store="sqlite://")


async def nothing(turn: Turn) -> AsyncIterator[Update | Message]:
    return
    yield


@pytest.mark.parametrize(
    "path", ["/nothing", "/tasks/a/b/c/d", "/message:nothing", "/v1", "/v1/chat/nothing"]
)
async def test_an_unknown_address_is_an_error_of_the_protocol(path: str) -> None:
    async with serving(create_app(SETTINGS, handler=nothing)) as url, Rpc(url) as rpc:
        status, answer = await HttpJson(rpc).ask("GET", path)
    assert (status, answer["error"]["code"], answer["error"]["status"]) == (404, 404, "NOT_FOUND")
    assert path in answer["error"]["message"]


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("DELETE", "/tasks/a", "GET"),
        ("PUT", "/tasks/a:subscribe", "GET, POST"),
        ("PUT", "/tasks/a/pushNotificationConfigs/b", "DELETE, GET"),
        ("GET", "/message:send", "POST"),
        ("PUT", "/", "POST"),
    ],
)
async def test_a_wrong_method_is_told_which_ones_are_right(method: str, path: str, allowed: str) -> None:
    async with serving(create_app(SETTINGS, handler=nothing)) as url, Rpc(url) as rpc:
        status, headers, _ = await HttpJson(rpc).exchange(method, path)
    assert (status, headers["content-type"]) == (405, "application/json")
    assert set(allowed.split(", ")) <= set(headers["allow"].split(", "))
    assert method not in headers["allow"].split(", ")


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

    @app.delete("/tasks/{name}")
    async def forget(name: str) -> str:  # pyright: ignore[reportUnusedFunction]
        return name

    async with serving(app) as url, Rpc(url) as rpc:
        http = HttpJson(rpc)
        assert await http.ask("GET", "/nothing") == (404, {"detail": "Not Found"})
        assert await http.ask("GET", "/") == (200, "home")
        assert await http.ask("DELETE", "/tasks/a") == (200, "a")
        await http.ok("POST", "/message:send", message())
