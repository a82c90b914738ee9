"""The task bridge with the responses of each version; the examples of its reference are in `tests/origins`."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.live_server import serving
from support.rounds import model_at
from support.rpc import Rpc
from support.strategies import json_values
from support.upstream import ScriptedUpstream, openai_chunk, sse
from tailrace.server import AgentHandler, Settings, create_app
from tailrace.streaming import A2AArtifact, A2AMessage, A2ATaskBridge, A2ATaskResult, Agent
from tailrace.streaming.a2a.stream_extension import EXTENSION_URI
from tailrace.streaming.conversion.a2a_task_bridge import BridgeDialect

bridge = A2ATaskBridge()


REASONING = {EXTENSION_URI: {"channel": "reasoning"}}


def test_the_text_of_a_result_is_the_agents_answer_alone() -> None:
    result = A2ATaskResult(
        "t",
        "completed",
        artifacts=[
            A2AArtifact([{"text": "hmm"}], "Reasoning", metadata=REASONING),
            A2AArtifact([{"text": '{"city": '}], metadata={EXTENSION_URI: {"channel": "tool_call"}}),
            A2AArtifact([{"text": "sunny"}], metadata={EXTENSION_URI: {"channel": "tool_result"}}),
            A2AArtifact([{"text": "Other"}], metadata={EXTENSION_URI: {"channel": "text", "choice": 1}}),
            A2AArtifact([{"data": {}}, {"text": "It is sunny."}, {"text": ""}], "Answer"),
        ],
        messages=[A2AMessage("user", [{"text": "Is it sunny?"}])],
    )
    assert bridge.get_result_text(result) == "It is sunny."
    result.messages.append(
        A2AMessage("agent", [{"text": "hmm", "metadata": REASONING}, {"text": "It is "}, {"text": "sunny."}])
    )
    assert bridge.get_result_text(result) == "It is sunny."
    result.messages.append(A2AMessage("agent", [{"text": "Anything else?"}]))
    assert bridge.get_result_text(result) == "It is sunny.\nAnything else?"
    result.artifacts.clear()
    assert bridge.get_result_text(result) == "It is \nsunny.\nAnything else?"
    assert bridge.get_result_text(A2ATaskResult("t", "working")) == ""


def test_an_answer_in_the_history_counts_where_there_is_no_artifact() -> None:
    history = [
        {"role": "ROLE_USER", "parts": [{"text": "Translate"}]},
        {"role": "ROLE_AGENT", "parts": [{"text": "Bonjour"}]},
    ]
    for result in (
        {"id": "t", "status": {"state": "TASK_STATE_COMPLETED"}, "history": history},
        {
            "id": "t",
            "status": {"state": "TASK_STATE_COMPLETED", "message": history[1]},
            "history": history[:1],
        },
        {"id": "t", "status": {"state": "TASK_STATE_COMPLETED", "message": history[1]}, "history": history},
    ):
        assert bridge.get_result_text(bridge.parse_response({"result": {"task": result}})) == "Bonjour"


SAME_TASK: list[dict[str, Any]] = [
    {"id": "t", "status": {"state": "input-required"}, "history": [{"role": "user", "parts": []}]},
    {"kind": "task", "id": "t", "status": {"state": "input-required"}, "history": [{"role": "user"}]},
    {
        "task": {
            "id": "t",
            "status": {"state": "TASK_STATE_INPUT_REQUIRED"},
            "history": [{"role": "ROLE_USER"}],
        }
    },
]


@pytest.mark.parametrize("result", SAME_TASK)
def test_the_same_task_is_read_from_every_version(result: dict[str, Any]) -> None:
    read = bridge.parse_response({"result": result})
    assert read == A2ATaskResult("t", "input-required", messages=[A2AMessage("user")])


def test_a_direct_message_is_a_completed_task() -> None:
    message: dict[str, Any] = {"messageId": "m", "role": "ROLE_AGENT", "parts": [{"text": "hi"}]}
    answers: list[dict[str, Any]] = [{"message": message}, message]
    for result in answers:
        read = bridge.parse_response({"result": result})
        assert (read.status, bridge.get_result_text(read)) == ("completed", "hi")


@given(response=st.dictionaries(st.sampled_from(["result", "error", "id", "task"]), json_values))
@settings(deadline=None)
def test_whatever_an_agent_sends_is_read(response: dict[str, Any]) -> None:
    result = bridge.parse_response(response)
    assert isinstance(result.status, str)
    assert isinstance(bridge.get_result_text(result), str)


@pytest.mark.parametrize(
    ("dialect", "method", "role"), [("0.3", "message/send", "user"), ("1.0", "SendMessage", "ROLE_USER")]
)
def test_later_versions_leave_the_tasks_id_to_the_server(
    dialect: BridgeDialect, method: str, role: str
) -> None:
    request = A2ATaskBridge(dialect).build_send_request("a", "b")
    message = request["params"]["message"]
    assert (request["method"], message["role"], "taskId" in message) == (method, role, False)
    assert [part["text"] for part in message["parts"]] == ["a", "b"]
    again = A2ATaskBridge(dialect).build_send_request("a", task_id="t")
    assert again["params"]["message"]["taskId"] == "t"


REASONED = [
    sse(openai_chunk({"role": "assistant", "reasoning_content": "The French greet with "})),
    sse(openai_chunk({"reasoning_content": "bonjour."})),
    sse(openai_chunk({"content": "Bonjour, "})),
    sse(openai_chunk({"content": "le monde!"})),
    sse(openai_chunk({}, finish="stop")),
    sse("[DONE]"),
]


@pytest.mark.parametrize("dialect", ["0.1", "0.3", "1.0"])
async def test_the_lifecycle_of_the_reference_holds_against_a_model_that_reasons(
    dialect: BridgeDialect,
) -> None:
    bridge = A2ATaskBridge(dialect)
    async with ScriptedUpstream(REASONED) as upstream:
        app = create_app(Settings(store="sqlite://"), handler=AgentHandler(Agent[str](model_at(upstream))))
        async with serving(app) as url, Rpc(url) as rpc:

            async def post_to_agent(request: dict[str, Any]) -> dict[str, Any]:
                async with rpc.http.post(url + "/", json=request) as response:
                    return await response.json()

            request = bridge.build_send_request("Translate to French: Hello, world!", context="Be polite")
            result = bridge.parse_response(await post_to_agent(request))
            get_request = bridge.build_get_request(result.task_id)
            get_request["params"]["historyLength"] = 100
            final = bridge.parse_response(await post_to_agent(get_request))
            while final.status != "completed":
                final = bridge.parse_response(await post_to_agent(get_request))
    assert final.messages[0].role == "user"
    assert bridge.get_result_text(final) == "Bonjour, le monde!"
    if result.status == "completed":  # a request of 0.3 does not wait for the result
        assert bridge.get_result_text(result) == bridge.get_result_text(final)
