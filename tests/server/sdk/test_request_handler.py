"""Our engine behind the official SDK's own routes, called by the SDK's own clients."""

from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Literal, cast

import anyio
import grpc
import grpc.aio
import httpx
import pytest
from a2a.client import Client, ClientCallContext, ClientConfig, ClientFactory
from a2a.server.context import ServerCallContext
from a2a.server.request_handlers import GrpcHandler
from a2a.server.routes import create_jsonrpc_routes, create_rest_routes
from a2a.types import (
    AgentCapabilities,
    AgentCard,
    AgentInterface,
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
    Task,
    TaskPushNotificationConfig,
    a2a_pb2_grpc,
)
from a2a.utils import errors as sdk_errors
from a2a.utils.errors import (
    InvalidParamsError,
    PushNotificationNotSupportedError,
    TaskNotCancelableError,
    TaskNotFoundError,
    UnsupportedOperationError,
)
from starlette.applications import Starlette

from support.agents import Scripted
from support.fixture_contexts import in_own_task
from support.live_server import serving
from support.sdk import kinds, numbers, send, state, streamed, text_of
from support.sdk_server import Named
from tailrace.server import DirectHandler, Engine, FunctionHandler, Handler, Settings, Store
from tailrace.server.protocols.a2a.card import build_card
from tailrace.server.push_notification_factory import create_notifier
from tailrace.server.runtime.agent_capabilities import Capabilities
from tailrace.server.runtime.caller import Caller
from tailrace.server.runtime.operations import Operations
from tailrace.server.sdk import RequestHandler, caller_of
from tailrace.streaming.a2a import AgentCard as OurCard
from tailrace.streaming.a2a import AgentExtension
from tailrace.streaming.task.task_record import agent_message

Binding = Literal["JSONRPC", "HTTP+JSON", "GRPC"]
BINDINGS: tuple[Binding, ...] = ("JSONRPC", "HTTP+JSON", "GRPC")


@dataclass
class Agent:
    """Our engine behind one of the SDK's bindings.

    Attributes:
        client: A client that streams.
        patient: A client that waits for the complete task.
        handler: The served request handler.
        scripted: Its agent.
    """

    client: Client
    patient: Client
    handler: RequestHandler
    scripted: Scripted


@asynccontextmanager
async def engine_behind(
    work: Handler, settings: Settings | None = None, **options: Any
) -> AsyncGenerator[RequestHandler]:
    store = Store("sqlite://")
    push = create_notifier(settings, store) if settings is not None else None
    engine = Engine(store, work, push=push)
    async with engine.running():
        yield RequestHandler(Operations(engine, push, **options))


@asynccontextmanager
async def address_of(handler: RequestHandler, binding: Binding) -> AsyncGenerator[str]:
    """Serve the handler with the SDK's routes; return the address."""
    if binding != "GRPC":
        create: Callable[[], list[Any]] = (
            (lambda: create_jsonrpc_routes(handler, "/"))
            if binding == "JSONRPC"
            else (lambda: create_rest_routes(handler))
        )
        async with serving(Starlette(routes=create())) as url:
            yield url
        return
    server = grpc.aio.server()
    add_to_server: Any = cast("Any", a2a_pb2_grpc).add_A2AServiceServicer_to_server
    add_to_server(GrpcHandler(handler), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(1)


def client_of(address: str, binding: Binding, http: httpx.AsyncClient, *, streaming: bool = True) -> Client:
    card = AgentCard(
        name="ours",
        supported_interfaces=[AgentInterface(url=address, protocol_binding=binding, protocol_version="1.0")],
        capabilities=AgentCapabilities(streaming=True, push_notifications=True, extended_agent_card=True),
    )
    config = ClientConfig(
        streaming=streaming,
        httpx_client=http,
        grpc_channel_factory=grpc.aio.insecure_channel,
        supported_protocol_bindings=[binding],
    )
    return ClientFactory(config).create(card)


@pytest.fixture(params=BINDINGS)
async def agent(request: pytest.FixtureRequest) -> AsyncGenerator[Agent]:
    async with in_own_task(agent_behind(request.param)) as agent:
        yield agent


@asynccontextmanager
async def agent_behind(binding: Binding) -> AsyncGenerator[Agent]:
    scripted = Scripted()
    async with AsyncExitStack() as stack:
        handler = await stack.enter_async_context(engine_behind(FunctionHandler(scripted)))
        address = await stack.enter_async_context(address_of(handler, binding))
        http = await stack.enter_async_context(httpx.AsyncClient())
        client = client_of(address, binding, http)
        patient = client_of(address, binding, http, streaming=False)
        stack.push_async_callback(client.close)
        stack.push_async_callback(patient.close)
        yield Agent(client, patient, handler, scripted)


async def collect(agent: Agent, text: str, **fields: Any) -> list[StreamResponse]:
    return [event async for event in agent.client.send_message(send(text, **fields))]


async def test_a_stream_is_the_task_and_what_happens_to_it_with_numbers(agent: Agent) -> None:
    events = await collect(agent, "river")
    assert kinds(events) == ["task submitted", "working", *["artifact"] * 6, "completed"]
    assert numbers(events) == list(range(1, 10))
    assert streamed(events) == "river"


async def test_a_send_waits_for_the_task_unless_it_returns_immediately(agent: Agent) -> None:
    [done] = [event async for event in agent.patient.send_message(send("river"))]
    assert (state(done.task), text_of(done.task)) == ("completed", "river")
    at_once = SendMessageConfiguration(return_immediately=True)
    [begun] = [event async for event in agent.patient.send_message(send("hold", configuration=at_once))]
    assert state(begun.task) in ("submitted", "working")
    agent.scripted.go_on.set()


async def test_a_task_is_fetched_and_listed(agent: Agent) -> None:
    ids = [(await collect(agent, text))[0].task.id for text in ("one", "two", "three")]
    task = await agent.client.get_task(GetTaskRequest(id=ids[1]))
    assert text_of(task) == "two"
    assert not (await agent.client.get_task(GetTaskRequest(id=ids[1], history_length=0))).history
    first = await agent.client.list_tasks(ListTasksRequest(page_size=2, include_artifacts=True))
    rest = await agent.client.list_tasks(
        ListTasksRequest(page_size=2, include_artifacts=True, page_token=first.next_page_token)
    )
    assert [text_of(task) for task in (*first.tasks, *rest.tasks)] == ["three", "two", "one"]
    assert (first.total_size, rest.next_page_token) == (3, "")


async def test_a_question_is_answered_in_the_same_task(agent: Agent) -> None:
    events = await collect(agent, "ask")
    assert kinds(events) == ["task submitted", "working", "input_required"]
    task_id = events[0].task.id
    again = await collect(agent, "that one", task_id=task_id)
    assert kinds(again)[0] == "task working"
    assert again[0].task.id == task_id
    assert kinds(again)[-1] == "completed"


async def test_a_task_is_followed_by_another_client_and_canceled(agent: Agent) -> None:
    first: list[StreamResponse] = []
    second: list[StreamResponse] = []

    async def follow(task_id: str) -> None:
        async for event in agent.client.subscribe(SubscribeToTaskRequest(id=task_id)):
            second.append(event)
            if len(second) == 1:
                canceled = await agent.patient.cancel_task(CancelTaskRequest(id=task_id))
                assert state(canceled) == "canceled"

    with anyio.fail_after(10):
        async with anyio.create_task_group() as group:
            async for event in agent.client.send_message(send("hold")):
                first.append(event)
                if streamed(first) == "held" and not second and kinds(first)[-1] == "artifact":
                    group.start_soon(follow, first[0].task.id)
        await agent.scripted.stopped.wait()
    assert text_of(second[0].task) + streamed(second) == "held"
    assert kinds(first)[-1] == kinds(second)[-1] == "canceled"
    assert second[1:] == first[-len(second) + 1 :]


async def test_errors_arrive_as_what_they_are(agent: Agent) -> None:
    events = await collect(agent, "river")
    task_id = events[0].task.id
    with pytest.raises(TaskNotFoundError):
        await agent.client.get_task(GetTaskRequest(id="nobody"))
    with pytest.raises(TaskNotCancelableError):
        await agent.client.cancel_task(CancelTaskRequest(id=task_id))
    with pytest.raises(UnsupportedOperationError, match="has ended"):
        _ = [event async for event in agent.client.subscribe(SubscribeToTaskRequest(id=task_id))]
    with pytest.raises(UnsupportedOperationError, match="has ended"):
        await collect(agent, "more", task_id=task_id)
    with pytest.raises(InvalidParamsError):
        await agent.client.list_tasks(ListTasksRequest(page_token="none of yours"))
    with pytest.raises(UnsupportedOperationError):
        await agent.client.get_extended_agent_card(GetExtendedAgentCardRequest())
    with pytest.raises(PushNotificationNotSupportedError):
        await agent.client.get_task_push_notification_config(
            GetTaskPushNotificationConfigRequest(task_id=task_id, id="x")
        )
    with pytest.raises(PushNotificationNotSupportedError):
        await agent.client.create_task_push_notification_config(
            TaskPushNotificationConfig(task_id=task_id, url="http://hook.example/")
        )


async def test_a_message_without_parts_is_refused_and_leaves_no_task(agent: Agent) -> None:
    request = send()
    request.message.ClearField("parts")
    with pytest.raises(InvalidParamsError, match="parts"):
        _ = [event async for event in agent.client.send_message(request)]
    assert not (await agent.client.list_tasks(ListTasksRequest())).tasks


async def test_a_failed_handler_is_a_failed_task_and_not_an_error(agent: Agent) -> None:
    events = await collect(agent, "fail")
    assert kinds(events)[-1] == "failed"
    assert "the provider is down" in events[-1].status_update.status.message.parts[0].text


async def test_a_subscription_goes_on_after_a_number(agent: Agent) -> None:
    events = await collect(agent, "river")
    context = ClientCallContext(service_parameters={"Last-Event-ID": "4"})
    subscription = SubscribeToTaskRequest(id=events[0].task.id)
    rest = [event async for event in agent.client.subscribe(subscription, context=context)]
    assert rest == events[4:]
    for wrong in ("four", "99"):
        context = ClientCallContext(service_parameters={"Last-Event-ID": wrong})
        with pytest.raises(InvalidParamsError):
            _ = [event async for event in agent.client.subscribe(subscription, context=context)]


@pytest.mark.parametrize("binding", BINDINGS)
async def test_a_direct_answer_is_a_message_without_a_task(binding: Binding) -> None:
    async def direct(_turn: object) -> AsyncGenerator[Any]:
        yield agent_message("right here")

    async with (
        engine_behind(DirectHandler(cast("Any", direct))) as handler,
        address_of(handler, binding) as address,
        httpx.AsyncClient() as http,
        client_of(address, binding, http) as client,
        client_of(address, binding, http, streaming=False) as patient,
    ):
        for each in (client, patient):
            [event] = [event async for event in each.send_message(send())]
            assert event.message.parts[0].text == "right here"


# --- callers ----------------------------------------------------------------------------------------------------


def test_a_caller_is_the_contexts_user_and_tenant_if_it_is_authenticated() -> None:
    assert caller_of(ServerCallContext()) == Caller()
    assert caller_of(ServerCallContext(user=Named("ann"), tenant="acme")) == Caller("ann", "acme")
    assert caller_of(ServerCallContext(user=Named("ann", known=False))) == Caller()


async def test_each_user_and_each_tenant_has_tasks_of_its_own() -> None:
    ann = ServerCallContext(user=Named("ann"))
    bob = ServerCallContext(user=Named("bob"))
    async with engine_behind(FunctionHandler(Scripted())) as handler:
        task = await handler.on_message_send(send("river"), ann)
        assert not isinstance(task, type(send().message))
        request = GetTaskRequest(id=cast("Any", task).id)
        assert await handler.on_get_task(request, ann) == task
        for stranger in (bob, ServerCallContext(), ServerCallContext(user=Named("ann"), tenant="acme")):
            with pytest.raises(TaskNotFoundError):
                await handler.on_get_task(request, stranger)
        # A tenant in the body, which the SDK's routes ignore, counts too; the one in the address takes precedence.
        request.tenant = "acme"
        with pytest.raises(TaskNotFoundError):
            await handler.on_get_task(request, ann)


async def test_the_extended_card_is_for_users_that_are_known() -> None:
    def extended(caller: Caller) -> OurCard:
        return build_card(Settings(agent_name=f"for {caller.user}"), "http://h/")

    options: dict[str, Any] = {"extended_card": extended, "challenge": "Bearer"}
    request = GetExtendedAgentCardRequest()
    async with engine_behind(FunctionHandler(Scripted()), **options) as handler:
        known = ServerCallContext(user=Named("ann"))
        assert (await handler.on_get_extended_agent_card(request, known)).name == "for ann"
        with pytest.raises(sdk_errors.InvalidRequestError, match="requires authentication"):
            await handler.on_get_extended_agent_card(request, ServerCallContext())


async def test_webhooks_are_kept_listed_and_forgotten() -> None:
    settings, context = Settings(store="sqlite://", push_notifications="private"), ServerCallContext()
    async with engine_behind(FunctionHandler(Scripted()), settings) as handler:
        task = cast("Any", await handler.on_message_send(send("river"), context))
        wanted = TaskPushNotificationConfig(task_id=task.id, id="w", url="http://127.0.0.1:9/hook")
        made = await handler.on_create_task_push_notification_config(wanted, context)
        one = GetTaskPushNotificationConfigRequest(task_id=task.id, id="w")
        assert await handler.on_get_task_push_notification_config(one, context) == made
        every = ListTaskPushNotificationConfigsRequest(task_id=task.id)
        assert list((await handler.on_list_task_push_notification_configs(every, context)).configs) == [made]
        gone = DeleteTaskPushNotificationConfigRequest(task_id=task.id, id="w")
        await handler.on_delete_task_push_notification_config(gone, context)
        assert not (await handler.on_list_task_push_notification_configs(every, context)).configs


async def test_a_required_extension_must_be_requested() -> None:
    scripted = Scripted()
    capabilities = Capabilities(extensions=(AgentExtension(uri="urn:must", required=True),))
    async with engine_behind(FunctionHandler(scripted), capabilities=capabilities) as handler:
        with pytest.raises(sdk_errors.ExtensionSupportRequiredError):
            await handler.on_message_send(send(), ServerCallContext())
        asking = ServerCallContext(requested_extensions={"urn:must", "urn:other"})
        await handler.on_message_send(send(), asking)
    assert scripted.turns[0].extensions == ("urn:must",)


async def test_leaving_a_stream_leaves_the_task_running() -> None:
    scripted = Scripted()
    async with engine_behind(FunctionHandler(scripted)) as handler:
        stream = handler.on_message_send_stream(send("hold"), ServerCallContext())
        task = cast("Any", await anext(stream))
        await stream.aclose()
        scripted.go_on.set()
        from_the_start = ServerCallContext(state={"headers": {"last-event-id": "0"}})
        with anyio.fail_after(5):
            followed = handler.on_subscribe_to_task(SubscribeToTaskRequest(id=task.id), from_the_start)
            _ = [event async for event in followed]
        done = await handler.on_get_task(GetTaskRequest(id=task.id), ServerCallContext())
    assert (state(done), text_of(done)) == ("completed", "held")


async def test_a_handler_that_nests_too_deep_fails_its_task() -> None:
    async with engine_behind(FunctionHandler(Scripted())) as handler:
        task = await handler.on_message_send(send("deep"), ServerCallContext())
        assert isinstance(task, Task)
        assert state(task) == "failed"
