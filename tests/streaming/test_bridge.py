"""The task bridge: its reference's examples, both status tables, and every version's responses."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.strategies import json_values
from tailrace.streaming import A2AArtifact, A2AMessage, A2ATaskBridge, A2ATaskResult
from tailrace.streaming.bridge import BridgeDialect

bridge = A2ATaskBridge()


def test_a_goal_with_context_is_sent_as_two_text_parts() -> None:
    request = bridge.build_send_request(goal="Summarize the Q4 report", context="Focus on revenue metrics")
    task_id = request["params"]["id"]
    assert task_id
    assert request == {
        "jsonrpc": "2.0",
        "id": task_id,
        "method": "tasks/send",
        "params": {
            "id": task_id,
            "message": {
                "role": "user",
                "parts": [
                    {"type": "text", "text": "Summarize the Q4 report"},
                    {"type": "text", "text": "Focus on revenue metrics"},
                ],
            },
        },
    }


def test_a_given_task_id_is_used_and_others_are_made_anew() -> None:
    assert bridge.build_send_request("a", task_id="mine")["params"]["id"] == "mine"
    assert bridge.build_send_request("a")["params"]["id"] != bridge.build_send_request("a")["params"]["id"]
    assert len(bridge.build_send_request("a")["params"]["message"]["parts"]) == 1


def test_a_task_is_asked_for_and_cancelled_by_its_id() -> None:
    for request, method in (
        (bridge.build_get_request("t"), "tasks/get"),
        (bridge.build_cancel_request("t"), "tasks/cancel"),
    ):
        assert (request["jsonrpc"], request["method"], request["params"]) == ("2.0", method, {"id": "t"})
        assert request["id"]


def test_a_response_with_a_result_is_read() -> None:
    response = {
        "jsonrpc": "2.0",
        "id": "task-123",
        "result": {
            "id": "task-123",
            "status": {"state": "completed"},
            "artifacts": [
                {"parts": [{"type": "text", "text": "Summary: Revenue grew 15%..."}], "name": "summary"}
            ],
        },
    }
    assert bridge.parse_response(response) == A2ATaskResult(
        task_id="task-123",
        status="completed",
        artifacts=[A2AArtifact([{"type": "text", "text": "Summary: Revenue grew 15%..."}], "summary")],
    )


def test_a_response_with_an_error_is_a_failed_task() -> None:
    response = {"jsonrpc": "2.0", "id": "task-456", "error": {"code": -32600, "message": "Invalid request"}}
    assert bridge.parse_response(response) == A2ATaskResult("task-456", "failed", error="Invalid request")


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


@pytest.mark.parametrize("status", ["input-required", "rejected", "", "anything"])
def test_unknown_statuses_stay_as_they_are(status: str) -> None:
    assert bridge.a2a_status_to_cortex(status) == status
    assert bridge.cortex_status_to_a2a(status) == status


def test_the_text_of_a_result_is_that_of_artifacts_then_messages() -> None:
    result = A2ATaskResult(
        task_id="task-123",
        status="completed",
        artifacts=[
            A2AArtifact(parts=[{"type": "text", "text": "Summary paragraph 1"}]),
            A2AArtifact(
                parts=[{"type": "data", "data": {}}, {"type": "text", "text": "Summary paragraph 2"}]
            ),
        ],
    )
    assert bridge.get_result_text(result) == "Summary paragraph 1\nSummary paragraph 2"
    result.messages.append(A2AMessage("agent", [{"text": "Done"}]))
    assert bridge.get_result_text(result).endswith("2\nDone")
    assert bridge.get_result_text(A2ATaskResult("t", "working")) == ""


def test_defaults_are_those_of_the_reference() -> None:
    assert A2AArtifact() == A2AArtifact(parts=[], name="", description="")
    assert A2AMessage("user") == A2AMessage(role="user", parts=[])
    assert A2ATaskResult("t", "working") == A2ATaskResult("t", "working", [], [], None)


def test_the_reason_of_a_failed_task_is_its_error() -> None:
    said: dict[str, Any] = {"role": "agent", "parts": [{"type": "text", "text": "no such report"}]}
    result = bridge.parse_response({"result": {"id": "t", "status": {"state": "failed", "message": said}}})
    assert (result.status, result.error) == ("failed", "no such report")
    assert result.messages == [A2AMessage("agent", said["parts"])]


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
