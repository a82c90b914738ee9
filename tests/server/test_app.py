"""The application and the router: the card, mounting under a prefix, and errors at startup."""

from collections.abc import AsyncIterator

import aiohttp
import pytest
from fastapi import FastAPI

from support.live_server import serving
from support.rpc import Rpc, message, text_of
from tailrace.server import Settings, Turn, create_app, create_model, create_router
from tailrace.server.settings import CardSettings
from tailrace.streaming import ArtifactUpdate, Update
from tailrace.streaming.a2a.models import AgentCard, Artifact, Message, Part
from tailrace.wrappers import ConfigurationError

CARD = "/.well-known/agent-card.json"


async def hello(turn: Turn) -> AsyncIterator[Update | Message]:
    yield ArtifactUpdate(Artifact(artifact_id="text", parts=(Part(text="hello"),)))


def settings(**values: object) -> Settings:
    return Settings.model_validate({"store": "sqlite://", **values})


async def test_the_card_contains_the_address_of_its_request() -> None:
    async with serving(create_app(settings(agent_name="Echo"), handler=hello)) as url:
        async with aiohttp.ClientSession() as http, http.get(url + CARD) as response:
            assert response.status == 200
            card = AgentCard.model_validate_json(await response.read())
    assert card.name == "Echo"
    assert [
        (each.protocol_binding, each.protocol_version, each.url) for each in card.supported_interfaces
    ] == [
        ("JSONRPC", "1.0", f"{url}/"),
        ("HTTP+JSON", "1.0", url),
        ("JSONRPC", "0.3", f"{url}/"),
        ("HTTP+JSON", "0.3", url),
    ]
    assert card.capabilities.streaming
    assert [extension.uri for extension in card.capabilities.extensions] == ["urn:tailrace:ext:stream:v1"]


async def test_a_cached_card_is_not_sent_again() -> None:
    async with serving(create_app(settings(), handler=hello)) as url, aiohttp.ClientSession() as http:
        async with http.get(url + CARD) as first:
            etag = first.headers["etag"]
            assert "max-age" in first.headers["cache-control"]
        async with http.get(url + CARD, headers={"if-none-match": f'"x", W/{etag}'}) as again:
            assert again.status == 304
            assert await again.read() == b""
        async with http.get(url + CARD, headers={"if-none-match": '"x"'}) as other:
            assert other.status == 200


async def test_the_card_is_not_sent_again_when_nothing_has_changed_since() -> None:
    async with serving(create_app(settings(), handler=hello)) as url, aiohttp.ClientSession() as http:
        async with http.get(url + CARD) as first:
            since = first.headers["last-modified"]
        for value, status in ((since, 304), ("Sat, 01 Jan 2000 00:00:00 GMT", 200), ("yesterday", 200)):
            async with http.get(url + CARD, headers={"if-modified-since": value}) as again:
                assert again.status == status


async def test_older_clients_find_the_card_in_their_form() -> None:
    async with serving(create_app(settings(), handler=hello)) as url, aiohttp.ClientSession() as http:
        async with http.get(url + "/.well-known/agent.json") as response:
            old = await response.json()
        for headers, path in (({"A2A-Version": "0.3"}, CARD), ({}, CARD + "?A2A-Version=0.3")):
            async with http.get(url + path, headers=headers) as response:
                assert await response.json() == old
    assert (old["protocolVersion"], old["url"], old["preferredTransport"]) == ("0.3.0", f"{url}/", "JSONRPC")
    assert "supportedInterfaces" not in old
    app = create_app(settings(card=CardSettings(protocol_version="0.3")), handler=hello)
    async with serving(app) as url, aiohttp.ClientSession() as http, http.get(url + CARD) as response:
        assert (await response.json())["protocolVersion"] == "0.3.0"


async def test_the_public_address_wins() -> None:
    app = create_app(settings(public_url="https://agents.example/a/"), handler=hello)
    async with serving(app) as url, aiohttp.ClientSession() as http, http.get(url + CARD) as response:
        card = AgentCard.model_validate_json(await response.read())
    assert card.supported_interfaces[0].url == "https://agents.example/a/"


async def test_the_router_works_under_a_prefix_of_another_application() -> None:
    app = FastAPI()
    app.include_router(create_router(settings(), handler=hello), prefix="/agents/echo")

    @app.get("/own")
    async def own() -> str:  # pyright: ignore[reportUnusedFunction]
        return "still here"

    async with serving(app) as url, Rpc(f"{url}/agents/echo") as rpc:
        task = (await rpc.result("SendMessage", message()))["task"]
        async with rpc.http.get(f"{url}/agents/echo{CARD}") as response:
            card = AgentCard.model_validate_json(await response.read())
        async with rpc.http.get(f"{url}/own") as response:
            assert await response.json() == "still here"
        async with rpc.http.get(f"{url}/openapi.json") as response:
            assert list((await response.json())["paths"]) == ["/own"]
    assert text_of(task) == "hello"
    assert card.supported_interfaces[0].url == f"{url}/agents/echo/"


async def test_a_mounted_application_reports_that_it_was_not_started() -> None:
    app = FastAPI()
    app.mount("/agent", create_app(settings(), handler=hello))
    async with serving(app) as url, Rpc(f"{url}/agent") as rpc:
        error = await rpc.error("SendMessage", message())
    assert "was not started" in error["message"]


@pytest.mark.parametrize("model", [None, "", "openai", "openai:", "nobody:x"])
def test_a_model_that_cannot_be_made_is_refused_by_name(model: str | None) -> None:
    with pytest.raises(ConfigurationError, match=r"model|provider"):
        create_model(settings(model=model, api_key="none"))
