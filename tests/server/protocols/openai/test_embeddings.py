"""Embeddings, sent on to a provider; by OpenAI's own client."""

import base64
import json
import struct
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import anyio
import openai
import pytest

from support.agents import Scripted
from support.callers import CALLER_KEYS, KEYS
from support.openai_api import Facade, facade_over
from support.rounds import answer
from support.upstream import Head, ScriptedUpstream, Step, Wait
from support.usage import sums_by_state, totals
from tailrace.server import Bounds, Budget

VECTORS = [[0.5, -0.25], [1.0, 0.0]]
USAGE = {"prompt_tokens": 3, "total_tokens": 3}
ALIASES = "embed=openai:text-embedding-3-small"


def vectors(*values: object, **members: object) -> list[Step]:
    """A provider's response."""
    data = [{"object": "embedding", "index": at, "embedding": value} for at, value in enumerate(values)]
    fields = {"object": "list", "data": data, "model": "text-embedding-3-small", "usage": USAGE, **members}
    return [Head(200, {"content-type": "application/json"}), json.dumps(fields).encode()]


@asynccontextmanager
async def embedding(*script: Step, **settings: Any) -> AsyncGenerator[tuple[ScriptedUpstream, Facade]]:
    """A server with a model for embeddings."""
    given: dict[str, Any] = {"model_aliases": ALIASES, **settings}
    async with (
        ScriptedUpstream(script or vectors(*VECTORS)) as upstream,
        facade_over(upstream, **given) as facade,
    ):
        yield upstream, facade


async def test_texts_become_vectors() -> None:
    async with embedding() as (upstream, facade):
        found = await facade.client.embeddings.create(
            model="embed", input=["a river", "a lake"], dimensions=2, encoding_format="float", user="bob"
        )
        listed = [model.id for model in (await facade.client.models.list()).data]
    assert [each.embedding for each in found.data] == VECTORS
    assert (found.model, found.usage.total_tokens) == ("embed", 3)
    [request] = upstream.requests
    assert request.path == "/v1/embeddings"
    assert request.headers["authorization"] == "Bearer none"
    assert request.json == {
        "model": "text-embedding-3-small",
        "input": ["a river", "a lake"],
        "dimensions": 2,
        "encoding_format": "float",
    }
    assert listed == ["tailrace", "scripted", "embed"]


async def test_embeddings_are_in_the_ledger_and_count_for_budgets() -> None:
    budgets = (Budget(tokens=6, period="month"),)
    async with embedding(budgets=budgets) as (_, facade):
        for _ in range(2):
            await facade.client.embeddings.create(model="embed", input=["a river", "a lake"])
        with pytest.raises(openai.RateLimitError, match="6 tokens in one month"):
            await facade.client.with_options(max_retries=0).embeddings.create(model="embed", input="a river")
        states = await sums_by_state(facade.url)
    assert (states["final"]["attempts"], totals(states)) == (2, (6, 0))
    assert states["final"]["unpriced_attempts"] == 0


async def test_the_client_default_of_base64() -> None:
    encoded = base64.b64encode(struct.pack("<2f", 0.5, -0.25)).decode()
    async with embedding(*vectors(encoded)) as (upstream, facade):
        found = await facade.client.embeddings.create(model="embed", input="a river")
    assert list(found.data[0].embedding) == [0.5, -0.25]
    assert upstream.requests[0].json["encoding_format"] == "base64"


@pytest.mark.parametrize("given", ["text", ["one", "two"], [1, 2, 3], [[1, 2], [3]]])
async def test_every_form_of_input_is_sent_on(given: Any) -> None:
    async with embedding() as (upstream, facade):
        await facade.client.post("/embeddings", body={"model": "embed", "input": given}, cast_to=object)
    assert upstream.requests[0].json["input"] == given


BAD: list[tuple[dict[str, Any], str]] = [
    ({"input": ""}, "input"),
    ({"input": []}, "input"),
    ({"input": None}, "input"),
    ({"input": {"a": 1}}, "input"),
    ({"input": ["a", 1]}, "input"),
    ({"input": ["a", ""]}, "input"),
    ({"input": [[]]}, "input"),
    ({"input": [True]}, "input"),
    ({"input": ["a"] * 2049}, "input"),
    ({"dimensions": 0}, "dimensions"),
    ({"encoding_format": "hex"}, "encoding_format"),
    ({"model": "scripted"}, "model"),
    ({"model": "tailrace"}, "model"),
    ({"model": ""}, "model"),
]


@pytest.mark.parametrize(("change", "param"), BAD)
async def test_an_invalid_request_is_refused_with_the_member(change: dict[str, Any], param: str) -> None:
    async with embedding() as (upstream, facade):
        with pytest.raises(openai.BadRequestError) as raised:
            await facade.client.post(
                "/embeddings", body={"model": "embed", "input": "hi", **change}, cast_to=object
            )
    assert (raised.value.param, raised.value.type) == (param, "invalid_request_error")
    assert not upstream.requests


async def test_the_refusal_names_the_remedy() -> None:
    async with embedding(model_aliases="*=") as (_, facade):
        with pytest.raises(openai.BadRequestError, match="TAILRACE_MODEL_ALIASES=NAME=PROVIDER:MODEL"):
            await facade.client.embeddings.create(model="text-embedding-3-small", input="a river")
    async with embedding() as (_, facade):
        with pytest.raises(openai.NotFoundError, match="TAILRACE_MODEL_ALIASES"):
            await facade.client.embeddings.create(model="text-embedding-3-small", input="a river")


async def test_a_model_for_embeddings_answers_no_chat() -> None:
    async with embedding() as (_, facade):
        with pytest.raises(openai.BadRequestError, match="is a model for embeddings: POST /v1/embeddings"):
            await facade.client.chat.completions.create(
                model="embed", messages=[{"role": "user", "content": "Hello?"}]
            )


async def test_the_key_is_required_before_the_body_is_read() -> None:
    async with (
        embedding(caller_keys=CALLER_KEYS) as (upstream, facade),
        aiohttp.ClientSession() as http,
        http.post(f"{facade.url}/v1/embeddings", data=b"no JSON") as response,
    ):
        assert response.status == 401
    assert not upstream.requests


async def test_other_media_types_and_large_bodies_are_refused() -> None:
    async with embedding(max_request_bytes=1000) as (_, facade), aiohttp.ClientSession() as http:
        url = f"{facade.url}/v1/embeddings"
        async with http.post(url, data=b"{}", headers={"content-type": "text/plain"}) as response:
            assert response.status == 415
        async with http.post(url, json={"model": "embed", "input": "x" * 1000}) as response:
            assert response.status == 413
        async with http.post(url, json={}, headers={"origin": "https://example.com"}) as response:
            assert response.status == 403


ERROR = {"error": {"message": "wrong key sk-secret-secret at 10.0.0.7", "type": "x", "code": "bad"}}


@pytest.mark.parametrize(
    ("status", "ours", "code"),
    [(400, 400, "bad"), (401, 502, "bad"), (429, 429, "bad"), (500, 502, "bad")],
)
async def test_errors_of_the_provider_are_redacted(
    status: int, ours: int, code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    script: list[Step] = [Head(status, {"content-type": "application/json"}), json.dumps(ERROR).encode()]
    settings: dict[str, Any] = {"upstream_retries": 0, "model_aliases": "embed=openai-responses:embed"}
    async with ScriptedUpstream(script) as upstream:
        monkeypatch.setenv("OPENAI_BASE_URL", upstream.base_url)
        monkeypatch.setenv("OPENAI_API_KEY", "sk-secret-secret")
        async with facade_over(handler=Scripted(), **settings) as facade:
            with pytest.raises(openai.APIStatusError) as raised:
                await facade.client.embeddings.create(model="embed", input="a river")
    assert upstream.requests[0].headers["authorization"] == "Bearer sk-secret-secret"
    assert (raised.value.status_code, raised.value.code) == (ours, code)
    assert "secret" not in raised.value.response.text
    assert "10.0.0.7" not in raised.value.response.text


@pytest.mark.parametrize("body", [b"", b"<html>", b"[]", b'{"object": "list"}', b"\xff"])
async def test_a_response_of_another_form_is_an_error_of_the_provider(body: bytes) -> None:
    script: list[Step] = [Head(200, {"content-type": "application/json"}), body or b" "]
    async with embedding(*script) as (_, facade):
        with pytest.raises(openai.APIStatusError) as raised:
            await facade.client.embeddings.create(model="embed", input="a river")
    assert (raised.value.status_code, raised.value.code) == (502, "invalid_stream")


async def test_calls_count_towards_the_limit_of_calls_to_providers() -> None:
    go_on = anyio.Event()
    statuses: list[int] = []
    settings: dict[str, Any] = {"bounds": Bounds(max_upstream_calls=1, max_upstream_waiting=0)}
    async with embedding(Wait(go_on), *vectors(*VECTORS), **settings) as (upstream, facade):

        async def ask() -> None:
            await facade.client.embeddings.create(model="embed", input="a river")
            statuses.append(200)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask)
            await upstream.received()
            with pytest.raises(openai.InternalServerError) as raised:
                await facade.client.embeddings.create(model="embed", input="a lake")
            statuses.append(raised.value.status_code)
            go_on.set()
    assert statuses == [503, 200]


async def test_they_count_towards_the_limit_of_tasks_of_their_caller() -> None:
    go_on = anyio.Event()
    settings: dict[str, Any] = {"caller_keys": CALLER_KEYS, "bounds": Bounds(max_caller_tasks=1)}
    settings["key"] = next(iter(KEYS.values()))
    async with embedding(Wait(go_on), *vectors(*VECTORS), **settings) as (upstream, facade):

        async def ask() -> None:
            await facade.client.embeddings.create(model="embed", input="a river")

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask)
            await upstream.received()
            with pytest.raises(openai.RateLimitError, match="the maximum for one caller") as raised:
                await facade.client.embeddings.create(model="embed", input="a lake")
            assert raised.value.status_code == 429
            go_on.set()
        await ask()


async def test_a_client_that_disconnects_cancels_its_call() -> None:
    """The only permit is free again, though the provider never responds to the first call."""
    scripts = iter([[Wait(anyio.Event())], vectors(*VECTORS)])
    bounds = Bounds(max_upstream_calls=1)
    async with (
        ScriptedUpstream(lambda _: next(scripts)) as upstream,
        facade_over(upstream, model_aliases=ALIASES, bounds=bounds) as facade,
    ):
        async with anyio.create_task_group() as tasks:

            async def ask() -> None:
                await facade.client.embeddings.create(model="embed", input="a river")

            tasks.start_soon(ask)
            await upstream.received()
            tasks.cancel_scope.cancel()
        with anyio.fail_after(30):  # it never returned
            found = await facade.client.embeddings.create(model="embed", input="a lake")
    assert [each.embedding for each in found.data] == VECTORS


async def test_no_task_is_stored() -> None:
    async with (
        embedding() as (_, facade),
        aiohttp.ClientSession() as http,
    ):
        await facade.client.embeddings.create(model="embed", input="a river")
        async with http.get(f"{facade.url}/tasks") as response:
            assert (await response.json())["tasks"] == []


async def test_another_provider_has_its_own_address_and_key(monkeypatch: pytest.MonkeyPatch) -> None:
    async with ScriptedUpstream(vectors(*VECTORS)) as other, ScriptedUpstream(answer("Hi")) as upstream:
        monkeypatch.setenv("OLLAMA_HOST", other.base_url.removesuffix("/v1"))
        async with facade_over(
            upstream, model_aliases="embed=ollama:nomic-embed-text", api_key="sk-other-key"
        ) as facade:
            found = await facade.client.embeddings.create(
                model="embed", input=["a", "b"], encoding_format="float"
            )
    assert [each.embedding for each in found.data] == VECTORS
    [request] = other.requests
    assert (request.path, request.json["model"]) == ("/v1/embeddings", "nomic-embed-text")
    assert "authorization" not in request.headers
    assert not upstream.requests
