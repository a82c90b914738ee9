"""An agent's types on the official SDK: each row of the document that maps them, and its examples unchanged."""
# The types have the forms of A2A 1.0 only; these tests use the earlier forms.
# pyright: reportCallIssue=false, reportAttributeAccessIssue=false
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from a2a import types
from a2a.server.context import ServerCallContext
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.request_handlers import RequestHandler as SdkRequestHandler
from a2a.server.routes import create_jsonrpc_routes
from a2a.server.tasks import TaskStore as SdkTaskStore
from google.protobuf.json_format import MessageToDict
from starlette.applications import Starlette

from support.live_server import serving
from support.origin_rows import row
from support.rounds import answer, model_at
from support.rpc import Rpc, message, text_of
from support.upstream import ScriptedUpstream
from tailrace.server import AgentHandler, Engine, FunctionHandler, Store, Turn, sdk
from tailrace.server.runtime.operations import Operations
from tailrace.server.sdk import (
    AgentCapabilities,
    AgentCard,
    AgentProvider,
    AgentSkill,
    Artifact,
    CancelTaskRequest,
    DataPart,
    FilePart,
    FileWithBytes,
    FileWithUri,
    GetTaskRequest,
    InMemoryTaskStore,
    Message,
    Part,
    RequestHandler,
    Role,
    SendMessageRequest,
    Task,
    TaskState,
    TaskStatus,
    TaskStore,
    TextPart,
)
from tailrace.streaming import Agent, ArtifactUpdate, StatusUpdate, Update
from tailrace.streaming import TaskState as OurState
from tailrace.streaming.a2a import A2AError
from tailrace.streaming.a2a import Artifact as OurArtifact
from tailrace.streaming.a2a import Message as OurMessage
from tailrace.streaming.a2a import Part as OurPart
from tailrace.streaming.a2a import Role as OurRole

SDK = "tailrace.server.sdk"
PROTOBUF = "The types of A2A 1.0 are protobuf messages: "

old_forms = pytest.mark.filterwarnings("ignore:.*from before A2A 1.0.*:DeprecationWarning")

# --- type mapping -----------------------------------------------------------------------------------------------

SAME_KIND: dict[str, Any] = {
    "Skill": types.AgentSkill,
    "AuthConfig": types.SecurityScheme,
    "Capabilities": types.AgentCapabilities,
    "Provider": types.AgentProvider,
    "AgentCard": types.AgentCard,
    "TaskStatus": types.TaskStatus,
    "Task": types.Task,
    "Artifact": types.Artifact,
    "Message": types.Message,
    "MessagePart": types.Part,
    "Part": types.Part,
    "MessageSendParams": types.SendMessageRequest,
    "TaskGetParams": types.GetTaskRequest,
    "TaskListParams": types.ListTasksRequest,
    "TaskCancelParams": types.CancelTaskRequest,
}
RENAMED = PROTOBUF + "the parameters of the method are the request "


@row("`Skill` is `AgentSkill`", name=f"{SDK}.Skill")
@row(
    "`AuthConfig` is one of the `SecurityScheme` subclasses",
    name=f"{SDK}.AuthConfig",
    differs=PROTOBUF + "`SecurityScheme` is one class with a member for each kind.",
)
@row("`Capabilities` is `AgentCapabilities`", name=f"{SDK}.Capabilities")
@row("`Provider` is `AgentProvider`", name=f"{SDK}.Provider")
@row("`AgentCard` is `AgentCard`", name=f"{SDK}.AgentCard")
@row("`TaskStatus` is `TaskStatus`", name=f"{SDK}.TaskStatus")
@row("`Task` is `Task`", name=f"{SDK}.Task")
@row("`Artifact` is `Artifact`", name=f"{SDK}.Artifact")
@row("`Message` is `Message`", name=f"{SDK}.Message")
@row("`MessagePart` is the union `Part`", name=f"{SDK}.MessagePart")
@row(
    "`MessageSendParams` is `MessageSendParams`",
    name=f"{SDK}.MessageSendParams",
    differs=RENAMED + "`SendMessageRequest`.",
)
@row("`TaskGetParams` is `TaskIdParams`", name=f"{SDK}.TaskGetParams", differs=RENAMED + "`GetTaskRequest`.")
@row(
    "`TaskListParams` is `TaskQueryParams`",
    name=f"{SDK}.TaskListParams",
    differs=RENAMED + "`ListTasksRequest`.",
)
@row(
    "`TaskCancelParams` is `TaskIdParams`",
    name=f"{SDK}.TaskCancelParams",
    differs=RENAMED + "`CancelTaskRequest`.",
)
@pytest.mark.parametrize("name", SAME_KIND)
def test_a_name_makes_the_object_of_the_sdk(name: str) -> None:
    made, kind = getattr(sdk, name)(), SAME_KIND[name]
    assert type(made) is kind
    assert isinstance(made, getattr(sdk, name))


@row(
    "`TaskState` has `submitted`, `working`, `completed`, `failed`, `cancelled`, `input-required`",
    name=f"{SDK}.TaskState",
    differs="The former values are accepted with a `DeprecationWarning`; the values of A2A 1.0 are `TASK_STATE_…`.",
)
@old_forms
@pytest.mark.parametrize(
    "value", ["submitted", "working", "completed", "failed", "cancelled", "input-required"]
)
def test_states_of_before_are_states(value: str) -> None:
    states: Any = TaskState
    name = "TASK_STATE_" + value.replace("cancelled", "canceled").replace("-", "_").upper()
    assert states(value) == types.TaskState.Value(name)


@row(
    "`TextPart` is `TextPart`",
    name=f"{SDK}.TextPart",
    differs=PROTOBUF + "the function returns a `Part` with text.",
)
@row(
    "`FilePart` is `FilePart`",
    name=f"{SDK}.FilePart",
    differs=PROTOBUF + "the function returns a `Part` with a file.",
)
@row("`FilePart` is `FileWithBytes` for content by value", name=f"{SDK}.FileWithBytes")
@row("`FilePart` is `FileWithUri` for content by address", name=f"{SDK}.FileWithUri")
@row(
    "`DataPart` is `DataPart`",
    name=f"{SDK}.DataPart",
    differs=PROTOBUF + "the function returns a `Part` with data.",
)
@old_forms
def test_parts_of_each_kind() -> None:
    parts = [
        TextPart(text="hi"),
        FilePart(FileWithBytes(bytes="AA==", name="a.bin")),
        FilePart(file=FileWithUri(uri="https://a.example/a")),
        DataPart(data={"depth": "detailed"}),
    ]
    assert all(isinstance(each, Part) for each in parts)
    assert [MessageToDict(each) for each in parts] == [
        {"text": "hi"},
        {"raw": "AA==", "filename": "a.bin"},
        {"url": "https://a.example/a"},
        {"data": {"depth": "detailed"}},
    ]


@row("`JSONRPCError` is `JSONRPCError`", name=f"{SDK}.JSONRPCError")
@row("`JSONRPCRequest` is `JSONRPCRequest`", name=f"{SDK}.JSONRPCRequest")
@row("`JSONRPCResponse` is `JSONRPCResponse`", name=f"{SDK}.JSONRPCResponse")
@row("`JSONRPCResponse` is `JSONRPCSuccessResponse` for a result", name=f"{SDK}.JSONRPCSuccessResponse")
@row("`JSONRPCResponse` is `JSONRPCErrorResponse` for an error", name=f"{SDK}.JSONRPCErrorResponse")
def test_the_envelopes_of_json_rpc() -> None:
    request = sdk.JSONRPCRequest(id=1, method="GetTask", params={"id": "t"})
    assert request.model_dump() == {"jsonrpc": "2.0", "id": 1, "method": "GetTask", "params": {"id": "t"}}
    error = sdk.JSONRPCError(code=-32001, message="no such task")
    failed = sdk.JSONRPCResponse(id=1, error=error).model_dump(exclude_none=True)
    assert failed["error"] == {"code": -32001, "message": "no such task"}
    assert sdk.JSONRPCErrorResponse.model_validate(failed).error == error
    assert sdk.JSONRPCSuccessResponse(id=1, result={"id": "t"}).result == {"id": "t"}


@row(
    "`ErrorCode` is not in the SDK: use its error classes",
    name=f"{SDK}.ErrorCode",
    differs="`ErrorCode` has the codes; `to_sdk_error` creates the error objects of the SDK.",
)
def test_error_codes_are_those_of_the_protocol() -> None:
    assert (sdk.ErrorCode.TASK_NOT_FOUND, sdk.ErrorCode.PARSE_ERROR) == (-32001, -32700)
    codes = {error.code for error in A2AError.__subclasses__()}
    assert {int(code) for code in sdk.ErrorCode} <= codes


async def hello(turn: Turn) -> AsyncIterator[Update]:
    yield ArtifactUpdate(OurArtifact(artifact_id="text", parts=(OurPart(text="hello"),)))


@row("`TaskManager` is `InMemoryTaskStore`", name=f"{SDK}.TaskManager")
@row("`A2AServer` is `A2AFastAPIApplication`", name=f"{SDK}.A2AServer")
async def test_a_server_of_before_serves_an_agent() -> None:
    assert sdk.TaskManager is InMemoryTaskStore
    card = AgentCard(name="Hello", version="1")
    executor = sdk.AgentExecutor(hello)
    handler = DefaultRequestHandler(agent_executor=executor, task_store=sdk.TaskManager(), agent_card=card)
    for application in (sdk.A2AServer, sdk.A2AFastAPIApplication):
        app = application(agent_card=card, http_handler=handler).build()
        async with serving(app) as url, aiohttp.ClientSession(headers={"A2A-Version": "1.0"}) as http:
            async with http.get(f"{url}/.well-known/agent-card.json") as response:
                assert (await response.json())["name"] == "Hello"
            request = sdk.JSONRPCRequest(id=1, method="SendMessage", params=message("hi"))
            async with http.post(url + "/", json=request.model_dump()) as response:
                read = sdk.JSONRPCResponse.model_validate(await response.json())
        assert read.result["task"]["artifacts"][0]["parts"] == [{"text": "hello"}]
    await handler.aclose()


# --- details of the examples ------------------------------------------------------------------------------------


@row("Example: `AgentCard`", name=f"{SDK}.AgentCard")
@row(
    "`url=` of a card",
    name=f"{SDK}.AgentCard",
    differs="The URL becomes the only entry of `supported_interfaces`.",
)
@row("`pushNotifications=` of the capabilities", name=f"{SDK}.AgentCapabilities")
@row(
    "`stateManagement=` of the capabilities",
    name=f"{SDK}.AgentCapabilities",
    differs="A2A 1.0 has no such capability; it is omitted.",
)
@row(
    "`inputSchema=` of a skill",
    name=f"{SDK}.AgentSkill",
    differs="A2A 1.0 has no such field; the schema is added to the description.",
)
@row("`name=` of a provider", name=f"{SDK}.AgentProvider", differs="The name in A2A 1.0 is `organization`.")
def test_the_example_of_an_agent_card() -> None:
    with pytest.warns(DeprecationWarning, match="is from before A2A 1.0"):
        agent_card = AgentCard(
            name="Research Agent",
            description="Researches topics and provides summaries",
            url="http://localhost:8000",
            version="1.0.0",
            capabilities=AgentCapabilities(
                streaming=True,
                pushNotifications=False,
                stateManagement=True,
            ),
            skills=[
                AgentSkill(
                    id="research_topic",
                    name="Research Topic",
                    description="Research a topic and return findings",
                    inputSchema={
                        "type": "object",
                        "properties": {"topic": {"type": "string"}},
                        "required": ["topic"],
                    },
                ),
            ],
            provider=AgentProvider(name="Workshop Demo"),
        )
    read = MessageToDict(agent_card)
    assert [each["url"] for each in read["supportedInterfaces"]] == ["http://localhost:8000"]
    assert read["capabilities"] == {"streaming": True, "pushNotifications": False}
    assert read["provider"] == {"organization": "Workshop Demo"}
    assert '"required": ["topic"]' in read["skills"][0]["description"]


@row("Example: `Task`", name=f"{SDK}.Task")
@row(
    "`contextId=`, `artifactId=`",
    name=f"{SDK}.Task",
    differs="The names in A2A 1.0 are `context_id` and `artifact_id`.",
)
@row("`TaskState.completed`", name=f"{SDK}.TaskState", differs="`TASK_STATE_COMPLETED` in A2A 1.0.")
@row("`Role.agent`", name=f"{SDK}.Role", differs="`ROLE_AGENT` in A2A 1.0.")
def test_the_example_of_a_task() -> None:
    with pytest.warns(DeprecationWarning, match="from before A2A 1"):
        task = Task(
            id="task-abc123",
            contextId="ctx-xyz789",
            status=TaskStatus(
                state=TaskState.completed,
                message=Message(
                    role=Role.agent,
                    parts=[TextPart(text="Research complete")],
                ),
            ),
            artifacts=[
                Artifact(
                    artifactId="art-001",
                    name="research_result",
                    parts=[TextPart(text="Findings...")],
                ),
            ],
        )
    assert MessageToDict(task) == {
        "id": "task-abc123",
        "contextId": "ctx-xyz789",
        "status": {
            "state": "TASK_STATE_COMPLETED",
            "message": {"role": "ROLE_AGENT", "parts": [{"text": "Research complete"}]},
        },
        "artifacts": [
            {"artifactId": "art-001", "name": "research_result", "parts": [{"text": "Findings..."}]}
        ],
    }


@row("Example: `Message`", name=f"{SDK}.Message")
@row("`messageId=` of a message", name=f"{SDK}.Message", differs="`message_id` in A2A 1.0.")
@row("`mimeType=` of a data part", name=f"{SDK}.DataPart", differs="`media_type` in A2A 1.0.")
async def test_the_example_of_a_message_reaches_a_model() -> None:
    with pytest.warns(DeprecationWarning, match="from before A2A 1"):
        made = Message(
            role=Role.user,
            parts=[
                TextPart(text="Research quantum computing"),
                DataPart(data={"depth": "detailed"}, mimeType="application/json"),
            ],
            messageId="msg-123",
        )
    script = answer("Findings...", reasoning="Where do I look?")
    async with ScriptedUpstream(script) as upstream:
        handler = AgentHandler(Agent[str](model_at(upstream)))
        async with engine_behind(handler) as served, serving(routes_of(served)) as url, Rpc(url) as rpc:
            params = {"message": MessageToDict(made)}
            rpc.http.headers["A2A-Version"] = "1.0"
            sent = await rpc.result("SendMessage", params)
    assert text_of(sent["task"]) == "Findings..."
    assert [each["text"] for each in upstream.requests[0].json["messages"][0]["content"]] == [
        "Research quantum computing",
        '{"depth":"detailed"}',
    ]


@row("Aliases for imports of before: `Skill`, `Capabilities`, `Provider`", name=SDK)
@row("Imports of before work unchanged: `AgentCard`, `Skill`, `Task`, `Message`, `TextPart`", name=SDK)
def test_imports_of_before_need_one_module() -> None:
    names = "AgentCard Skill Capabilities Provider Task TaskState TaskStatus Artifact Message TextPart FilePart DataPart"
    assert set(names.split()) <= set(sdk.__all__)
    assert all(hasattr(sdk, each) for each in sdk.__all__)


# --- the request handler ----------------------------------------------------------------------------------------


@asynccontextmanager
async def engine_behind(work: Any) -> AsyncGenerator[RequestHandler]:
    engine = Engine(Store("sqlite://"), work)
    async with engine.running():
        yield RequestHandler(Operations(engine))


def routes_of(handler: RequestHandler) -> Starlette:
    return Starlette(routes=create_jsonrpc_routes(handler, "/"))


async def ask(turn: Turn) -> AsyncIterator[Update]:
    yield ArtifactUpdate(OurArtifact(artifact_id="text", parts=(OurPart(text="hello"),)))
    question = OurMessage(message_id="q", role=OurRole.AGENT, parts=(OurPart(text="Which one?"),))
    yield StatusUpdate(OurState.INPUT_REQUIRED, question)


def request(text: str = "hi") -> types.SendMessageRequest:
    user_message = Message(message_id="m", role=Role.ROLE_USER, parts=[TextPart(text)])
    return SendMessageRequest(message=user_message)


@row("The SDK's `RequestHandler` interface is implemented", name=f"{SDK}.RequestHandler")
@row(
    "`RequestHandler` is imported from `a2a.server.request_handlers`, `ServerCallContext` from `a2a.server.context`",
    name=f"{SDK}.RequestHandler",
)
@row(
    "`on_message_send` executes the agent and returns the task", name=f"{SDK}.RequestHandler.on_message_send"
)
@row("`on_get_task` gets a task by id", name=f"{SDK}.RequestHandler.on_get_task")
@row("`on_cancel_task` cancels a task", name=f"{SDK}.RequestHandler.on_cancel_task")
async def test_a_request_handler_sends_gets_and_cancels() -> None:
    context = ServerCallContext()
    async with engine_behind(FunctionHandler(ask)) as handler:
        assert isinstance(handler, SdkRequestHandler)
        task = await handler.on_message_send(request(), context)
        assert isinstance(task, types.Task)
        assert task.status.state == TaskState.TASK_STATE_INPUT_REQUIRED
        found = await handler.on_get_task(GetTaskRequest(id=task.id), context)
        assert found.artifacts[0].parts[0].text == "hello"
        cancelled = await handler.on_cancel_task(CancelTaskRequest(id=task.id), context)
        assert cancelled.status.state == TaskState.TASK_STATE_CANCELED


@row(
    "`on_message_send_stream` handles streaming requests",
    name=f"{SDK}.RequestHandler.on_message_send_stream",
)
async def test_a_request_handler_streams() -> None:
    async with engine_behind(FunctionHandler(hello)) as handler:
        stream = handler.on_message_send_stream(request(), ServerCallContext())
        kinds = [type(event).__name__ async for event in stream]
    assert kinds[0] == "Task"
    assert {"TaskArtifactUpdateEvent", "TaskStatusUpdateEvent"} <= set(kinds)


class WorkshopRequestHandler(RequestHandler):
    """Custom request handler for workshop agents."""

    def __init__(self, operations: Operations) -> None:
        super().__init__(operations)
        self.received: list[str] = []

    async def on_message_send(
        self, params: types.SendMessageRequest, context: ServerCallContext
    ) -> types.Task | types.Message:
        """Handle incoming message, execute agent, return task."""
        self.received.append(params.message.message_id)
        return await super().on_message_send(params, context)


@row(
    "Example: `WorkshopRequestHandler(RequestHandler)` with an agent and a task store",
    name=f"{SDK}.RequestHandler",
    differs="The `Engine` has the agent and the store. SDK 1.x has more methods, which a subclass can override.",
)
async def test_the_example_of_a_request_handler_serves_clients() -> None:
    engine = Engine(Store("sqlite://"), FunctionHandler(hello))
    async with engine.running():
        handler = WorkshopRequestHandler(Operations(engine))
        async with serving(routes_of(handler)) as url, Rpc(url) as rpc:
            rpc.http.headers["A2A-Version"] = "1.0"
            params = message("hi")
            sent = await rpc.result("SendMessage", params)
    assert text_of(sent["task"]) == "hello"
    assert handler.received == [params["message"]["messageId"]]


# --- the task store ---------------------------------------------------------------------------------------------


@row("The SDK has an `InMemoryTaskStore`", name=f"{SDK}.InMemoryTaskStore")
@row(
    "`TaskStore` is imported from `a2a.server.task_store`",
    name=f"{SDK}.TaskStore",
    differs="In SDK 1.x, the interface is in `a2a.server.tasks`.",
)
@row("A custom `TaskStore` keeps tasks in a database", name=f"{SDK}.TaskStore")
@row("`create`, `get`, `update`, `delete` of a store", name=f"{SDK}.TaskStore.update")
@row(
    "`list` of a store",
    name=f"{SDK}.TaskStore.list",
    differs="The method returns a page of A2A 1.0 (`ListTasksResponse`) instead of a list. `save` replaces `create` and `update`.",
)
@row(
    "`TaskFilter` of `list`",
    name=f"{SDK}.TaskListParams",
    differs="The parameters of the method replace the filter: context, state, and time of the last status.",
)
async def test_a_store_keeps_tasks_in_a_database(tmp_path: Path) -> None:
    context = ServerCallContext()
    store = TaskStore(f"sqlite:///{tmp_path}/tasks.db")
    assert isinstance(store, SdkTaskStore)
    task = Task(id="t", context_id="c", status=TaskStatus(state=TaskState.TASK_STATE_WORKING))
    async with store.running():
        assert await store.create(task, context) == task
        task.status.state = TaskState.TASK_STATE_COMPLETED
        assert await store.update(task, context) == task
        assert await store.get("t", context) == await store.get("t") == task
    async with TaskStore(f"sqlite:///{tmp_path}/tasks.db").running() as store:
        assert [each.id for each in (await store.list(None, context)).tasks] == ["t"]
        for context_id, found in (("c", ["t"]), ("d", [])):
            wanted = sdk.TaskListParams(context_id=context_id, status=TaskState.TASK_STATE_COMPLETED)
            assert [each.id for each in (await store.list(wanted, context)).tasks] == found
        assert await store.delete("t", context)
        assert await store.get("t", context) is None
    memory = InMemoryTaskStore()
    await memory.save(task, context)
    assert await memory.get("t", context) == task


# --- entities ---------------------------------------------------------------------------------------------------

RELATIONS: list[tuple[Any, str, Any, bool]] = [
    (AgentCard, "skills", types.AgentSkill, True),
    (AgentCard, "provider", types.AgentProvider, False),
    (AgentCard, "capabilities", types.AgentCapabilities, False),
    (Task, "status", types.TaskStatus, False),
    (Task, "artifacts", types.Artifact, True),
    (Task, "history", types.Message, True),
    (Message, "parts", types.Part, True),
]


@row("`AgentCard` has several `AgentSkill`", name=f"{SDK}.AgentCard")
@row("`AgentCard` has one `AgentProvider`", name=f"{SDK}.AgentCard")
@row("`AgentCard` has one `AgentCapabilities`", name=f"{SDK}.AgentCard")
@row("`Task` has one `TaskStatus`", name=f"{SDK}.Task")
@row("`Task` has several `Artifact`", name=f"{SDK}.Task")
@row("`Task` has several `Message` (history)", name=f"{SDK}.Task")
@row("`Message` has several `Part`", name=f"{SDK}.Message")
@pytest.mark.parametrize(("owner", "name", "kind", "several"), RELATIONS)
def test_entities_hold_each_other(owner: Any, name: str, kind: Any, several: bool) -> None:
    held = [kind(), kind()] if several else kind()
    made = getattr(owner(**{name: held}), name)
    assert (list(made) if several else made) == held
