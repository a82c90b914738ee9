"""Requests of any size and shape get a response in bounded time and memory, without blocking the event loop."""

import gc
import json
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from support.live_server import serving
from support.loop_lag import LoopLag
from support.processes import served
from support.request_dimensions import DIMENSIONS, Dimension
from support.threaded_client import JSON, post
from tailrace.server import Settings, Turn, create_app
from tailrace.server.protocols.ag_ui.request import read_run_request
from tailrace.server.protocols.ai_sdk.request import read_ui_request
from tailrace.server.protocols.openai.request import read_chat_request, read_responses_request
from tailrace.server.settings import Bounds
from tailrace.streaming import ArtifactUpdate, StatusUpdate, TaskState, Update
from tailrace.streaming.a2a.models import Artifact, Message, Part
from tailrace.streaming.a2a.v0_3 import Version03
from tailrace.streaming.a2a.v1_0 import Version10
from tailrace.streaming.a2a.version_codec import Operation
from tailrace.streaming.schemas.structured_output import OutputReader
from tailrace.wrappers.request_options import OutputFormat

# Refusals are short: an error larger than this repeats the request.
LARGEST_ERROR = 16 * 1024

MAX_OWN_LAG = 0.05
MAX_LAG = 0.5
"""Seconds of CPU time: ten times the documented bound, to allow for slow machines; ``make fuzz`` measures it."""

SMALLER = 8
"""Factor by which requests are smaller here than the accepted size; they still exceed the accepted number of values."""


async def answer(_: Turn) -> AsyncIterator[Update | Message]:
    """Answer with one word."""
    yield StatusUpdate(TaskState.WORKING)
    yield ArtifactUpdate(Artifact(artifact_id="text", parts=(Part(text="yes"),)))


@pytest.fixture
async def url() -> AsyncGenerator[str]:
    async with serving(create_app(Settings(store="sqlite://"), handler=answer)) as url:
        yield url


@pytest.mark.parametrize("dimension", DIMENSIONS, ids=lambda each: each.name)
async def test_no_request_however_large_keeps_the_server_from_others(url: str, dimension: Dimension) -> None:
    body = dimension.make(max(dimension.largest // SMALLER, 1))
    gc.collect()
    async with LoopLag() as lag:
        found = await post(url + dimension.path, body, {**JSON, **dimension.headers})
    assert found.status < 500, found.body[:300]
    if found.status >= 400:
        assert len(found.body) < LARGEST_ERROR
    assert lag.worst_cpu < MAX_LAG


async def test_a_small_schema_that_refers_to_itself_often_blocks_no_request(url: str) -> None:
    """Each of its references counts with all of its references: 1 KB took 130 ms."""
    schema = {"type": "object", "anyOf": [{"$ref": "#"}] * 10}
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    body = json.dumps({"messages": [{"role": "user", "content": "x"}], "response_format": form}).encode()
    gc.collect()
    async with LoopLag() as lag:
        found = await post(url + "/v1/chat/completions", body, JSON)
    assert found.status == 400
    assert b"may apply to one value" in found.body
    assert lag.worst_own < MAX_OWN_LAG


# --- refused by count, before decoding --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/", b"[" + b"[]," * 200_000 + b"[]]"),
        ("/message:send", b'{"message":{"parts":[' + b'{"text":"x"},' * 60_000 + b"{}]}}"),
        ("/v1/message:send", b'{"message":{"content":[' + b'{"text":"x"},' * 60_000 + b"{}]}}"),
        ("/v1/chat/completions", b'{"messages":[' + b'{"role":"user","content":"x"},' * 60_000 + b"{}]}"),
        ("/v1/responses", b'{"input":[' + b'{"role":"user","content":"x"},' * 60_000 + b"{}]}"),
        ("/ai-sdk", b'{"id":"c","messages":[' + b'{"role":"user","parts":[]},' * 60_000 + b"{}]}"),
        ("/ag-ui", b'{"threadId":"t","messages":[' + b'{"role":"user","content":""},' * 60_000 + b"{}]}"),
    ],
)
async def test_a_request_of_more_values_than_the_limit_is_refused_by_their_number(
    url: str, path: str, body: bytes
) -> None:
    found = await post(url + path, body)
    assert found.status == 413
    assert b"100000 JSON values" in found.body


async def test_the_limit_is_a_setting_and_values_in_json_strings_count() -> None:
    settings = Settings(store="sqlite://", bounds=Bounds(max_request_values=50))
    async with serving(create_app(settings, handler=answer)) as url:
        call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "[1,2]"}}
        messages: list[Any] = [
            {"role": "user", "content": "one, two, three, " * 50},
            {"role": "assistant", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c", "content": "x"},
        ]
        body = {"model": "", "messages": messages}
        assert (await post(f"{url}/v1/chat/completions", json.dumps(body).encode())).status == 200
        call["function"] = {"name": "f", "arguments": json.dumps(list(range(60)))}
        found = await post(f"{url}/v1/chat/completions", json.dumps(body).encode())
        assert found.status == 413
        assert b"50 JSON values" in found.body


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses", "/ag-ui"])
async def test_a_conversation_has_a_limited_number_of_messages(url: str, path: str) -> None:
    pair = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]
    messages = pair * 5_001 + pair[:1]
    body = {"messages": messages, "input": messages, "threadId": "t", "runId": "r"}
    found = await post(url + path, json.dumps(body).encode())
    assert found.status == 413
    assert b"10000" in found.body


async def test_a_message_has_a_limited_number_of_parts(url: str) -> None:
    message = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "x"}] * 2_001}
    found = await post(f"{url}/message:send", json.dumps({"message": message}).encode())
    assert found.status == 400
    assert b"message.parts has 2001 parts; the maximum is 2000" in found.body


async def test_a_long_conversation_with_tools_and_a_large_file_are_accepted(url: str) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "look", "arguments": '{"at": [1, 2]}'}}
    turn = [
        {"role": "user", "content": "a question, with commas"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": '{"found": [1, 2, 3]}'},
        {"role": "assistant", "content": "an answer"},
    ]
    body = json.dumps({"model": "", "messages": turn * 500 + turn[:1]}).encode()
    assert (await post(f"{url}/v1/chat/completions", body)).status == 200
    message = {"messageId": "m", "role": "ROLE_USER", "parts": [{"raw": "A" * 8_000_000}]}
    body = json.dumps({"message": message, "configuration": {"historyLength": 0}}).encode()
    assert (await post(f"{url}/message:send", body)).status == 200


# --- cost is linear in the size ---------------------------------------------------------------------------------


def _calls(function: Callable[[], object]) -> int:
    """Return the number of function calls, which is the same in every run."""
    count = 0

    def profile(*_: object) -> None:
        nonlocal count
        count += 1

    sys.setprofile(profile)
    try:
        function()
    except Exception:  # refused requests have a cost, too
        pass
    finally:
        sys.setprofile(None)
    return count


_READERS: dict[str, Callable[[dict[str, Any]], object]] = {
    "/v1/chat/completions": read_chat_request,
    "/v1/responses": read_responses_request,
    "/ai-sdk": read_ui_request,
    "/ag-ui": read_run_request,
    "/message:send": lambda body: Version10().read_request(Operation.SEND_MESSAGE, body),
}


def _read_jsonrpc(body: dict[str, Any]) -> object:
    dialect = Version03() if "/" in body["method"] else Version10()
    return dialect.read_request(dialect.methods[body["method"]], body["params"])


_COUNTED = [
    each
    for each in DIMENSIONS
    if (each.path in _READERS or each.path == "/")
    and each.name not in ("arrays", "levels", "digits", "data levels")
]


@pytest.mark.no_cover
@pytest.mark.parametrize("dimension", _COUNTED, ids=lambda each: each.name)
def test_reading_a_request_takes_work_in_proportion_to_its_size(dimension: Dimension) -> None:
    read = _READERS.get(dimension.path, _read_jsonrpc)
    few, many = (json.loads(dimension.make(count)) for count in (100, 800))
    read_once = _calls(lambda: read(json.loads(dimension.make(1))))  # caches are filled by now
    assert _calls(lambda: read(many)) <= 8 * max(_calls(lambda: read(few)), read_once) * 1.2


# --- memory -----------------------------------------------------------------------------------------------------

_MEGABYTES_LEFT = 50


async def test_the_memory_of_refused_requests_is_given_back(tmp_path: Path) -> None:
    model = ("--model", "openai:none", "--base-url", "http://127.0.0.1:9/v1")
    with served(tmp_path / "log", *model, "--store", f"sqlite:///{tmp_path}/t.db") as server:
        await server.ready()
        process = psutil.Process(server.process.pid)
        await post(f"{server.url}/v1/chat/completions", b'{"messages": 1}')
        await post(server.url, b"[]")
        before = process.memory_info().rss
        for name in (
            "arrays",
            "parts",
            "null parts",
            "chat messages",
            "schema back-references",
            "long numbers",
        ):
            [dimension] = [each for each in DIMENSIONS if each.name == name]
            body = dimension.make(dimension.largest)
            found = await post(server.url + dimension.path, body)
            assert 400 <= found.status < 500, name
            del body
        assert process.memory_info().rss - before < _MEGABYTES_LEFT * 2**20


# --- schemas ----------------------------------------------------------------------------------------------------


def _reader(schema: dict[str, Any]) -> OutputReader:
    return OutputReader.of_format(OutputFormat(schema_=schema))


def _named(count: int, of: object) -> dict[str, object]:
    return {f"p{at}": of for at in range(count)}


def _crossed(count: int) -> dict[str, Any]:
    """Return a schema in which many schemas apply to each of many members."""
    others = [{"additionalProperties": {"minLength": at}} for at in range(count)]
    return {"properties": _named(count * 3, {}), "allOf": others}


_LARGE_SCHEMAS: list[tuple[dict[str, Any], str]] = [
    ({"properties": _named(9_900, {"pattern": r"^(a+)+\1$"})}, "JSON values"),
    ({"properties": {"a": {"pattern": r"^(a+)+\1$"}}}, "look-around, back-references"),
    ({"properties": {"a": {"pattern": "^(?=a)a*$"}}}, "look-around, back-references"),
    ({"properties": {f"p{at}": {"pattern": f"^{at}$"} for at in range(51)}}, "51 different patterns"),
    ({"patternProperties": {f"^{at}$": {} for at in range(51)}}, "51 different patterns"),
    ({"pattern": "(a|b)?" * 1_000}, "a pattern of 6000 characters"),
    ({"pattern": r"\p{L}{500}x"}, "very large repetitions"),
    ({"$defs": _named(10_000, {})}, "JSON values"),
    (_crossed(300), "apply to one value"),
]


@pytest.mark.parametrize(("schema", "words"), _LARGE_SCHEMAS)
def test_a_schema_that_takes_long_to_compile_or_to_match_is_refused(
    schema: dict[str, Any], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        _reader(schema).read("{}")


def test_a_schema_and_an_answer_are_checked_only_up_to_a_product_of_their_sizes() -> None:
    """A thousand alternatives are not tried with each of a thousand items."""
    reader = _reader({"allOf": [{"contains": {"const": -at}} for at in range(1, 1_000)]})
    with pytest.raises(ValueError, match="too large to be checked"):
        reader.read(json.dumps(list(range(-1_000, 0))))
    with pytest.raises(ValueError, match="the requested schema"):
        reader.read(json.dumps(list(range(-100, 0))))


def test_a_usual_schema_and_a_long_answer_are_checked() -> None:
    row = {
        "type": "object",
        "properties": _named(10, {"type": "string", "pattern": "^.{1,200}$"}),
        "required": ["p1"],
    }
    reader = _reader({"type": "object", "properties": {"rows": {"type": "array", "items": row}}})
    value = {"rows": [_named(10, "word")] * 1_000}
    assert reader.read(json.dumps(value)) == value
    value["rows"][-1] = {}
    with pytest.raises(ValueError, match="the requested schema"):
        reader.read(json.dumps(value))


def test_an_answer_of_nothing_but_lines_is_read_in_linear_time() -> None:
    text = "```json\n" + "\n" * 300_000 + "``"
    with pytest.raises(ValueError, match="not valid JSON"):
        _reader({}).read(text)
    assert _reader({}).read("```json\n" + "\n" * 300_000 + "{}\n```") == {}


# --- the size of a request --------------------------------------------------------------------------------------


async def test_a_request_of_more_bytes_than_the_default_is_refused_with_limit_and_setting(url: str) -> None:
    message = {"messageId": "m", "role": "ROLE_USER", "parts": [{"raw": "A" * (8 * 2**20)}]}
    found = await post(f"{url}/message:send", json.dumps({"message": message}).encode())
    assert found.status == 413
    assert b"more than 8388608 bytes (TAILRACE_MAX_REQUEST_BYTES)" in found.body
