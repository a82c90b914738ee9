"""A response that cannot become JSON of a schema ends the turn with the first such delta."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from pydantic import SecretStr

from support.crashes import across_a_crash
from support.engines import begin, shown
from support.live_server import serving
from support.rpc import Rpc, message, streamed_text
from support.upstream import (
    Cut,
    Hang,
    Received,
    ScriptedUpstream,
    Step,
    json_answer,
    openai_chunk,
    openai_stream,
    sse,
)
from tailrace.server import Bounds, Settings, create_app
from tailrace.server.runtime.json_schema_filter import JsonSchemaFilter
from tailrace.server.runtime.stream_filter import BlockedError, StreamFilter
from tailrace.server.runtime.word_filters import WordFilter
from tailrace.streaming.a2a.models import Artifact, Part
from tailrace.streaming.a2a.stream_extension import EXTENSION_URI
from tailrace.streaming.task.updates import ArtifactUpdate, TextDelta
from tailrace.wrappers import ConfigurationError
from tailrace.wrappers.request_options import OutputFormat, RequestOptions

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 5},
        "unit": {"enum": ["celsius", "kelvin"]},
        "days": {"type": "array", "items": {"type": "number"}},
    },
    "required": ["city"],
    "additionalProperties": False,
}
GOOD = '{"city": "Paris", "days": [1, 2.5], "unit": "kelvin"}'
MISMATCH = "the response does not match the JSON schema of the server"


def bytes_of(folder: Path) -> bytes:
    """The content of all files: the database and its journal."""
    return b"".join(path.read_bytes() for path in folder.iterdir())


async def respond(
    script: Sequence[Step], *filters: StreamFilter, hangs: bool = False, store: str = "sqlite://"
) -> tuple[str, str, str, str]:
    """The state, the message, the text and the metadata of the end of a response."""
    async with ScriptedUpstream(lambda _: script, lists_models=True) as upstream:
        settings = Settings(
            store=store,
            model="openai:m",
            base_url=upstream.base_url,
            api_key=SecretStr("none"),
            bounds=Bounds(continue_attempts=0),
        )
        async with (
            serving(create_app(settings, filters=filters or [JsonSchemaFilter(SCHEMA)])) as url,
            Rpc(url) as rpc,
        ):
            events = await rpc.stream("SendStreamingMessage", message("hi"))
        if hangs:
            await (await upstream.received()).client_left.wait()
    update = events[-1][1]["statusUpdate"]
    parts = update["status"].get("message", {}).get("parts", [])
    ending = update["status"]["state"].removeprefix("TASK_STATE_")
    return ending, parts[0].get("text", "") if parts else "", streamed_text(events), json.dumps(update)


async def test_a_matching_response_is_unchanged() -> None:
    assert (await respond(openai_stream(list(GOOD))))[:3] == ("COMPLETED", "", GOOD)


@pytest.mark.parametrize(
    ("valid", "rest", "reason"),
    [
        ("", "Sure! {", "the text is not valid JSON"),
        ('{"city": ', "7, ", "a value has a type that the schema does not allow at /city"),
        ('{"city": "Rome", "days": [1, ', '"2"', "a value has a type that the schema does not allow at /days/1"),
        ('{"city": "Rome", "', "hidden", "a member is not in the schema"),
        ('{"city": "Rome", "unit": "k', "g", "a value is not one of the schema at /unit"),
        ('{"unit": "kelvin"', "}", "a required member is missing"),
    ],
)  # fmt: skip
async def test_the_first_wrong_delta_ends_the_turn(
    valid: str, rest: str, reason: str, tmp_path: Path
) -> None:
    script = [*openai_stream([*valid, rest], finish=None), Hang()]
    ending, problem, text, update = await respond(
        script, hangs=True, store=f"sqlite:///{tmp_path / 'tasks.db'}"
    )
    assert (ending, problem) == ("FAILED", f"{MISMATCH}: {reason}")
    assert valid.startswith(text)  # deltas of one read are one
    assert "content_filter" in update
    assert b"hidden" not in bytes_of(tmp_path)


async def test_the_complete_schema_is_checked_at_the_end() -> None:
    assert (await respond(openai_stream(['{"city": "London"}'])))[:2] == ("FAILED", MISMATCH)
    incomplete = openai_stream(['{"city": "Rome"'], finish="length")
    assert (await respond(incomplete))[1] == f"{MISMATCH}: the JSON value is incomplete"


async def test_the_reason_of_a_broken_response_is_reported() -> None:
    script = [*openai_stream(['{"city": "Ro'], finish=None), Cut()]
    ending, problem, text, update = await respond(script)
    assert (ending, text) == ("FAILED", '{"city": "Ro')
    assert "connection broke" in problem or "ended before" in problem
    assert "content_filter" not in update


async def test_reasoning_and_tool_calls_are_not_checked() -> None:
    function = {"name": "look", "arguments": "{}"}
    call = {"index": 0, "id": "c1", "type": "function", "function": function}
    chunks = [{"reasoning_content": "I think"}, {"tool_calls": [call]}]
    script = [sse(*map(openai_chunk, chunks), openai_chunk({}, finish="tool_calls"), "[DONE]")]
    ending, _, text, _ = await respond(script)
    assert (ending, text) == ("INPUT_REQUIRED", "I think")


async def test_an_error_of_the_provider_is_not_checked() -> None:
    ending, problem, _, _ = await respond(json_answer({"error": {"message": "no such model"}}, 404))
    assert (ending, problem) == ("FAILED", "openai: no such model (HTTP 404)")


async def test_a_filter_before_changes_the_text_that_is_checked() -> None:
    filters = [WordFilter(["Rome"], '"'), JsonSchemaFilter(SCHEMA)]
    assert (await respond(openai_stream(['{"city": "Ro', 'me"}']), *filters))[0] == "FAILED"
    assert (await respond(openai_stream(['{"city": "Pa', 'ris"}']), *filters))[0] == "COMPLETED"


@pytest.mark.parametrize(
    ("rest", "problem"),
    [('me"}', ""), ('me", "', "hidden"), ('me", "unit": "', "gram"), ('manesque"}', "")],
)
async def test_a_response_that_a_crash_divides_is_checked(tmp_path: Path, rest: str, problem: str) -> None:
    artifact = Artifact(
        artifact_id="text", parts=(Part(text='{"city": "Ro'),), metadata={EXTENSION_URI: {"channel": "text"}}
    )
    before = [*begin()[:1], ArtifactUpdate(artifact, last=False)]
    after = [TextDelta("text", rest), TextDelta("text", problem, last=True)]
    events = await across_a_crash(tmp_path, [JsonSchemaFilter(SCHEMA)], before, 3, after)
    assert shown(events) == f'{{"city": "Ro{rest}'
    ending = events[-1].body.decode()
    assert ("TASK_STATE_COMPLETED" in ending) == (rest == 'me"}'), ending
    assert ("content_filter" in ending) == (rest != 'me"}')


async def test_a_stream_of_the_filter() -> None:
    given = JsonSchemaFilter(SCHEMA)
    stream = given.open()
    assert [await stream.feed(each) for each in GOOD] == list(GOOD)
    assert await stream.close() == ""
    assert await given.open().close() == ""
    stream = given.open()
    with pytest.raises(BlockedError, match=MISMATCH):
        await stream.feed("[")


@pytest.mark.parametrize("schema", [{"type": 1}, {"$ref": "https://example.com/schema"}])
def test_an_invalid_schema_is_refused(schema: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="invalid schema of a filter"):
        JsonSchemaFilter(schema)


# --- the schema of the request --------------------------------------------------------------------------------------

REQUEST_MISMATCH = "the response does not match the JSON schema of the request"
OTHER_SCHEMA = {"type": "object", "properties": {"town": {"type": "string"}}, "additionalProperties": False}


def chat(form: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    return "/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}], "response_format": form}


def responses(form: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    return "/v1/responses", {"input": "x", "text": {"format": form}}


def a2a(output: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    params = {**message("x"), "metadata": {EXTENSION_URI: {"output": output} if output else {}}}
    return "/", {"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": params}


def requests_of(schema: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    named = {"name": "weather", "schema": schema}
    return [
        chat({"type": "json_schema", "json_schema": named}),
        responses({"type": "json_schema", **named}),
        a2a({"schema": schema}),
    ]


@pytest.mark.parametrize("wire", [0, 1, 2])
async def test_the_schema_of_each_request_is_enforced(wire: int) -> None:
    async with ScriptedUpstream(lambda _: openai_stream(list(GOOD)), lists_models=True) as upstream:
        settings = Settings(
            store="sqlite://",
            model="openai:m",
            base_url=upstream.base_url,
            api_key=SecretStr("none"),
            filters=("request-schema",),
        )
        async with serving(create_app(settings)) as url, aiohttp.ClientSession() as http:

            async def post(path: str, body: dict[str, Any]) -> str:
                async with http.post(url + path, json=body, headers={"A2A-Version": "1.0"}) as response:
                    return await response.text()

            refused = "content_filter"
            assert refused not in await post(*requests_of(SCHEMA)[wire])
            assert refused in await post(*requests_of(OTHER_SCHEMA)[wire])
            # A request for text has no schema.
            assert refused not in await post(
                *[chat({"type": "text"}), responses({"type": "text"}), a2a({})][wire]
            )
            async with http.post(
                url, json=a2a({"schema": OTHER_SCHEMA})[1], headers={"A2A-Version": "1.0"}
            ) as response:
                assert f"{REQUEST_MISMATCH}: a member is not in the schema" in await response.text()


async def test_a_request_for_json_without_a_schema_requires_an_object() -> None:
    given = await JsonSchemaFilter().for_request(RequestOptions(output=OutputFormat()))
    assert given is not None
    with pytest.raises(BlockedError, match=f"{REQUEST_MISMATCH}: a value has a type"):
        await given.open().feed("[")
    assert await JsonSchemaFilter().for_request(RequestOptions()) is None
    fixed = JsonSchemaFilter(SCHEMA)
    assert await fixed.for_request(RequestOptions(output=OutputFormat())) is fixed


TEMPERATURE: dict[str, Any] = {
    "type": "object",
    "properties": {"unit": {"enum": ["kelvin"]}, "value": {"type": "string", "pattern": "^[0-9]+$"}},
}
KELVIN = '{"unit": "kelvin"}'
WRONG = '{"value": "x1"}'  # the pattern is only checked at the end


def calling(text: str) -> list[bytes]:
    """A response with text and a call of the tool `buy`."""
    call = {
        "index": 0,
        "id": "c1",
        "type": "function",
        "function": {"name": "buy", "arguments": '{"amount": 1}'},
    }
    chunks = [openai_chunk({"content": text}), openai_chunk({"tool_calls": [call]})]
    return [sse(*chunks, openai_chunk({}, finish="tool_calls"), "[DONE]")]


@pytest.mark.parametrize("filters", [(), ("request-schema",)])
@pytest.mark.parametrize(
    ("rounds", "is_valid"),
    [
        ([calling("Let me look."), openai_stream(list(KELVIN))], True),
        ([calling('"Kelvin" it is.'), openai_stream(list(KELVIN))], True),
        ([calling("Let me look."), openai_stream(["I found nothing."])], False),
        ([calling("Let me look."), openai_stream([WRONG])], False),
        ([openai_stream(["```json\n", KELVIN, "\n```"])], True),
        ([openai_stream(["```json\n", WRONG, "\n```"])], False),
        ([openai_stream([WRONG])], False),
        ([openai_stream([KELVIN, " and more"])], False),
    ],
)  # fmt: skip
async def test_the_filter_has_the_verdict_of_the_server(
    rounds: list[list[bytes]], is_valid: bool, filters: tuple[str, ...]
) -> None:
    def script(request: Received) -> Sequence[Step]:
        return rounds[sum(each["role"] == "tool" for each in request.json["messages"])]

    async with ScriptedUpstream(script, lists_models=True) as upstream:
        settings = Settings(
            store="sqlite://",
            model="openai:m",
            base_url=upstream.base_url,
            api_key=SecretStr("none"),
            filters=filters,
            tools=("support.approval_tools:buy",),
        )
        path, body = responses({"type": "json_schema", "name": "t", "schema": TEMPERATURE})
        async with serving(create_app(settings)) as url, aiohttp.ClientSession() as http:
            async with http.post(url + path, json=body) as response:
                result = await response.json()
        if is_valid:
            assert result["status"] == "completed", result
            assert KELVIN in result["output"][-1]["content"][0]["text"]
        elif filters:
            assert result["incomplete_details"] == {"reason": "content_filter"}, result
        else:
            assert "requested schema" in str(result) or "not valid JSON" in str(result)


def names(start: int) -> dict[str, Any]:
    return {
        "properties": {f"n{each}": True for each in range(start, start + 100)},
        "additionalProperties": False,
    }


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({"anyOf": [{"enum": list(range(at, at + 2000))} for at in (0, 2000, 4000)]}, "7000"),
        ({"allOf": [{"enum": list(range(at, at + 2000))} for at in (0, 1000)]}, "1"),
        ({"anyOf": [names(100 * at) for at in range(60)]}, '{"other": 1}'),
    ],
)  # fmt: skip
async def test_a_large_schema_of_a_request_is_only_checked_at_the_end(
    schema: dict[str, Any], text: str
) -> None:
    given = await JsonSchemaFilter().for_request(RequestOptions(output=OutputFormat(schema_=schema)))
    assert given is not None
    stream = given.open()
    assert await stream.feed(text) == text
    with pytest.raises(BlockedError, match=REQUEST_MISMATCH):
        await stream.close()
