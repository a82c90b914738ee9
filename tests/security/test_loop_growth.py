"""The work of the event loop's thread for a request grows in proportion to the request: CPU time, not elapsed time."""

import json
import time
from collections.abc import Callable
from typing import Any

import pytest

from support.live_server import serving
from support.rpc import Rpc, message
from support.upstream import ScriptedUpstream, openai_stream
from tailrace.server import Settings, create_app

UNITS = 400
GROWTH = 4
TOLERANCE = 1.75
"""Quadratic work would be `GROWTH` times as much as linear work."""

Request = tuple[str, dict[str, Any]]


def rpc(parts: list[dict[str, Any]], **metadata: Any) -> Request:
    params = {"message": {**message()["message"], "parts": parts, "metadata": metadata}}
    return "/", {"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": params}


def responses(items: list[dict[str, Any]]) -> Request:
    return "/v1/responses", {"model": "m", "input": items}


def turn_of(role: str, text: str) -> dict[str, Any]:
    return {"role": role, "content": text}


REQUESTS: dict[str, Callable[[int], Request]] = {
    "parts": lambda units: rpc([{"text": "word "}] * units),
    "a text": lambda units: rpc([{"text": "some words\n" * 40 * units}]),
    "a text of brackets": lambda units: rpc([{"text": "![](" * 40 * units}]),
    "metadata": lambda units: rpc([{"text": "x"}], values=[{"a": [1]}] * units),
    "JSON in a text": lambda units: rpc([{"text": json.dumps([{"a": [1]}] * units)}]),
    "messages": lambda units: responses(
        [turn_of("user", "hi"), turn_of("assistant", "yes")] * (units // 2) + [turn_of("user", "so")]
    ),
    "a message of the assistant": lambda units: responses(
        [turn_of("assistant", "![a](b)\n\n" * 40 * units), turn_of("user", "so")]
    ),
    "chat messages": lambda units: (
        "/v1/chat/completions",
        {
            "model": "m",
            "messages": [turn_of("user", "hi"), turn_of("assistant", "yes")] * (units // 2)
            + [turn_of("user", "so")],
        },
    ),
}


@pytest.mark.parametrize("request_of", REQUESTS.values(), ids=REQUESTS)
async def test_the_work_of_the_event_loop_is_linear(request_of: Callable[[int], Request]) -> None:
    async with ScriptedUpstream(lambda _: openai_stream(["Yes."])) as upstream:
        settings = Settings.model_validate(
            {"store": "sqlite://", "model": "vllm:m", "base_url": upstream.base_url}
        )
        async with serving(create_app(settings)) as url, Rpc(url) as client:

            async def work(units: int) -> float:
                path, fields = request_of(units)
                body = json.dumps(fields).encode()
                figures = list[float]()
                for _ in range(4):
                    began = time.thread_time()
                    status, answer = await client.raw(body, {"a2a-version": "1.0"}, path)
                    figures.append(time.thread_time() - began)
                    assert status == 200, answer
                    assert "error" not in answer or answer["error"] is None
                return min(figures[1:])

            small, large = await work(UNITS), await work(GROWTH * UNITS)
    assert large < TOLERANCE * GROWTH * small + 0.01
