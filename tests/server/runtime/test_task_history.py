"""The task history returned to callers: user messages, rounds of the agent, and its answer."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from support.live_server import serving
from support.rounds import answer, model_at
from support.rpc import Rpc, message
from support.upstream import ScriptedUpstream
from tailrace.server import AgentHandler, Settings, create_app
from tailrace.server.runtime.task_history import MAX_HISTORY, with_agent_messages
from tailrace.streaming import Agent, TaskState
from tailrace.streaming.a2a.models import Message, Part, Role, Task, TaskStatus
from tailrace.streaming.a2a.stream_extension import EXTENSION_URI
from tailrace.streaming.task.task_record import agent_message

LOCATE: dict[str, Any] = {"name": "locate", "parameters": {"type": "object", "properties": {}}}


async def weather(city: str) -> str:
    """The weather of a city."""
    return f"sunny in {city}"


@asynccontextmanager
async def agent_at(upstream: ScriptedUpstream) -> AsyncGenerator[Rpc]:
    agent: Agent[str] = Agent(model_at(upstream), tools=[weather])
    app = create_app(Settings(store="sqlite://"), handler=AgentHandler(agent))
    async with serving(app) as url, Rpc(url) as rpc:
        yield rpc


def outline(task: dict[str, Any]) -> list[tuple[str, list[Any]]]:
    return [
        (entry["role"].removeprefix("ROLE_"), [part.get("text", part.get("data")) for part in entry["parts"]])
        for entry in task.get("history", ())
    ]


CALL = {"tool_calls": [{"call_id": "a", "name": "weather", "arguments": {"city": "Paris"}}]}
RESULT = {"tool_results": [{"call_id": "a", "name": "weather", "output": "sunny in Paris"}]}
ROUNDS = [
    ("USER", ["Weather?"]),
    ("AGENT", ["Let me see.", CALL]),
    ("USER", [RESULT]),
    ("AGENT", ["It is sunny."]),
]


async def test_the_history_holds_the_rounds_and_the_answer_within_its_length() -> None:
    scripts = (
        answer("Let me see.", calls=[("a", "weather", {"city": "Paris"})], reasoning="Which tool?"),
        answer("It is", " sunny.", reasoning="So it is."),
    )
    async with ScriptedUpstream(*scripts) as upstream, agent_at(upstream) as rpc:
        task = (await rpc.result("SendMessage", message("Weather?")))["task"]
        assert outline(task) == ROUNDS
        for length in (0, 1, 2, 4, 9):
            read = await rpc.result("GetTask", {"id": task["id"], "historyLength": length})
            assert outline(read) == (ROUNDS[-length:] if length else [])
        older = await rpc.result("tasks/get", {"id": task["id"], "historyLength": 2})
        assert [entry["role"] for entry in older["history"]] == ["user", "agent"]
        assert [entry["parts"][0]["kind"] for entry in older["history"]] == ["data", "text"]
    for entry in task["history"]:
        assert (entry["taskId"], entry["contextId"]) == (task["id"], task["contextId"])


async def test_the_history_of_a_second_task_holds_nothing_of_the_first_one() -> None:
    async with ScriptedUpstream(answer("One."), answer("Two.")) as upstream, agent_at(upstream) as rpc:
        for question, text in (("1?", "One."), ("2?", "Two.")):
            task = (await rpc.result("SendMessage", message(question, contextId="c")))["task"]
            assert outline(task) == [("USER", [question]), ("AGENT", [text])]


async def test_calls_that_the_caller_ran_are_in_the_history_once() -> None:
    scripts = (answer("One moment.", calls=[("a", "locate", {})]), answer("In Rome."))
    call: dict[str, Any] = {"tool_calls": [{"call_id": "a", "name": "locate", "arguments": {}}]}
    result = {"tool_results": [{"call_id": "a", "name": "locate", "output": "Rome"}]}
    async with ScriptedUpstream(*scripts) as upstream, agent_at(upstream) as rpc:
        request = {**message("Where?"), "metadata": {EXTENSION_URI: {"tools": [LOCATE]}}}
        task = (await rpc.result("SendMessage", request))["task"]
        before = [("USER", ["Where?"]), ("AGENT", ["One moment.", call])]
        assert outline(task) == before
        assert task["status"]["message"]["parts"] == [{"data": call}]
        reply = {**message(taskId=task["id"])}
        reply["message"]["parts"] = [{"data": result}]
        task = (await rpc.result("SendMessage", reply))["task"]
        assert outline(task) == [*before, ("USER", [result]), ("AGENT", ["In Rome."])]


async def test_events_of_a_stream_do_not_hold_the_answer_a_second_time() -> None:
    async with ScriptedUpstream(answer("In Rome.")) as upstream, agent_at(upstream) as rpc:
        events = [event for _, event in await rpc.stream("SendStreamingMessage", message("Where?"))]
        assert outline(events[0]["task"]) == [("USER", ["Where?"])]
        assert sum("In Rome." in str(event) for event in events) == 1
        task_id = events[0]["task"]["id"]
        again = await rpc.stream("SubscribeToTask", {"id": task_id}, {"Last-Event-ID": "0"})
        assert [event for _, event in again] == events


def text_message(text: str, role: Role = Role.AGENT, **fields: Any) -> Message:
    return Message(message_id=text, role=role, parts=(Part(text=text),), task_id="t", **fields)


def task_with(*history: Message, state: TaskState = TaskState.COMPLETED) -> Task:
    return Task(id="t", context_id="c", status=TaskStatus(state=state), history=history)


def test_progress_stands_before_an_answer_and_a_question_behind_it() -> None:
    first, second = text_message("1?", Role.USER), text_message("2", Role.USER)
    progress, question = agent_message("Searching"), agent_message("Which one?")
    task = task_with(first, progress, question, second, progress)
    read = with_agent_messages(task, [first, text_message("Some."), second, text_message("All.")])
    texts = [each.parts[0].text for each in read.history]
    assert texts == ["1?", "Searching", "Some.", "Which one?", "2", "Searching", "All."]


def test_messages_that_wait_for_their_turn_are_in_the_history() -> None:
    first, second = text_message("1?", Role.USER), text_message("2?", Role.USER)
    read = with_agent_messages(
        task_with(first, second, state=TaskState.WORKING), [first, text_message("One.")]
    )
    assert [each.message_id for each in read.history] == ["1?", "One.", "2?"]


def test_messages_of_an_earlier_conversation_are_not_in_the_history() -> None:
    first = text_message("1?", Role.USER)
    earlier = first.model_copy(update={"task_id": "", "message_id": "0?"})
    read = with_agent_messages(task_with(first), [earlier, first, text_message("One.")])
    assert [each.message_id for each in read.history] == ["1?", "One."]


@pytest.mark.parametrize("length", [None, 2])
def test_a_long_history_is_cut_to_its_newest_messages(length: int | None) -> None:
    recorded = [
        text_message(str(number), Role.USER if number % 2 else Role.AGENT) for number in range(MAX_HISTORY)
    ]
    read = with_agent_messages(task_with(text_message("0", Role.USER)), recorded, length)
    assert [each.message_id for each in read.history] == [each.message_id for each in recorded][
        -(length or 1000) :
    ]
