"""Limits: refusals and their exact form on every binding, and recovery afterwards."""

import base64
import gc
import io
import json
import socket
import struct
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, cast

import aiohttp
import anyio
import anyio.lowlevel
import grpc
import grpc.aio
import pytest
from a2a.types import a2a_pb2_grpc
from anyio.abc import SocketAttribute
from google.rpc import error_details_pb2, status_pb2
from hypothesis import given
from hypothesis import strategies as st

from support.agents import Scripted
from support.http_json import HttpJson
from support.live_server import serving
from support.rpc import Rpc, message, text_of
from support.sdk import send
from support.upstream import ScriptedUpstream, Wait, openai_stream
from tailrace.server import Engine, FunctionHandler, Settings, Store, create_app
from tailrace.server.protocols.a2a.grpc_version import to_status
from tailrace.server.runtime.agent_handler import AgentHandler
from tailrace.server.runtime.caller import Caller
from tailrace.server.runtime.limits import (
    RETRY_AFTER,
    Limits,
    OverloadedError,
    PartTooLargeError,
    Permit,
    Quota,
    RateLimitError,
    size_of,
)
from tailrace.server.runtime.operations import Operations
from tailrace.server.runtime.upstream_gate import GatedModel, UpstreamGate
from tailrace.streaming import Agent
from tailrace.streaming.a2a.models import Message, Part, Role
from tailrace.streaming.a2a.requests import SendMessageRequest
from tailrace.streaming.a2a.version_codec import Operation
from tailrace.wrappers import History, ProtocolError
from tailrace.wrappers.openai.model import ChatCompletionsModel
from tailrace.wrappers.request_options import NO_OPTIONS, RequestOptions

ALICE, BOB = {"X-API-Key": "k1"}, {"X-API-Key": "k2"}
CALLERS = {"store": "sqlite://", "caller_keys": "alice:k1,bob:k2"}


def quota(total: int = 0, each: int = 0) -> Quota:
    return Quota(
        "streams open",
        "close one",
        setting="max_streams",
        caller_setting="max_caller_streams",
        max_total=total,
        max_per_caller=each,
    )


# --- permits ----------------------------------------------------------------------------------------------------


def test_a_caller_has_so_many_and_no_more_until_it_gives_one_back() -> None:
    streams = quota(each=2)
    first, _second = streams.acquire("alice"), streams.acquire("alice")
    with pytest.raises(RateLimitError, match=r"you have 2 streams open.*close one"):
        streams.acquire("alice")
    bobs = streams.acquire("bob")
    first.release()
    first.release()
    third = streams.acquire("alice")
    with pytest.raises(RateLimitError):
        streams.acquire("alice")
    assert (streams.used, streams.callers) == (3, 2)
    for place in (bobs, third):
        place.release()
    assert (streams.used, streams.callers) == (1, 1)


def test_all_callers_together_have_so_many() -> None:
    streams = quota(total=2, each=2)
    held = [streams.acquire("alice"), streams.acquire("")]
    with pytest.raises(OverloadedError, match="there are 2 streams open"):
        streams.acquire("bob")
    held.clear()  # a released permit is available again
    streams.acquire("bob").release()
    assert (streams.used, streams.callers) == (0, 0)


def test_a_caller_gets_no_more_by_naming_tenants_and_those_without_a_name_are_not_one_caller() -> None:
    streams = quota(each=1)
    held = [streams.acquire(Caller("alice", "acme").owner)]
    for owner in ("alice", Caller("alice", "other").owner):
        with pytest.raises(RateLimitError):
            streams.acquire(owner)
    held += [streams.acquire(owner) for owner in ("", "", Caller("", "acme").owner, '["no json', '["a')]
    assert (streams.used, streams.callers) == (6, 3)


def test_a_limit_of_0_is_none() -> None:
    streams = quota()
    held = [streams.acquire("alice") for _ in range(5000)]
    assert streams.used == 5000
    held.clear()
    assert (streams.used, streams.callers) == (0, 0)


@given(
    st.integers(0, 5),
    st.integers(0, 3),
    st.lists(st.tuples(st.sampled_from(["", "a", "b", '["t", "a"]']), st.booleans())),
)
def test_no_more_are_ever_in_use_than_are_allowed_and_nothing_is_left(
    total: int, each: int, steps: list[tuple[str, bool]]
) -> None:
    streams, held = quota(total, each), list[tuple[str, Permit]]()
    for owner, takes in steps:
        if takes:
            try:
                held.append((owner, streams.acquire(owner)))
            except (RateLimitError, OverloadedError):
                assert total or each
        elif held:
            held.pop(0)[1].release()
        known = [owner for owner, _ in held if owner]
        assert streams.used == len(held)
        assert not total or streams.used <= total
        assert not each or all(sum("a" in owner for owner in known) <= each for _ in known)
        assert streams.callers == len({owner[-3:-2] or owner for owner in known})
    held.clear()
    assert (streams.used, streams.callers) == (0, 0)


# --- provider concurrency ---------------------------------------------------------------------------------------


async def test_further_calls_wait_in_order_and_beyond_that_are_refused() -> None:
    gate, begun, ends = UpstreamGate(1, 2), list[int](), [anyio.Event() for _ in range(3)]

    async def call(number: int) -> None:
        async with gate.call(""):
            begun.append(number)
            await ends[number].wait()

    async with anyio.create_task_group() as tasks:
        for number in range(3):
            tasks.start_soon(call, number)
            await anyio.wait_all_tasks_blocked()
        assert (begun, gate.waiting) == ([0], 2)
        with pytest.raises(OverloadedError, match="1 calls to the model are in progress and 2 wait"):
            async with gate.call(""):
                pass
        with pytest.raises(OverloadedError):
            gate.check("")
        for number in range(3):
            ends[number].set()
            await anyio.wait_all_tasks_blocked()
            assert begun == [0, 1, 2][: number + 2]
    assert (gate.waiting, gate.running_calls) == (0, 0)
    async with gate.call(""):
        pass


async def test_a_call_that_is_cancelled_waits_no_longer_and_leaves_nothing() -> None:
    gate = UpstreamGate(1, 1)

    async def call() -> None:
        async with gate.call(""):
            pass

    async with gate.call(""), anyio.create_task_group() as tasks:
        tasks.start_soon(call)
        await anyio.wait_all_tasks_blocked()
        assert gate.waiting == 1
        tasks.cancel_scope.cancel()
    assert gate.waiting == 0
    await call()


async def test_where_none_may_wait_a_call_begins_or_is_refused() -> None:
    gate = UpstreamGate(1, 0)
    async with gate.call(""):
        with pytest.raises(OverloadedError):
            async with gate.call(""):
                pass
    async with gate.call(""):
        pass


async def test_a_gate_without_a_limit_is_open() -> None:
    gate = UpstreamGate(0, 0)
    async with gate.call(""), gate.call(""), gate.call(""):
        gate.check("")


# --- sizes ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("part", "size"),
    [
        (Part(text="river"), 5),
        (Part(text="Fluß"), 5),
        (Part(text=""), 0),
        (Part(raw=b"\x00" * 7), 7),
        (Part(url="https://a.b/c"), 13),
        (Part(data=[1, 2]), 5),
        (Part(data=None), 4),
    ],
)
def test_a_part_has_the_size_of_what_it_holds(part: Part, size: int) -> None:
    assert size_of(part) == size


def test_a_part_that_is_too_large_is_named() -> None:
    limits = Limits(max_part_bytes=5)
    parts = (Part(text="river"), Part(raw=b"123456"))
    with pytest.raises(PartTooLargeError, match=r"message.parts\[1\] is larger than the 5 bytes") as raised:
        limits.check_message(Message(message_id="m", role=Role.USER, parts=parts))
    assert (raised.value.http_status, raised.value.code, raised.value.status) == (
        413,
        -32602,
        "INVALID_ARGUMENT",
    )
    assert raised.value.violations[0].field == "message.parts[1]"
    limits.check_message(Message(message_id="m", role=Role.USER, parts=parts[:1]))
    Limits().check_message(Message(message_id="m", role=Role.USER, parts=parts))


# --- format of refusals -----------------------------------------------------------------------------------------

REFUSED = "Rate limit exceeded: you have 1 streams open, the maximum for one caller; close a stream, or try again later"
FULL = "The server is busy: there are 1 streams open, the maximum of this server; try again later"
DETAILS = [
    {
        "@type": "type.googleapis.com/google.rpc.ErrorInfo",
        "reason": "RATE_LIMIT_EXCEEDED",
        "domain": "a2a-protocol.org",
        "metadata": {"limit": "max_caller_streams", "allowed": "1", "retryAfter": "2"},
    },
    {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "2s"},
]
FULL_DETAILS = [
    {
        **DETAILS[0],
        "reason": "RESOURCE_UNAVAILABLE",
        "metadata": {"limit": "max_streams", "allowed": "1", "retryAfter": "2"},
    },
    DETAILS[1],
]


@asynccontextmanager
async def agent(
    *, grpc_port: int | None = None, max_request_bytes: int = 16 * 1024 * 1024, **bounds: int
) -> AsyncGenerator[tuple[Rpc, Scripted]]:
    scripted = Scripted()
    given = {"grpc_port": grpc_port, "max_request_bytes": max_request_bytes}
    app = create_app(Settings.model_validate({**CALLERS, **given, "bounds": bounds}), handler=scripted)
    async with serving(app) as url, Rpc(url) as rpc:
        try:
            yield rpc, scripted
        finally:
            scripted.go_on.set()


@asynccontextmanager
async def holding(rpc: Rpc, headers: dict[str, str]) -> AsyncGenerator[aiohttp.ClientResponse]:
    """Hold a stream open until the block ends; its client then disconnects."""
    body = {"jsonrpc": "2.0", "id": 1, "method": "SendStreamingMessage", "params": message("hold")}
    async with rpc.http.post(f"{rpc.url}/", json=body, headers=headers) as response:
        assert response.content_type == "text/event-stream", await response.text()
        await response.content.readany()
        yield response


async def accepted(rpc: Rpc, headers: dict[str, str]) -> None:
    """Retry until a stream is admitted: the server detects a disconnect with a delay."""
    while True:
        body = {"jsonrpc": "2.0", "id": 1, "method": "SendStreamingMessage", "params": message("river")}
        async with rpc.http.post(f"{rpc.url}/", json=body, headers=headers) as response:
            answer = await response.text()
            if response.content_type == "text/event-stream":
                assert "TASK_STATE_COMPLETED" in answer or '"completed"' in answer
                return


@pytest.mark.parametrize("method", ["SendStreamingMessage", "message/stream", "tasks/sendSubscribe"])
async def test_json_rpc_reports_too_many_streams_of_a_caller(method: str) -> None:
    params = {
        "SendStreamingMessage": message(),
        "message/stream": {
            "message": {"messageId": "m", "role": "user", "parts": [{"kind": "text", "text": "river"}]}
        },
        "tasks/sendSubscribe": {
            "id": "t1",
            "message": {"role": "user", "parts": [{"type": "text", "text": "river"}]},
        },
    }[method]
    body = {"jsonrpc": "2.0", "id": 7, "method": method, "params": params}
    async with agent(max_caller_streams=1) as (rpc, scripted):
        async with holding(rpc, ALICE):
            async with rpc.http.post(f"{rpc.url}/", json=body, headers=ALICE) as response:
                assert (response.status, response.headers["Retry-After"]) == (200, "2")
                assert response.content_type == "application/json"
                answer = await response.json()
            assert answer == {
                "jsonrpc": "2.0",
                "id": 7,
                "error": {"code": -32010, "message": REFUSED, "data": DETAILS},
            }
            assert len(scripted.turns) == 1  # refused requests have no effect
            async with rpc.http.post(f"{rpc.url}/", json=body, headers=BOB) as response:
                assert response.content_type == "text/event-stream"
                await response.read()
        await accepted(rpc, ALICE)


async def test_json_rpc_reports_too_many_streams_of_the_server() -> None:
    async with agent(max_streams=1) as (rpc, _):
        async with holding(rpc, ALICE):
            error = await rpc.error("SendStreamingMessage", message(), BOB)
            assert error == {"code": -32011, "message": FULL, "data": FULL_DETAILS}
            # Requests without streaming are answered.
            answer = await rpc.call("SendMessage", message("river"), BOB)
            assert text_of(answer["result"]["task"]) == "river"
        await accepted(rpc, BOB)


@pytest.mark.parametrize(
    ("settings", "code", "text", "status", "details"),
    [
        ({"max_caller_streams": 1}, 429, REFUSED, "RESOURCE_EXHAUSTED", DETAILS),
        ({"max_streams": 1}, 503, FULL, "UNAVAILABLE", FULL_DETAILS),
    ],
)
async def test_http_json_reports_the_limit_in_the_status(
    settings: dict[str, Any], code: int, text: str, status: str, details: list[Any]
) -> None:
    old = {"message": {"messageId": "m", "role": "ROLE_USER", "content": [{"text": "river"}]}}
    async with agent(**settings) as (rpc, _), holding(rpc, ALICE):
        http = HttpJson(rpc)
        found, headers, body = await http.exchange("POST", "/message:stream", message(), ALICE)
        assert (found, headers["retry-after"], headers["content-type"]) == (code, "2", "application/json")
        params = {"code": code, "status": status, "message": text, "details": details}
        assert json.loads(body) == {"error": params}
        found, headers, body = await http.exchange("POST", "/v1/message:stream", old, ALICE)
        assert (found, headers["retry-after"]) == (code, "2")
        name = "RateLimitError" if code == 429 else "OverloadedError"
        number = -32010 if code == 429 else -32011
        assert json.loads(body) == {
            "error": name,
            "type": name,
            "message": text,
            "code": number,
            "details": details,
        }
        task_id = (await rpc.call("ListTasks", {}, ALICE))["result"]["tasks"][0]["id"]
        for method in ("GET", "POST"):
            found, headers, _ = await http.exchange(method, f"/tasks/{task_id}:subscribe", None, ALICE)
            assert (found, headers["retry-after"]) == (code, "2")


async def test_grpc_reports_the_limit_in_the_status_and_a_retry_info() -> None:
    async with agent(max_caller_streams=1, max_streams=2, grpc_port=0) as (rpc, _):
        async with rpc.http.get(f"{rpc.url}/.well-known/agent-card.json") as response:
            interfaces = (await response.json())["supportedInterfaces"]
        address = next(each["url"] for each in interfaces if each["protocolBinding"] == "GRPC")
        async with grpc.aio.insecure_channel(address) as channel:
            stub: Any = a2a_pb2_grpc.A2AServiceStub(channel)
            call = stub.SendStreamingMessage(send("hold"), metadata=(("x-api-key", "k1"),))
            await call.read()
            refused = stub.SendStreamingMessage(send("river"), metadata=(("x-api-key", "k1"),))
            info, pause = await _failure(refused, grpc.StatusCode.RESOURCE_EXHAUSTED, REFUSED)
            assert info.reason == "RATE_LIMIT_EXCEEDED"
            assert dict(info.metadata) == DETAILS[0]["metadata"]
            assert pause.retry_delay.ToTimedelta().total_seconds() == RETRY_AFTER
            async with holding(rpc, BOB):
                refused = stub.SendStreamingMessage(send("river"), metadata=(("x-api-key", "k2"),))
                await _failure(refused, grpc.StatusCode.RESOURCE_EXHAUSTED, REFUSED)
            call.cancel()
        await accepted(rpc, ALICE)


async def _failure(
    call: Any, code: grpc.StatusCode, text: str
) -> tuple[error_details_pb2.ErrorInfo, error_details_pb2.RetryInfo]:
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await call.read()
    assert (raised.value.code(), raised.value.details()) == (code, text)
    trailing = dict(raised.value.trailing_metadata() or ())
    status = status_pb2.Status.FromString(cast("bytes", trailing["grpc-status-details-bin"]))
    info, pause = error_details_pb2.ErrorInfo(), error_details_pb2.RetryInfo()
    assert [status.details[0].Unpack(info), status.details[1].Unpack(pause)] == [True, True]
    return info, pause


def test_grpc_has_a_status_for_each_refusal() -> None:
    numbers = [
        to_status(error).code
        for error in (RateLimitError("x"), OverloadedError("x", retry_after=1.5), PartTooLargeError("x"))
    ]
    assert numbers == [
        grpc.StatusCode.RESOURCE_EXHAUSTED.value[0],
        grpc.StatusCode.UNAVAILABLE.value[0],
        grpc.StatusCode.INVALID_ARGUMENT.value[0],
    ]
    assert OverloadedError("x", retry_after=1.5).headers == {"Retry-After": "2"}


async def test_a_part_that_is_too_large_is_refused_on_every_binding() -> None:
    async with agent(max_part_bytes=10) as (rpc, scripted):
        error = await rpc.error("SendMessage", message("x" * 11), ALICE)
        assert (error["code"], error["data"][0]["metadata"]) == (
            -32602,
            {"limit": "max_part_bytes", "allowed": "10"},
        )
        assert error["data"][1]["fieldViolations"][0]["field"] == "message.parts[0]"
        found, answer = await HttpJson(rpc).ask("POST", "/message:send", message("x" * 11), ALICE)
        assert (found, answer["error"]["code"]) == (413, 413)
        found, answer = await HttpJson(rpc).ask("POST", "/message:stream", message("x" * 11), ALICE)
        assert found == 413
        assert not scripted.turns
        assert "result" in await rpc.call("SendMessage", message("x" * 10), ALICE)
        await accepted(rpc, ALICE)


async def test_limits_that_are_lifted_are_none() -> None:
    names = ("part_bytes", "history_messages", "streams", "caller_streams")
    lifted = dict.fromkeys((f"max_{name}" for name in names), 0)
    async with (
        agent(max_request_bytes=0, **lifted) as (rpc, _),
        holding(rpc, ALICE),
        holding(rpc, ALICE),
        holding(rpc, ALICE),
    ):
        raw = base64.b64encode(b"\x00" * 13 * 1024 * 1024).decode()  # more than the default limit
        params = message("river")
        params["message"]["parts"].append({"raw": raw})
        context = (await _post(rpc, "/message:send", params))["task"]["contextId"]
        call = {"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": params}
        assert text_of((await _post(rpc, "/", call))["result"]["task"]) == "river"
        again = await rpc.call("SendMessage", message("again", contextId=context), ALICE)
        assert text_of(again["result"]["task"]) == "again"


async def _post(rpc: Rpc, path: str, body: object) -> Any:
    data = io.BytesIO(json.dumps(body).encode())
    headers = ALICE | {"content-type": "application/json"}
    async with rpc.http.post(rpc.url + path, data=data, headers=headers) as response:
        assert response.status == 200, await response.text()
        return await response.json()


# --- what holds a permit ----------------------------------------------------------------------------------------


async def test_a_stream_that_is_not_read_or_does_not_begin_holds_no_permit() -> None:
    limits = Limits(max_streams=1)
    async with Engine(Store("sqlite://"), FunctionHandler(Scripted())).running() as engine:
        operations = Operations(engine, limits=limits)
        params = Message(message_id="m", role=Role.USER, parts=(Part(text="river"),))
        request = SendMessageRequest(message=params)
        stream = await operations.stream(Operation.SEND_STREAMING_MESSAGE, request, Caller())
        with pytest.raises(OverloadedError):
            await operations.stream(Operation.SEND_STREAMING_MESSAGE, request, Caller())
        del stream
        gc.collect()
        assert limits.streams.used == 0
        unknown = params.model_copy(update={"task_id": "none"})
        with pytest.raises(Exception, match="Task not found"):
            await operations.stream(
                Operation.SEND_STREAMING_MESSAGE, SendMessageRequest(message=unknown), Caller()
            )
        assert limits.streams.used == 0
        stream = await operations.stream(Operation.SEND_STREAMING_MESSAGE, request, Caller())
        async for _ in stream.batches():
            assert limits.streams.used == 1
        assert limits.streams.used == 0


async def test_clients_that_leave_right_after_their_request_hold_no_permit() -> None:
    body = {"jsonrpc": "2.0", "id": 1, "method": "SendStreamingMessage", "params": message("hold")}
    async with agent(max_streams=3) as (rpc, scripted):
        host, _, port = rpc.url.removeprefix("http://").partition(":")
        head = "POST / HTTP/1.1\r\nhost: t\r\ncontent-type: application/json\r\nx-api-key: "
        data = json.dumps(body).encode()
        request = f"{head}{BOB['X-API-Key']}\r\ncontent-length: {len(data)}\r\n\r\n".encode() + data
        for number in range(30):
            stream = await anyio.connect_tcp(host, int(port))
            await stream.send(request)
            if number % 3:  # after its answer has begun, or before
                await stream.receive()
            linger = struct.pack("ii", 1, 0)  # a reset: no further data is sent or read
            stream.extra(SocketAttribute.raw_socket).setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            await stream.aclose()
            await accepted(rpc, BOB)
        assert len(scripted.turns) > 30


# --- provider concurrency under load ----------------------------------------------------------------------------


async def test_a_call_that_the_provider_has_no_room_for_is_refused_before_there_is_a_task() -> None:
    go_on = anyio.Event()
    script = [*openai_stream(["Hel"], finish=None), Wait(go_on), *openai_stream(["lo"])]
    async with ScriptedUpstream(script) as upstream:
        given = {"model": "openai:m", "base_url": upstream.base_url, "api_key": "k"}
        bounds = {"max_upstream_calls": 1, "bounds": {"max_upstream_waiting": 0}}
        app = create_app(Settings.model_validate({"store": "sqlite://"} | given | bounds))
        async with serving(app) as url, Rpc(url) as rpc:
            first, at_once = message(), {"configuration": {"returnImmediately": True}}
            await rpc.call("SendMessage", {**first, **at_once}, {"Idempotency-Key": "k"})
            await upstream.received()
            error = await rpc.error("SendMessage", message())
            assert error["code"] == -32011
            assert error["message"] == (
                "The server is busy: 1 calls to the model are in progress and 0 wait, the maximum of this server; "
                "try again later"
            )
            assert error["data"][0]["metadata"]["limit"] == "max_upstream_waiting"
            assert (await rpc.result("ListTasks", {}))["totalSize"] == 1
            assert len(upstream.requests) == 1
            # A request accepted under the same name is not a call.
            again = await rpc.call("SendMessage", {**first, **at_once}, {"Idempotency-Key": "k"})
            assert again["result"]["task"]["status"]["state"] == "TASK_STATE_WORKING"
            go_on.set()
            while "error" in (answer := await rpc.call("SendMessage", message())):
                pass  # the first call has not quite ended
            assert text_of(answer["result"]["task"]) == "Hello"


async def test_calls_wait_for_their_turn_and_what_is_beyond_fails_of_it() -> None:
    go_on = anyio.Event()
    script = [*openai_stream(["Hel"], finish=None), Wait(go_on), *openai_stream(["lo"])]
    answers: list[dict[str, Any]] = []
    async with ScriptedUpstream(script) as upstream:
        gate = UpstreamGate(1, 1)
        model = GatedModel(ChatCompletionsModel("m", base_url=upstream.base_url, api_key="k"), gate)
        # Without limits in front, as when many messages arrive at the same time.
        async with serving(
            create_app(Settings(store="sqlite://"), handler=AgentHandler(Agent(model)))
        ) as url:
            async with Rpc(url) as rpc, anyio.create_task_group() as tasks:

                async def ask() -> None:
                    answers.append((await rpc.result("SendMessage", message()))["task"])

                tasks.start_soon(ask)
                await upstream.received()
                tasks.start_soon(ask)
                while not gate.waiting:
                    await anyio.lowlevel.checkpoint()
                assert len(upstream.requests) == 1
                refused = (await rpc.result("SendMessage", message()))["task"]
                assert refused["status"]["state"] == "TASK_STATE_FAILED"
                assert "1 calls to the model are in progress" in str(refused["status"]["message"])
                go_on.set()
        assert [text_of(task) for task in answers] == ["Hello", "Hello"]
        assert len(upstream.requests) == 2


async def test_a_gated_model_is_the_model_but_for_the_gate() -> None:
    async with ScriptedUpstream(openai_stream(["Hello"])) as upstream:
        inner = ChatCompletionsModel("m", base_url=upstream.base_url, api_key="k")
        model = GatedModel(inner, UpstreamGate(1, 0))
        assert (model.provider, model.name, model.converter) == ("openai", "m", inner.converter)
        await model.aclose()


class Refusing(ChatCompletionsModel):
    def stream(self, history: History, options: RequestOptions = NO_OPTIONS) -> Any:
        raise ProtocolError("not that")


async def test_a_request_that_the_model_refuses_holds_no_permit_of_the_gate() -> None:
    gate = UpstreamGate(1, 0)
    model = GatedModel(Refusing("m", base_url="http://127.0.0.1:1/v1", api_key="k"), gate)
    for _ in range(2):
        with pytest.raises(ProtocolError, match="not that"):
            async with model.stream(History()):
                pass
    assert gate.running_calls == 0
