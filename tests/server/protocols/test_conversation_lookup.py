"""The conversation of a request: continued, branched, or new."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import openai
import pytest
from openai.types.chat import ChatCompletion

from support.agents import Scripted
from support.openai_api import MODEL, WEATHER, Facade, assistant, facade_over, tool, user
from support.rounds import answer, sent
from support.rpc import Rpc
from support.upstream import ScriptedUpstream
from tailrace.server import Turn
from tailrace.streaming import ArtifactUpdate, StatusUpdate, TaskState
from tailrace.streaming.a2a.models import Artifact, Part
from tailrace.streaming.task.task_record import agent_message
from tailrace.streaming.task.updates import Update

KEY = {"extra_body": {"metadata": {"conversation_id": "chat-1"}}}
PARIS = ("c1", "get_weather", {"city": "Paris"})


async def history_of(facade: Facade, task_id: str) -> list[str]:
    """Return the texts of the messages that a task received."""
    async with Rpc(facade.url) as rpc:
        task = await rpc.result("GetTask", {"id": task_id})
    return [
        part.get("text", "")
        for message in task["history"]
        if message["role"] == "ROLE_USER"
        for part in message["parts"]
    ]


def roles(upstream: ScriptedUpstream, index: int = -1) -> list[str]:
    return [message["role"] for message in sent(upstream.requests[index])]


def texts(upstream: ScriptedUpstream, index: int = -1) -> list[Any]:
    return [message["content"] for message in sent(upstream.requests[index])]


@pytest.mark.parametrize(
    "naming",
    [
        KEY,
        {"extra_body": {"metadata": {"context_id": "chat-1"}}},
        {"extra_headers": {"X-Conversation-Id": "chat-1"}},
    ],
)
async def test_turns_of_one_key_are_one_conversation(naming: dict[str, Any]) -> None:
    async with ScriptedUpstream(answer("One."), answer("Two.")) as upstream, facade_over(upstream) as facade:
        first, context, task = await facade.chat_named(user("1?"), **naming)
        _, again, other = await facade.chat_named(user("1?"), assistant(first), user("2?"), **naming)
        sent_now = await history_of(facade, other)
    assert context == again == "chat-1"
    assert task != other
    assert sent_now == ["2?"]
    assert texts(upstream) == ["1?", "One.", "2?"]


async def test_the_user_names_a_conversation_only_if_the_application_permits_it() -> None:
    async with ScriptedUpstream(answer("One.")) as upstream:
        async with facade_over(upstream) as facade:
            _, context, _ = await facade.chat_named(user("1?"), user="bob")
            assert context != "bob"
        async with facade_over(upstream, user_is_key=True) as facade:
            _, context, _ = await facade.chat_named(user("1?"), user="bob")
            assert context == "bob"


async def test_without_a_key_every_request_begins_a_conversation_with_its_messages() -> None:
    async with ScriptedUpstream(answer("One."), answer("Two.")) as upstream, facade_over(upstream) as facade:
        first, context, _ = await facade.chat_named(user("1?"))
        _, other, _ = await facade.chat_named(user("1?"), assistant(first), user("2?"))
        # With the id from the response, it continues.
        header = {"X-Conversation-Id": other}
        messages = [
            user("1?"),
            assistant(first),
            user("2?"),
            {"role": "assistant", "content": "Two."},
            user("3?"),
        ]
        _, third, task = await facade.chat_named(*messages, extra_headers=header)
        assert await history_of(facade, task) == ["3?"]
    assert context != other == third
    assert texts(upstream, 1) == ["1?", "One.", "2?"]
    assert texts(upstream, 2) == ["1?", "One.", "2?", "Two.", "3?"]


async def test_a_key_whose_beginning_is_known_to_the_client_alone() -> None:
    messages = [user("1?"), {"role": "assistant", "content": "One."}]
    async with (
        ScriptedUpstream(answer("Two."), answer("Three.")) as upstream,
        facade_over(upstream) as facade,
    ):
        second, context, _ = await facade.chat_named(*messages, user("2?"), **KEY)
        _, again, task = await facade.chat_named(*messages, user("2?"), assistant(second), user("3?"), **KEY)
        assert await history_of(facade, task) == ["3?"]
    assert context == again == "chat-1"
    assert texts(upstream) == ["1?", "One.", "2?", "Two.", "3?"]


async def test_an_edited_conversation_is_a_branch_that_is_found_again() -> None:
    async with (
        ScriptedUpstream(*(answer(f"Answer {n}.") for n in range(5))) as upstream,
        facade_over(upstream) as facade,
    ):
        first, _, _ = await facade.chat_named(user("1?"), **KEY)
        regenerated, branch, _ = await facade.chat_named(user("1?"), **KEY)
        _, again, task = await facade.chat_named(user("1?"), assistant(regenerated), user("2?"), **KEY)
        assert await history_of(facade, task) == ["2?"]
        _, trunk, _ = await facade.chat_named(user("1?"), assistant(first), user("other"), **KEY)
        _, edited, _ = await facade.chat_named(user("one?"), assistant(first), user("2?"), **KEY)
    assert (branch, again, trunk, edited) == ("chat-1~2", "chat-1~2", "chat-1", "chat-1~3")
    assert texts(upstream, 3) == ["1?", "Answer 0.", "other"]
    assert texts(upstream, 4) == ["one?", "Answer 0.", "2?"]


async def test_white_space_of_an_answer_does_not_count() -> None:
    async with (
        ScriptedUpstream(answer("One.\n\nTwo.  "), answer("Two.")) as upstream,
        facade_over(upstream) as facade,
    ):
        await facade.chat(user("1? "), **KEY)
        trimmed = {"role": "assistant", "content": "One.\nTwo."}
        _, context, _ = await facade.chat_named(user("1?"), trimmed, user("2?"), **KEY)
    assert context == "chat-1"


async def test_several_new_messages_are_one() -> None:
    async with ScriptedUpstream(answer("One."), answer("Two.")) as upstream, facade_over(upstream) as facade:
        parts = user([{"type": "text", "text": "b"}, {"type": "text", "text": "c"}])
        first, _, _ = await facade.chat_named(user("a"), parts, **KEY)
        _, context, _ = await facade.chat_named(user("a"), parts, assistant(first), user("d"), **KEY)
    assert context == "chat-1"
    assert [message["role"] for message in sent(upstream.requests[0])] == ["user"]
    assert texts(upstream, 0) == [[{"type": "text", "text": each} for each in ("a", "b", "c")]]


async def test_a_picture_in_a_conversation() -> None:
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw=="}}
    question = user([{"type": "text", "text": "What is it?"}, picture])
    async with (
        ScriptedUpstream(answer("A bird."), answer("Blue.")) as upstream,
        facade_over(upstream) as facade,
    ):
        first, _, _ = await facade.chat_named(question, **KEY)
        _, context, _ = await facade.chat_named(question, assistant(first), user("Colour?"), **KEY)
    assert context == "chat-1"
    assert texts(upstream)[0][1] == picture


async def test_a_picture_of_the_agents_is_one_again() -> None:
    turns: list[Turn] = []

    async def handle(turn: Turn) -> AsyncIterator[Update]:
        turns.append(turn)
        picture = Part(raw=b"\x89PNG", media_type="image/png", filename="a.png")
        yield ArtifactUpdate(Artifact(artifact_id="out", parts=(Part(text="Here:"), picture)))

    async with facade_over(handler=handle) as facade:
        first = await facade.chat(user("Draw!"), **KEY)
        messages = [user("Draw!"), assistant(first), user("Again!")]
        _, context, _ = await facade.chat_named(*messages, **KEY)
        await facade.chat(*messages)
    assert context == "chat-1"
    assert [part.type for part in turns[2].history.conversation[1].content] == ["text", "file"]
    assert turns[2].history == turns[1].history


async def test_structured_output_is_recorded_once() -> None:
    form = {"response_format": {"type": "json_object"}}
    async with (
        ScriptedUpstream(answer('{"a": 1}'), answer('{"b": 2}')) as upstream,
        facade_over(upstream) as facade,
    ):
        first, _, _ = await facade.chat_named(user("1?"), **form, **KEY)
        _, context, _ = await facade.chat_named(user("1?"), assistant(first), user("2?"), **form, **KEY)
    assert context == "chat-1"
    assert texts(upstream) == ["1?", '{"a": 1}', "2?"]


async def test_the_responses_api_has_the_same_conversation() -> None:
    header = {"X-Conversation-Id": "chat-1"}
    async with ScriptedUpstream(answer("One.", reasoning="hm"), answer("Two.")) as upstream:
        async with facade_over(upstream) as facade:
            first = await facade.client.responses.create(model=MODEL, input="1?", extra_headers=header)
            items: Any = [user("1?"), *(item.to_dict() for item in first.output), user("2?")]
            raw = await facade.client.responses.with_raw_response.create(
                model=MODEL, input=items, extra_headers=header
            )
    assert raw.headers["x-conversation-id"] == "chat-1"
    assert texts(upstream) == ["1?", "One.", "2?"]


# --- tools ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("naming", [{}, KEY])
async def test_results_go_to_the_task_that_waits_for_them(naming: dict[str, Any]) -> None:
    async with (
        ScriptedUpstream(answer(calls=[PARIS]), answer("Sun.")) as upstream,
        facade_over(upstream) as facade,
    ):
        messages: list[Any] = [user("Weather?")]
        first, context, task = await facade.chat_named(*messages, tools=[WEATHER], **naming)
        # A task of another conversation that waits for a call with the same id.
        await facade.chat(user("Weather in Rome?"), tools=[WEATHER], extra_body={})
        messages += [assistant(first), tool("c1", "sunny")]
        _, again, same = await facade.chat_named(*messages, tools=[WEATHER], **naming)
    assert (context, task) == (again, same)


async def test_regenerating_an_answer_to_results_is_a_new_conversation() -> None:
    script = answer(calls=[PARIS]), answer("Sun."), answer("Rain.")
    async with ScriptedUpstream(*script) as upstream, facade_over(upstream) as facade:
        first, _, task = await facade.chat_named(user("Weather?"), tools=[WEATHER], **KEY)
        messages = [user("Weather?"), assistant(first), tool("c1", "sunny")]
        await facade.chat(*messages, tools=[WEATHER], **KEY)
        other, context, new = await facade.chat_named(*messages, tools=[WEATHER], **KEY)
        keyless, _, _ = await facade.chat_named(*messages, tools=[WEATHER])
    assert (other.choices[0].message.content, context) == ("Rain.", "chat-1~2")
    assert keyless.choices[0].message.content == "Rain."
    assert new != task
    assert roles(upstream) == ["user", "assistant", "tool"]


async def test_results_of_unknown_calls_are_refused() -> None:
    async with ScriptedUpstream(answer("Hi")) as upstream, facade_over(upstream) as facade:
        with pytest.raises(openai.BadRequestError, match="no call 'c9' waits"):
            await facade.chat(user("Weather?"), {"role": "assistant", "content": "Hm."}, tool("c9", "sunny"))


async def test_a_tool_of_the_agents_own_name_is_refused() -> None:
    mine: Any = {"type": "function", "function": {"name": "get_time"}}
    async with ScriptedUpstream(answer("Hi")) as upstream, facade_over(upstream, tools=[get_time]) as facade:
        with pytest.raises(openai.APIStatusError, match="get_time"):
            await facade.chat(user("Time?"), tools=[mine])


async def test_missing_results_are_requested_again() -> None:
    script = answer(calls=[PARIS, ("c2", "get_weather", {"city": "Rome"})]), answer("Sun.")
    async with ScriptedUpstream(*script) as upstream, facade_over(upstream) as facade:
        first, _, task = await facade.chat_named(user("Weather?"), tools=[WEATHER], **KEY)
        messages = [user("Weather?"), assistant(first), tool("c1", "sunny")]
        owed, _, same = await facade.chat_named(*messages, tools=[WEATHER], **KEY)
    assert task == same
    assert [call.id for call in owed.choices[0].message.tool_calls or ()] == ["c2"]


@pytest.mark.parametrize("naming", [{}, KEY])
@pytest.mark.parametrize("stored", [True, False])
async def test_results_that_were_requested_again_go_to_the_same_round(
    naming: dict[str, Any], stored: bool
) -> None:
    round_of_two = answer(calls=[PARIS, ("c2", "get_weather", {"city": "Rome"})])
    async with (
        ScriptedUpstream(round_of_two, answer("Rome."), answer("Bye.")) as upstream,
        facade_over(upstream) as facade,
        facade_over(upstream) as another,
    ):
        messages = [user("Weather?")]
        first, _, task = await facade.chat_named(*messages, tools=[WEATHER], **naming)
        messages += [assistant(first), tool("c1", "sunny")]
        # Partial results require the conversation's name; without it, the task that waits for all gets them.
        named = naming or {"extra_headers": {"X-Conversation-Id": await conversation_of(facade, task)}}
        owed, _, _ = await facade.chat_named(*messages, tools=[WEATHER], **named)
        messages += [assistant(owed), tool("c2", "rain")]
        last, context, same = await (facade if stored else another).chat_named(
            *messages, tools=[WEATHER], **naming
        )
        messages += [assistant(last), user("Bye!")]
        header = {"X-Conversation-Id": context}
        _, again, _ = await (facade if stored else another).chat_named(*messages, extra_headers=header)
    assert again == context
    assert (same == task) is stored
    assert roles(upstream, 1) == ["user", "assistant", "tool", "tool"]
    assert texts(upstream, 1)[2:] == ["sunny", "rain"]
    assert roles(upstream) == ["user", "assistant", "tool", "tool", "assistant", "user"]


async def conversation_of(facade: Facade, task_id: str) -> str:
    async with Rpc(facade.url) as rpc:
        return (await rpc.result("GetTask", {"id": task_id}))["contextId"]


async def test_every_one_of_several_alike_finds_a_task_that_waits() -> None:
    script = [*([answer(calls=[PARIS])] * 3), *([answer("Sun.")] * 4)]
    async with ScriptedUpstream(*script) as upstream, facade_over(upstream) as facade:
        conversations = [await facade.chat_named(user("Weather?"), tools=[WEATHER]) for _ in range(3)]
        messages = [user("Weather?"), assistant(conversations[0][0]), tool("c1", "sunny")]
        answers: list[tuple[ChatCompletion, str, str]] = []

        async def answer_one() -> None:
            answers.append(await facade.chat_named(*messages, tools=[WEATHER]))

        async with anyio.create_task_group() as group:
            for _ in range(4):
                group.start_soon(answer_one)
    assert [completion.choices[0].message.content for completion, *_ in answers] == ["Sun."] * 4
    tasks = {task for *_, task in answers}
    assert len(tasks) == 4
    assert tasks > {task for *_, task in conversations}  # the fourth began a conversation
    assert roles(upstream) == ["user", "assistant", "tool"]


@pytest.mark.parametrize("api", ["key", "previous"])
async def test_results_that_are_sent_twice_at_once_are_answered_twice(api: str) -> None:
    async with (
        ScriptedUpstream(answer(calls=[PARIS]), answer("Sun."), answer("Sun.")) as upstream,
        facade_over(upstream) as facade,
    ):
        tasks: set[str] = set()

        async def by_key() -> None:
            tasks.add((await facade.chat_named(*messages, tools=[WEATHER], **KEY))[2])

        async def by_previous() -> None:
            items: Any = [{"type": "function_call_output", "call_id": "c1", "output": "sunny"}]
            response = await facade.client.responses.create(
                model=MODEL, input=items, previous_response_id=f"resp_{task}_1"
            )
            tasks.add(response.id.split("_")[1])

        first, _, task = await facade.chat_named(user("Weather?"), tools=[WEATHER], **KEY)
        messages = [user("Weather?"), assistant(first), tool("c1", "sunny")]
        async with anyio.create_task_group() as group:
            for _ in range(2):
                group.start_soon(by_key if api == "key" else by_previous)
    assert len(tasks) == 2
    assert task in tasks
    assert roles(upstream) == ["user", "assistant", "tool"]


async def test_a_user_that_does_not_wait_for_tools() -> None:
    script = answer(calls=[PARIS]), answer("Never mind.")
    async with ScriptedUpstream(*script) as upstream, facade_over(upstream) as facade:
        first, _, task = await facade.chat_named(user("Weather?"), tools=[WEATHER], **KEY)
        messages = [user("Weather?"), assistant(first), user("Forget it.")]
        _, context, same = await facade.chat_named(*messages, tools=[WEATHER], **KEY)
    assert (context, same) == ("chat-1", task)
    assert roles(upstream) == ["user", "assistant", "tool", "user"]


async def get_time(zone: str) -> str:
    """The time in a zone."""
    return "noon"


async def test_rounds_on_the_server_are_one_answer_to_the_client() -> None:
    script = answer("Looking.", calls=[("s1", "get_time", {"zone": "UTC"})]), answer("Noon."), answer("Yes.")
    async with ScriptedUpstream(*script) as upstream, facade_over(upstream, tools=[get_time]) as facade:
        first, _, _ = await facade.chat_named(user("Time?"), **KEY)
        _, context, _ = await facade.chat_named(user("Time?"), assistant(first), user("Sure?"), **KEY)
    assert context == "chat-1"
    assert roles(upstream) == ["user", "assistant", "tool", "assistant", "user"]


async def test_it_goes_on_after_a_restart(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/tasks.db"
    async with ScriptedUpstream(answer(calls=[PARIS]), answer("Sun."), answer("Bye.")) as upstream:
        async with facade_over(upstream, store=store) as facade:
            first, _, task = await facade.chat_named(user("Weather?"), tools=[WEATHER])
        messages: list[Any] = [user("Weather?"), assistant(first), tool("c1", "sunny")]
        async with facade_over(upstream, store=store) as facade:
            second, context, same = await facade.chat_named(*messages, tools=[WEATHER])
        messages += [assistant(second), user("Bye!")]
        async with facade_over(upstream, store=store) as facade:
            header = {"X-Conversation-Id": context}
            _, again, _ = await facade.chat_named(*messages, tools=[WEATHER], extra_headers=header)
    assert (same, again) == (task, context)
    assert roles(upstream) == ["user", "assistant", "tool", "assistant", "user"]


# --- questions, owners ------------------------------------------------------------------------------------------


async def test_the_answer_to_a_question_goes_to_its_task() -> None:
    handler = Scripted()
    async with facade_over(handler=handler) as facade:
        messages: list[Any] = [user("ask")]
        tasks: list[str] = []
        for text in ("ask", "that one", "thanks"):
            completion, context, task = await facade.chat_named(*messages, **KEY)
            assert context == "chat-1"
            tasks.append(task)
            messages += [assistant(completion), user(text)]
    assert len(tasks) == 3
    assert len(set(tasks)) == 1
    assert [turn.message.parts[0].text for turn in handler.turns] == ["ask", "ask", "that one"]


async def test_the_status_message_of_an_agent_is_recognized_later() -> None:
    async def handle(turn: Turn) -> AsyncIterator[Update]:
        yield StatusUpdate(TaskState.COMPLETED, agent_message(f"answer {turn.message.parts[0].text}"))

    async with facade_over(handler=handle) as facade:
        messages: list[Any] = []
        for text in ("1", "2", "3"):
            messages.append(user(text))
            completion, context, _ = await facade.chat_named(*messages, **KEY)
            assert context == "chat-1"
            messages.append(assistant(completion))
    assert [message["content"] for message in messages] == ["1", "answer 1", "2", "answer 2", "3", "answer 3"]


async def test_a_key_is_each_callers_own() -> None:
    async with ScriptedUpstream(answer("Secret."), answer("Hm.")) as upstream:
        async with facade_over(upstream, caller_keys="alice:k1,bob:k2", key="k1") as facade:
            first, _, task = await facade.chat_named(user("1?"), **KEY)
            _, context, other = await facade.as_caller("k2").chat_named(
                user("1?"), assistant(first), user("2?"), **KEY
            )
    assert (context, task == other) == ("chat-1", False)
    assert texts(upstream) == ["1?", "Secret.", "2?"]  # the history as Bob sent it, not as stored


async def test_the_two_protocols_share_a_conversation() -> None:
    async with ScriptedUpstream(answer("One."), answer("Two.")) as upstream, facade_over(upstream) as facade:
        await facade.chat_named(user("1?"), **KEY)
        async with Rpc(facade.url) as rpc:
            message = {
                "messageId": "m",
                "role": "ROLE_USER",
                "contextId": "chat-1",
                "parts": [{"text": "2?"}],
            }
            await rpc.result("SendMessage", {"message": message})
        messages = [user("1?"), {"role": "assistant", "content": "One."}, user("2?")]
        messages += [{"role": "assistant", "content": "Two."}, user("3?")]
        _, context, _ = await facade.chat_named(*messages, **KEY)
    assert context == "chat-1"
    assert texts(upstream) == ["1?", "One.", "2?", "Two.", "3?"]
    assert MODEL in {request.json["model"] for request in upstream.requests}
