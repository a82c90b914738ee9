"""A large conversation is put in order and converted outside of the event loop, for a turn and for a page."""

import json
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from support.live_server import serving
from support.threaded_client import post
from support.upstream import ScriptedUpstream, openai_stream
from tailrace.server import Settings, create_app
from tailrace.server.protocols.ai_sdk import snapshot
from tailrace.streaming.a2a.models import Message
from tailrace.streaming.conversion import approval_parts
from tailrace.wrappers.concurrency.worker_thread import in_event_loop

LARGE = "é" * 1_000_000


@pytest.fixture
async def url() -> AsyncGenerator[str]:
    async with ScriptedUpstream(lambda _: openai_stream(["Hello"])) as upstream:
        settings = Settings(model="openai:m", base_url=upstream.base_url, store="sqlite://")
        async with serving(create_app(settings)) as url:
            yield url


@pytest.fixture
def converted(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Record for each conversion of a large message whether the event loop does it."""
    found: list[bool] = []
    convert = approval_parts.to_common_message

    def watched(message: Any) -> Any:
        if isinstance(message, Message) and any(LARGE in (part.text or "") for part in message.parts):
            found.append(in_event_loop())
        return convert(message)

    for module in (approval_parts, snapshot):
        monkeypatch.setattr(module, "to_common_message", watched)
    return found


async def test_a_short_message_in_a_large_conversation(url: str, converted: list[bool]) -> None:
    for text in (LARGE, "and now?"):
        parts = [{"text": text}]
        message = {"messageId": "m", "role": "ROLE_USER", "contextId": "c", "parts": parts}
        converted.clear()
        sent = await post(f"{url}/message:send", json.dumps({"message": message}).encode())
        assert json.loads(sent.body)["task"]["status"]["state"] == "TASK_STATE_COMPLETED"
    assert converted
    assert not any(converted)


async def test_a_page_of_a_large_chat(url: str, converted: list[bool]) -> None:
    message = {"id": "1", "role": "user", "parts": [{"type": "text", "text": LARGE}]}
    sent = await post(f"{url}/ai-sdk", json.dumps({"id": "c", "messages": [message]}).encode())
    assert sent.status == 200, sent.body
    converted.clear()
    page = await post(f"{url}/ai-sdk/c/messages", b"", method="GET")
    assert page.status == 200, page.body[:500]
    assert LARGE in page.body.decode()
    assert converted
    assert not any(converted)
