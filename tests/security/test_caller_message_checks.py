"""References in a caller's message give access to nothing at a provider that the caller may not read.

The provider sees one caller, the server, and resolves references with the server's credentials.
"""

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from pydantic import SecretStr, ValidationError

from support.live_server import serving
from support.rpc import Rpc, message
from support.upstream import ScriptedUpstream, json_answer, openai_stream
from tailrace.server import Bounds, Settings, create_app

SECRET = "operators-secret"
FORMATS = ("openai", "openai-responses", "anthropic", "gemini", "cohere", "mistral", "bedrock")


@asynccontextmanager
async def sent_by(provider: str, **settings: Any) -> AsyncGenerator[tuple[str, ScriptedUpstream]]:
    """Run a server for a model, and its provider."""
    async with ScriptedUpstream(json_answer({"error": {"message": "enough"}}, 400)) as upstream:
        given = Settings(
            model=f"{provider}:m",
            base_url=upstream.base_url,
            api_key=SecretStr("a-key-of-a-test"),
            store="sqlite://",
            bounds=Bounds(upstream_retries=0),
            **settings,
        )
        async with serving(create_app(given)) as url:
            yield url, upstream


@pytest.fixture(autouse=True)
def region(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_REGION", "eu-north-1")


def with_parts(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"message": {**message("see")["message"], "parts": [{"text": "see"}, *parts]}}


REFERENCES = [
    "s3://bucket/{}.pdf",
    "S3://bucket/{}.pdf",
    "gs://bucket/{}.pdf",
    "file:///etc/{}",
    "abfs://container/{}",
    "ollama-file:{}",
    " file:///{}",
    "/etc/{}",
]


@pytest.mark.parametrize("url", [each.format(SECRET) for each in REFERENCES])
@pytest.mark.parametrize("provider", FORMATS)
async def test_a_file_of_the_operator_is_not_read_for_a_caller(provider: str, url: str) -> None:
    async with sent_by(provider) as (server, upstream):
        async with Rpc(server) as rpc:
            for method in ("SendMessage", "SendStreamingMessage"):
                part = {"url": url, "mediaType": "application/pdf"}
                error = (await rpc.call(method, with_parts(part)))["error"]
                assert error["code"] == -32602
                assert "TAILRACE_FILE_SCHEMES" in error["message"]
    assert upstream.requests == []


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (
            "/v1/chat/completions",
            {
                "model": "m",
                "messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "$"}}]}],
            },
        ),
        (
            "/v1/chat/completions",
            {
                "model": "m",
                "messages": [
                    {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "$"}}]},
                    {"role": "assistant", "content": "What is that?"},
                    {"role": "user", "content": "Tell me."},
                ],
            },
        ),
        (
            "/v1/responses",
            {"model": "m", "input": [{"role": "user", "content": [{"type": "input_file", "file_url": "$"}]}]},
        ),
        (
            "/ai-sdk",
            {
                "id": "chat",
                "messages": [
                    {
                        "id": "1",
                        "role": "user",
                        "parts": [{"type": "file", "url": "$", "mediaType": "image/png"}],
                    }
                ],
            },
        ),
    ],
    ids=["chat", "an earlier message", "responses", "ai-sdk"],
)
async def test_nor_through_another_protocol(path: str, body: dict[str, Any]) -> None:
    async with sent_by("openai") as (server, upstream), aiohttp.ClientSession() as http:
        given = json.loads(json.dumps(body).replace("$", f"file:///{SECRET}"))
        async with http.post(f"{server}{path}", json=given) as response:
            assert response.status == 400
            assert "TAILRACE_FILE_SCHEMES" in await response.text()
    assert upstream.requests == []


@pytest.mark.parametrize(
    "part",
    [
        {"data": {"fileData": {"fileUri": SECRET}}, "metadata": {"gemini": {"part": True}}},
        {"text": "x", "metadata": {"gemini": {"fileData": {"fileUri": SECRET}}}},
        {
            "data": {"type": "container_upload", "file_id": "f"},
            "metadata": {"anthropic": {"type": "container_upload", "file_id": SECRET}},
        },
        {
            "data": {"source": {"s3Location": {"uri": "x"}}},
            "metadata": {"bedrock": {"type": "video", "n": SECRET}},
        },
        {
            "url": "https://files.example/x.pdf",
            "mediaType": "application/pdf",
            "metadata": {
                "bedrock": {"s3Location": {"uri": SECRET}},
                "openai-responses": {"file_id": SECRET},
                "openai": {"file": {"file_id": SECRET}},
                "anthropic": {"source": {"file_id": SECRET}},
                "mistral": {"file_id": SECRET},
            },
        },
        {
            "raw": "JVBERg==",
            "mediaType": "application/pdf",
            "metadata": {"openai": {"file": {"file_id": SECRET}}},
        },
    ],
    ids=["gemini part", "gemini text", "anthropic block", "bedrock block", "file", "file by value"],
)
@pytest.mark.parametrize("provider", FORMATS)
async def test_provider_specific_metadata_of_a_caller_is_not_sent(
    provider: str, part: dict[str, Any]
) -> None:
    async with sent_by(provider) as (server, upstream), Rpc(server) as rpc:
        params = with_parts(part)
        params["message"]["metadata"] = {provider: {"file_id": SECRET, "references": [SECRET]}}
        if provider in ("openai", "openai-responses"):
            del params["message"]["metadata"][provider]["references"]
        await rpc.call("SendMessage", params)
    [request] = upstream.requests
    # The model receives the data of data parts, without their metadata.
    shown = json.dumps(part.get("data", "")).count(SECRET)
    assert request.body.decode().count(SECRET) == shown


@pytest.mark.parametrize("provider", ["gemini", "anthropic", "bedrock"])
async def test_a_data_part_is_never_a_part_of_the_provider(provider: str) -> None:
    """It is sent as text, not as a part that the provider interprets."""
    metadata = {"gemini": {"part": True}, "anthropic": {"type": "document"}, "bedrock": {"type": "document"}}
    part = {"data": {"fileData": {"fileUri": SECRET}}, "metadata": metadata}
    async with sent_by(provider) as (server, upstream), Rpc(server) as rpc:
        await rpc.call("SendMessage", with_parts(part))
    [request] = upstream.requests
    assert f'\\"fileUri\\":\\"{SECRET}\\"' in request.body.decode()


async def test_a_scheme_that_the_operator_allows_is_sent() -> None:
    async with sent_by("bedrock", file_schemes=("s3",)) as (server, upstream), Rpc(server) as rpc:
        s3 = {"url": "s3://shared/a.pdf", "mediaType": "application/pdf"}
        await rpc.call("SendMessage", with_parts(s3))
        assert "error" in await rpc.call("SendMessage", with_parts({**s3, "url": "https://x.example/a.pdf"}))
    [request] = upstream.requests
    assert b'"uri":"s3://shared/a.pdf"' in request.body.replace(b" ", b"")


async def test_usual_files_are_sent() -> None:
    async with ScriptedUpstream(openai_stream(["seen"])) as upstream:
        settings = Settings(
            model="openai:m",
            base_url=upstream.base_url,
            api_key=SecretStr("a-key-of-a-test"),
            store="sqlite://",
        )
        async with serving(create_app(settings)) as server, Rpc(server) as rpc:
            for url in ("https://x.example/a.png", "HTTP://x.example/a.png", "data:image/png;base64,AA=="):
                answer = await rpc.call("SendMessage", with_parts({"url": url, "mediaType": "image/png"}))
                assert answer["result"]["task"]["status"]["state"] == "TASK_STATE_COMPLETED"


@pytest.mark.parametrize("scheme", ["S3", "s3:", "s3://", ""])
def test_a_scheme_has_to_be_one(scheme: str) -> None:
    with pytest.raises(ValidationError, match="is not a URL scheme"):
        Settings(file_schemes=(scheme,))
