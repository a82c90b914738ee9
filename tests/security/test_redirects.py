"""No redirect forwards a prompt, a card's token or a key to another origin.

Each client is redirected by a real server to a second one on another port, which is another origin and must not receive
a request.
"""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from support.upstream import Head, Received, ScriptedUpstream, Step, json_answer, openai_stream
from tailrace.server.auth.jwks import IssuerKeys
from tailrace.server.remote.client import AgentClient
from tailrace.server.runtime.limits import OverloadedError
from tailrace.server.runtime.webhooks.addresses import WebhookGuard
from tailrace.server.runtime.webhooks.client import WebhookClient
from tailrace.server.sdk import RemoteAgent
from tailrace.streaming.a2a import models as a2a
from tailrace.streaming.a2a.requests import TaskPushNotificationConfig
from tailrace.streaming.tools.mcp import McpToolset
from tailrace.wrappers import ContentPartText, History, Message, Role, UpstreamError, UpstreamFault
from tailrace.wrappers.http.http_model import HTTPModel
from tailrace.wrappers.providers import create_model

HISTORY = History(conversation=(Message(role=Role.USER, content=(ContentPartText(text="Hi"),)),))
PROVIDERS = ("openai", "openai-responses", "anthropic", "gemini", "ollama", "cohere", "mistral", "bedrock")
STATUSES = (301, 302, 303, 307, 308)


def redirect(location: str, status: int = 307) -> list[Step]:
    return [Head(status, {"location": location, "content-length": "0"}, chunked=False)]


def root(upstream: ScriptedUpstream) -> str:
    return upstream.base_url.removesuffix("/v1")


@asynccontextmanager
async def another_origin(*scripts: Any) -> AsyncGenerator[ScriptedUpstream]:
    """Run another origin that must receive no request."""
    async with ScriptedUpstream(*(scripts or (openai_stream(["stolen"]),))) as other:
        yield other
        assert other.requests == []


async def refused(model: HTTPModel) -> UpstreamError:
    """Return the error raised when the model's response begins."""
    try:
        with pytest.raises(UpstreamError) as raised:
            await model.stream(HISTORY).__aenter__()
    finally:
        await model.aclose()
    return raised.value


# --- providers ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("provider", PROVIDERS)
async def test_no_provider_redirects_a_prompt_to_another_origin(
    provider: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_REGION", "eu-north-1")
    async with another_origin() as other, ScriptedUpstream(redirect(f"{root(other)}/v1/x")) as upstream:
        model = create_model(f"{provider}:m", base_url=root(upstream), api_key="topsecret", max_retries=2)
        assert isinstance(model, HTTPModel)
        error = await refused(model)
        assert len(upstream.requests) == 1
    assert (error.fault, error.status) == (UpstreamFault.STATUS, 307)
    assert "redirects" in error.message
    assert "TAILRACE_BASE_URL" in error.message


@pytest.mark.parametrize("status", STATUSES)
@pytest.mark.parametrize("provider", ["openai", "anthropic"])
async def test_no_status_of_a_redirect_is_followed(provider: str, status: int) -> None:
    async with another_origin() as other, ScriptedUpstream(redirect(root(other), status)) as upstream:
        model = create_model(f"{provider}:m", base_url=root(upstream), api_key="topsecret", max_retries=0)
        assert isinstance(model, HTTPModel)
        assert (await refused(model)).status == status


@pytest.mark.parametrize("provider", ["openai", "anthropic"])
async def test_a_redirect_is_not_followed_within_an_origin_either_and_loops_end_at_once(
    provider: str,
) -> None:
    async with ScriptedUpstream(redirect("/again")) as upstream:
        model = create_model(f"{provider}:m", base_url=root(upstream), api_key="topsecret")
        assert isinstance(model, HTTPModel)
        await refused(model)
        assert len(upstream.requests) == 1


@pytest.mark.parametrize("provider", ["openai", "anthropic"])
@pytest.mark.parametrize(
    ("location", "named"),
    [
        ("https://login.example.com:8443/a?code=1", "https://login.example.com:8443,"),
        ("//other.example/x", "http://other.example,"),
        ("https://user:pw@other.example/x", "https://other.example,"),
        ("http://10.0.0.1/x", "[internal address]"),
        ("file:///etc/passwd", "no address"),
        ("http://[", "no address"),
    ],
)
async def test_the_error_names_the_origin_of_a_redirect_and_nothing_more(
    provider: str, location: str, named: str
) -> None:
    async with ScriptedUpstream(redirect(location)) as upstream:
        model = create_model(f"{provider}:m", base_url=root(upstream), api_key="topsecret", max_retries=0)
        assert isinstance(model, HTTPModel)
        error = await refused(model)
    assert f"redirects to {named}" in error.message


# --- remote agents, tools, keys of issuers ----------------------------------------------------------------------------


def answered_with(interface: str = "/rpc") -> dict[str, Any]:
    return {
        "name": "Scripted",
        "description": "Does what a test asks for.",
        "version": "1",
        "supportedInterfaces": [{"url": interface, "protocolBinding": "JSONRPC", "protocolVersion": "1.0"}],
        "capabilities": {"streaming": True},
        "skills": [],
    }


def user_message() -> a2a.Message:
    return a2a.Message(message_id="m", role=a2a.Role.USER, parts=(a2a.Part(text="a secret prompt"),))


async def remote_error(url: str) -> UpstreamError:
    async with RemoteAgent(url, token="topsecret", headers={"x-key": "k"}, retry_delays=()) as agent:
        with pytest.raises(UpstreamError) as raised:
            async for _ in agent.stream(user_message()):
                pass
    return raised.value


async def client_error(url: str) -> UpstreamError:
    async with AgentClient(url, token="topsecret", retry_delays=()) as client:
        with pytest.raises(UpstreamError) as raised:
            async for _ in client.stream("a secret prompt"):
                pass
    return raised.value


CLIENTS = [remote_error, client_error]


@pytest.mark.parametrize("failing", CLIENTS)
async def test_a_card_is_not_fetched_from_another_origin(failing: Any) -> None:
    async with another_origin(json_answer(answered_with())) as other:
        async with ScriptedUpstream(redirect(f"{root(other)}/card.json")) as agent:
            error = await failing(root(agent))
    assert "redirects to" in (error.diagnosis or error.message)


@pytest.mark.parametrize("failing", CLIENTS)
async def test_a_card_is_fetched_behind_redirects_within_its_origin_but_not_without_end(failing: Any) -> None:
    def answer(request: Received) -> list[Step]:
        if request.path == "/there.json":
            return json_answer(answered_with("/refuses"))
        return json_answer({}, 404) if request.path == "/refuses" else redirect("/there.json", 302)

    async with ScriptedUpstream(answer) as agent:
        assert (await failing(root(agent))).status == 404
        assert agent.requests[-1].path == "/refuses"
    async with ScriptedUpstream(redirect("/loop.json")) as agent:
        assert "exceeds 5 redirects" in str(await failing(root(agent)))
        assert len(agent.requests) < 10


@pytest.mark.parametrize("status", STATUSES)
@pytest.mark.parametrize("failing", CLIENTS)
async def test_a_message_to_an_agent_is_not_redirected(failing: Any, status: int) -> None:
    async with another_origin() as other:
        async with ScriptedUpstream(
            json_answer(answered_with()), redirect(f"{root(other)}/rpc", status)
        ) as agent:
            error = await failing(root(agent))
            assert len(agent.requests) == 2
    assert error.status == status


async def test_a_tools_server_does_not_redirect_calls_and_credentials() -> None:
    async with another_origin() as other, ScriptedUpstream(redirect(f"{root(other)}/mcp")) as server:
        toolset = McpToolset.http(f"{root(server)}/mcp", headers={"authorization": "Bearer topsecret"})
        with pytest.raises(UpstreamError, match="redirects are not followed"):
            await toolset.connected().__aenter__()


async def test_the_keys_of_an_issuer_are_not_fetched_from_another_origin() -> None:
    async with another_origin(json_answer({"keys": []})) as other:
        async with ScriptedUpstream(redirect(f"{root(other)}/jwks.json")) as issuer:
            with pytest.raises(OverloadedError):
                await IssuerKeys(f"{root(issuer)}/jwks.json").find("kid", "RS256")
            assert len(issuer.requests) == 1


async def test_a_notification_is_not_redirected() -> None:
    async with another_origin() as other, ScriptedUpstream(redirect(root(other))) as hook:
        client = WebhookClient(WebhookGuard(allow_private=True), attempts=1)
        config = TaskPushNotificationConfig(id="c", task_id="t", url=f"{root(hook)}/hook", token="topsecret")
        async with client.open():
            assert not await client.send(config, "t/1", b"{}", media_type="application/json")
        assert len(hook.requests) == 1
