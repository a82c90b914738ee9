"""Agents behind the protocol: rounds of tool calls, tools of the caller, and the stored result."""

import shutil
from pathlib import Path
from typing import Any
from uuid import uuid4

import anyio
import pytest

from support.agent_handlers import agent_at, artifacts_of, asking, conversation, outline, state_of, weather
from support.rounds import Call, answer
from support.rpc import message
from support.upstream import ScriptedUpstream
from tailrace.streaming.a2a.stream_extension import EXTENSION_URI
from tailrace.wrappers import Role

LOCATE: dict[str, Any] = {
    "name": "locate",
    "description": "Where the user is.",
    "parameters": {"type": "object", "properties": {}},
}


def answering(task: dict[str, Any], *results: tuple[str, Any], text: str = "") -> dict[str, Any]:
    """Return the params of a send with tool results."""
    entries = [{"call_id": call_id, "output": output} for call_id, output in results]
    parts: list[dict[str, Any]] = [{"data": {"tool_results": entries}}]
    parts += [{"text": text}] if text else []
    return {"message": {"messageId": str(uuid4()), "role": "ROLE_USER", "taskId": task["id"], "parts": parts}}


def calls_of(task: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the calls that a task waits for."""
    return [
        call
        for part in task["status"]["message"]["parts"]
        for call in part.get("data", {}).get("tool_calls", ())
    ]


async def test_the_rounds_of_a_turn_are_artifacts_and_the_whole_of_it_is_remembered(tmp_path: Path) -> None:
    calls = [("a", "weather", {"city": "Paris"}), ("b", "weather", {"city": "Rome"})]
    scripts = (answer("Let me see.", calls=calls), answer("Both", " sunny."))
    async with ScriptedUpstream(*scripts) as upstream:
        async with agent_at(upstream, f"sqlite:///{tmp_path}/t.db") as rpc:
            task = (await rpc.result("SendMessage", message("Weather?", contextId="c")))["task"]
        second = await upstream.received(1)
    assert state_of(task) == "COMPLETED"
    assert artifacts_of(task) == {
        "text": ["Let me see."],
        "tool-call-1": [
            {"tool_calls": [{"call_id": "a", "name": "weather", "arguments": {"city": "Paris"}}]}
        ],
        "tool-call-2": [{"tool_calls": [{"call_id": "b", "name": "weather", "arguments": {"city": "Rome"}}]}],
        "tool-result-1": [
            {"tool_results": [{"call_id": "a", "name": "weather", "output": "sunny in Paris"}]}
        ],
        "tool-result-2": [{"tool_results": [{"call_id": "b", "name": "weather", "output": "sunny in Rome"}]}],
        "text-round-2": ["Both sunny."],
    }
    facts = task["metadata"][EXTENSION_URI]
    assert facts["usage"]["totalTokens"] == 30
    assert facts["finishReason"] == "stop"
    assert [each["role"] for each in second.json["messages"]] == [
        "system",
        "user",
        "assistant",
        "tool",
        "tool",
    ]
    assert outline(await conversation(tmp_path / "t.db")) == [
        (Role.USER, "Weather?"),
        (Role.MODEL, "Let me see."),
        (Role.TOOL, ["a", "b"]),
        (Role.MODEL, "Both sunny."),
    ]


async def test_arguments_are_streamed_and_then_replaced_by_the_call() -> None:
    scripts = (answer(calls=[("a", "weather", {"city": "Paris"})]), answer("Sunny."))
    async with ScriptedUpstream(*scripts) as upstream, agent_at(upstream, merge_reads=False) as rpc:
        events = await rpc.stream("SendStreamingMessage", message("Weather?"))
    shown = [
        event["artifactUpdate"]
        for _, event in events
        if event.get("artifactUpdate", {}).get("artifact", {}).get("artifactId") == "tool-call-1"
    ]
    assert [each["artifact"]["parts"][0].get("text") for each in shown[:-1]] == ["", '{"city":', ' "Paris"}']
    assert [each.get("append", False) for each in shown] == [False, True, True, False]
    assert shown[-1]["lastChunk"]
    assert shown[0]["artifact"]["metadata"][EXTENSION_URI] == {
        "channel": "tool_call",
        "model": "openai:scripted",
        "callId": "a",
    }
    assert shown[0]["artifact"]["name"] == "weather"


async def test_a_tool_of_the_callers_is_run_by_the_caller(tmp_path: Path) -> None:
    scripts = (
        answer(calls=[("a", "locate", {})]),
        answer(calls=[("b", "locate", {})]),
        answer("You are in Rome."),
    )
    async with ScriptedUpstream(*scripts) as upstream:
        async with agent_at(upstream, f"sqlite:///{tmp_path}/t.db") as rpc:
            params = asking("Where am I?", tools=[LOCATE], instructions="Be kind.")
            task = (await rpc.result("SendMessage", params))["task"]
            assert state_of(task) == "INPUT_REQUIRED"
            assert calls_of(task) == [{"call_id": "a", "name": "locate", "arguments": {}}]
            task = (await rpc.result("SendMessage", answering(task, ("a", {"lat": 1}))))["task"]
            assert calls_of(task) == [{"call_id": "b", "name": "locate", "arguments": {}}]
            task = (await rpc.result("SendMessage", answering(task, ("b", "Rome"))))["task"]
        requests = [(await upstream.received(number)).json for number in range(3)]
    assert state_of(task) == "COMPLETED"
    assert artifacts_of(task)["text-turn-3"] == ["You are in Rome."]
    for request in requests:  # a repeated declaration of the same tools
        assert [tool["function"]["name"] for tool in request["tools"]] == ["weather", "locate"]
        assert request["messages"][0]["content"] == "Be brief.\n\nBe kind."
    assert requests[2]["messages"][-1] == {"role": "tool", "tool_call_id": "b", "content": "Rome"}
    messages = await conversation(tmp_path / "t.db")
    assert outline(messages) == [
        (Role.USER, "Where am I?"),
        (Role.MODEL, ["a"]),
        (Role.TOOL, ["a"]),
        (Role.MODEL, ["b"]),
        (Role.TOOL, ["b"]),
        (Role.MODEL, "You are in Rome."),
    ]


async def test_a_round_of_both_kinds_runs_ours_and_waits_for_theirs(tmp_path: Path) -> None:
    calls: list[Call] = [
        ("a", "locate", {}),
        ("b", "weather", {"city": "Rome"}),
        ("c", "locate", {"fine": True}),
    ]
    scripts = (answer(calls=calls), answer("Sunny."))
    async with ScriptedUpstream(*scripts) as upstream:
        async with agent_at(upstream, f"sqlite:///{tmp_path}/t.db") as rpc:
            task = (await rpc.result("SendMessage", asking("Weather here?", tools=[LOCATE])))["task"]
            assert [call["call_id"] for call in calls_of(task)] == ["a", "c"]
            [shown] = artifacts_of(task)["tool-result-1"]
            assert shown["tool_results"][0]["output"] == "sunny in Rome"
            # One of two results: the other is outstanding, so the model is not called.
            task = (await rpc.result("SendMessage", answering(task, ("c", "here"))))["task"]
            assert state_of(task) == "INPUT_REQUIRED"
            assert [call["call_id"] for call in calls_of(task)] == ["a"]
            task = (await rpc.result("SendMessage", answering(task, ("a", "Rome"))))["task"]
        second = await upstream.received(1)
    assert state_of(task) == "COMPLETED"
    *_, call, first, other, last = second.json["messages"]
    assert [each["id"] for each in call["tool_calls"]] == ["a", "b", "c"]
    assert {each["tool_call_id"]: each["content"] for each in (first, other, last)} == {
        "a": "Rome",
        "b": "sunny in Rome",
        "c": "here",
    }


async def test_words_instead_of_results_go_on_without_them() -> None:
    scripts = (answer(calls=[("a", "locate", {})]), answer("Never mind."))
    async with ScriptedUpstream(*scripts) as upstream:
        async with agent_at(upstream) as rpc:
            task = (await rpc.result("SendMessage", asking("Where am I?", tools=[LOCATE])))["task"]
            task = (await rpc.result("SendMessage", message("Forget it.", taskId=task["id"])))["task"]
        second = await upstream.received(1)
    assert state_of(task) == "COMPLETED"
    assert [each["role"] for each in second.json["messages"]] == [
        "system",
        "user",
        "assistant",
        "tool",
        "user",
    ]


@pytest.mark.parametrize("results", [["z"], ["a", "a"], ["a", "z"]], ids=" ".join)
async def test_results_that_answer_nothing_are_refused_and_the_task_waits_on(results: list[str]) -> None:
    scripts = (answer(calls=[("a", "locate", {})]), answer("Rome."))
    async with ScriptedUpstream(*scripts) as upstream, agent_at(upstream) as rpc:
        task = (await rpc.result("SendMessage", asking("Where am I?", tools=[LOCATE])))["task"]
        wrong = answering(task, *((call_id, "x") for call_id in results))
        error = await rpc.error("SendMessage", wrong)
        assert error["code"] == -32602
        assert repr(results[-1]) in error["message"]
        assert state_of(await rpc.result("GetTask", {"id": task["id"]})) == "INPUT_REQUIRED"
        task = (await rpc.result("SendMessage", answering(task, ("a", "x"))))["task"]
        assert state_of(task) == "COMPLETED"
        error = await rpc.error(
            "SendMessage", {"message": {**answering(task, ("a", "x"))["message"], "taskId": ""}}
        )
        assert "waiting calls: none" in error["message"]


@pytest.mark.parametrize(
    "facts",
    [
        {"tools": [{"name": ""}]},
        {"tools": "all"},
        {"toolChoice": {"mode": "maybe"}},
        {"output": {"schema": {"type": "nothing"}}},
        {"temperature": "hot"},
    ],
    ids=str,
)
async def test_unsupported_options_are_refused_by_name(facts: dict[str, Any]) -> None:
    async with ScriptedUpstream() as upstream, agent_at(upstream) as rpc:
        error = await rpc.error("SendMessage", asking("Hello", **facts))
    assert error["code"] == -32602
    assert next(iter(facts)) in error["message"]


async def test_a_tool_of_the_callers_with_a_name_of_ours_is_refused() -> None:
    async with ScriptedUpstream() as upstream, agent_at(upstream) as rpc:
        error = await rpc.error("SendMessage", asking("Hello", tools=[{**LOCATE, "name": "weather"}]))
        assert (await rpc.result("ListTasks", {}))["totalSize"] == 0
    assert error["code"] == -32602
    assert "'weather'" in error["message"]


async def test_a_choice_that_forces_a_call_counts_for_its_own_message_alone() -> None:
    scripts = (answer(calls=[("a", "locate", {})]), answer("Rome."))
    async with ScriptedUpstream(*scripts) as upstream:
        async with agent_at(upstream) as rpc:
            params = asking("Where am I?", tools=[LOCATE], toolChoice={"mode": "required"})
            task = (await rpc.result("SendMessage", params))["task"]
            task = (await rpc.result("SendMessage", answering(task, ("a", "Rome"))))["task"]
        first, second = (await upstream.received(0)).json, (await upstream.received(1)).json
    assert state_of(task) == "COMPLETED"
    assert first["tool_choice"] == "required"
    assert "tool_choice" not in second
    assert [tool["function"]["name"] for tool in second["tools"]] == ["weather", "locate"]


async def test_two_messages_at_once_may_each_answer_some_of_the_calls() -> None:
    scripts = (answer(calls=[("a", "locate", {}), ("b", "locate", {})]), answer("There."))
    async with ScriptedUpstream(*scripts) as upstream:
        async with agent_at(upstream) as rpc:
            task = (await rpc.result("SendMessage", asking("Where am I?", tools=[LOCATE])))["task"]
            async with anyio.create_task_group() as group:
                for call_id in "ab":
                    group.start_soon(rpc.result, "SendMessage", answering(task, (call_id, call_id)))
            task = await rpc.result("GetTask", {"id": task["id"]})
        second = await upstream.received(1)
    assert state_of(task) == "COMPLETED"
    assert {each["tool_call_id"] for each in second.json["messages"] if each["role"] == "tool"} == {"a", "b"}


@pytest.mark.parametrize("ending", ["cancel", "fail", "restart"])
async def test_a_published_result_is_recorded_however_the_round_ends(tmp_path: Path, ending: str) -> None:
    shown, for_ever = anyio.Event(), anyio.Event()

    async def slow() -> str:
        """Never returns."""
        await for_ever.wait()
        return "late"

    def seen(so_far: list[tuple[int, dict[str, Any]]]) -> None:
        if "tool-result-1" in str(so_far):
            shown.set()

    calls: list[Call] = [("a", "slow", {}), ("b", "weather", {"city": "Rome"})]
    store, file = f"sqlite:///{tmp_path}/t.db", tmp_path / "t.db"
    async with ScriptedUpstream(answer(calls=calls), answer("Well."), answer("Well.")) as upstream:
        async with agent_at(upstream, store, tools=[slow, weather]) as rpc:
            sent = {**message("Go", contextId="c"), "configuration": {"returnImmediately": True}}
            task = (await rpc.result("SendMessage", sent))["task"]
            async with anyio.create_task_group() as group:
                group.start_soon(rpc.stream, "SubscribeToTask", {"id": task["id"]}, None, seen)
                with anyio.fail_after(10):
                    await shown.wait()
                if ending == "cancel":
                    await rpc.result("CancelTask", {"id": task["id"]})
                else:
                    file = tmp_path / "crashed/t.db"
                    file.parent.mkdir()
                    for name in ("t.db", "t.db-wal"):
                        shutil.copy(tmp_path / name, file.parent)
                    for_ever.set()
        if ending != "cancel":
            again = agent_at(upstream, f"sqlite:///{file}", tools=[slow, weather], on_crash=ending)
            async with again as rpc:
                await rpc.stream("SubscribeToTask", {"id": task["id"]}, {"Last-Event-ID": "0"})
    messages = await conversation(file)
    results = {result.id: result for each in messages for result in each.tool_results}
    assert results["b"].output == "sunny in Rome"
    if ending == "restart":
        assert outline(messages)[-1] == (Role.MODEL, "Well.")
        assert results["a"].is_error
    else:
        assert set(results) == {"b"}
