"""Agents behind the protocol: endings of turns, conversations, and derived handlers."""

import json
import shutil
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any

import anyio
import pytest

from support.agent_handlers import agent_at, artifacts_of, asking, conversation, outline, state_of, weather
from support.live_server import serving
from support.rounds import answer, model_at
from support.rpc import Rpc, message
from support.upstream import ScriptedUpstream, SetEvent, Wait
from tailrace.server import AgentHandler, FunctionHandler, Item, Settings, Turn, create_app
from tailrace.streaming import Agent, ArtifactUpdate, StatusUpdate
from tailrace.streaming.a2a.models import Artifact, Part
from tailrace.streaming.a2a.stream_extension import EXTENSION_URI
from tailrace.streaming.conversion.message_conversion import to_common_message
from tailrace.wrappers import Message, Role


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
            nothing = await rpc.result("GetConversation", {"contextId": task["contextId"], "omitFiles": True})
            async with rpc.http.get(f"{rpc.url}/conversations/c?omitTaskFiles=true") as response:
                short = await response.json()
            async with rpc.http.get(f"{rpc.url}/conversations/c?omitFiles=true") as response:
                assert await response.json() == short
    without = {**file, "raw": ""}
    assert [each["parts"][0] for each in complete["messages"][::2]] == [file, {"text": "two"}]
    assert [each["parts"][0] for each in short["messages"][::2]] == [without, {"text": "two"}]
    assert [each["parts"][0] for each in branched["messages"][::2]] == [file, without]  # a copy has no task
    assert [each["parts"][0] for each in nothing["messages"][::2]] == [without, without]


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
