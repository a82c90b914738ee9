"""Request bodies: declared as JSON, received in time, decoded to values that stores and protocols can represent.

Any invalid request is refused with a 4xx status in its protocol's format.
"""

import base64
import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast
from urllib.parse import quote

import grpc
import grpc.aio
import pytest
from a2a.types import Message as SdkMessage
from a2a.types import Part as SdkPart
from a2a.types import Role as SdkRole
from a2a.types import SendMessageRequest, a2a_pb2_grpc
from a2a.types import TaskState as TaskStates
from google.protobuf.struct_pb2 import Struct, Value
from hypothesis import given
from hypothesis import strategies as st

from support.live_server import serving
from support.raw_http import connected
from support.threaded_client import JSON, Posted, post
from tailrace.server import Settings, Turn, create_app
from tailrace.server.http.request_body import JsonScan
from tailrace.server.protocols.a2a.grpc_bounds import scan_fields
from tailrace.server.runtime.limits import RequestTooLargeError
from tailrace.server.settings import Bounds
from tailrace.streaming import ArtifactUpdate, StatusUpdate, TaskState, Update
from tailrace.streaming.a2a.errors import ParseError
from tailrace.streaming.a2a.models import Artifact, Message, Part

EXTENSION = "urn:tailrace:ext:stream:v1"

MESSAGE: dict[str, Any] = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "hi"}]}
RPC: dict[str, Any] = {"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": {"message": MESSAGE}}
CHAT: dict[str, Any] = {"model": "", "messages": [{"role": "user", "content": "hi"}]}
UI_PARTS = [{"type": "text", "text": "hi"}]

BODIES: dict[str, Any] = {
    "/": RPC,
    "/message:send": {"message": MESSAGE},
    "/message:stream": {"message": MESSAGE},
    "/acme/message:send": {"message": MESSAGE},
    "/v1/message:send": {"message": {"messageId": "m", "role": "ROLE_USER", "content": [{"text": "hi"}]}},
    "/tasks/none:cancel": {"metadata": {}},
    "/v1/chat/completions": CHAT,
    "/v1/responses": {"input": "hi"},
    "/ai-sdk": {"id": "c", "messages": [{"id": "m", "role": "user", "parts": UI_PARTS}]},
    "/ag-ui": {"threadId": "t", "runId": "r", "messages": [{"id": "m", "role": "user", "content": "hi"}]},
}
"""A request for each endpoint that accepts a body."""

ENDPOINTS = pytest.mark.parametrize("path", BODIES)


class Answering:
    """A handler that answers with one word and counts its turns."""

    def __init__(self) -> None:
        self.turns: list[Turn] = []

    async def __call__(self, turn: Turn) -> AsyncIterator[Update | Message]:
        self.turns.append(turn)
        yield StatusUpdate(TaskState.WORKING)
        yield ArtifactUpdate(Artifact(artifact_id="text", parts=(Part(text="yes"),)))


@pytest.fixture
def handler() -> Answering:
    return Answering()


@pytest.fixture
async def url(handler: Answering) -> AsyncGenerator[str]:
    async with serving(create_app(Settings(store="sqlite://"), handler=handler)) as url:
        yield url


async def send(url: str, path: str, body: object, **headers: str) -> Posted:
    """Send a body as JSON, or unchanged if it is bytes."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return await post(url + path, data, {**JSON, **headers})


def is_error_of(path: str, found: Posted) -> bool:
    """Return whether a response has the error format of the endpoint's protocol."""
    if path == "/ai-sdk":
        return found.headers["content-type"].startswith("text/plain") and bool(found.body)
    return "error" in json.loads(found.body)


# --- the media type ---------------------------------------------------------------------------------------------


@ENDPOINTS
@pytest.mark.parametrize(
    "media_type",
    [
        "text/plain",
        "text/plain; charset=utf-8",
        "application/x-www-form-urlencoded",
        "multipart/form-data",
        "",
    ],
)
async def test_a_body_that_is_not_declared_as_json_is_refused_and_runs_nothing(
    url: str, handler: Answering, path: str, media_type: str
) -> None:
    """Pages of any origin can send these media types without a preflight request."""
    headers = {"content-type": media_type} if media_type else {}
    found = await post(url + path, json.dumps(BODIES[path]).encode(), headers)
    assert found.status == 415
    assert is_error_of(path, found)
    assert not handler.turns


@ENDPOINTS
@pytest.mark.parametrize(
    "media_type", ["application/json", "Application/JSON; charset=utf-8", "application/a2a+json"]
)
async def test_a_body_that_is_declared_as_json_is_read(url: str, path: str, media_type: str) -> None:
    found = await post(url + path, json.dumps(BODIES[path]).encode(), {"content-type": media_type})
    assert found.status == (404 if "cancel" in path else 200), found.body


# --- time -------------------------------------------------------------------------------------------------------


@ENDPOINTS
async def test_a_body_that_does_not_arrive_in_time_is_refused(path: str) -> None:
    settings = Settings(store="sqlite://", bounds=Bounds(body_timeout=0.05))
    async with serving(create_app(settings, handler=Answering())) as url, connected(url) as client:
        longer: dict[str, Any] = {"content-length": 1000}
        client.ask("POST", path, b'{"message":', **longer)
        await client.begin()
        assert client.head.startswith(b"HTTP/1.1 408")
        assert b"connection: close" in client.head.lower()


# --- contents ---------------------------------------------------------------------------------------------------


@ENDPOINTS
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"\xff\xfe{\x00}\x00",
        b'{"a": "\xed\xa0\x80"}',
        b'{"a": NaN}',
        b'{"a": 1e999}',
        b'{"a": -1e999}',
        b'{"a": ' + b"9" * 400 + b"}",
        b'{"a": ' + b"9" * 5000 + b"}",
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b"]" * 10,
    ],
    ids=lambda body: body[:12].decode("latin-1"),
)
async def test_what_is_no_request_is_the_callers_fault(url: str, path: str, body: bytes) -> None:
    found = await send(url, path, body)
    assert found.status < 500
    assert is_error_of(path, found) or (path == "/tasks/none:cancel" and not body)


_LONE = "\ud800 and \udc00"


def _with_surrogates(value: Any) -> Any:
    if isinstance(value, dict):
        members = cast("dict[str, Any]", value)
        return {**{name: _with_surrogates(each) for name, each in members.items()}, _LONE: _LONE}
    if isinstance(value, list):
        return [_with_surrogates(each) for each in cast("list[Any]", value)]
    known = ("2.0", "SendMessage", "ROLE_USER", "user", "text", "")
    return value + _LONE if isinstance(value, str) and value not in known else value


@ENDPOINTS
async def test_half_a_surrogate_pair_anywhere_is_no_fault_of_the_server(url: str, path: str) -> None:
    found = await send(url, path, _with_surrogates(BODIES[path]))
    assert found.status < 500, found.body
    found.body.decode()
    for name in ("model", "user", "id", "threadId", "role", "messages", "input", "method", "params"):
        found = await send(url, path, {**BODIES[path], name: _LONE})
        assert found.status < 500, (name, found.body)


async def test_half_a_surrogate_pair_is_kept_as_a_replacement_and_a_whole_pair_as_its_character(
    url: str,
) -> None:
    text = r'"half \ud83d, half \ude00, whole \ud83d\ude00, escaped \\ud83d, twice \ufffd\ud83d"'
    body = json.dumps(RPC).replace('"hi"', text).encode()
    task = json.loads((await send(url, "/", body)).body)["result"]["task"]
    expected = "half \ufffd, half \ufffd, whole \U0001f600, escaped \\ud83d, twice \ufffd\ufffd"
    assert task["history"][0]["parts"][0]["text"] == expected


@pytest.mark.parametrize("number", ["18446744073709551616", "-99999999999999999999", "1" + "0" * 300])
async def test_a_number_beyond_64_bits_is_kept_as_the_nearest_one_that_every_reader_knows(
    url: str, number: str
) -> None:
    body = json.dumps(RPC).replace('{"text": "hi"}', f'{{"data": {{"n": {number}}}}}').encode()
    task = json.loads((await send(url, "/", body)).body)["result"]["task"]
    assert task["history"][0]["parts"][0]["data"]["n"] == float(number)
    # Every version can represent it.
    old = {"jsonrpc": "2.0", "id": 1, "method": "tasks/get", "params": {"id": task["id"]}}
    answer = json.loads((await send(url, "/", old)).body)
    assert answer["result"]["history"][0]["parts"][0]["data"]["n"] == float(number)


# --- counting without decoding ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "values"),
    [
        (b'{"a": [1, 2, {"b": ",[{"}], "c": "\\",[{\\\\"}', 7),
        (b'["' + b"," * 1000 + b'"]', 2),
        (b'["\\\\", "\\\\\\"", ","]', 4),
        (b'[" [1, 2]", "{\\"a\\": [1]}"]', 3 + 2 + 2),
        (b"[" + b"1" * 200 + b"]", 2),
    ],
)
@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_values_are_counted_however_the_text_is_cut(text: bytes, values: int, size: int) -> None:
    scan = JsonScan(0)
    for at in range(0, len(text), size):
        scan.feed(text[at : at + size])
    assert scan.values == values
    assert scan.decode(text) == json.loads(text, parse_int=float)


LISTS = "[" + ",".join(["[]"] * 50) + "]"
_ASCII = {character: f"\\u{ord(character):04x}" for character in LISTS}
_ESCAPED = "".join(map(_ASCII.__getitem__, LISTS))

HIDDEN: dict[str, tuple[str, int]] = {
    "after a line break": ("\n" + LISTS, 1),
    "after an escaped space": ("\x20\t\r\n" + LISTS, 1),
    "in a text that is encoded twice": (json.dumps("\n" + LISTS), 1),
    "encoded three times": (json.dumps(json.dumps(" \t" + LISTS)), 1),
    "escaped in a text that is encoded twice": (f'"{_ESCAPED}"', 1),
    "the backslashes escaped": (f'"{_ESCAPED}"', 2),
}
"""JSON in texts, and how it is encoded as JSON: 1 for escapes where they are necessary, 2 for escapes of all that is ASCII."""


def _encoded(text: str, form: int) -> bytes:
    if form == 1:
        return json.dumps({"a": text}).encode()
    return b'{"a":"%b"}' % "".join(f"\\u{ord(character):04X}" for character in text).encode()


@pytest.mark.parametrize("name", HIDDEN)
@pytest.mark.parametrize("size", [1, 2, 3, 7, 100_000])
def test_json_in_a_string_counts_however_it_is_escaped(name: str, size: int) -> None:
    text, form = HIDDEN[name]
    body = _encoded(text, form)
    value = json.loads(body)["a"]
    while isinstance(value, str):
        value = json.loads(value)
    assert len(value) == 50  # values that decoding creates
    scan = JsonScan(0)
    for at in range(0, len(body), size):
        scan.feed(body[at : at + size])
    assert scan.values >= 50


@pytest.mark.parametrize("text", ["\n{}", '"name","age"', "under {}", "\t- one\n- two"])
@pytest.mark.parametrize("ascii_only", [True, False])
def test_texts_that_are_no_json_do_not_count(text: str, ascii_only: bool) -> None:
    """Among others a table whose first name is in quotes, and text that an HTML-safe encoder wrote."""
    text = text.replace("{}", "of people, <b>names</b> & cities \u00e9\u4f60, " * 10)
    body = json.dumps([text, text], ensure_ascii=ascii_only).replace("<", r"\u003c").replace("&", r"\u0026")
    scan = JsonScan(0)
    scan.feed(body.encode())
    assert scan.values == 3


@pytest.mark.parametrize("prefix", [r"\n{", r"\u007b"])
async def test_a_request_with_too_much_hidden_json_is_refused(
    url: str, handler: Answering, prefix: str
) -> None:
    """The limit of values applies to JSON in arguments."""
    arguments = prefix + r"\"a\":[" + ",".join(["[]"] * 60_000) + "]}"
    call = '{"id":"c%d","type":"function","function":{"name":"f","arguments":"%s"}}'
    calls = ",".join(call % (at, arguments) for at in range(2))
    body = f'{{"messages":[{{"role":"assistant","tool_calls":[{calls}]}},{{"role":"user","content":"hi"}}]}}'
    found = await send(url, "/v1/chat/completions", body.encode())
    assert found.status == 413, found.body[:200]
    assert b"JSON values" in found.body
    assert not handler.turns


async def test_choices_that_repeat_a_large_request_are_refused(handler: Answering) -> None:
    """Each choice is a task of its own: the request would be processed and stored so many times."""
    parts = [{"type": "text", "text": "x"}] * 20
    body = {**CHAT, "messages": [{"role": "user", "content": parts}]}
    settings = Settings(store="sqlite://", bounds=Bounds(max_request_values=200))
    async with serving(create_app(settings, handler=handler)) as url:
        found = await send(url, "/v1/chat/completions", {**body, "n": 16})
        assert found.status == 413
        assert json.loads(found.body)["error"]["param"] == "n"
        assert not handler.turns
        found = await send(url, "/v1/chat/completions", {**body, "n": 2})
        assert found.status == 200
        assert len(handler.turns) == 2
        prompts: dict[str, Any] = {"prompt": ["x" * 15_000, "y" * 15_000]}
        found = await send(url, "/v1/completions", {**prompts, "n": 8})
        assert (found.status, json.loads(found.body)["error"]["param"]) == (413, "n")
        found = await send(url, "/v1/completions", prompts)  # each prompt is a task once
        assert found.status == 200
        assert len(handler.turns) == 4


def test_a_scan_ends_at_the_limit_and_long_numbers_count_more() -> None:
    JsonScan(100).feed(b"[" + b"1," * 90 + b"1]")
    with pytest.raises(RequestTooLargeError):
        JsonScan(100).feed(b"[" + b"1," * 100 + b"1]")
    with pytest.raises(RequestTooLargeError):
        JsonScan(100).feed(b"[" + b"1" * 2_100 + b"]")


@pytest.mark.parametrize("escape", [rb"\n", rb"\u00e9", rb"\\", b"\xe2\x80\xa8", b"\xc2\x85"])
def test_escapes_in_texts_count(escape: bytes) -> None:
    JsonScan(100).feed(b'["' + escape * 1_500 + b'"]')
    with pytest.raises(RequestTooLargeError):
        JsonScan(100).feed(b'["' + escape * 3_300 + b'"]')


def test_brackets_are_balanced_and_bounded() -> None:
    with pytest.raises(ParseError):
        JsonScan(0).feed(b"[" * 201)
    with pytest.raises(ParseError):
        JsonScan(0).feed(b"[]]")


# --- page tokens and numbers of a query -------------------------------------------------------------------------


def _token(value: object) -> str:
    data = value if isinstance(value, bytes) else json.dumps(value).encode()
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


@pytest.mark.parametrize(
    "token",
    [
        _token(b"[" * 700),
        _token(b"[" * 3_000),
        _token(["2025-01-01T00:00:00+00:00", "t", "f"]),
        _token([1, 2, 3]),
        _token({"a": 1, "b": 2, "c": 3}),
        "W" * 100_000,
        "\ud800",
        "é",
    ],
)
async def test_a_page_token_that_is_none_is_refused(url: str, token: str) -> None:
    body = {"jsonrpc": "2.0", "id": 1, "method": "ListTasks", "params": {"pageToken": token}}
    error = json.loads((await send(url, "/", body)).body)["error"]
    assert error["code"] == -32602


@pytest.mark.parametrize(
    "position",
    [
        ["0001-01-01T00:00:00+14:00", "t"],
        ["9999-12-31T23:59:59-14:00", "t"],
        ["0001-01-01T00:00:00", "t"],
        ["2025-01-01T00:00:00+00:00", 1],
    ],
)
async def test_a_page_token_of_a_position_that_is_none_is_refused(url: str, position: list[object]) -> None:
    """The rest of the token comes from the server, so that only the position is invalid."""
    for _ in range(2):
        await send(url, "/", RPC)
    body: dict[str, Any] = {"jsonrpc": "2.0", "id": 1, "method": "ListTasks", "params": {"pageSize": 1}}
    token: str = json.loads((await send(url, "/", body)).body)["result"]["nextPageToken"]
    *genuine, fingerprint = json.loads(base64.urlsafe_b64decode(token + "=="))
    for known in (genuine, position):
        body["params"]["pageToken"] = _token([*known, fingerprint])
        answer = json.loads((await send(url, "/", body)).body)
        page = await post(
            f"{url}/tasks?pageSize=1&pageToken={body['params']['pageToken']}", b"", {}, method="GET"
        )
        if known is genuine:
            assert (len(answer["result"]["tasks"]), page.status) == (1, 200)
        else:
            assert (answer["error"]["code"], page.status) == (-32602, 400)


async def test_a_page_token_with_the_ends_of_the_calendar_is_read(url: str) -> None:
    """The token's time is compared with the stored ones, in any year."""
    body = {"jsonrpc": "2.0", "id": 1, "method": "ListTasks", "params": {"pageToken": ""}}
    for when in ("0001-01-01T00:00:00+00:00", "9999-12-31T23:59:59+00:00"):
        body["params"] = {"statusTimestampAfter": when}  # pyright: ignore[reportArgumentType]
        found = await send(url, "/", body)
        assert "result" in json.loads(found.body), found.body


@pytest.mark.parametrize("path", ["/tasks", "/v1/tasks"])
@pytest.mark.parametrize("value", ["9" * 5000, "-" + "9" * 5000, "\u00b2", "1" * 11, "--1", "NaN"])
async def test_a_page_size_that_is_none_is_refused(url: str, path: str, value: str) -> None:
    found = await post(f"{url}{path}?pageSize={quote(value)}", b"", {}, method="GET")
    assert found.status == 400


# --- facts set by the server ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fact", [{"tools": 1}, {"output": {"schema": {"type": 1}}}, {"temperature": "hot"}, [], 1]
)
async def test_a_fact_of_a_message_does_not_stand_in_for_what_is_checked(
    url: str, handler: Answering, fact: object, caplog: pytest.LogCaptureFixture
) -> None:
    """Options are in the metadata of the request, and are stored with the message after they are validated."""
    message = {
        **MESSAGE,
        "metadata": {EXTENSION: {"request": fact, "apiRequest": fact, "by": "agent", "mine": 1}},
    }
    found = await send(url, "/", {**RPC, "params": {"message": message}})
    task = json.loads(found.body)["result"]["task"]
    assert task["status"]["state"] == "TASK_STATE_COMPLETED"
    assert task["history"][0]["metadata"] == {EXTENSION: {"mine": 1}}
    assert not handler.turns[0].caller_options.model_fields_set
    assert "Traceback" not in caplog.text


# --- errors do not repeat the request ---------------------------------------------------------------------------


_WRONG: list[tuple[str, Any]] = [
    ("/", {**RPC, "method": "x" * 1_000_000}),
    ("/", {**RPC, "method": "GetTask", "params": {"id": "x" * 1_000_000}}),
    ("/", {**RPC, "params": {"message": {**MESSAGE, "role": "x" * 1_000_000}}}),
    ("/v1/chat/completions", {**CHAT, "model": "x" * 1_000_000}),
    ("/v1/chat/completions", {**CHAT, "messages": [{"role": "x" * 1_000_000}]}),
    ("/v1/chat/completions", {**CHAT, "tool_choice": "x" * 1_000_000}),
    ("/v1/chat/completions", {**CHAT, "messages": [{}] * 20_000}),
    ("/v1/responses", {"input": [{"role": "x" * 1_000_000}]}),
    ("/v1/responses", {"input": "hi", "previous_response_id": "x" * 1_000_000}),
    ("/ai-sdk", {"id": "c", "messages": [{"role": "x" * 1_000_000}]}),
    ("/ag-ui", {"threadId": "x" * 1_000_000, "runId": "r", "messages": []}),
]


@pytest.mark.parametrize(("path", "body"), _WRONG)
async def test_an_error_is_short_however_large_what_is_wrong(url: str, path: str, body: object) -> None:
    found = await send(url, path, body)
    assert found.status < 500
    assert len(found.body) < 8_000


# --- gRPC -------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def agent_channel(url: str) -> AsyncGenerator[grpc.aio.Channel]:
    """A channel to the gRPC address on a server's card."""
    card = json.loads((await post(f"{url}/.well-known/agent-card.json", b"", {}, method="GET")).body)
    [address, *_] = [each["url"] for each in card["supportedInterfaces"] if each["protocolBinding"] == "GRPC"]
    async with grpc.aio.insecure_channel(address) as channel:
        yield channel


async def test_a_call_of_more_values_than_the_limit_is_refused_before_it_is_parsed() -> None:
    settings = Settings(store="sqlite://", grpc_port=0, bounds=Bounds(max_request_values=100))
    async with serving(create_app(settings, handler=Answering())) as url, agent_channel(url) as channel:
        stub: Any = a2a_pb2_grpc.A2AServiceStub(channel)  # pyright: ignore[reportUnknownMemberType]
        few = SdkMessage(message_id="m", role=SdkRole.ROLE_USER, parts=[SdkPart(text="x")] * 20)
        answer = await stub.SendMessage(SendMessageRequest(message=few))
        assert answer.task.status.state == TaskStates.TASK_STATE_COMPLETED
        many = SdkMessage(message_id="m", role=SdkRole.ROLE_USER, parts=[SdkPart(text="x")] * 60)
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await stub.SendMessage(SendMessageRequest(message=many))
    assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "100 JSON values" in str(raised.value.details())


def count_fields(body: bytes, limit: int = 0) -> int:
    """Return the number of values that are counted in a request to send a message."""
    scan = JsonScan(limit)
    scan_fields(body, SendMessageRequest.DESCRIPTOR, scan)
    return scan.values - 1


@given(st.binary(max_size=200))
def test_fields_of_bytes_that_are_no_message_are_counted_without_an_error(body: bytes) -> None:
    assert 0 <= count_fields(body) <= 2 * len(body)


def test_fields_are_counted_within_messages() -> None:
    parts = [SdkPart(text="x"), SdkPart(text="y")]
    request = SendMessageRequest(message=SdkMessage(message_id="m", parts=parts))
    # The message, its id, and two parts with one field each.
    assert count_fields(request.SerializeToString()) == 6


@pytest.mark.parametrize(
    "text",
    ["[%s1]" % ("[]," * 500), ' \n"[%s1]"' % ("{}," * 500), r'"\u007b' + "[]," * 500, "é[" * 600 + r"\u007b"],
)
def test_json_in_a_text_of_a_call_counts(text: str) -> None:
    results = Struct()
    results.update({"tool_results": [{"call_id": "c", "output": text}]})  # pyright: ignore[reportUnknownMemberType]
    parts = [SdkPart(data=Value(struct_value=results)), SdkPart(text="prose: [], [], []")]
    body = SendMessageRequest(message=SdkMessage(message_id="m", parts=parts)).SerializeToString()
    assert 500 < count_fields(body) < 1200
    with pytest.raises(RequestTooLargeError, match="500 JSON values"):
        count_fields(body, 500)
    raw = SdkMessage(message_id="m", parts=[SdkPart(raw=text.encode())])  # a file is never decoded
    assert count_fields(SendMessageRequest(message=raw).SerializeToString()) == 4


async def test_a_call_of_too_much_json_in_a_text_is_refused() -> None:
    settings = Settings(store="sqlite://", grpc_port=0, bounds=Bounds(max_request_values=1000))
    async with serving(create_app(settings, handler=Answering())) as url, agent_channel(url) as channel:
        stub: Any = a2a_pb2_grpc.A2AServiceStub(channel)  # pyright: ignore[reportUnknownMemberType]
        message = SdkMessage(message_id="m", role=SdkRole.ROLE_USER, parts=[SdkPart(text="[" * 2000)])
        with pytest.raises(grpc.aio.AioRpcError, match="1000 JSON values"):
            await stub.SendMessage(SendMessageRequest(message=message))
