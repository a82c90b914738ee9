"""The Responses API, called with OpenAI's own client."""

import re
from typing import Any

import openai
import pytest
from pydantic import BaseModel

from support.agents import Scripted
from support.openai_api import MODEL, facade_over
from support.rounds import answer, sent
from support.rpc import Rpc
from support.upstream import ScriptedUpstream, json_answer, openai_chunk, openai_stream, sse
from tailrace.streaming.conversion.message_conversion import to_common_message

WEATHER: Any = {
    "type": "function",
    "name": "get_weather",
    "description": "The weather in a city.",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
        "additionalProperties": False,
    },
    "strict": True,
}
PARIS = ("c1", "get_weather", {"city": "Paris"})
ROME = ("c2", "get_weather", {"city": "Rome"})


def output(call_id: str, text: str) -> Any:
    return {"type": "function_call_output", "call_id": call_id, "output": text}


async def test_a_whole_response() -> None:
    async with (
        ScriptedUpstream(answer("Hel", "lo!", reasoning="hmm")) as upstream,
        facade_over(upstream) as facade,
    ):
        raw = await facade.client.responses.with_raw_response.create(
            model=MODEL, input="Hello?", instructions="Be kind.", metadata={"a": "b"}, temperature=0.5
        )
        response = raw.parse()
    reasoning, message = response.output
    assert response.output_text == "Hello!"
    assert reasoning.type == "reasoning"
    assert [part.text for part in reasoning.summary] == ["hmm"]
    assert (message.type, response.status) == ("message", "completed")
    assert response.usage is not None
    assert (response.usage.input_tokens, response.usage.output_tokens, response.usage.total_tokens) == (
        10,
        5,
        15,
    )
    assert (response.instructions, response.metadata, response.temperature) == ("Be kind.", {"a": "b"}, 0.5)
    assert response.id == f"resp_{raw.headers['x-task-id']}_1"
    assert response.conversation is not None
    assert response.conversation.id == raw.headers["x-conversation-id"]
    assert [message["content"] for message in sent(upstream.requests[0])] == ["Be kind.", "Hello?"]


async def test_the_events_of_a_stream() -> None:
    async with (
        ScriptedUpstream(answer("Hel", "lo!", reasoning="hmm")) as upstream,
        facade_over(upstream) as facade,
    ):
        stream = await facade.client.responses.create(model=MODEL, input="Hello?", stream=True)
        events = [event async for event in stream]
    assert [event.type.removeprefix("response.") for event in events] == [
        "created",
        "in_progress",
        "output_item.added",
        "reasoning_summary_part.added",
        "reasoning_summary_text.delta",
        "reasoning_summary_text.done",
        "reasoning_summary_part.done",
        "output_item.done",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "completed",
    ]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    last = events[-1]
    assert last.type == "response.completed"
    assert last.response.output_text == "Hello!"
    assert last.response.usage is not None


@pytest.mark.parametrize("linked", [False, True])
async def test_three_rounds_of_tools_through_the_stream_helper(linked: bool) -> None:
    script = (
        answer("Let me see.", calls=[PARIS, ROME]),
        answer(calls=[("c3", "get_weather", {"city": "Oslo"})]),
    )
    async with ScriptedUpstream(*script, answer("Sunny.")) as upstream, facade_over(upstream) as facade:
        items: list[Any] = [{"role": "user", "content": "Weather?"}]
        previous: dict[str, Any] = {}
        arguments: list[str] = []
        tasks: set[str] = set()
        response: Any = None
        for _ in range(3):
            async with facade.client.responses.stream(
                model=MODEL, input=items, tools=[WEATHER], **previous
            ) as stream:
                done = [
                    event async for event in stream if event.type == "response.function_call_arguments.done"
                ]
                response = await stream.get_final_response()
            arguments += [event.arguments for event in done]
            calls = [item for item in response.output if item.type == "function_call"]
            results = [output(call.call_id, "sunny") for call in calls]
            tasks.add(response.id.split("_")[1])
            if linked:
                items, previous = results, {"previous_response_id": response.id}
            else:
                items += [item.to_dict() for item in response.output] + results
        async with Rpc(facade.url) as rpc:
            task = await rpc.result("GetTask", {"id": tasks.pop()})
    assert response.output_text == "Sunny."
    assert arguments == ['{"city": "Paris"}', '{"city": "Rome"}', '{"city": "Oslo"}']
    assert not tasks
    assert task["status"]["state"] == "TASK_STATE_COMPLETED"
    roles = [message["role"] for message in sent(upstream.requests[-1])]
    assert roles == ["user", "assistant", "tool", "tool", "assistant", "tool"]


async def test_going_on_after_an_earlier_response_is_a_branch() -> None:
    script = [answer(f"Answer {number}.") for number in range(4)]
    async with ScriptedUpstream(*script) as upstream, facade_over(upstream) as facade:
        create = facade.client.responses.create
        first = await create(model=MODEL, input="1?", instructions="Be kind.")
        second = await create(model=MODEL, input="2?", previous_response_id=first.id)
        other = await create(model=MODEL, input="other?", previous_response_id=first.id)
        await create(model=MODEL, input="3?", previous_response_id=second.id)
    assert first.conversation
    assert second.conversation
    assert other.conversation
    assert first.conversation.id == second.conversation.id != other.conversation.id
    contents = [[message["content"] for message in sent(request)] for request in upstream.requests]
    assert contents == [
        ["Be kind.", "1?"],
        ["1?", "Answer 0.", "2?"],
        ["1?", "Answer 0.", "other?"],
        ["1?", "Answer 0.", "2?", "Answer 1.", "3?"],
    ]


async def test_references_to_items_stand_for_the_conversation_up_to_their_response() -> None:
    """The AI SDK sends references in place of the items of responses, beside the messages of the user."""
    script = [answer("First.", reasoning="hmm"), answer(calls=[PARIS]), answer("Sunny.")]
    async with ScriptedUpstream(*script) as upstream, facade_over(upstream) as facade:
        items: list[Any] = [{"role": "developer", "content": "Be kind."}, {"role": "user", "content": "1?"}]
        conversations: set[str] = set()
        for following in ([{"role": "user", "content": "2?"}], [output("c1", "sunny")], []):
            response = await facade.client.responses.create(model=MODEL, input=items, tools=[WEATHER])
            assert response.conversation
            conversations.add(response.conversation.id)
            items += [{"type": "item_reference", "id": item.id} for item in response.output]
            items += following
    assert len(conversations) == 1
    contents = [[message["content"] for message in sent(request)] for request in upstream.requests]
    assert contents[1] == ["Be kind.", "1?", "First.", "2?"]
    assert contents[2] == ["Be kind.", "1?", "First.", "2?", None, "sunny"]


@pytest.mark.parametrize("given", ["msg_1", "msg_x_y_0", "nonsense", "msg__1_0", None])
async def test_a_reference_that_names_no_item_of_a_response_is_refused(given: str | None) -> None:
    async with ScriptedUpstream() as upstream, facade_over(upstream) as facade:
        items: Any = [{"type": "item_reference", "id": given}, {"role": "user", "content": "2?"}]
        with pytest.raises(openai.BadRequestError) as raised:
            await facade.client.responses.create(model=MODEL, input=items)
    assert (raised.value.code, raised.value.param) == ("invalid_value", "input")


@pytest.mark.parametrize("previous", ["resp_nobody_1", "resp_1", "nonsense", "resp_{}_2"])
async def test_a_response_that_is_not_known(previous: str) -> None:
    async with ScriptedUpstream(answer("Hi")) as upstream, facade_over(upstream) as facade:
        first = await facade.client.responses.create(model=MODEL, input="1?")
        with pytest.raises(openai.BadRequestError) as raised:
            await facade.client.responses.create(
                model=MODEL, input="2?", previous_response_id=previous.format(first.id.split("_")[1])
            )
    assert (raised.value.code, raised.value.param) == ("previous_response_not_found", "previous_response_id")


async def test_a_conversation_receives_only_the_new_items() -> None:
    async with (
        ScriptedUpstream(answer("One.", calls=[PARIS]), answer("Two.")) as upstream,
        facade_over(upstream) as facade,
    ):
        create = facade.client.responses.create
        made = (await facade.client.conversations.create()).id
        first = await create(model=MODEL, input="1?", conversation=made, tools=[WEATHER])
        second = await create(model=MODEL, input=[output("c1", "sunny")], conversation={"id": made})
        with pytest.raises(openai.BadRequestError, match="no call 'c1' waits"):
            await create(model=MODEL, input=[output("c1", "sunny")], conversation=made)
    assert first.conversation
    assert first.conversation.id == made
    assert second.id.split("_")[1] == first.id.split("_")[1]
    assert [message["role"] for message in sent(upstream.requests[1])] == ["user", "assistant", "tool"]


@pytest.mark.parametrize("naming", ["previous_response_id", "conversation"])
async def test_a_result_has_the_name_of_the_tool_that_was_called(naming: str) -> None:
    async with (
        ScriptedUpstream(answer(calls=[PARIS]), answer("Two.")) as upstream,
        facade_over(upstream) as facade,
    ):
        create: Any = facade.client.responses.create
        made = (await facade.client.conversations.create()).id
        first = await create(model=MODEL, input="1?", conversation=made, tools=[WEATHER])
        given = first.id if naming == "previous_response_id" else made
        await create(model=MODEL, input=[output("c1", "sunny")], **{naming: given})
        async with Rpc(facade.url) as rpc:
            recorded = (await rpc.result("GetConversation", {"contextId": made}))["messages"]
    [result] = [part for message in recorded for part in to_common_message(message).tool_results]
    assert (result.name, result.output) == ("get_weather", "sunny")


class River(BaseModel):
    name: str
    length: int


async def test_structured_output_is_parsed() -> None:
    async with (
        ScriptedUpstream(answer('{"name": "Rhine", "length": 1233}')) as upstream,
        facade_over(upstream) as facade,
    ):
        parsed = await facade.client.responses.parse(model=MODEL, input="A river?", text_format=River)
        async with facade.client.responses.stream(model=MODEL, input="A river?", text_format=River) as stream:
            streamed = await stream.get_final_response()
    assert parsed.output_parsed == streamed.output_parsed == River(name="Rhine", length=1233)
    assert upstream.requests[0].json["response_format"]["json_schema"]["name"] == "River"


async def get_time(zone: str) -> str:
    """The time in a zone."""
    return "noon"


async def test_structured_output_is_the_text_of_the_last_round() -> None:
    river = '{"name": "Rhine", "length": 1233}'
    rounds = answer("Let me look. ", calls=[("s1", "get_time", {"zone": "UTC"})]), answer(river)
    async with (
        ScriptedUpstream(*rounds, *rounds) as upstream,
        facade_over(upstream, tools=[get_time]) as facade,
    ):
        parsed = await facade.client.responses.parse(model=MODEL, input="A river?", text_format=River)
        async with facade.client.responses.stream(model=MODEL, input="A river?", text_format=River) as stream:
            streamed = await stream.get_final_response()
    for response in (parsed, streamed):
        assert response.output_parsed == River(name="Rhine", length=1233)
        assert response.output_text == river
        assert [item.type for item in response.output] == ["reasoning", "message"]


@pytest.mark.parametrize(
    ("reason", "why"), [("length", "max_output_tokens"), ("content_filter", "content_filter")]
)
async def test_a_response_that_was_cut_is_incomplete(reason: str, why: str) -> None:
    async with ScriptedUpstream(answer("Hal", finish=reason)) as upstream, facade_over(upstream) as facade:
        whole = await facade.client.responses.create(model=MODEL, input="Hello?")
        stream = await facade.client.responses.create(model=MODEL, input="Hello?", stream=True)
        events = [event async for event in stream]
    last: Any = events[-1]
    for response in (whole, last.response):
        assert (response.status, response.output_text) == ("incomplete", "Hal")
        assert response.incomplete_details is not None
        assert response.incomplete_details.reason == why
    assert last.type == "response.incomplete"


async def test_a_refusal() -> None:
    script = [sse(openai_chunk({"refusal": "I will not."}, finish="stop")), sse("[DONE]")]
    async with ScriptedUpstream(script) as upstream, facade_over(upstream) as facade:
        async with facade.client.responses.stream(model=MODEL, input="Hello?") as stream:
            response = await stream.get_final_response()
    [message] = response.output
    assert message.type == "message"
    [part] = message.content
    assert part.type == "refusal"
    assert part.refusal == "I will not."


async def test_a_failure_is_an_error_or_a_failed_response() -> None:
    refused = json_answer({"error": {"message": "no such luck", "code": "bad_luck"}}, 400)
    broken = openai_stream(["Hel", "lo"], finish=None)
    async with ScriptedUpstream(refused, broken) as upstream, facade_over(upstream) as facade:
        with pytest.raises(openai.BadRequestError) as raised:
            await facade.client.responses.create(model=MODEL, input="Hello?")
        stream = await facade.client.responses.create(model=MODEL, input="Hello?", stream=True)
        created = await anext(stream)
        with pytest.raises(openai.APIError) as failed:
            _ = [event async for event in stream]
        assert created.type == "response.created"
        response = await facade.client.responses.retrieve(created.response.id)
        replayed = await facade.client.get(f"/responses/{response.id}?stream=true", cast_to=str)
    assert raised.value.code == "bad_luck"
    assert response.error is not None
    assert (response.status, response.error.code) == ("failed", "server_error")
    assert (response.error.model_extra or {})["reason"] == "stream_truncated"
    assert response.output_text == "Hello"
    assert failed.value.body == response.error.model_dump(exclude_unset=True)
    assert failed.value.message == response.error.message
    assert re.findall("^event: (.*)$", replayed, re.MULTILINE)[-2:] == ["error", "response.failed"]


BAD: list[tuple[dict[str, Any], str]] = [
    ({"input": 7}, "input"),
    ({"input": []}, "input"),
    ({"input": [{"role": "nobody", "content": "hi"}]}, "input"),
    ({"tool_choice": {"type": "file_search"}}, "tool_choice.type"),
    ({"text": {"format": {"type": "xml"}}}, "text.format.type"),
    ({"background": True, "store": False}, "background"),
    ({"conversation": "a", "previous_response_id": "b"}, "previous_response_id"),
]


@pytest.mark.parametrize(("change", "param"), BAD)
async def test_an_invalid_request_names_the_member(change: dict[str, Any], param: str) -> None:
    async with facade_over(handler=Scripted()) as facade:
        with pytest.raises(openai.BadRequestError) as raised:
            await facade.client.post(
                "/responses", body={"model": "tailrace", "input": "hi", **change}, cast_to=object
            )
    assert raised.value.param == param
