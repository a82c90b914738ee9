"""gRPC of A2A 0.3, called by a bare stub and by the official client."""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import aiohttp
import grpc
import grpc.aio
import pytest
from a2a.client import ClientConfig, create_client
from a2a.compat.v0_3 import a2a_v0_3_pb2 as pb
from a2a.compat.v0_3 import a2a_v0_3_pb2_grpc
from a2a.types import GetTaskRequest
from a2a.utils.errors import TaskNotFoundError
from google.protobuf.json_format import MessageToDict, Parse, ParseDict
from hypothesis import HealthCheck, given
from hypothesis import settings as profile
from hypothesis import strategies as st

from support.a2a_objects import cards, stream_responses
from support.agents import Scripted
from support.grpc_agents import GrpcAgent, failure_of
from support.live_server import serving
from support.rpc import Rpc, text_of
from support.sdk import send as send_1_0
from support.sdk import text_of as sdk_text_of
from tailrace.server import DirectHandler, FunctionHandler, Settings, Turn, create_app
from tailrace.server.protocols.a2a.card import build_card
from tailrace.server.protocols.a2a.grpc_v0_3 import Grpc03
from tailrace.server.runtime.handlers import Handler
from tailrace.server.settings import CardSettings
from tailrace.streaming import EXTENSION_URI, ArtifactUpdate, StatusUpdate, TaskState, Update
from tailrace.streaming.a2a.card_v0_3 import write_card
from tailrace.streaming.a2a.event import Event
from tailrace.streaming.a2a.field_types import MAX_JSON_DEPTH
from tailrace.streaming.a2a.models import (
    AgentCard,
    AgentExtension,
    AgentSkill,
    Artifact,
    Message,
    Part,
    StreamResponse,
)
from tailrace.streaming.a2a.v0_3_proto_json import Version03ProtoJson
from tailrace.streaming.a2a.version_codec import Operation
from tailrace.streaming.task.task_record import agent_message

SETTINGS = Settings(store="sqlite://", grpc_port=0, push_notifications="private")


@asynccontextmanager
async def agent_with(
    settings: Settings = SETTINGS, *, handler: Handler | None = None, **options: Any
) -> AsyncGenerator[GrpcAgent]:
    scripted = Scripted()
    app = create_app(settings, handler=handler or FunctionHandler(scripted), **options)
    async with serving(app) as url:
        card = await card_of(url, "/.well-known/agent.json")
        [address] = [each["url"] for each in card["additionalInterfaces"] if each["transport"] == "GRPC"]
        target = address.removeprefix("http://")
        async with grpc.aio.insecure_channel(target) as channel:
            stub = cast("Any", a2a_v0_3_pb2_grpc).A2AServiceStub(channel)
            yield GrpcAgent(url, target, stub, scripted)


@pytest.fixture
async def agent() -> AsyncGenerator[GrpcAgent]:
    async with agent_with() as agent:
        yield agent


async def card_of(url: str, path: str) -> dict[str, Any]:
    async with aiohttp.ClientSession() as http, http.get(url + path) as response:
        return await response.json()


def send(text: str = "river", *, blocking: bool = True, **fields: Any) -> pb.SendMessageRequest:
    message = {"messageId": "m1", "role": "ROLE_USER", "content": [{"text": text}], **fields}
    wanted = {"message": message, "configuration": {"blocking": blocking}}
    return ParseDict(wanted, pb.SendMessageRequest())


def named(task_id: str) -> str:
    return f"tasks/{task_id}"


def state(task: pb.Task) -> str:
    return pb.TaskState.Name(task.status.state).removeprefix("TASK_STATE_").lower()


def task_text(task: pb.Task) -> str:
    return "".join(part.text for artifact in task.artifacts for part in artifact.parts)


def kinds(events: list[pb.StreamResponse]) -> list[str]:
    return [cast("str", event.WhichOneof("payload")) for event in events]


def number_of(event: pb.StreamResponse) -> int:
    payload = getattr(event, cast("str", event.WhichOneof("payload")))
    return int(MessageToDict(payload)["metadata"][EXTENSION_URI]["number"])


# --- operations -------------------------------------------------------------------------------------------------


async def test_a_stream_is_the_task_and_what_happens_to_it_with_numbers_and_an_end(agent: GrpcAgent) -> None:
    events = [event async for event in agent.stub.SendStreamingMessage(send())]
    assert kinds(events) == ["task", "status_update", *["artifact_update"] * 6, "status_update"]
    assert [number_of(event) for event in events] == list(range(1, 10))
    updates = [event.artifact_update for event in events if event.HasField("artifact_update")]
    assert "".join(update.artifact.parts[0].text for update in updates) == "river"
    assert [update.append for update in updates] == [False, *[True] * 5]
    assert [update.last_chunk for update in updates] == [*[False] * 5, True]
    ends = [event.status_update.final for event in events if event.HasField("status_update")]
    assert ends == [False, True]


async def test_a_send_that_blocks_waits_for_the_whole_task(agent: GrpcAgent) -> None:
    done = (await agent.stub.SendMessage(send())).task
    assert (state(done), task_text(done)) == ("completed", "river")
    begun = (await agent.stub.SendMessage(send("hold", blocking=False))).task
    assert state(begun) in ("submitted", "working")
    agent.scripted.go_on.set()


async def test_get_task_returns_the_requested_history_and_all_of_it_for_0(agent: GrpcAgent) -> None:
    done = (await agent.stub.SendMessage(send("ask"))).task
    await agent.stub.SendMessage(send("this one", taskId=done.id))
    lengths: list[int] = []
    for length in (0, 1, 2, 100):
        request = pb.GetTaskRequest(name=named(done.id), history_length=length)
        lengths.append(len((await agent.stub.GetTask(request)).history))
    assert lengths[1:3] == [1, 2]
    assert lengths[0] == lengths[3] > 2


async def test_canceling_is_written_with_the_two_l_of_0_3(agent: GrpcAgent) -> None:
    begun = (await agent.stub.SendMessage(send("hold", blocking=False))).task
    canceled = await agent.stub.CancelTask(pb.CancelTaskRequest(name=named(begun.id)))
    assert state(canceled) == "cancelled"
    failure = await failure_of(agent.stub.CancelTask(pb.CancelTaskRequest(name=named(begun.id))))
    assert (failure.code, failure.info.reason) == (grpc.StatusCode.FAILED_PRECONDITION, "TASK_NOT_CANCELABLE")
    assert failure.message.startswith("TaskNotCancelableError: ")


async def test_a_subscription_begins_with_the_task_also_when_that_is_over(agent: GrpcAgent) -> None:
    begun = (await agent.stub.SendMessage(send("hold", blocking=False))).task
    request = pb.TaskSubscriptionRequest(name=named(begun.id))
    events: list[pb.StreamResponse] = []
    async for event in agent.stub.TaskSubscription(request):
        events.append(event)
        agent.scripted.go_on.set()
    assert kinds(events)[0] == "task"
    assert events[-1].status_update.final
    [over] = [event async for event in agent.stub.TaskSubscription(request)]
    assert (state(over.task), task_text(over.task)) == ("completed", "held")
    after = (("last-event-id", "3"),)
    rest = [event async for event in agent.stub.TaskSubscription(request, metadata=after)]
    assert number_of(rest[0]) == 4


async def test_webhooks_are_resources_of_their_task(agent: GrpcAgent) -> None:
    task_id = (await agent.stub.SendMessage(send())).task.id
    for parent in (named(task_id), f"{named(task_id)}/pushNotificationConfigs"):
        wanted = {
            "parent": parent,
            "configId": "w",
            "config": {
                "pushNotificationConfig": {
                    "url": "http://127.0.0.1:9/hook",
                    "token": "t",
                    "authentication": {"schemes": ["Bearer"], "credentials": "c"},
                }
            },
        }
        request = ParseDict(wanted, pb.CreateTaskPushNotificationConfigRequest())
        made = await agent.stub.CreateTaskPushNotificationConfig(request)
        assert made.name == f"tasks/{task_id}/pushNotificationConfigs/w"
        assert made.push_notification_config.url == "http://127.0.0.1:9/hook"
        assert list(made.push_notification_config.authentication.schemes) == ["Bearer"]
    name = made.name
    get_request = pb.GetTaskPushNotificationConfigRequest(name=name)
    assert await agent.stub.GetTaskPushNotificationConfig(get_request) == made
    every = pb.ListTaskPushNotificationConfigRequest(parent=named(task_id))
    assert list((await agent.stub.ListTaskPushNotificationConfig(every)).configs) == [made]
    gone = pb.DeleteTaskPushNotificationConfigRequest(name=name)
    for _ in range(2):  # the second call is not an error
        await agent.stub.DeleteTaskPushNotificationConfig(gone)
    assert not (await agent.stub.ListTaskPushNotificationConfig(every)).configs
    failure = await failure_of(agent.stub.GetTaskPushNotificationConfig(get_request))
    assert failure.info.reason == "TASK_NOT_FOUND"


async def test_what_is_named_otherwise_than_a_resource_is_refused(agent: GrpcAgent) -> None:
    for call in (
        agent.stub.GetTask(pb.GetTaskRequest(name="t1")),
        agent.stub.CancelTask(pb.CancelTaskRequest()),
        agent.stub.TaskSubscription(pb.TaskSubscriptionRequest(name="tasks/")),
        agent.stub.ListTaskPushNotificationConfig(pb.ListTaskPushNotificationConfigRequest(parent="t1")),
        agent.stub.GetTaskPushNotificationConfig(pb.GetTaskPushNotificationConfigRequest(name="tasks/t1")),
        agent.stub.DeleteTaskPushNotificationConfig(
            pb.DeleteTaskPushNotificationConfigRequest(name="tasks//pushNotificationConfigs/w")
        ),
    ):
        failure = await failure_of(call)
        assert (failure.code, failure.info.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_PARAMS")
        assert "must be tasks/ID" in failure.message


async def test_a_direct_answer_is_a_message() -> None:
    async def direct(_turn: Turn) -> AsyncIterator[Update | Message]:
        yield agent_message("right here")

    async with agent_with(handler=DirectHandler(direct)) as agent:
        assert (await agent.stub.SendMessage(send())).msg.content[0].text == "right here"
        [event] = [event async for event in agent.stub.SendStreamingMessage(send())]
        assert event.msg.content[0].text == "right here"


async def test_every_kind_of_part_goes_both_ways() -> None:
    deep: Any = "deep"
    for _ in range(MAX_JSON_DEPTH):
        deep = {"a": deep}
    parts = (
        Part(text="text", metadata={"a": [1, None]}),
        Part(raw=b"\x00\xff", filename="f.bin", media_type="application/octet-stream"),
        Part(url="https://example.com/f", media_type="image/png"),
        Part(data=deep),
        Part(data=[1, 2]),
    )
    taken: list[Message] = []

    async def give(turn: Turn) -> AsyncIterator[Update]:
        taken.append(turn.message)
        yield ArtifactUpdate(Artifact(artifact_id="all", parts=parts))
        yield StatusUpdate(TaskState.COMPLETED)

    content = [
        {"file": {"fileWithBytes": "AP8=", "mimeType": "application/octet-stream", "name": "f.bin"}},
        {"file": {"fileWithUri": "https://example.com/f", "mimeType": "image/png"}},
        {"data": {"data": {"a": [1, 2.5, None]}}},
    ]
    async with agent_with(handler=FunctionHandler(give)) as agent:
        task = (await agent.stub.SendMessage(send(content=content))).task
    text, raw, url, data, listed = task.artifacts[0].parts
    assert (text.text, MessageToDict(text.metadata)) == ("text", {"a": [1.0, None]})
    # The base64 text that the official Python client expects.
    assert (raw.file.file_with_bytes, raw.file.name) == (b"AP8=", "f.bin")
    assert (url.file.file_with_uri, url.file.mime_type) == ("https://example.com/f", "image/png")
    assert MessageToDict(data.data.data) == deep
    assert MessageToDict(listed.data.data) == {"value": [1.0, 2.0]}
    [message] = taken
    assert [(part.raw, part.url, part.data) for part in message.parts] == [
        (b"\x00\xff", None, None),
        (None, "https://example.com/f", None),
        (None, None, {"a": [1, 2.5, None]}),
    ]


@profile(max_examples=200, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(stream_responses, st.booleans())
def test_any_event_is_what_protobufs_own_json_parser_makes_of_it(body: StreamResponse, closes: bool) -> None:
    event = Event(0, body.to_json())
    written = Grpc03().write_event(event, is_last=closes)
    of_json = Version03ProtoJson().write_event(event, is_last=closes)
    assert written == Parse(of_json, pb.StreamResponse(), ignore_unknown_fields=True)
    assert pb.StreamResponse.FromString(written.SerializeToString()) == written


@profile(max_examples=100, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(cards)
def test_any_card_is_one_of_the_proto(card: AgentCard) -> None:
    written = Grpc03().write_result(Operation.GET_EXTENDED_CARD, card, pb.AgentCard)
    old = write_card(card)
    assert MessageToDict(written)["url"] == old["url"]
    assert [skill.id for skill in cast("pb.AgentCard", written).skills] == [
        skill["id"] for skill in old["skills"]
    ]


# --- errors, versions, extensions ---------------------------------------------------------------------------------


async def test_errors_are_named_where_the_clients_of_0_3_look(agent: GrpcAgent) -> None:
    over = (await agent.stub.SendMessage(send())).task.id
    code = grpc.StatusCode
    for call, status, name in (
        (agent.stub.GetTask(pb.GetTaskRequest(name="tasks/nobody")), code.NOT_FOUND, "TaskNotFoundError"),
        (agent.stub.SendMessage(send(taskId=over)), code.UNIMPLEMENTED, "UnsupportedOperationError"),
        (agent.stub.SendMessage(send(content=[])), code.INVALID_ARGUMENT, "InvalidParamsError"),
        (agent.stub.SendMessage(send(content=[{}])), code.INVALID_ARGUMENT, "InvalidParamsError"),
        (agent.stub.SendMessage(send(messageId="")), code.INVALID_ARGUMENT, "InvalidParamsError"),
        (agent.stub.SendMessage(send(role="ROLE_UNSPECIFIED")), code.INVALID_ARGUMENT, "InvalidParamsError"),
        (agent.stub.SendStreamingMessage(send(taskId="nobody")), code.NOT_FOUND, "TaskNotFoundError"),
    ):
        failure = await failure_of(call)
        assert (failure.code, failure.message.partition(": ")[0]) == (status, name)


async def test_without_push_its_operations_are_not_there() -> None:
    settings = Settings(store="sqlite://", grpc_port=0, push_notifications=False)
    async with agent_with(settings) as agent:
        request = pb.ListTaskPushNotificationConfigRequest(parent="tasks/t")
        failure = await failure_of(agent.stub.ListTaskPushNotificationConfig(request))
        assert (failure.code, failure.info.reason) == (
            grpc.StatusCode.UNIMPLEMENTED,
            "PUSH_NOTIFICATION_NOT_SUPPORTED",
        )


@pytest.mark.parametrize("version", ["0.3", "0.3.0", "0.2.6", ""])
async def test_a_call_in_its_version_or_in_none_is_answered(agent: GrpcAgent, version: str) -> None:
    assert (await agent.stub.SendMessage(send(), metadata=(("a2a-version", version),))).task.id


async def test_a_call_in_another_version_is_refused(agent: GrpcAgent) -> None:
    failure = await failure_of(agent.stub.SendMessage(send(), metadata=(("a2a-version", "1.0"),)))
    assert (failure.code, failure.info.reason) == (
        grpc.StatusCode.FAILED_PRECONDITION,
        "VERSION_NOT_SUPPORTED",
    )


@pytest.mark.parametrize("name", ["x-a2a-extensions", "a2a-extensions"])
async def test_extensions_are_requested_under_either_name(name: str) -> None:
    async with agent_with(extensions=[AgentExtension(uri="urn:must", required=True)]) as agent:
        failure = await failure_of(agent.stub.SendMessage(send()))
        assert failure.info.reason == "EXTENSION_SUPPORT_REQUIRED"
        assert await agent.stub.SendMessage(send(), metadata=((name, "urn:must"),))
        assert agent.scripted.turns[0].extensions == ("urn:must",)


# --- the card -----------------------------------------------------------------------------------------------------


async def test_the_card_names_what_is_known_of_the_addresses(agent: GrpcAgent) -> None:
    card = await agent.stub.GetAgentCard(pb.GetAgentCardRequest())
    assert (card.protocol_version, card.preferred_transport) == ("0.3.0", "GRPC")
    assert card.url == agent.address
    assert card.capabilities.streaming
    assert not card.supports_authenticated_extended_card
    settings = SETTINGS.model_copy(update={"public_url": "http://127.0.0.1:1/agent/"})
    async with agent_with(settings) as public:
        card = await public.stub.GetAgentCard(pb.GetAgentCardRequest())
    assert (card.url, card.preferred_transport) == ("http://127.0.0.1:1/agent/", "JSONRPC")
    assert [each.transport for each in card.additional_interfaces] == ["JSONRPC", "HTTP+JSON", "GRPC"]


async def test_the_extended_card_is_given_to_callers_that_are_known_with_its_schemes() -> None:
    settings = Settings.model_validate(
        {"store": "sqlite://", "grpc_port": 0, "caller_keys": "alice:k1", "agent_name": "Echo"}
    )
    scheme = {"apiKeySecurityScheme": {"location": "header", "name": "X-API-Key"}}
    skill = AgentSkill(
        id="s",
        name="S",
        description="s",
        tags=("s",),
        security_requirements=({"schemes": {"key": {"list": ["a"]}}},),
    )
    extended = build_card(settings, "https://agents.example/", {"key": scheme}, has_extended=True)
    extended = extended.model_copy(update={"skills": (skill,)})
    async with agent_with(settings, extended_card=extended) as agent:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await agent.stub.GetAgentCard(pb.GetAgentCardRequest())
        assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
        card = await agent.stub.GetAgentCard(pb.GetAgentCardRequest(), metadata=(("x-api-key", "k1"),))
    assert card.supports_authenticated_extended_card
    assert card.security_schemes["key"].api_key_security_scheme.name == "X-API-Key"
    assert "key" in card.security[0].schemes
    assert list(card.skills[0].security[0].schemes["key"].list) == ["a"]


# --- with the other bindings --------------------------------------------------------------------------------------


async def test_a_task_of_one_binding_is_a_task_of_the_others(agent: GrpcAgent) -> None:
    task = (await agent.stub.SendMessage(send())).task
    async with Rpc(agent.url) as rpc:
        assert text_of(await rpc.result("GetTask", {"id": task.id})) == "river"


async def test_the_official_client_uses_0_3_if_the_card_names_no_newer_version(agent: GrpcAgent) -> None:
    """The client generates error classes from their names."""
    config = ClientConfig(
        grpc_channel_factory=grpc.aio.insecure_channel, supported_protocol_bindings=["GRPC"]
    )
    settings = SETTINGS.model_copy(update={"card": CardSettings(protocol_version="0.3")})
    async with agent_with(settings) as old, await create_client(old.url, config) as client:
        events = [event async for event in client.send_message(send_1_0("river"))]
        assert events[0].HasField("task")
        assert (
            "".join(
                part.text
                for event in events
                if event.HasField("artifact_update")
                for part in event.artifact_update.artifact.parts
            )
            == "river"
        )
        task = await client.get_task(GetTaskRequest(id=events[0].task.id))
        assert sdk_text_of(task) == "river"
        with pytest.raises(TaskNotFoundError):
            await client.get_task(GetTaskRequest(id="nobody"))
