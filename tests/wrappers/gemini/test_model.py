"""The Gemini client: members of its requests and errors that other providers do not have."""

import pytest

from support.options import ask
from support.provider_cases import GEMINI
from support.upstream import ScriptedUpstream, json_answer
from tailrace.wrappers import RequestOptions, UpstreamError
from tailrace.wrappers.gemini.model import GeminiModel
from tailrace.wrappers.request_options import NO_OPTIONS


async def test_a_resource_may_be_named_in_full() -> None:
    async with ScriptedUpstream(GEMINI.whole_response()) as upstream:
        model = GeminiModel("tunedModels/my model", base_url=upstream.base_url, api_key="key")
        await ask(model, NO_OPTIONS)
        request = await upstream.received()
    assert request.path == "/v1/tunedModels/my%20model:streamGenerateContent?alt=sse"


async def test_a_token_takes_the_place_of_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GEMINI_API_KEY", "never sent")
    async with ScriptedUpstream(GEMINI.whole_response()) as upstream:
        vertex = GeminiModel(
            "gemini-x",
            base_url=upstream.base_url + "/projects/p/locations/l/publishers/google",
            headers={"Authorization": "Bearer token"},
        )
        await ask(vertex, NO_OPTIONS)
        request = await upstream.received()
    assert request.path.startswith("/v1/projects/p/locations/l/publishers/google/models/gemini-x:")
    assert request.headers["authorization"] == "Bearer token"
    assert "x-goog-api-key" not in request.headers


@pytest.mark.parametrize("listed", [False, True])
async def test_a_rejection_has_the_retry_delay_in_its_body(listed: bool) -> None:
    delay = {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "3.5s"}
    details = [{"@type": "type.googleapis.com/google.rpc.Help"}, delay]
    body = {"error": {"code": 429, "message": "busy", "status": "RESOURCE_EXHAUSTED", "details": details}}
    async with ScriptedUpstream(json_answer([body] if listed else body, 429)) as upstream:
        with pytest.raises(UpstreamError) as caught:
            await ask(GEMINI.model_at(upstream), NO_OPTIONS)
    assert (caught.value.retry_after, caught.value.code) == (3.5, "RESOURCE_EXHAUSTED")


@pytest.mark.parametrize(
    ("effort", "budget"), [("none", 0), ("medium", 8192), ("high", 24576), ("max", 24576)]
)
async def test_models_with_a_thinking_budget_receive_a_number(effort: str, budget: int) -> None:
    config = {"thinkingConfig": {"thinkingLevel": "low", "includeThoughts": True}}
    model = GeminiModel("gemini-2.5-flash", api_key="k", parameters={"generationConfig": config})
    members = model._request_members(RequestOptions(reasoning_effort=effort))  # pyright: ignore[reportPrivateUsage]
    assert members["generationConfig"] == {
        "thinkingConfig": {"includeThoughts": True, "thinkingBudget": budget}
    }
