"""The recorded answer behind an OpenAI-compatible server."""

import io
import json
import logging
import math
import signal
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from importlib import resources
from pathlib import Path
from typing import Any

import aiohttp
import anyio
import openai
import pytest

from tailrace.server.cli.local_model import MODEL
from tailrace.server.cli.replay_server import (
    MAX_REQUEST_BYTES,
    PROMPT,
    RECORDED_MODEL,
    TOKENS_PER_SECOND,
    Recording,
    ReplayModel,
    demo_recording,
)
from tailrace.wrappers.decoding.framing import SSEDecoder
from tailrace.wrappers.errors import ConfigurationError

FIXTURES = Path(__file__).parents[2] / "fixtures" / "openai"

SMALL = Recording(
    b'data: {"model": "m", "choices": [{"index": 0, "delta": {"content": "a"}, "finish_reason": null}]}\n\n'
    b'data: {"model": "m", "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}\n\n'
    b'data: {"model": "m", "choices": [], "usage": {"total_tokens": 1}}\n\n'
    b"data: [DONE]\n\n"
)


@asynccontextmanager
async def response_to(replay: ReplayModel, body: Any) -> AsyncGenerator[aiohttp.ClientResponse]:
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{replay.base_url}/chat/completions", data=body) as response,
    ):
        yield response


def chunks(body: bytes) -> list[dict[str, Any]]:
    events = SSEDecoder().feed(body)
    assert events[-1].data == b"[DONE]"
    return [json.loads(event.data) for event in events[:-1]]


def text(body: bytes) -> str:
    deltas = [choice["delta"] for chunk in chunks(body) for choice in chunk["choices"]]
    return "".join(delta.get("content") or "" for delta in deltas)


async def test_the_openai_client_reads_the_recorded_response_unchanged_from_a_model_named_recorded():
    recorded = resources.files("tailrace.server.cli").joinpath("recorded", "answer.sse")
    async with ReplayModel(tokens_per_second=math.inf) as replay:
        async with openai.AsyncOpenAI(base_url=replay.base_url, api_key="none") as client:
            models = await client.models.list()
            stream = await client.chat.completions.create(
                model=replay.model,
                messages=[{"role": "user", "content": PROMPT}],
                stream=True,
                stream_options={"include_usage": True},
            )
            received = [chunk async for chunk in stream]
    assert [model.id for model in models.data] == [replay.model] == [f"{MODEL} (recorded)"]
    assert {chunk.model for chunk in received} == {RECORDED_MODEL}
    answer = "".join(chunk.choices[0].delta.content or "" for chunk in received if chunk.choices)
    assert answer == text(recorded.read_bytes())
    assert "blue" in answer
    assert received[-1].usage is not None
    assert 60 <= received[-1].usage.completion_tokens <= 160
    assert "recorded" in replay.label


async def test_the_recorded_pace_is_used_unless_another_is_requested():
    async with ReplayModel(recording=SMALL, tokens_per_second=20) as replay:
        before = anyio.current_time()
        async with response_to(replay, b'{"stream": true}') as response:
            await response.content.readany()
            first = anyio.current_time() - before
            await response.read()
        # Three events, 50 ms apart; the first one at once.
        assert anyio.current_time() - before >= 0.1
        assert first < 0.1
    assert SMALL.tokens_per_second == TOKENS_PER_SECOND
    assert 40 < demo_recording().tokens_per_second < 200


async def test_usage_is_sent_only_on_request():
    async with ReplayModel(recording=SMALL, tokens_per_second=math.inf) as replay:
        async with response_to(
            replay, b'{"stream": true, "stream_options": {"include_usage": true}}'
        ) as response:
            assert response.content_type == "text/event-stream"
            with_usage = chunks(await response.read())
        assert [chunk["usage"] for chunk in with_usage if not chunk["choices"]] == [{"total_tokens": 1}]
        for options in (b"", b', "stream_options": null', b', "stream_options": {}'):
            async with response_to(replay, b'{"stream": true%b}' % options) as response:
                without = chunks(await response.read())
            assert without == [chunk for chunk in with_usage if chunk["choices"]]


async def test_a_request_that_cannot_be_answered_gets_an_openai_error():
    wrong = {
        b"{": "not a request",
        b"[]": "not a request",
        b'{"stream": "yes"}': "not a request",
        b'{"stream": true, "stream_options": 1}': "not a request",
        b"{}": "stream=true",
        b'{"stream": false}': "stream=true",
    }
    async with ReplayModel() as replay:
        for body, reason in wrong.items():
            async with response_to(replay, body) as response:
                assert response.status == 400
                error = (await response.json())["error"]
            assert reason in error["message"]
            assert error["type"] == "invalid_request_error"


async def test_a_request_beyond_the_bound_is_refused():
    async with (
        ReplayModel() as replay,
        response_to(replay, io.BytesIO(bytes(MAX_REQUEST_BYTES + 1))) as response,
    ):
        assert response.status == 413


async def test_health_returns_ok():
    async with ReplayModel() as replay, aiohttp.ClientSession() as session:
        async with session.get(replay.base_url.removesuffix("/v1") + "/health") as response:
            assert (response.status, await response.json()) == (200, {"status": "ok"})


async def test_it_reports_readiness_and_removes_its_address_at_the_end():
    progress: list[tuple[float | None, str]] = []
    async with ReplayModel(on_progress=lambda fraction, what: progress.append((fraction, what))) as replay:
        assert replay.base_url.startswith("http://127.0.0.1:")
    assert progress == [(1.0, "ready")]
    assert replay.base_url == ""


async def test_leaving_the_context_ends_a_stream_under_way_and_closes_the_port():
    async with aiohttp.ClientSession() as session:
        async with ReplayModel(recording=SMALL, tokens_per_second=0.001) as replay:
            address = f"{replay.base_url}/chat/completions"
            response = await session.post(address, data=b'{"stream": true}')
            first = await response.content.readany()
        assert b"[DONE]" not in first + await response.read()
        with pytest.raises(aiohttp.ClientConnectorError):
            await session.post(address, data=b'{"stream": true}')


async def test_being_cancelled_closes_the_port_too():
    address = ""
    with anyio.CancelScope() as scope:
        async with ReplayModel() as replay:
            address = replay.base_url
            scope.cancel()
            await anyio.sleep_forever()
    async with aiohttp.ClientSession() as session:
        with pytest.raises(aiohttp.ClientConnectorError):
            await session.get(f"{address}/models")


async def test_an_error_inside_the_context_comes_out_as_it_is():
    with pytest.raises(ZeroDivisionError):
        async with ReplayModel():
            raise ZeroDivisionError


async def test_signals_and_loggers_of_the_program_around_it_stay_as_they_are():
    loggers = [logging.getLogger(name) for name in ("uvicorn", "uvicorn.error", "uvicorn.access")]
    before = [(logger.level, logger.handlers[:], logger.propagate) for logger in loggers]
    handlers = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    async with ReplayModel():
        assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == handlers
        assert [(logger.level, logger.handlers, logger.propagate) for logger in loggers] == before


@pytest.mark.parametrize("pace", [0, -1, math.nan])
def test_a_pace_that_is_not_positive_is_a_configuration_error(pace: float):
    with pytest.raises(ConfigurationError, match="tokens_per_second"):
        ReplayModel(tokens_per_second=pace)


@pytest.mark.parametrize("file", sorted(FIXTURES.glob("*.sse")), ids=lambda file: file.stem)
def test_nothing_but_the_model_name_of_a_recorded_stream_is_changed(file: Path):
    body = file.read_bytes()
    replayed = chunks(b"".join(frame.data for frame in Recording(body).frames))
    assert replayed == [{**chunk, "model": RECORDED_MODEL} for chunk in chunks(body)]
