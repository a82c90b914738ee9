"""Filters of callers' messages: a message with forbidden text reaches no model, database or log."""

import json
import logging
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from pydantic import SecretStr

from support.live_server import serving
from support.rpc import Rpc, message
from support.ui_streams import RUN
from support.upstream import ScriptedUpstream, openai_stream
from tailrace.server import Settings, create_app
from tailrace.server.runtime.json_schema_filter import JsonSchemaFilter
from tailrace.server.runtime.stream_filter import FilterStream, StreamFilter
from tailrace.server.runtime.word_filters import RegexFilter, WordFilter
from tailrace.streaming.a2a.stream_extension import EXTENSION_URI
from tailrace.wrappers import ConfigurationError

WORD = "Project Falcon"
FILTERS = (WordFilter([WORD]), RegexFilter(r"\d{4}-\d{4}", replacement=None, max_match=12))


def bodies(text: str) -> dict[str, tuple[str, dict[str, Any]]]:
    """Requests with a text, by their protocol."""
    user = {"role": "user", "content": text}
    part = {"type": "text", "text": text}
    request = {"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": message(text)}
    return {
        "a2a": ("/", request),
        "http+json": ("/message:send", message(text)),
        "chat": ("/v1/chat/completions", {"model": "m", "messages": [user]}),
        "chat, earlier": (
            "/v1/chat/completions",
            {"model": "m", "messages": [user, {"role": "assistant", "content": "?"}, {**user, "content": "hi"}]},
        ),
        "chat, system": (
            "/v1/chat/completions",
            {"model": "m", "messages": [{"role": "system", "content": text}, {**user, "content": "hi"}]},
        ),
        "responses": ("/v1/responses", {"model": "m", "input": text, "background": True}),
        "responses, metadata": ("/v1/responses", {"model": "m", "input": "hi", "metadata": {"note": text}}),
        "items": ("/v1/conversations", {"items": [{"type": "message", **user}]}),
        "ai-sdk": (
            "/ai-sdk",
            {"id": "c1", "messages": [{"id": "u1", "role": "user", "parts": [part]}], "trigger": "submit-message"},
        ),
        "ag-ui": ("/ag-ui", {**RUN, "messages": [{"id": "u1", **user}]}),
    }  # fmt: skip


@asynccontextmanager
async def server(
    store: str = "sqlite://", filters: Sequence[StreamFilter] = FILTERS
) -> AsyncGenerator[tuple[str, ScriptedUpstream]]:
    """A server with input filters on a scripted provider."""
    async with ScriptedUpstream(openai_stream(["Hello"])) as upstream:
        settings = Settings(
            store=store, model="openai:m", base_url=upstream.base_url, api_key=SecretStr("none")
        )
        async with serving(create_app(settings, input_filters=filters)) as url:
            yield url, upstream


async def post(url: str, path: str, body: dict[str, Any]) -> tuple[int, str]:
    headers = {"A2A-Version": "1.0"} if path in ("/", "/message:send") else {}
    async with aiohttp.ClientSession() as http, http.post(url + path, json=body, headers=headers) as response:
        return response.status, await response.text()


def content_of(folder: Path) -> str:
    """The bytes of all files, as text: the database and its journal."""
    return b"".join(path.read_bytes() for path in folder.iterdir()).decode("latin-1")


@pytest.mark.parametrize("text", [f"About {WORD.upper()}s.", "My card is 4111-1111."])
@pytest.mark.parametrize("wire", bodies(""))
async def test_a_message_with_forbidden_text_is_refused(
    wire: str, text: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    async with server(f"sqlite:///{tmp_path}/t.db") as (url, upstream):
        status, answer = await post(url, *bodies(text)[wire])
        requests = list(upstream.requests)
    stored = content_of(tmp_path)
    assert status == (200 if wire == "a2a" else 400)  # JSON-RPC has its errors in the body
    assert "content_filtered" in answer.lower() or wire == "ai-sdk"  # whose errors are texts
    assert "a filter of the server blocks the message" in answer
    assert not requests
    for kept in (stored, caplog.text, answer):
        assert WORD.casefold() not in kept.casefold()
        assert "4111-1111" not in kept


@pytest.mark.parametrize("wire", bodies(""))
async def test_other_messages_are_unchanged(wire: str) -> None:
    async with server() as (url, upstream):
        status, answer = await post(url, *bodies("The project of the falconer, 411-111")[wire])
        assert status == 200
        if wire not in ("items", "responses"):  # which begin no response, or not before theirs
            assert "Hello" in answer
            sent = json.dumps(upstream.requests[0].json)
            assert "The project of the falconer, 411-111" in sent or wire == "responses, metadata"


async def test_data_names_of_files_and_metadata_are_checked() -> None:
    file = {"raw": "aGk=", "mediaType": "text/plain", "filename": f"{WORD}.txt"}
    async with server() as (url, _), Rpc(url) as rpc:
        for part in ({"data": {"topic": [WORD]}}, {"data": {"number": "4111-1111"}}, file):
            params = message("hi")
            params["message"]["parts"].append(part)
            error = await rpc.error("SendMessage", params)
            assert error["data"][0]["reason"] == "CONTENT_FILTERED", part
        params = {**message("hi"), "metadata": {EXTENSION_URI: {"instructions": WORD}}}
        error = await rpc.error("SendMessage", params)
        assert error["data"][0]["reason"] == "CONTENT_FILTERED"


async def test_a_word_that_two_parts_divide_is_found() -> None:
    async with server() as (url, _), Rpc(url) as rpc:
        params = message("Project ")
        params["message"]["parts"].append({"text": "Falcon"})
        error = await rpc.error("SendMessage", params)
    assert error["data"][0]["reason"] == "CONTENT_FILTERED"


class Failing(StreamFilter):
    """A filter with a fault."""

    def open(self) -> FilterStream:
        raise ValueError(f"cannot filter {WORD}")


async def test_the_error_of_a_filter_is_neither_sent_nor_logged(caplog: pytest.LogCaptureFixture) -> None:
    async with server(filters=(Failing(),)) as (url, upstream), Rpc(url) as rpc:
        error = await rpc.error("SendMessage", message(WORD))
        assert not upstream.requests
    assert error["code"] == -32603
    assert WORD not in str(error) + caplog.text
    assert "a filter failed with ValueError" in caplog.text


async def test_a_file_of_the_settings_is_used(tmp_path: Path) -> None:
    (tmp_path / "words.txt").write_text(f"{WORD}\n")
    settings = Settings(store="sqlite://", model="openai:m", api_key=SecretStr("none"), input_filters=tmp_path / "words.txt")  # fmt: skip
    async with serving(create_app(settings)) as url, Rpc(url) as rpc:
        error = await rpc.error("SendMessage", message(WORD))
    assert error["data"][0]["reason"] == "CONTENT_FILTERED"


@pytest.mark.parametrize("in_code", [False, True])
def test_a_filter_of_responses_is_no_input_filter(in_code: bool) -> None:
    input_filters = [JsonSchemaFilter({"type": "object"})] if in_code else []
    settings = Settings(model="openai:m", input_filters=None if in_code else Path("request-schema"))
    with pytest.raises(
        ConfigurationError, match=r"an input filter checks only responses.*--filter"
    ) as caught:
        create_app(settings, input_filters=input_filters)
    assert "\n" not in str(caught.value)
