"""Stored chat completions with OpenAI's own client: list, update, and the completions that a list contains."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import anyio
import openai
import pytest
import time_machine

from support.agents import Scripted
from support.openai_api import MODEL, WEATHER, Facade, facade_over, user
from support.rounds import answer
from support.rpc import Rpc
from support.upstream import ScriptedUpstream, Wait
from tailrace.server import Bounds, Turn
from tailrace.streaming.a2a.models import Artifact, Part
from tailrace.streaming.task.updates import ArtifactUpdate, Update

KEYS = "alice:alicealicealicealice,bob:bobbobbobbobbobbobbob"


async def store(facade: Facade, *metadata: Any, **options: Any) -> list[str]:
    """Create a stored completion for each metadata; return their ids."""
    made = [await facade.chat(user("Hi"), store=True, metadata=each, **options) for each in metadata]
    return [each.id for each in made]


async def listed(facade: Facade, **query: Any) -> list[str]:
    """The ids of all pages of a list."""
    return [each.id async for each in facade.client.chat.completions.list(**query)]


async def test_a_list_has_the_stored_completions_in_the_order_of_their_requests() -> None:
    async with ScriptedUpstream(*[answer("Hello")] * 6) as upstream, facade_over(upstream) as facade:
        completions = facade.client.chat.completions
        assert await listed(facade) == []
        ids = await store(facade, None, {"a": "1"}, {}, {"b": "2"}, None)
        await facade.chat(user("not stored"))
        for limit in (1, 2, 5, 100):
            assert await listed(facade, limit=limit) == ids
            assert await listed(facade, limit=limit, order="desc") == ids[::-1]
        assert await listed(facade, after=ids[2]) == ids[3:]
        assert await listed(facade, after=ids[2], order="desc", limit=1) == ids[1::-1]
        page = await completions.list(limit=2)
        assert page.has_more
        assert page.data == [await completions.retrieve(each) for each in ids[:2]]
        await completions.delete(ids[1])
        assert await listed(facade) == [ids[0], *ids[2:]]
        with pytest.raises(openai.BadRequestError, match=ids[1]) as raised:
            await completions.list(after=ids[1])
        assert raised.value.param == "after"


async def test_a_list_is_filtered_by_model_and_metadata() -> None:
    odd = {'qu"o]te\\': "%_'", "\x00": "\x00", "": "empty", "name": "ünï\n"}
    async with ScriptedUpstream(*[answer("Hello")] * 4) as upstream:
        async with facade_over(upstream, model_aliases="other=,another=") as facade:
            one, two, three = await store(facade, {"a": "1", "b": "2"}, {"a": "1"}, odd)
            facade.model = "other"
            [four] = await store(facade, {"a": "1", "b": "3"})
            assert await listed(facade, metadata={"a": "1"}) == [one, two, four]
            assert await listed(facade, metadata={"a": "1", "b": "2"}) == [one]
            assert await listed(facade, metadata={"a": "1"}, model="other") == [four]
            assert await listed(facade, model=MODEL, limit=1) == [one, two, three]
            assert await listed(facade, model="another") == []
            assert await listed(facade, metadata={"A": "1"}) == []
            assert await listed(facade, metadata={"a": "1", "c": ""}) == []
            for name, value in odd.items():
                assert await listed(facade, metadata={name: value}) == [three]
            found = await facade.client.chat.completions.retrieve(three)
            assert found.model_dump()["metadata"] == odd


async def test_metadata_is_replaced() -> None:
    async with ScriptedUpstream(answer("Hello")) as upstream, facade_over(upstream) as facade:
        completions: Any = facade.client.chat.completions
        [one] = await store(facade, {"a": "1"})
        for given in ({"b": "2", "c": "3"}, {}, {"b": "4"}, None):
            changed = await completions.update(one, metadata=given)
            assert changed.model_dump()["metadata"] == (given or {})
            assert await completions.retrieve(one) == changed
            assert (await completions.list()).data == [changed]
        assert await listed(facade, metadata={"b": "4"}) == []


async def test_a_list_and_metadata_survive_a_restart(tmp_path: Path) -> None:
    settings: Any = {"store": f"sqlite:///{tmp_path}/t.db"}
    async with ScriptedUpstream(answer("Hello"), answer("Bye")) as upstream:
        async with facade_over(upstream, **settings) as facade:
            ids = await store(facade, {"a": "1"}, {"a": "2"})
            await facade.client.chat.completions.update(ids[0], metadata={"a": "3"})
            before = (await facade.client.chat.completions.list()).data
        async with facade_over(upstream, **settings) as facade:
            assert (await facade.client.chat.completions.list()).data == before
            assert await listed(facade, metadata={"a": "3"}) == ids[:1]


async def test_each_turn_of_a_tool_loop_is_a_completion() -> None:
    call = ("c1", "get_weather", {"city": "Paris"})
    async with ScriptedUpstream(answer(calls=[call]), answer("Sunny")) as upstream:
        async with facade_over(upstream) as facade:
            first = await facade.chat(user("Weather?"), store=True, tools=[WEATHER], metadata={"turn": "1"})
            result = {"role": "tool", "tool_call_id": "c1", "content": "sunny"}
            messages = [user("Weather?"), first.choices[0].message.model_dump(exclude_none=True), result]
            second = await facade.chat(*messages, store=True, tools=[WEATHER], metadata={"turn": "2"})
            found = (await facade.client.chat.completions.list()).data
            assert [each.id for each in found] == [first.id, second.id]
            assert found[0].choices[0].message.tool_calls == first.choices[0].message.tool_calls
            assert found[1].choices[0].message.content == "Sunny"
            assert await listed(facade, metadata={"turn": "1"}) == [first.id]
            await facade.client.chat.completions.delete(first.id)
            assert await listed(facade) == []


async def test_incomplete_and_failed_completions_are_not_listed_or_changed() -> None:
    go_on = anyio.Event()
    steps = answer("Hello")
    scripts = (answer("Hel", finish=None), answer("not JSON"), [*steps[:2], Wait(go_on), *steps[2:]])
    bounds = Bounds(continue_attempts=0)
    async with ScriptedUpstream(*scripts, answer("Hello")) as upstream:
        async with facade_over(upstream, bounds=bounds) as facade:
            completions = facade.client.chat.completions
            with pytest.raises(openai.APIError):
                await store(facade, None)
            with pytest.raises(openai.APIError):
                await store(facade, None, response_format={"type": "json_object"})
            stream, _ = await facade.stream(user("Hi"), store=True)
            running = (await anext(aiter(stream))).id
            assert await listed(facade) == []
            with pytest.raises(openai.NotFoundError):
                await completions.update(running, metadata={})
            go_on.set()
            async for _ in stream:
                pass
            [last] = await store(facade, None)
            assert await listed(facade, limit=1) == [running, last]
            assert (await completions.update(running, metadata={"a": "b"})).id == running


async def test_of_several_choices_the_first_is_listed() -> None:
    async with ScriptedUpstream(*[answer("Hello")] * 2) as upstream, facade_over(upstream) as facade:
        [one] = await store(facade, {"a": "b"}, n=2)
        assert await listed(facade) == [one]


@pytest.mark.parametrize("whole_conversation", [False, True])
async def test_a_deletion_deletes_all_choices(whole_conversation: bool) -> None:
    async with facade_over(handler=Scripted()) as facade, Rpc(facade.url) as rpc:
        client: Any = facade.client
        conversation = await client.conversations.create()
        options: dict[str, Any] = {
            "model": facade.model,
            "n": 3,
            "store": True,
            "extra_headers": {"X-Conversation-Id": conversation.id},
        }
        for key in ("a", "b"):
            given = {**options, "messages": [{"role": "user", "content": key}]}
            given["extra_headers"] = {**options["extra_headers"], "Idempotency-Key": key}
            completion = await client.chat.completions.create(**given)
            assert (await client.chat.completions.create(**given)).id == completion.id
            assert len((await rpc.result("ListTasks", {}))["tasks"]) == 3
            if whole_conversation:
                await client.conversations.delete(conversation.id)
                break
            await client.chat.completions.delete(completion.id)
            assert (await rpc.result("ListTasks", {}))["tasks"] == []
        assert (await rpc.result("ListTasks", {}))["tasks"] == []


async def test_a_repeated_request_is_listed_once() -> None:
    async with ScriptedUpstream(answer("Hello")) as upstream, facade_over(upstream) as facade:
        headers = {"idempotency-key": "once"}
        ids = await store(facade, {"a": "b"}, {"a": "b"}, extra_headers=headers)
        assert await listed(facade) == ids[:1]
        assert ids[0] == ids[1]


async def test_completions_of_other_callers_are_as_unknown_ones() -> None:
    async with ScriptedUpstream(*[answer("Hello")] * 2) as upstream:
        async with facade_over(upstream, caller_keys=KEYS, key="alicealicealicealice") as alice:
            bob = alice.as_caller("bobbobbobbobbobbobbob")
            [hers], [his] = await store(alice, {"a": "1"}), await store(bob, {"a": "1"})
            assert (await listed(alice), await listed(bob)) == ([hers], [his])
            assert await listed(bob, metadata={"a": "1"}) == [his]
            unknown = hers.replace(hers[10:14], "0000")
            problems: list[str] = []
            for given in (hers, unknown):
                with pytest.raises(openai.NotFoundError) as not_found:
                    await bob.client.chat.completions.update(given, metadata={"a": "2"})
                with pytest.raises(openai.BadRequestError) as bad:
                    await bob.client.chat.completions.list(after=given)
                problems.append(f"{not_found.value.body} {bad.value.body}".replace(given, "ID"))
            assert problems[0] == problems[1]
            found = await alice.client.chat.completions.retrieve(hers)
            assert found.model_dump()["metadata"] == {"a": "1"}


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ({"limit": 101}, "limit"),
        ({"limit": 0}, "limit"),
        ({"order": "up"}, "order"),
        ({"after": "chatcmpl-x-1"}, "after"),
        ({"after": "x"}, "after"),
        ({"metadata": {str(number): "" for number in range(17)}}, "metadata"),
        ({"metadata": {"a" * 65: ""}}, "metadata"),
        ({"metadata": {"a": "b" * 513}}, "metadata"),
    ],
)
async def test_an_invalid_query_of_a_list_names_the_member(query: Any, param: str) -> None:
    async with ScriptedUpstream() as upstream, facade_over(upstream) as facade:
        with pytest.raises(openai.BadRequestError) as raised:
            await facade.client.chat.completions.list(**query)
        assert raised.value.param == param


@pytest.mark.parametrize(
    "body", [{}, {"metadata": "a"}, {"metadata": {"a": 1}}, {"metadata": {"a": "b" * 513}}]
)
async def test_an_invalid_update_names_the_member(body: Any) -> None:
    async with ScriptedUpstream(answer("Hello")) as upstream, facade_over(upstream) as facade:
        [one] = await store(facade, {"a": "b"})
        with pytest.raises(openai.BadRequestError) as raised:
            await facade.client.post(f"/chat/completions/{one}", body=body, cast_to=object)
        assert (raised.value.param or "").startswith("metadata")
        found = await facade.client.chat.completions.retrieve(one)
        assert found.model_dump()["metadata"] == {"a": "b"}


async def test_expired_completions_are_not_listed(tmp_path: Path) -> None:
    start = datetime(2026, 3, 1, tzinfo=UTC)
    settings: Any = {"store": f"sqlite:///{tmp_path}/t.db"}
    async with ScriptedUpstream(answer("Hello")) as upstream:
        with time_machine.travel(start, tick=True):
            async with facade_over(upstream, **settings) as facade:
                await store(facade, {"a": "b"})
        with time_machine.travel(start + timedelta(hours=2), tick=True):
            async with facade_over(upstream, **settings, retention={"tasks": 3600}) as facade:
                while await listed(facade):
                    pass


async def test_a_page_of_large_completions_is_short() -> None:
    async def long(_turn: Turn) -> AsyncIterator[Update]:
        yield ArtifactUpdate(Artifact(artifact_id="long", parts=(Part(text="x" * 3_000_000),)))

    async with facade_over(handler=long) as facade:
        ids = await store(facade, None, None, None)
        page = await facade.client.chat.completions.list()
        assert [each.id for each in page.data] == ids[:2]
        assert page.has_more
        assert await listed(facade) == ids
