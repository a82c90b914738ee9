"""The legacy Completions API, by OpenAI's own client."""

from typing import Any

import openai
import pytest

from support.agents import Scripted
from support.openai_api import MODEL, facade_over
from support.rounds import answer, sent
from support.upstream import Received, ScriptedUpstream


def echoing(request: Received) -> list[bytes]:
    """Repeat the prompt."""
    return answer("> ", sent(request)[-1]["content"], reasoning="hmm")


async def test_a_complete_response() -> None:
    async with ScriptedUpstream(echoing) as upstream, facade_over(upstream) as facade:
        raw = await facade.client.completions.with_raw_response.create(
            model=MODEL, prompt="Name a river.", max_tokens=5, temperature=0.5, stop="\n"
        )
        completion = raw.parse()
    [choice] = completion.choices
    assert (choice.index, choice.text, choice.finish_reason) == (0, "> Name a river.", "stop")
    assert (completion.object, completion.model) == ("text_completion", MODEL)
    assert completion.id == f"cmpl-{raw.headers['x-task-id']}-1"
    assert completion.usage is not None
    assert completion.usage.total_tokens == 15
    request = upstream.requests[0].json
    assert [message["content"] for message in request["messages"]] == ["Name a river."]
    assert (request["max_tokens"], request["temperature"], request["stop"]) == (5, 0.5, ["\n"])


async def test_each_prompt_has_its_choices() -> None:
    async with ScriptedUpstream(echoing) as upstream, facade_over(upstream) as facade:
        completion = await facade.client.completions.create(model=MODEL, prompt=["a", "b"], n=2)
    assert [(each.index, each.text) for each in completion.choices] == [
        (0, "> a"),
        (1, "> a"),
        (2, "> b"),
        (3, "> b"),
    ]
    assert completion.usage is not None
    assert completion.usage.total_tokens == 60


async def test_a_stream() -> None:
    async with ScriptedUpstream(echoing) as upstream, facade_over(upstream) as facade:
        stream = await facade.client.completions.create(
            model=MODEL, prompt=["a", "b"], stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
    texts: dict[int, str] = {}
    for chunk in chunks:
        for choice in chunk.choices:
            texts[choice.index] = texts.get(choice.index, "") + choice.text
    assert texts == {0: "> a", 1: "> b"}
    ended = [choice.finish_reason for chunk in chunks for choice in chunk.choices]
    assert [each for each in ended if each] == ["stop", "stop"]
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.total_tokens == 30
    assert {chunk.object for chunk in chunks} == {"text_completion"}


BAD: list[tuple[dict[str, Any], str]] = [
    ({"prompt": None}, "prompt"),
    ({"prompt": ""}, "prompt"),
    ({"prompt": []}, "prompt"),
    ({"prompt": ["a", ""]}, "prompt"),
    ({"prompt": [1, 2]}, "prompt"),
    ({"prompt": ["a"] * 17}, "prompt"),
    ({"n": 17}, "n"),
    ({"n": 0}, "n"),
    ({"echo": True}, "echo"),
    ({"suffix": "end"}, "suffix"),
    ({"best_of": 3}, "best_of"),
]


@pytest.mark.parametrize(("change", "param"), BAD)
async def test_an_invalid_request_is_refused_with_the_member(change: dict[str, Any], param: str) -> None:
    async with facade_over(handler=Scripted()) as facade:
        body = {"model": "tailrace", "prompt": "hi", **change}
        with pytest.raises(openai.BadRequestError) as raised:
            await facade.client.post("/completions", body=body, cast_to=object)
    assert (raised.value.param, raised.value.type) == (param, "invalid_request_error")


async def test_a_prompt_is_required() -> None:
    async with facade_over(handler=Scripted()) as facade:
        with pytest.raises(openai.BadRequestError) as raised:
            await facade.client.post("/completions", body={"model": "tailrace"}, cast_to=object)
    assert raised.value.param == "prompt"
