"""Chat Completions of agents without a model: questions, artifacts, files, and repeated requests."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import pytest

from support.agents import Scripted
from support.openai_api import WEATHER, Facade, content_of, facade_over, tool, user
from support.rounds import answer
from support.upstream import ScriptedUpstream
from tailrace.server import Turn
from tailrace.server.store.store import Retention, Store
from tailrace.streaming import ArtifactUpdate, StatusUpdate, TaskState, TextDelta
from tailrace.streaming.a2a.models import Artifact, Part
from tailrace.streaming.a2a.stream_extension import EXTENSION_URI
from tailrace.streaming.task.task_record import agent_message
from tailrace.streaming.task.updates import Update

HELLO = user("Hello?")
PARIS = ("c1", "get_weather", {"city": "Paris"})


async def test_a_question_is_an_answer() -> None:
    async with facade_over(handler=Scripted()) as facade:
        first = await facade.chat(user("ask"))
        text = content_of(await facade.chunks(user("ask")))
    assert (first.choices[0].message.content, first.choices[0].finish_reason) == ("which one?", "stop")
    assert text == ["which one?"]


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("word", ["fail", "crash"])
async def test_an_agent_that_fails_is_an_error(word: str, streamed: bool) -> None:
    async with facade_over(handler=Scripted()) as facade:
        ask = facade.chunks if streamed else facade.chat
        with pytest.raises(openai.APIError) as raised:
            await ask(user(word))
    assert raised.value.code == "task_failed"
    assert "secret" not in raised.value.message


def _artifact(artifact_id: str, *parts: Part, **facts: Any) -> Artifact:
    metadata = {EXTENSION_URI: facts} if facts else {}
    return Artifact(artifact_id=artifact_id, parts=parts, metadata=metadata)


async def test_artifacts_of_other_agents_stand_one_after_the_other() -> None:
    async def handle(turn: Turn) -> AsyncIterator[Update]:
        yield ArtifactUpdate(_artifact("report", Part(text="One")), last=False)
        yield ArtifactUpdate(_artifact("summary", Part(text="Sum")), last=False)
        yield TextDelta("report", " two")
        yield TextDelta("summary", "mary")
        yield TextDelta("report", " three.", last=True)
        yield ArtifactUpdate(_artifact("data", Part(data={"a": [1]})))
        yield StatusUpdate(TaskState.COMPLETED, agent_message("all done"))

    async with facade_over(handler=handle) as facade:
        whole = await facade.chat(HELLO)
        pieces = content_of(await facade.chunks(HELLO))
    expected = 'One two three.\n\nSummary\n\n```json\n{\n  "a": [\n    1\n  ]\n}\n```'
    assert whole.choices[0].message.content == expected
    assert "".join(pieces) == expected
    assert pieces[:2] == ["One", " two"]


async def test_the_text_of_the_last_status_is_the_response_if_there_is_no_other() -> None:
    async def handle(turn: Turn) -> AsyncIterator[Update]:
        yield StatusUpdate(TaskState.WORKING, agent_message("thinking"))
        yield StatusUpdate(TaskState.COMPLETED, agent_message("42"))

    async with facade_over(handler=handle) as facade:
        whole = await facade.chat(HELLO)
    assert whole.choices[0].message.content == "42"


async def test_files_are_markdown() -> None:
    async def handle(turn: Turn) -> AsyncIterator[Update]:
        yield ArtifactUpdate(_artifact("text", Part(text="Look:"), channel="text"), last=False)
        picture = Part(raw=b"\x89PNG", media_type="image/png", filename="a.png")
        yield ArtifactUpdate(_artifact("file-1", picture, channel="file"))
        yield TextDelta("text", "Nice?", last=True)
        yield ArtifactUpdate(_artifact("file-2", Part(url="https://x.example/b.pdf"), channel="file"))

    async with facade_over(handler=handle) as facade:
        whole = await facade.chat(HELLO)
        pieces = content_of(await facade.chunks(HELLO))
    expected = "Look:\n\n![a.png](data:image/png;base64,iVBORw==)\n\nNice?\n\n[file](https://x.example/b.pdf)"
    assert whole.choices[0].message.content == expected
    assert "".join(pieces) == expected


async def test_a_restarted_response_is_not_repeated() -> None:
    async def handle(turn: Turn) -> AsyncIterator[Update]:
        yield ArtifactUpdate(_artifact("text", Part(text="Hello wor"), channel="text"), last=False)
        yield ArtifactUpdate(_artifact("text", Part(text=""), channel="text"), last=False)
        for piece in ("Hel", "lo ", "world", "!"):
            yield TextDelta("text", piece)
        yield TextDelta("text", "", last=True)

    async with facade_over(handler=handle) as facade:
        whole = await facade.chat(HELLO)
        pieces = content_of(await facade.chunks(HELLO))
    assert whole.choices[0].message.content == "Hello world!"
    assert "".join(pieces) == "Hello world!"


async def test_an_answer_that_is_replaced_by_another_is_an_error_of_the_stream_alone() -> None:
    async def handle(turn: Turn) -> AsyncIterator[Update]:
        yield ArtifactUpdate(_artifact("text", Part(text="Hello"), channel="text"), last=False)
        yield ArtifactUpdate(_artifact("text", Part(text="Goodbye"), channel="text"))

    async with facade_over(handler=handle) as facade:
        whole = await facade.chat(HELLO)
        seen: list[str] = []

        def take(chunks: Any) -> None:
            seen[:] = content_of(chunks)

        with pytest.raises(openai.APIError) as raised:
            await facade.chunks(HELLO, seen=take)
    assert whole.choices[0].message.content == "Goodbye"
    assert (raised.value.code, seen) == ("answer_replaced", ["Hello"])


@pytest.mark.parametrize("dropped", [False, True])
@pytest.mark.parametrize("streamed", [False, True])
async def test_a_repeated_request_of_an_earlier_turn_gets_the_completion_of_this_turn(
    streamed: bool, dropped: bool, tmp_path: Path
) -> None:
    store: dict[str, Any] = {"store": f"sqlite:///{tmp_path}/t.db"}
    script = answer("Let me look.", calls=[PARIS]), answer("Sunny.")
    first_messages: list[Any] = [HELLO]

    async def ask(facade: Facade, key: str, messages: list[Any]) -> tuple[str, Any, Any, Any]:
        options: dict[str, Any] = {"tools": [WEATHER], "extra_headers": {"Idempotency-Key": key}}
        if not streamed:
            made = await facade.chat(*messages, **options)
            [choice] = made.choices
            calls = [call.id for call in choice.message.tool_calls or ()]
            return made.id, choice.message.content, calls, choice.finish_reason
        chunks = await facade.chunks(*messages, **options)
        choices = [chunk.choices[0] for chunk in chunks if chunk.choices]
        deltas = [call for choice in choices for call in choice.delta.tool_calls or ()]
        calls = [call.id for call in deltas if call.id]
        return chunks[0].id, "".join(content_of(chunks)), calls, choices[-1].finish_reason

    async with ScriptedUpstream(*script) as upstream:
        async with facade_over(upstream, **store) as facade:
            first = await ask(facade, "one", first_messages)
            call: Any = {"id": "c1", "type": "function", "function": {"name": "get_weather"}}
            call["function"]["arguments"] = json.dumps(PARIS[2])
            called = {"role": "assistant", "content": first[1], "tool_calls": [call]}
            follow_up = [HELLO, called, tool("c1", "sunny")]
            second = await ask(facade, "two", follow_up)
            assert (first[2], first[3], second[1:]) == (["c1"], "tool_calls", ("Sunny.", [], "stop"))
            assert first[0].rpartition("-")[0] == second[0].rpartition("-")[0]
        if dropped:
            expired = Store(store["store"], Retention(events=1e-6))
            await expired.open()
            while await expired.drop_expired():
                pass
            await expired.close()
        async with facade_over(upstream, **store) as facade:
            assert await ask(facade, "one", first_messages) == first
            assert await ask(facade, "two", follow_up) == second
        assert len(upstream.requests) == 2


async def test_a_request_that_is_sent_again_under_its_key_gets_the_same_task() -> None:
    options: dict[str, Any] = {"tools": [WEATHER], "extra_headers": {"Idempotency-Key": "k"}}
    script = answer("Once.", calls=[PARIS]), answer("Twice.")
    async with ScriptedUpstream(*script) as upstream, facade_over(upstream) as facade:
        first, _, task_id = await facade.chat_named(HELLO, **options)
        again, _, same_id = await facade.chat_named(HELLO, **options)
        assert (again.choices, same_id) == (first.choices, task_id)
        with pytest.raises(openai.APIStatusError, match="idempotency key"):
            await facade.chat(user("Another?"), **options)
        options["extra_headers"] = {"Idempotency-Key": "other"}
        streams = [await facade.chunks(HELLO, **options) for _ in range(2)]
        assert ["".join(content_of(chunks)) for chunks in streams] == ["Twice.", "Twice."]
        assert len(upstream.requests) == 2
