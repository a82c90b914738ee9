"""Requests to OpenAI's Embeddings API at every provider that has it."""

import pytest

from support.upstream import Cut, Head, ScriptedUpstream, Step
from tailrace.wrappers import UpstreamError, UpstreamFault
from tailrace.wrappers.http.direct_model import DirectModel
from tailrace.wrappers.providers import FORMATS, create_model

JSON = Head(200, {"content-type": "application/json"})
BODY = b'{"object": "list", "data": []}'

ADDRESSES = {
    "openai": ("/v1", "/v1/embeddings"),
    "openai-responses": ("/v1", "/v1/embeddings"),
    "mistral": ("/v1", "/v1/embeddings"),
    "gemini": ("/v1beta", "/v1beta/openai/embeddings"),
    "cohere": ("/v2", "/compatibility/v1/embeddings"),
    "ollama": ("", "/v1/embeddings"),
}
"""The root of each provider's API, and the path of its embeddings."""


def model_of(provider: str, upstream: ScriptedUpstream, root: str = "/v1", retries: int = 0) -> DirectModel:
    url = upstream.base_url.removesuffix("/v1") + root
    model = create_model(f"{provider}:embed", base_url=url, api_key="sk-key-key", max_retries=retries)
    assert isinstance(model, DirectModel)
    return model


@pytest.mark.parametrize("provider", ADDRESSES)
async def test_each_provider_receives_the_request(provider: str) -> None:
    root, path = ADDRESSES[provider]
    async with ScriptedUpstream([JSON, BODY]) as upstream:
        model = model_of(provider, upstream, root)
        found = await model.embed({"input": ["a", "b"], "dimensions": 3})
        await model.aclose()
    [request] = upstream.requests
    assert found == BODY
    assert request.path == path
    assert request.headers["authorization"] == "Bearer sk-key-key"
    assert request.json == {"model": "embed", "input": ["a", "b"], "dimensions": 3}


def test_the_other_formats_have_no_embeddings() -> None:
    assert set(FORMATS) - set(ADDRESSES) == {"anthropic", "bedrock"}


async def test_a_temporary_error_is_retried() -> None:
    scripts: list[list[Step]] = [[Head(503, {"retry-after-ms": "1"}), b"{}"], [JSON, BODY]]
    async with ScriptedUpstream(*scripts) as upstream:
        model = model_of("openai", upstream, retries=1)
        found = await model.embed({"input": "a"})
        await model.aclose()
    assert found == BODY
    assert len(upstream.requests) == 2


async def test_a_broken_connection_is_an_error() -> None:
    async with ScriptedUpstream([JSON, BODY[:5], Cut()]) as upstream:
        model = model_of("openai", upstream)
        with pytest.raises(UpstreamError) as raised:
            await model.embed({"input": "a"})
        await model.aclose()
    assert raised.value.fault is UpstreamFault.TRUNCATED
