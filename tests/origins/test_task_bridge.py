"""The task bridge: each entry of its reference, and its examples against a server with a reasoning model."""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import fields, is_dataclass
from typing import Any
from uuid import UUID

import anyio
import pytest
from pydantic import SecretStr

from support.live_server import serving
from support.origin_rows import row
from support.rounds import answer, model_at
from support.rpc import Rpc
from support.upstream import Hang, ScriptedUpstream, Step
from tailrace.server import AgentHandler, Settings, create_app
from tailrace.server.sdk import RemoteAgent
from tailrace.streaming import A2AArtifact, A2AMessage, A2ATaskBridge, A2ATaskResult, Agent
from tailrace.streaming.a2a import Message, Part, Role, TaskArtifactUpdateEvent

BRIDGE = "tailrace.streaming.A2ATaskBridge"
RESULT = "tailrace.streaming.A2ATaskResult"

bridge = A2ATaskBridge()

Post = Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]


@asynccontextmanager
async def agent_behind(*script: Step) -> AsyncGenerator[Post]:
    """Run a server with a scripted model; yield a function that posts a request."""
    async with ScriptedUpstream(script) as upstream:
        app = create_app(Settings(store="sqlite://"), handler=AgentHandler(Agent[str](model_at(upstream))))
        async with serving(app) as url, Rpc(url) as rpc:

            async def post_to_agent(request: dict[str, Any]) -> dict[str, Any]:
                async with rpc.http.post(url + "/", json=request) as response:
                    return await response.json()

            yield post_to_agent


# --- classes ----------------------------------------------------------------------------------------------------


@row("`A2AArtifact` is a dataclass", name="tailrace.streaming.A2AArtifact")
@row("`A2AArtifact.parts`: content parts, `[]` by default", name="tailrace.streaming.A2AArtifact")
@row('`A2AArtifact.name`, `""` by default', name="tailrace.streaming.A2AArtifact")
@row('`A2AArtifact.description`, `""` by default', name="tailrace.streaming.A2AArtifact")
def test_an_artifact_is_a_dataclass_with_defaults() -> None:
    assert is_dataclass(A2AArtifact)
    made = A2AArtifact()
    assert (made.parts, made.name, made.description) == ([], "", "")
    assert [each.name for each in fields(A2AArtifact)][:3] == ["parts", "name", "description"]


@row("`A2AMessage` is a dataclass", name="tailrace.streaming.A2AMessage")
@row('`A2AMessage.role`: `"user"` or `"agent"`, required', name="tailrace.streaming.A2AMessage")
@row("`A2AMessage.parts`: content parts, `[]` by default", name="tailrace.streaming.A2AMessage")
def test_a_message_is_a_dataclass_with_a_role() -> None:
    assert is_dataclass(A2AMessage)
    assert A2AMessage("user").parts == []
    make: Any = A2AMessage
    with pytest.raises(TypeError, match="role"):
        make()
    history: list[Any] = [{"role": "ROLE_USER", "parts": []}, {"role": "agent", "parts": []}]
    read = bridge.parse_response({"result": {"id": "t", "history": history}})
    assert [each.role for each in read.messages] == ["user", "agent"]


@row("`A2ATaskResult` is a dataclass", name=RESULT)
@row("`A2ATaskResult.task_id` and `status` are required", name=RESULT)
@row("`A2ATaskResult.artifacts`, `[]` by default", name=RESULT)
@row("`A2ATaskResult.messages`, `[]` by default", name=RESULT)
@row("`A2ATaskResult.error`, None by default", name=RESULT)
def test_a_result_is_a_dataclass_with_defaults() -> None:
    assert is_dataclass(A2ATaskResult)
    made = A2ATaskResult("t", "working")
    assert (made.task_id, made.status, made.artifacts, made.messages, made.error) == (
        "t",
        "working",
        [],
        [],
        None,
    )
    make: Any = A2ATaskResult
    with pytest.raises(TypeError, match="status"):
        make("t")


@row("`A2ATaskResult.status`: `submitted`, `working`, `completed`, `failed`, `canceled`", name=RESULT)
@pytest.mark.parametrize("status", ["submitted", "working", "completed", "failed", "canceled"])
def test_a_status_has_one_name_in_every_version(status: str) -> None:
    for state in (status, f"TASK_STATE_{status.upper()}"):
        read = bridge.parse_response({"result": {"id": "t", "status": {"state": state}}})
        assert (read.task_id, read.status, read.error) == ("t", status, None)


@row("`A2ATaskResult.error`: error message if the task failed", name=RESULT)
def test_a_failed_task_has_its_error() -> None:
    message = {"role": "agent", "parts": [{"type": "text", "text": "It broke."}]}
    for state, error in (("failed", "It broke."), ("working", None)):
        read = bridge.parse_response({"result": {"id": "t", "status": {"state": state, "message": message}}})
        assert read.error == error


# --- requests ---------------------------------------------------------------------------------------------------


@row("`build_send_request` builds a JSON-RPC 2.0 `tasks/send` request", name=f"{BRIDGE}.build_send_request")
@row("Parameter `goal`: the user message", name=f"{BRIDGE}.build_send_request")
@row("Parameter `context`: a second text part", name=f"{BRIDGE}.build_send_request")
@row("Example of `build_send_request`", name=f"{BRIDGE}.build_send_request")
def test_the_example_of_a_send_request() -> None:
    bridge = A2ATaskBridge()

    request = bridge.build_send_request(
        goal="Summarize the Q4 report",
        context="Focus on revenue metrics",
    )

    made = request["id"]
    assert request == {
        "jsonrpc": "2.0",
        "id": made,
        "method": "tasks/send",
        "params": {
            "id": made,
            "message": {
                "role": "user",
                "parts": [
                    {"type": "text", "text": "Summarize the Q4 report"},
                    {"type": "text", "text": "Focus on revenue metrics"},
                ],
            },
        },
    }


@row("Parameter `context` is optional", name=f"{BRIDGE}.build_send_request")
@row("Parameter `task_id`: generated as a UUID if omitted", name=f"{BRIDGE}.build_send_request")
def test_context_and_task_id_are_optional() -> None:
    request = bridge.build_send_request("a")
    assert str(UUID(request["params"]["id"])) == request["params"]["id"]
    assert bridge.build_send_request("a")["params"]["id"] != request["params"]["id"]
    assert request["params"]["message"]["parts"] == [{"type": "text", "text": "a"}]
    assert bridge.build_send_request("a", task_id="mine")["params"]["id"] == "mine"


@row("`build_get_request` builds a `tasks/get` request for a task id", name=f"{BRIDGE}.build_get_request")
@row(
    "`build_cancel_request` builds a `tasks/cancel` request for a task id",
    name=f"{BRIDGE}.build_cancel_request",
)
def test_requests_that_get_and_cancel() -> None:
    for request, method in (
        (bridge.build_get_request("t"), "tasks/get"),
        (bridge.build_cancel_request("t"), "tasks/cancel"),
    ):
        assert request == {"jsonrpc": "2.0", "id": request["id"], "method": method, "params": {"id": "t"}}
        assert request["id"]


# --- responses --------------------------------------------------------------------------------------------------


@row("`parse_response` extracts artifacts from the result", name=f"{BRIDGE}.parse_response")
@row("Example of `parse_response`: success", name=f"{BRIDGE}.parse_response")
def test_the_example_of_a_response() -> None:
    response = {
        "jsonrpc": "2.0",
        "id": "task-123",
        "result": {
            "id": "task-123",
            "status": {"state": "completed"},
            "artifacts": [
                {
                    "parts": [{"type": "text", "text": "Summary: Revenue grew 15%..."}],
                    "name": "summary",
                },
            ],
        },
    }

    result = bridge.parse_response(response)
    assert result.status == "completed"
    assert len(result.artifacts) == 1
    assert result.task_id == "task-123"
    assert result.artifacts[0].name == "summary"
    assert result.artifacts[0].parts == [{"type": "text", "text": "Summary: Revenue grew 15%..."}]


@row(
    '`parse_response` returns status `"failed"` and the message of an error', name=f"{BRIDGE}.parse_response"
)
@row("Example of `parse_response`: error", name=f"{BRIDGE}.parse_response")
def test_the_example_of_an_error() -> None:
    error_response = {
        "jsonrpc": "2.0",
        "id": "task-456",
        "error": {"code": -32600, "message": "Invalid request"},
    }

    result = bridge.parse_response(error_response)
    assert result.status == "failed"
    assert result.error == "Invalid request"
    assert result.task_id == "task-456"


@row("`parse_response` extracts messages from the result", name=f"{BRIDGE}.parse_response")
@pytest.mark.parametrize("member", ["messages", "history"])
def test_messages_of_a_response(member: str) -> None:
    parts = [{"type": "text", "text": "hi"}]
    messages = [{"role": "user", "parts": parts}, {"role": "agent", "parts": parts}]
    result = bridge.parse_response({"result": {"id": "t", "status": {"state": "working"}, member: messages}})
    assert result.messages == [A2AMessage("user", parts), A2AMessage("agent", parts)]


# --- statuses ---------------------------------------------------------------------------------------------------


@row("`submitted` and `pending` are mapped to each other", name=f"{BRIDGE}.a2a_status_to_cortex")
@row("`working` and `running` are mapped to each other", name=f"{BRIDGE}.a2a_status_to_cortex")
@row("`completed` stays `completed`, both ways", name=f"{BRIDGE}.cortex_status_to_a2a")
@row("`failed` stays `failed`, both ways", name=f"{BRIDGE}.cortex_status_to_a2a")
@row("`canceled` and `cancelled` are mapped to each other", name=f"{BRIDGE}.cortex_status_to_a2a")
@pytest.mark.parametrize(
    ("a2a", "cortex"),
    [
        ("submitted", "pending"),
        ("working", "running"),
        ("completed", "completed"),
        ("failed", "failed"),
        ("canceled", "cancelled"),
    ],
)
def test_statuses_are_mapped_both_ways(a2a: str, cortex: str) -> None:
    assert bridge.a2a_status_to_cortex(a2a) == cortex
    assert bridge.cortex_status_to_a2a(cortex) == a2a


@row("Unknown A2A statuses are returned as they are", name=f"{BRIDGE}.a2a_status_to_cortex")
@row("Unknown sub-agent statuses are returned as they are", name=f"{BRIDGE}.cortex_status_to_a2a")
@pytest.mark.parametrize("status", ["input-required", "", "anything"])
def test_unknown_statuses_stay(status: str) -> None:
    assert bridge.a2a_status_to_cortex(status) == status
    assert bridge.cortex_status_to_a2a(status) == status


# --- the text of a result ---------------------------------------------------------------------------------------


@row("Example of `get_result_text`", name=f"{BRIDGE}.get_result_text")
def test_the_example_of_a_results_text() -> None:
    result = A2ATaskResult(
        task_id="task-123",
        status="completed",
        artifacts=[
            A2AArtifact(parts=[{"type": "text", "text": "Summary paragraph 1"}]),
            A2AArtifact(parts=[{"type": "text", "text": "Summary paragraph 2"}]),
        ],
    )

    text = bridge.get_result_text(result)
    assert text == "Summary paragraph 1\nSummary paragraph 2"


@row(
    "`get_result_text` joins the text of artifacts and messages by newlines",
    name=f"{BRIDGE}.get_result_text",
    differs="The text omits messages of the caller, reasoning, and messages that repeat an artifact, as in the example "
    "of the lifecycle.",
)
def test_the_text_is_that_of_artifacts_then_of_the_agents_messages() -> None:
    result = A2ATaskResult(
        "t",
        "completed",
        artifacts=[A2AArtifact([{"type": "text", "text": "Summary"}])],
        messages=[
            A2AMessage("user", [{"type": "text", "text": "Summarize"}]),
            A2AMessage("agent", [{"type": "text", "text": "Summary"}]),
            A2AMessage("agent", [{"type": "text", "text": "Anything else?"}]),
        ],
    )
    assert bridge.get_result_text(result) == "Summary\nAnything else?"


# --- the full lifecycle -----------------------------------------------------------------------------------------


@row("Lifecycle 1: build and send a task", name=f"{BRIDGE}.build_send_request")
@row(
    'Lifecycle 2: parse the response, whose status is `"working"`',
    name=f"{BRIDGE}.parse_response",
    differs="`tasks/send` returns when the task is complete, as in A2A before 0.2; `tasks/get` has the same states.",
)
@row("Lifecycle 3: poll for completion", name=f"{BRIDGE}.build_get_request")
@row("Lifecycle 4: extract the text", name=f"{BRIDGE}.get_result_text")
async def test_the_lifecycle_of_a_task(capsys: pytest.CaptureFixture[str]) -> None:
    script = answer("Bonjour, ", "le monde!", reasoning="The French greet with bonjour.")
    async with agent_behind(*script) as post_to_agent:
        bridge = A2ATaskBridge()

        # 1. Build and send a task
        request = bridge.build_send_request("Translate to French: Hello, world!")
        # POST request to agent URL...
        response = await post_to_agent(request)

        # 2. Parse the response
        result = bridge.parse_response(response)
        print(f"Status: {result.status}")

        # 3. Poll for completion
        get_req = bridge.build_get_request(result.task_id)
        status_response = await post_to_agent(get_req)
        final = bridge.parse_response(status_response)

        # 4. Extract text
        if final.status == "completed":
            text = bridge.get_result_text(final)
            print(text)  # "Bonjour, le monde!"
    assert capsys.readouterr().out == "Status: completed\nBonjour, le monde!\n"


@row("Lifecycle 5: or cancel if needed", name=f"{BRIDGE}.build_cancel_request")
@row("A running task has status `working`, a cancelled one `canceled`", name=f"{BRIDGE}.parse_response")
async def test_a_running_task_is_cancelled() -> None:
    begun = answer("Bon", finish=None)
    ended: list[dict[str, Any]] = []
    async with agent_behind(*begun, Hang()) as post_to_agent, anyio.create_task_group() as group:

        async def post(request: dict[str, Any]) -> None:
            ended.append(await post_to_agent(request))

        group.start_soon(post, bridge.build_send_request("Translate to French: Hello!", task_id="task-1"))
        states: list[str] = []
        while states[-1:] != ["working"]:
            read = bridge.parse_response(await post_to_agent(bridge.build_get_request("task-1")))
            states.append(read.status)
        await post(bridge.build_cancel_request("task-1"))
    assert [bridge.parse_response(each).status for each in ended] == ["canceled", "canceled"]


# --- see also ---------------------------------------------------------------------------------------------------


@row(
    "See also: an A2A client, which uses the task bridge",
    name="tailrace.server.sdk.RemoteAgent",
    differs="`RemoteAgent` sends A2A 1.0 or 0.3, and streams responses. The bridge is for code that sends its own requests.",
)
@row("See also: the agent card, for discovery", name="tailrace.server.sdk.RemoteAgent.card")
@row(
    "See also: the dataclass `A2AAgentConfig`",
    name="tailrace.server.sdk.RemoteAgent",
    differs="The document does not list the fields: address, token and timeouts are arguments of `RemoteAgent`.",
)
async def test_a_client_finds_and_calls_an_agent() -> None:
    async with ScriptedUpstream(answer("Bonjour.")) as upstream:
        handler = AgentHandler(Agent[str](model_at(upstream)))
        settings = Settings(store="sqlite://", agent_name="Translator", caller_keys=SecretStr("me:key"))
        async with serving(create_app(settings, handler=handler)) as url:
            async with RemoteAgent(url, token="key", read_timeout=30) as agent:
                card = await agent.card()
                message = Message(message_id="m", role=Role.USER, parts=(Part(text="Hello"),))
                async with aclosing(agent.stream(message)) as events:
                    received = [event async for event in events]
    assert card.name == "Translator"
    assert any(isinstance(event, TaskArtifactUpdateEvent) for event in received)
