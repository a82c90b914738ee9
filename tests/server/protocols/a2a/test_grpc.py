"""The gRPC binding, called by a bare stub: operations, subscriptions and errors."""

from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any, cast

import anyio
import grpc
import grpc.aio
import pytest
from a2a.types import (
    CancelTaskRequest,
    DeleteTaskPushNotificationConfigRequest,
    GetExtendedAgentCardRequest,
    GetTaskPushNotificationConfigRequest,
    GetTaskRequest,
    ListTaskPushNotificationConfigsRequest,
    ListTasksRequest,
    SendMessageConfiguration,
    StreamResponse,
    SubscribeToTaskRequest,
    TaskPushNotificationConfig,
    TaskState,
)
from a2a.types import Part as SdkPart
from google.protobuf.struct_pb2 import Value
from google.rpc import error_details_pb2

from support.grpc_agents import GrpcAgent, failure_of
from support.grpc_calls import agent_with, follow, stream_of
from support.rpc import Rpc, message, text_of
from support.sdk import facts, kinds, numbers, send, state, streamed
from support.sdk import text_of as sdk_text_of
from tailrace.server import DirectHandler, Settings, Turn
from tailrace.server.protocols.a2a.grpc_version import to_status
from tailrace.streaming import Update
from tailrace.streaming.a2a import errors
from tailrace.streaming.a2a.errors import A2AError, FieldViolation
from tailrace.streaming.a2a.field_types import MAX_JSON_DEPTH
from tailrace.streaming.a2a.models import Message
from tailrace.streaming.task.task_record import agent_message
from tailrace.wrappers.messages import MAX_DEPTH


def deep(levels: int) -> Any:
    """Return nested objects, the most expensive data for protobuf."""
    value: Any = "deep"
    for _ in range(levels):
        value = {"a": value}
    return value


def fill_value(value: Any) -> SdkPart:
    """Write the data into a part."""
    part = SdkPart()
    part.data.struct_value.update(value)
    return part


def sized(encoded: bytes) -> bytes:
    """Return bytes with a length prefix, as protobuf writes an embedded message."""
    length, size = b"", len(encoded)
    while size > 127:
        length += bytes([size & 127 | 128])
        size >>= 7
    return length + bytes([size]) + encoded


@pytest.fixture
async def agent() -> AsyncGenerator[GrpcAgent]:
    async with agent_with() as agent:
        yield agent


# --- operations -------------------------------------------------------------------------------------------------


async def test_a_stream_is_the_task_and_what_happens_to_it_with_numbers(agent: GrpcAgent) -> None:
    events = await stream_of(agent, "river")
    assert kinds(events) == ["task submitted", "working", *["artifact"] * 6, "completed"]
    assert numbers(events) == list(range(1, 10))
    assert streamed(events) == "river"
    updates = [event.artifact_update for event in events if event.HasField("artifact_update")]
    assert [update.append for update in updates] == [False, *[True] * 5]
    assert [update.last_chunk for update in updates] == [*[False] * 5, True]


async def test_a_send_waits_for_the_task_unless_it_returns_immediately(agent: GrpcAgent) -> None:
    done = (await agent.stub.SendMessage(send("river"))).task
    assert (state(done), sdk_text_of(done)) == ("completed", "river")
    at_once = SendMessageConfiguration(return_immediately=True)
    begun = (await agent.stub.SendMessage(send("hold", configuration=at_once))).task
    assert state(begun) in ("submitted", "working")
    agent.scripted.go_on.set()


async def test_get_task_returns_the_requested_history(agent: GrpcAgent) -> None:
    done = (await agent.stub.SendMessage(send("river"))).task
    assert await agent.stub.GetTask(GetTaskRequest(id=done.id)) == done
    assert not (await agent.stub.GetTask(GetTaskRequest(id=done.id, history_length=0))).history


async def test_tasks_are_listed_newest_first_page_by_page(agent: GrpcAgent) -> None:
    for text in ("one", "two", "three"):
        await stream_of(agent, text)
    first = await agent.stub.ListTasks(ListTasksRequest(page_size=2, include_artifacts=True))
    request = ListTasksRequest(page_size=2, include_artifacts=True, page_token=first.next_page_token)
    rest = await agent.stub.ListTasks(request)
    assert [sdk_text_of(task) for task in (*first.tasks, *rest.tasks)] == ["three", "two", "one"]
    assert (first.page_size, first.total_size, rest.next_page_token) == (2, 3, "")
    bare = await agent.stub.ListTasks(ListTasksRequest(status=TaskState.TASK_STATE_COMPLETED))
    assert [len(task.artifacts) for task in bare.tasks] == [0, 0, 0]


async def test_canceling_stops_the_work_and_ends_every_stream(agent: GrpcAgent) -> None:
    events: list[StreamResponse] = []
    async for event in agent.stub.SendStreamingMessage(send("hold")):
        events.append(event)
        if streamed(events) == "held" and not agent.scripted.stopped.is_set():
            canceled = await agent.stub.CancelTask(CancelTaskRequest(id=events[0].task.id))
            assert state(canceled) == "canceled"
            with anyio.fail_after(5):
                await agent.scripted.stopped.wait()
    assert kinds(events)[-1] == "canceled"


async def test_a_question_is_answered_in_the_same_task(agent: GrpcAgent) -> None:
    events = await stream_of(agent, "ask")
    assert kinds(events) == ["task submitted", "working", "input_required"]
    again = await stream_of(agent, "that one", task_id=events[0].task.id)
    assert kinds(again)[0] == "task working"
    assert kinds(again)[-1] == "completed"
    assert numbers(again)[0] == numbers(events)[-1] + 1


async def test_webhooks_are_kept_listed_and_forgotten(agent: GrpcAgent) -> None:
    task_id = (await agent.stub.SendMessage(send("river"))).task.id
    wanted = TaskPushNotificationConfig(task_id=task_id, id="w", url="http://127.0.0.1:9/hook")
    made = await agent.stub.CreateTaskPushNotificationConfig(wanted)
    assert (made.id, made.url, made.task_id) == ("w", wanted.url, task_id)
    request = GetTaskPushNotificationConfigRequest(task_id=task_id, id="w")
    assert await agent.stub.GetTaskPushNotificationConfig(request) == made
    every = ListTaskPushNotificationConfigsRequest(task_id=task_id)
    assert list((await agent.stub.ListTaskPushNotificationConfigs(every)).configs) == [made]
    gone = DeleteTaskPushNotificationConfigRequest(task_id=task_id, id="w")
    await agent.stub.DeleteTaskPushNotificationConfig(gone)
    assert not (await agent.stub.ListTaskPushNotificationConfigs(every)).configs


async def test_a_direct_answer_is_a_message_without_a_task() -> None:
    async def direct(_turn: Turn) -> AsyncIterator[Update | Message]:
        yield agent_message("right here")

    async with agent_with(handler=DirectHandler(direct)) as agent:
        assert (await agent.stub.SendMessage(send())).message.parts[0].text == "right here"
        [event] = await stream_of(agent, "x")
        assert event.message.parts[0].text == "right here"
        assert facts(event) == {}


async def test_a_task_of_one_binding_is_a_task_of_the_others(agent: GrpcAgent) -> None:
    async with Rpc(agent.url) as rpc:
        task = (await rpc.result("SendMessage", message("river")))["task"]
        assert sdk_text_of(await agent.stub.GetTask(GetTaskRequest(id=task["id"]))) == "river"
        again = await follow(agent, task["id"], after=0)
        assert numbers(again) == list(range(1, 10))
        theirs = (await agent.stub.SendMessage(send("brook"))).task
        assert text_of(await rpc.result("GetTask", {"id": theirs.id})) == "brook"


# --- subscriptions ----------------------------------------------------------------------------------------------


async def test_every_subscriber_gets_every_event_and_one_that_leaves_changes_nothing(
    agent: GrpcAgent,
) -> None:
    first: list[StreamResponse] = []
    others: list[list[StreamResponse]] = [[], []]

    async def subscribe(task_id: str, seen: list[StreamResponse]) -> None:
        async for event in agent.stub.SubscribeToTask(SubscribeToTaskRequest(id=task_id)):
            seen.append(event)
            if all(others):
                agent.scripted.go_on.set()

    with anyio.fail_after(10):
        async with anyio.create_task_group() as group:
            async for event in agent.stub.SendStreamingMessage(send("hold")):
                first.append(event)
                if streamed(first) == "held" and not any(others):
                    leaving = agent.stub.SubscribeToTask(SubscribeToTaskRequest(id=first[0].task.id))
                    await leaving.read()
                    leaving.cancel()
                    for seen in others:
                        group.start_soon(subscribe, first[0].task.id, seen)
    assert kinds(first)[-1] == "completed"
    for seen in others:
        assert sdk_text_of(seen[0].task) + streamed(seen) == "held"
        assert seen[1:] == first[numbers(seen)[0] :]


async def test_a_stream_goes_on_after_any_number_while_it_runs_and_after_the_end(agent: GrpcAgent) -> None:
    call = agent.stub.SendStreamingMessage(send("hold"))
    events: list[StreamResponse] = []
    while streamed(events) != "held":
        events.append(await call.read())
    call.cancel()  # the connection is lost; the task continues
    agent.scripted.go_on.set()
    with anyio.fail_after(5):
        rest = await follow(agent, events[0].task.id, after=numbers(events)[-1])
    whole = [*events, *rest]
    assert numbers(whole) == list(range(1, len(whole) + 1))
    assert kinds(whole)[-1] == "completed"
    for after in range(len(whole) + 1):
        assert await follow(agent, events[0].task.id, after=after) == whole[after:]


# --- errors -----------------------------------------------------------------------------------------------------


async def test_errors_have_their_status_their_reason_and_what_they_are_about(agent: GrpcAgent) -> None:
    over = (await agent.stub.SendMessage(send("river"))).task.id
    stub, code = agent.stub, grpc.StatusCode
    deleted = DeleteTaskPushNotificationConfigRequest(task_id="nobody", id="w")
    for call, status, reason in (
        (stub.GetTask(GetTaskRequest(id="nobody")), code.NOT_FOUND, "TASK_NOT_FOUND"),
        (stub.CancelTask(CancelTaskRequest(id="nobody")), code.NOT_FOUND, "TASK_NOT_FOUND"),
        (stub.SubscribeToTask(SubscribeToTaskRequest(id="nobody")), code.NOT_FOUND, "TASK_NOT_FOUND"),
        (stub.SendMessage(send(task_id="nobody")), code.NOT_FOUND, "TASK_NOT_FOUND"),
        (stub.DeleteTaskPushNotificationConfig(deleted), code.NOT_FOUND, "TASK_NOT_FOUND"),
        (stub.CancelTask(CancelTaskRequest(id=over)), code.FAILED_PRECONDITION, "TASK_NOT_CANCELABLE"),
        (
            stub.SubscribeToTask(SubscribeToTaskRequest(id=over)),
            code.FAILED_PRECONDITION,
            "UNSUPPORTED_OPERATION",
        ),
        (stub.SendStreamingMessage(send(task_id=over)), code.FAILED_PRECONDITION, "UNSUPPORTED_OPERATION"),
        (
            stub.GetExtendedAgentCard(GetExtendedAgentCardRequest()),
            code.FAILED_PRECONDITION,
            "UNSUPPORTED_OPERATION",
        ),
        (stub.ListTasks(ListTasksRequest(page_token="x")), code.INVALID_ARGUMENT, "INVALID_PARAMS"),
    ):
        found = await failure_of(call)
        assert (found.code, found.info.reason) == (status, reason)
    found = await failure_of(stub.GetTask(GetTaskRequest(id="nobody")))
    assert dict(found.info.metadata) == {"taskId": "nobody"}


async def test_without_push_notifications_their_operations_are_refused() -> None:
    async with agent_with(Settings(store="sqlite://", grpc_port=0, push_notifications=False)) as agent:
        request = ListTaskPushNotificationConfigsRequest(task_id="t")
        found = await failure_of(agent.stub.ListTaskPushNotificationConfigs(request))
    assert found.code is grpc.StatusCode.FAILED_PRECONDITION
    assert found.info.reason == "PUSH_NOTIFICATION_NOT_SUPPORTED"


async def test_fields_that_are_wrong_are_named(agent: GrpcAgent) -> None:
    request = send()
    request.message.ClearField("parts")
    request.message.ClearField("message_id")
    for call in (agent.stub.SendMessage(request), agent.stub.SendStreamingMessage(request)):
        found = await failure_of(call)
        assert (found.code, found.info.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_PARAMS")
        assert set(found.fields) == {"message.parts", "message.messageId"}
    for wrong in (
        ListTasksRequest(page_size=0),
        ListTasksRequest(page_size=101),
        ListTasksRequest(history_length=-1),
    ):
        found = await failure_of(agent.stub.ListTasks(wrong))
        assert found.code is grpc.StatusCode.INVALID_ARGUMENT
        assert set(found.fields) <= {"pageSize", "historyLength"}
    unknown_state = ListTasksRequest.FromString(b"\x18\x63")  # an open enum accepts 99
    assert set((await failure_of(agent.stub.ListTasks(unknown_state))).fields) == {"status"}


@pytest.mark.parametrize("cursor", ["four", "-1", "99", "1.0", "9" * 20])
async def test_a_cursor_that_is_none_is_refused(agent: GrpcAgent, cursor: str) -> None:
    task_id = (await agent.stub.SendMessage(send("river"))).task.id
    request = SubscribeToTaskRequest(id=task_id)
    found = await failure_of(agent.stub.SubscribeToTask(request, metadata=(("last-event-id", cursor),)))
    assert found.info.reason == "INVALID_PARAMS"


async def test_bytes_that_are_no_request_are_refused_in_the_protocols_words(agent: GrpcAgent) -> None:
    async with grpc.aio.insecure_channel(agent.address) as channel:
        for rest in ("GetTask", "SendMessage"):
            call = cast("Any", channel).unary_unary(f"/lf.a2a.v1.A2AService/{rest}")
            found = await failure_of(call(b"\xff\xff\xff"))
            assert (found.code, found.info.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "PARSE_ERROR")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await channel.unary_unary("/lf.a2a.v1.A2AService/Nothing")(b"")
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_a_request_beyond_the_limit_is_refused() -> None:
    async with agent_with(Settings(store="sqlite://", grpc_port=0, max_request_bytes=10_000)) as agent:
        assert (await agent.stub.SendMessage(send("x" * 5_000))).task.id
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await agent.stub.SendMessage(send("x" * 20_000))
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_what_a_client_sent_is_not_sent_back_at_any_length(agent: GrpcAgent) -> None:
    """The client would report metadata beyond its limit as another error."""
    for long in ("x" * 100_000, "ü" * 100_000, "😀" * 100_000):
        found = await failure_of(agent.stub.GetTask(GetTaskRequest(id=long)))
        assert found.code is grpc.StatusCode.NOT_FOUND
        assert found.info.metadata["taskId"].startswith(long[:50])
        assert len(found.info.metadata["taskId"].encode()) <= 256
    found = await failure_of(
        agent.stub.GetTask(GetTaskRequest(id="t"), metadata=(("a2a-version", "9" * 5_000),))
    )
    assert found.info.reason == "VERSION_NOT_SUPPORTED"


@pytest.mark.parametrize("kind", A2AError.__subclasses__())
def test_every_error_is_its_status_with_an_error_info(kind: type[A2AError]) -> None:
    status = to_status(kind("because", metadata={"a": "b"}))
    assert status.code == cast("Any", grpc.StatusCode[kind.status]).value[0]
    assert status.message == f"{kind.message}: because"
    info = error_details_pb2.ErrorInfo()
    assert status.details[0].Unpack(info)
    assert (info.reason, info.domain, dict(info.metadata)) == (kind.reason, "a2a-protocol.org", {"a": "b"})


def test_an_error_with_any_text_fits_into_metadata() -> None:
    many = [FieldViolation(f"field[{at}]." + "f" * 1000, "ü" * 1000) for at in range(20)]
    status = to_status(
        errors.InvalidParamsError("😀" * 10_000, metadata={"a": "x" * 10_000}, violations=many)
    )
    assert status.ByteSize() < 4_000
    bad_request = error_details_pb2.BadRequest()
    assert status.details[1].Unpack(bad_request)
    assert bad_request.field_violations[0].field.startswith("field[0].fff")
    assert len(status.message.encode()) <= 512


async def test_a_failed_handler_is_a_failed_task_and_not_an_error(agent: GrpcAgent) -> None:
    for text, words in (("fail", "the provider is down"), ("crash", "the agent failed")):
        events = await stream_of(agent, text)
        assert kinds(events)[-1] == "failed"
        assert words in events[-1].status_update.status.message.parts[0].text


async def test_what_nests_too_deep_is_refused_as_on_every_binding(agent: GrpcAgent) -> None:
    """If one binding could not carry content that another accepts, only some callers could read the task."""
    values: list[Any] = [deep(MAX_DEPTH), deep(MAX_DEPTH + 1)]
    fitting, too_deep = (fill_value(value) for value in values)
    request = send()
    request.message.parts.append(fitting)
    done = (await agent.stub.SendMessage(request)).task
    assert done.history[0].parts[1] == fitting
    request.message.parts[1].CopyFrom(too_deep)
    found = await failure_of(agent.stub.SendMessage(request))
    async with Rpc(agent.url) as rpc:
        params = message("x")
        params["message"]["parts"] = [{"text": "x"}, {"data": values[1]}]
        by_rpc = await rpc.error("SendMessage", params)
    assert found.code is grpc.StatusCode.INVALID_ARGUMENT
    assert found.info.reason == by_rpc["data"][0]["reason"] == "INVALID_PARAMS"
    assert found.message == by_rpc["message"]
    assert found.message.endswith(f": message: part 1: nested deeper than {MAX_DEPTH} levels")


async def test_data_nested_too_deeply_for_protobuf_is_refused_with_the_limit(agent: GrpcAgent) -> None:
    value = Value(string_value="deep").SerializeToString()
    for _ in range(60):
        value = b"\x2a" + sized(b"\x0a" + sized(b"\x0a\x01a\x12" + sized(value)))
    request = send().SerializeToString() + b"\x12" + sized(b"\x2a" + sized(b"\x22" + sized(value)))
    async with grpc.aio.insecure_channel(agent.address) as channel:
        call = cast("Any", channel).unary_unary("/lf.a2a.v1.A2AService/SendMessage")
        found = await failure_of(call(request))
    assert (found.code, found.info.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "PARSE_ERROR")
    assert f"{MAX_JSON_DEPTH} levels" in found.message


async def test_a_handler_that_nests_too_deep_fails_its_task_for_every_reader(agent: GrpcAgent) -> None:
    events = await stream_of(agent, "deep")
    assert kinds(events)[-1] == "failed"
    async with Rpc(agent.url) as rpc:
        task = await rpc.result("GetTask", {"id": events[0].task.id})
    assert task["status"]["state"] == "TASK_STATE_FAILED"
