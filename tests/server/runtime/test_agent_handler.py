"""Agents behind the protocol: rounds of tool calls, tools of the caller, and the stored result."""

import json
import shutil
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import anyio
import pytest

from support.live_server import serving
from support.rounds import Call, answer, model_at
from support.rpc import Rpc, message
from support.upstream import ScriptedUpstream, SetEvent, Wait
from tailrace.server import AgentHandler, FunctionHandler, Item, Settings, Store, Turn, create_app
from tailrace.streaming import Agent, ArtifactUpdate, StatusUpdate
from tailrace.streaming.a2a.models import Artifact, Part
from tailrace.streaming.a2a.stream_extension import EXTENSION_URI
from tailrace.streaming.conversion.message_conversion import to_common_message
from tailrace.wrappers import Message, Role

LOCATE: dict[str, Any] = {
    "name": "locate",
    "description": "Where the user is.",
    "parameters": {"type": "object", "properties": {}},
}


async def weather(city: str) -> str:
    """The weather of a city."""
    return f"sunny in {city}"


@asynccontextmanager
async def agent_at(
    upstream: ScriptedUpstream,
    store: str = "sqlite://",
    *,
    tools: Any = (weather,),
    merge_reads: bool = True,
    **settings: Any,
) -> AsyncGenerator[Rpc]:
    agent: Agent[str] = Agent(
        model_at(upstream), tools=tools, instructions="Be brief.", merge_reads=merge_reads
    )
    app = create_app(Settings(store=store, **settings), handler=AgentHandler(agent))
    async with serving(app) as url, Rpc(url) as rpc:
        yield rpc


class Annotated(AgentHandler):
    """Adds an artifact to each turn of an agent."""

    async def run(self, turn: Turn) -> AsyncIterator[Item]:
        """Implement `Handler.run`."""
        async for update in super().run(turn):
            if isinstance(update, StatusUpdate) and update.state.terminal:
                yield ArtifactUpdate(Artifact(artifact_id="note", parts=(Part(text="Checked."),)))
            yield update


class AnnotatedBatches(AgentHandler):
    """Adds an artifact to each turn of an agent, in batches."""

    async def run_in_batches(self, turn: Turn) -> AsyncGenerator[Sequence[Item]]:
        """Implement `Handler.run_in_batches`."""
        return self._annotated(await super().run_in_batches(turn))

    async def _annotated(self, batches: AsyncGenerator[Sequence[Item]]) -> AsyncGenerator[Sequence[Item]]:
        async with aclosing(batches):
            async for items in batches:
                last = items[-1] if items else None
                if isinstance(last, StatusUpdate) and last.state.terminal:
                    note = ArtifactUpdate(Artifact(artifact_id="note", parts=(Part(text="Checked."),)))
                    items = [*items[:-1], note, last]
                yield items


def asking(text: str, context_id: str = "c", **facts: Any) -> dict[str, Any]:
    """Return the params of a send with options beyond its message."""
    return {**message(text, contextId=context_id), "metadata": {EXTENSION_URI: facts}}


def answering(task: dict[str, Any], *results: tuple[str, Any], text: str = "") -> dict[str, Any]:
    """Return the params of a send with tool results."""
    entries = [{"call_id": call_id, "output": output} for call_id, output in results]
    parts: list[dict[str, Any]] = [{"data": {"tool_results": entries}}]
    parts += [{"text": text}] if text else []
    return {"message": {"messageId": str(uuid4()), "role": "ROLE_USER", "taskId": task["id"], "parts": parts}}


def artifacts_of(task: dict[str, Any]) -> dict[str, list[Any]]:
    """Return the text or data of a task's artifacts, by id."""
    return {
        each["artifactId"]: [part.get("text", part.get("data")) for part in each["parts"]]
        for each in task.get("artifacts", [])
    }


def state_of(task: dict[str, Any]) -> str:
    return task["status"]["state"].removeprefix("TASK_STATE_")


def calls_of(task: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the calls that a task waits for."""
    return [
        call
        for part in task["status"]["message"]["parts"]
        for call in part.get("data", {}).get("tool_calls", ())
    ]


async def conversation(file: Path, context_id: str = "c") -> list[Message]:
    store = Store(f"sqlite:///{file}")
    await store.open()
    try:
        return [to_common_message(entry) for entry in await store.load_conversation(context_id, "", 100)]
    finally:
        await store.close()


def outline(messages: list[Message]) -> list[tuple[Role, Any]]:
    """Return roles, texts, and ids of calls and results of a conversation."""
    return [
        (each.role, each.text or [part.id for part in (*each.tool_calls, *each.tool_results)])
        for each in messages
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


async def test_an_answer_that_was_to_be_json_is_data_too_and_its_text_streams() -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    scripts = (answer('{"n"', ": 4}"), answer('{"n": "four"}'))
    async with ScriptedUpstream(*scripts) as upstream:
        async with agent_at(upstream) as rpc:
            task = (await rpc.result("SendMessage", asking("A number.", output={"schema": schema})))["task"]
            wrong = (await rpc.result("SendMessage", asking("A number.", output={"schema": schema})))["task"]
        request = (await upstream.received(0)).json
    assert artifacts_of(task) == {"text": ['{"n": 4}'], "output": [{"n": 4}]}
    assert request["response_format"]["json_schema"]["schema"] == schema
    assert state_of(wrong) == "FAILED"
    assert '"four" is not of type "integer"' in wrong["status"]["message"]["parts"][0]["text"]
    assert artifacts_of(wrong) == {"text": ['{"n": "four"}']}


async def test_a_provider_that_fails_in_a_later_round_leaves_what_came_before(tmp_path: Path) -> None:
    scripts = (answer("See.", calls=[("a", "weather", {"city": "Rome"})]), answer("It is su", finish=None))
    async with ScriptedUpstream(*scripts) as upstream:
        async with agent_at(upstream, f"sqlite:///{tmp_path}/t.db") as rpc:
            task = (await rpc.result("SendMessage", message("Weather?", contextId="c")))["task"]
    assert state_of(task) == "FAILED"
    assert artifacts_of(task)["text-round-2"] == ["It is su"]
    assert outline(await conversation(tmp_path / "t.db"))[-2:] == [
        (Role.TOOL, ["a"]),
        (Role.MODEL, "It is su"),
    ]


async def test_a_model_that_never_comes_to_an_end_fails_the_task() -> None:
    scripts = [answer(calls=[(f"c{number}", "weather", {"city": "Rome"})]) for number in range(3)]
    async with ScriptedUpstream(*scripts) as upstream:
        agent: Agent[str] = Agent(model_at(upstream), tools=[weather], max_rounds=3)
        app = create_app(Settings(store="sqlite://"), handler=AgentHandler(agent))
        async with serving(app) as url, Rpc(url) as rpc:
            task = (await rpc.result("SendMessage", message("Weather?")))["task"]
    assert state_of(task) == "FAILED"
    assert "3 rounds" in task["status"]["message"]["parts"][0]["text"]
    assert task["metadata"][EXTENSION_URI]["usage"]["totalTokens"] == 45


async def test_cancel_stops_the_tool(tmp_path: Path) -> None:
    running, stopped = anyio.Event(), anyio.Event()

    async def slow() -> str:
        """Never returns."""
        running.set()
        try:
            await anyio.sleep_forever()
        finally:
            stopped.set()
        raise AssertionError

    async with ScriptedUpstream(answer("Hm.", calls=[("a", "slow", {})])) as upstream:
        async with agent_at(upstream, f"sqlite:///{tmp_path}/t.db", tools=[slow]) as rpc:
            sent = {**message("Go", contextId="c"), "configuration": {"returnImmediately": True}}
            task = (await rpc.result("SendMessage", sent))["task"]
            with anyio.fail_after(10):
                await running.wait()
                task = await rpc.result("CancelTask", {"id": task["id"]})
                await stopped.wait()
    assert state_of(task) == "CANCELED"
    assert outline(await conversation(tmp_path / "t.db")) == [(Role.USER, "Go"), (Role.MODEL, "Hm.")]


@pytest.mark.parametrize("cut_in", ["tool", "answer"])
async def test_a_turn_that_a_crash_interrupted_goes_on_behind_its_last_whole_round(
    tmp_path: Path, cut_in: str
) -> None:
    reached, go_on = anyio.Event(), anyio.Event()

    async def lookup() -> str:
        """Looks it up."""
        if cut_in == "tool":
            reached.set()
            await go_on.wait()
        return "found"

    first = answer("Hm.", calls=[("a", "lookup", {})])
    second = answer("It is", " there.")
    if cut_in == "answer":
        second = [*second[:2], SetEvent(reached), Wait(go_on), *second[2:]]
    crashed = tmp_path / "crashed"
    async with ScriptedUpstream(first, second) as upstream:
        async with agent_at(upstream, f"sqlite:///{tmp_path}/t.db", tools=[lookup]) as rpc:
            sent = {**asking("Go", temperature=0.5), "configuration": {"returnImmediately": True}}
            task = (await rpc.result("SendMessage", sent))["task"]
            events: list[Any] = []
            shown = anyio.Event()

            def seen(so_far: list[tuple[int, dict[str, Any]]]) -> None:
                wanted = "text-round-2" if cut_in == "answer" else "tool-call-1"
                if f"'{wanted}'" in str(so_far) and ("tool_calls" in str(so_far)):
                    shown.set()
                events[:] = so_far

            async with anyio.create_task_group() as group:
                group.start_soon(rpc.stream, "SubscribeToTask", {"id": task["id"]}, None, seen)
                with anyio.fail_after(10):
                    await reached.wait()
                    await shown.wait()
                crashed.mkdir()
                for name in ("t.db", "t.db-wal"):
                    shutil.copy(tmp_path / name, crashed)  # as after a crash
                go_on.set()
    again = answer("It was there.")
    async with ScriptedUpstream(again) as upstream:
        store = f"sqlite:///{crashed}/t.db"
        async with agent_at(upstream, store, tools=[lookup], on_crash="restart") as rpc:
            await rpc.stream("SubscribeToTask", {"id": task["id"]}, {"Last-Event-ID": "0"})
            task = await rpc.result("GetTask", {"id": task["id"]})
        [request] = [each.json for each in upstream.requests if each.method == "POST"]
    assert state_of(task) == "COMPLETED"
    assert artifacts_of(task)["text"] == ["Hm."]
    assert artifacts_of(task)["text-round-2"] == ["It was there."]
    assert [each["role"] for each in request["messages"]] == ["system", "user", "assistant", "tool"]
    assert ("found" if cut_in == "answer" else "the server stopped") in request["messages"][-1]["content"]
    assert request["temperature"] == 0.5
    assert outline(await conversation(crashed / "t.db")) == [
        (Role.USER, "Go"),
        (Role.MODEL, "Hm."),
        (Role.TOOL, ["a"]),
        (Role.MODEL, "It was there."),
    ]


async def test_a_branch_begins_with_the_messages_before_another_one() -> None:
    async with (
        ScriptedUpstream(*(answer(text) for text in ("A.", "B.", "C."))) as upstream,
        agent_at(upstream) as rpc,
    ):
        for text in ("one", "two"):
            await rpc.result("SendMessage", message(text, contextId="c"))
        [_, _, two, _] = (await rpc.result("GetConversation", {"contextId": "c"}))["messages"]
        branch = {"contextId": "c", "messageId": two["messageId"]}
        fields = {"metadata": {EXTENSION_URI: {"branch": branch}}}
        task = (await rpc.result("SendMessage", message("two, changed", **fields)))["task"]
        assert task["contextId"] != "c"
        branched = await rpc.result("GetConversation", {"contextId": task["contextId"]})
        kept = await rpc.result("GetConversation", {"contextId": "c"})
        [listed] = (await rpc.result("ListTasks", {"contextId": task["contextId"]}))["tasks"]
        assert listed["history"][0]["metadata"][EXTENSION_URI]["branch"] == branch
        sent = [
            each["content"]
            for each in json.loads(upstream.requests[2].body)["messages"]
            if each["role"] != "system"
        ]
        assert sent == ["one", "A.", "two, changed"]
        errors = [
            await rpc.error("SendMessage", message("x", metadata={EXTENSION_URI: {"branch": given}}, **more))
            for given, more in (
                ("c", {}),
                ({"contextId": "c", "messageId": "nobody's"}, {}),
                (branch, {"contextId": "c"}),
            )
        ]
    texts = [[part["text"] for each in one["messages"] for part in each["parts"]] for one in (kept, branched)]
    assert texts == [["one", "A.", "two", "B."], ["one", "A.", "two, changed", "C."]]
    assert [error["code"] for error in errors] == [-32602] * 3
    assert 'has no message "nobody\'s"' in errors[1]["message"]


async def test_get_conversation_returns_the_messages_of_the_model(tmp_path: Path) -> None:
    scripts = (answer("See.", calls=[("a", "weather", {"city": "Rome"})]), answer("Sunny."))
    store = f"sqlite:///{tmp_path}/t.db"
    async with ScriptedUpstream(*scripts) as upstream:
        async with agent_at(upstream, store) as rpc:
            await rpc.result("SendMessage", message("Weather?", contextId="c"))
            before = await rpc.result("GetConversation", {"contextId": "c"})
        async with agent_at(upstream, store) as rpc:  # another process
            after = await rpc.result("GetConversation", {"contextId": "c"})
            async with rpc.http.get(f"{rpc.url}/conversations/c?historyLength=2") as response:
                newest = await response.json()
            unknown = await rpc.result("GetConversation", {"contextId": "nobody's"})
    messages = [Message.model_validate(to_common_message(each).model_dump()) for each in after["messages"]]
    assert outline(messages) == [
        (Role.USER, "Weather?"),
        (Role.MODEL, "See."),
        (Role.TOOL, ["a"]),
        (Role.MODEL, "Sunny."),
    ]
    assert after == before
    assert newest == {"contextId": "c", "messages": after["messages"][-2:]}
    assert unknown == {"contextId": "nobody's"}
    assert after["messages"][2]["metadata"][EXTENSION_URI] == {"by": "agent"}


async def test_get_conversation_leaves_out_the_files_of_tasks() -> None:
    file = {"raw": "aGVsbG8=", "filename": "a.txt", "mediaType": "text/plain"}
    async with ScriptedUpstream(*(answer(text) for text in ("A.", "B.", "C."))) as upstream:
        async with agent_at(upstream) as rpc:
            await rpc.result("SendMessage", message("", contextId="c", parts=[file]))
            await rpc.result("SendMessage", message("two", contextId="c"))
            complete = await rpc.result("GetConversation", {"contextId": "c"})
            branch = {"contextId": "c", "messageId": complete["messages"][2]["messageId"]}
            fields = {"metadata": {EXTENSION_URI: {"branch": branch}}}
            task = (await rpc.result("SendMessage", message("", parts=[file], **fields)))["task"]
            other = {"contextId": task["contextId"], "omitTaskFiles": True}
            branched = await rpc.result("GetConversation", other)
            async with rpc.http.get(f"{rpc.url}/conversations/c?omitTaskFiles=true") as response:
                short = await response.json()
    without = {**file, "raw": ""}
    assert [each["parts"][0] for each in complete["messages"][::2]] == [file, {"text": "two"}]
    assert [each["parts"][0] for each in short["messages"][::2]] == [without, {"text": "two"}]
    assert [each["parts"][0] for each in branched["messages"][::2]] == [file, without]  # a copy has no task


# --- derived handlers -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [Annotated, AnnotatedBatches])
@pytest.mark.parametrize("one_by_one", [False, True])
async def test_a_derived_handler_overrides_run_or_run_in_batches(
    kind: type[AgentHandler], one_by_one: bool
) -> None:
    async with ScriptedUpstream(answer("Hi")) as upstream:
        handler = kind(Agent(model_at(upstream)))
        app = create_app(
            Settings(store="sqlite://"), handler=FunctionHandler(handler.run) if one_by_one else handler
        )
        async with serving(app) as url, Rpc(url) as rpc:
            task = (await rpc.result("SendMessage", message("Hello")))["task"]
    assert artifacts_of(task) == {"text": ["Hi"], "note": ["Checked."]}
    assert state_of(task) == "COMPLETED"
