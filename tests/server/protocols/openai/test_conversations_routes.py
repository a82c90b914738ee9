"""The Conversations API with OpenAI's own client."""

from typing import Any

import anyio
import openai
import pytest
from openai.types.conversations import Conversation, ConversationItem
from pydantic import TypeAdapter

from support.openai_api import MODEL, Facade, facade_over
from support.rounds import answer, sent
from support.rpc import Rpc
from support.upstream import ScriptedUpstream

ITEM: Any = TypeAdapter(ConversationItem)


def strict(item: Any) -> Any:
    """An item after validation by the types of the openai package, which `construct` of the client leaves out."""
    return ITEM.validate_python(item.to_dict())


def user(text: str) -> Any:
    return {"type": "message", "role": "user", "content": text}


async def test_a_conversation_has_metadata_and_the_items_that_were_added() -> None:
    async with ScriptedUpstream() as upstream, facade_over(upstream) as facade:
        conversations = facade.client.conversations
        made = await conversations.create(metadata={"topic": "rivers"}, items=[user("one")])
        assert Conversation.model_validate(made.to_dict()).id == made.id
        assert await conversations.retrieve(made.id) == made
        added = await conversations.items.create(
            made.id, items=[user("two"), {"role": "assistant", "content": "three"}]
        )
        listed = [item async for item in conversations.items.list(made.id, order="asc", limit=2)]
        assert [strict(item).content[0].text for item in listed] == ["one", "two", "three"]
        assert [item.id for item in listed[1:]] == [item.id for item in added.data]
        assert await conversations.items.retrieve(listed[0].id or "", conversation_id=made.id) == listed[0]
        changed = await conversations.update(made.id, metadata={"topic": "lakes"})
        assert (changed.metadata, changed.created_at) == ({"topic": "lakes"}, made.created_at)
        assert await conversations.retrieve(made.id) == changed
        kept = [item.id async for item in conversations.items.list(made.id, order="asc")]
        assert kept == [item.id for item in listed]


async def test_a_response_continues_a_conversation_and_adds_its_items() -> None:
    async with ScriptedUpstream(answer("Loire", reasoning="hmm"), answer("Seine")) as upstream:
        async with facade_over(upstream) as facade:
            conversations, responses = facade.client.conversations, facade.client.responses
            made = await conversations.create(items=[user("Name French rivers.")])
            first = await responses.create(model=MODEL, input="One.", conversation=made.id)
            assert first.conversation is not None
            assert first.conversation.id == made.id
            await responses.create(model=MODEL, input="Another.", conversation=made.id)
            given = [message["content"] for message in sent(upstream.requests[1])]
            assert given == ["Name French rivers.\n\nOne.", "Loire", "Another."]
            listed = [strict(item) async for item in conversations.items.list(made.id, order="asc")]
            texts = [item.content[0].text for item in listed]
            assert texts == ["Name French rivers.", "One.", "Loire", "Another.", "Seine"]


async def test_deleted_items_are_not_sent_to_the_model() -> None:
    async with ScriptedUpstream(answer("Loire", reasoning="hmm"), answer("Seine")) as upstream:
        async with facade_over(upstream) as facade:
            conversations, responses = facade.client.conversations, facade.client.responses
            made = await conversations.create(items=[user("first"), user("second")])
            await responses.create(model=MODEL, input="One.", conversation=made.id)
            listed = [item async for item in conversations.items.list(made.id, order="asc")]
            for index in (1, 3):  # the second message of the user, and the text of the response
                await conversations.items.delete(listed[index].id or "", conversation_id=made.id)
            left = [item.id async for item in conversations.items.list(made.id, order="asc")]
            assert left == [listed[index].id for index in (0, 2)]
            await responses.create(model=MODEL, input="Another.", conversation=made.id)
            assert b"deletedItems" not in upstream.requests[1].body
            given = [message.get("content") for message in sent(upstream.requests[1])]
            assert "Loire" not in given
            assert not any("second" in (text or "") for text in given)
            with pytest.raises(openai.NotFoundError):
                await conversations.items.delete(listed[1].id or "", conversation_id=made.id)


async def test_a_deleted_conversation_is_unknown_with_its_responses() -> None:
    async with ScriptedUpstream(answer("Loire")) as upstream, facade_over(upstream) as facade:
        conversations, responses = facade.client.conversations, facade.client.responses
        made = await conversations.create()
        response = await responses.create(model=MODEL, input="One.", conversation=made.id)
        assert (await conversations.delete(made.id)).deleted
        with pytest.raises(openai.NotFoundError):
            await conversations.retrieve(made.id)
        with pytest.raises(openai.NotFoundError):
            await responses.retrieve(response.id)


async def test_lists_of_tasks_have_the_responses_of_a_conversation_only() -> None:
    async with ScriptedUpstream(answer("Loire")) as upstream, facade_over(upstream) as facade:
        async with Rpc(facade.url) as rpc:
            conversations = facade.client.conversations
            made = await conversations.create(metadata={"topic": "rivers"}, items=[user("one")])
            await conversations.items.create(made.id, items=[user("two")])
            await conversations.update(made.id, metadata={"topic": "lakes"})
            assert await rpc.result("ListTasks", {}) == await rpc.result("ListTasks", {"contextId": "none"})
            response = await facade.client.responses.create(model=MODEL, input="x", conversation=made.id)
            for params in ({}, {"contextId": made.id}, {"status": "TASK_STATE_COMPLETED"}):
                found = await rpc.result("ListTasks", params)
                assert [task["id"] for task in found["tasks"]] == [response.id.split("_")[1]]
                assert found["totalSize"] == 1
            history = await rpc.result("GetConversation", {"contextId": made.id})
            texts = [message["parts"][0]["text"] for message in history["messages"]]
            assert texts == ["one", "two", "x", "Loire"]
            await conversations.delete(made.id)
            assert (await rpc.result("ListTasks", {}))["tasks"] == []
            assert (await rpc.result("GetConversation", {"contextId": made.id})).get("messages", []) == []


async def test_a_context_of_another_protocol_is_a_conversation() -> None:
    async with ScriptedUpstream(answer("Loire")) as upstream, facade_over(upstream) as facade:
        response = await facade.client.responses.create(model=MODEL, input="One.")
        assert response.conversation is not None
        found = await facade.client.conversations.retrieve(response.conversation.id)
        assert (found.id, found.metadata) == (response.conversation.id, {})
        changed = await facade.client.conversations.update(found.id, metadata={"a": "b"})
        assert changed.metadata == {"a": "b"}


@pytest.mark.parametrize(
    "items", ["One.", [user("One."), {"role": "assistant", "content": "1."}, user("Two.")]]
)
async def test_a_response_in_an_unknown_conversation_is_refused(items: Any) -> None:
    keys = "alice:alicealicealicealice,bob:bobbobbobbobbobbobbob"
    async with ScriptedUpstream(answer("Fine.")) as upstream:
        async with facade_over(upstream, caller_keys=keys, key="alicealicealicealice") as facade:
            made = await facade.client.conversations.create()
            bob = facade.as_caller("bobbobbobbobbobbobbob").client
            for client, name in ((facade.client, "conv_unknown"), (bob, made.id)):
                create: Any = client.responses.create
                with pytest.raises(openai.NotFoundError, match=f"'{name}' not found") as raised:
                    await create(model=MODEL, input=items, conversation=name)
                assert raised.value.param == "conversation"
            await facade.client.conversations.delete(made.id)
            with pytest.raises(openai.NotFoundError):
                await facade.client.responses.create(model=MODEL, input="One.", conversation=made.id)
        assert upstream.requests == []


async def test_calls_and_their_results_are_items() -> None:
    call = {"type": "function_call", "call_id": "c1", "name": "look", "arguments": '{"at":1}'}
    result = {"type": "function_call_output", "call_id": "c1", "output": "sunny"}
    async with ScriptedUpstream(answer("Fine.")) as upstream, facade_over(upstream) as facade:
        conversations: Any = facade.client.conversations
        made = await conversations.create(items=[user("Look."), call, result])
        listed = [strict(item) async for item in conversations.items.list(made.id, order="asc")]
        assert [item.type for item in listed] == ["message", "function_call", "function_call_output"]
        assert (listed[1].name, listed[2].output, listed[2].call_id) == ("look", "sunny", "c1")
        await facade.client.responses.create(model=MODEL, input="And?", conversation=made.id)
        roles = [message["role"] for message in sent(upstream.requests[0])]
        assert roles == ["user", "assistant", "tool", "user"]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"items": [user("x")] * 21}, "items"),
        ({"items": [{"role": "system", "content": "x"}]}, "items"),
        ({"metadata": {"a": 1}}, "metadata"),
    ],
)
async def test_invalid_requests_name_the_member(body: Any, param: str) -> None:
    async with ScriptedUpstream() as upstream, facade_over(upstream) as facade:
        with pytest.raises(openai.BadRequestError) as raised:
            await facade.client.post("/conversations", body=body, cast_to=object)
        assert raised.value.param == param


async def gathered(*requests: Any) -> list[Any]:
    """Send requests concurrently; return their results, or the errors of the API."""
    results: list[Any] = [None] * len(requests)

    async def send(at: int) -> None:
        try:
            results[at] = await requests[at]
        except openai.APIError as error:
            results[at] = error

    async with anyio.create_task_group() as group:
        for at in range(len(requests)):
            group.start_soon(send, at)
    return results


async def test_of_concurrent_updates_each_is_complete() -> None:
    async with ScriptedUpstream(answer("Hello")) as upstream, facade_over(upstream) as facade:
        conversations = facade.client.conversations
        made = await conversations.create(metadata={"topic": "rivers"}, items=[user("one")])
        other = await facade.client.responses.create(model=MODEL, input="Hi", store=True)
        assert other.conversation is not None
        for name in (made.id, other.conversation.id):  # the second one has no metadata yet
            updates = [conversations.update(name, metadata={"n": str(n)}) for n in range(10)]
            changed = await gathered(*updates, *(conversations.retrieve(name) for _ in range(10)))
            assert [each.metadata for each in changed[:10]] == [{"n": str(n)} for n in range(10)]
            assert all(isinstance(each, Conversation) for each in changed)
            assert (await conversations.retrieve(name)).metadata in [each.metadata for each in changed]
        assert [item.id async for item in conversations.items.list(made.id)]


async def test_a_deletion_during_updates_deletes_the_conversation() -> None:
    async with ScriptedUpstream() as upstream, facade_over(upstream) as facade:
        conversations = facade.client.conversations
        for _ in range(10):
            made = await conversations.create(metadata={"topic": "rivers"}, items=[user("one")])
            updates = [conversations.update(made.id, metadata={"n": str(n)}) for n in range(4)]
            *changed, deleted = await gathered(*updates, conversations.delete(made.id))
            assert deleted.deleted
            assert all(isinstance(each, Conversation | openai.NotFoundError) for each in changed)
            with pytest.raises(openai.NotFoundError):
                await conversations.retrieve(made.id)


async def with_calls(facade: Facade, count: int) -> tuple[str, list[Any]]:
    """Create a conversation with a response that calls a tool some times; return its id and items."""
    made = await facade.client.conversations.create()
    tool: Any = {"type": "function", "name": "get_weather", "parameters": {"type": "object"}}
    await facade.client.responses.create(model=MODEL, input="Weather?", conversation=made.id, tools=[tool])
    listed = [item async for item in facade.client.conversations.items.list(made.id, order="asc")]
    assert len({item.id for item in listed}) == len(listed) == 2 + count
    return made.id, listed


def weather_calls(count: int) -> list[Any]:
    return [(f"c{at}", "get_weather", {"at": at}) for at in range(count)]


async def test_the_ids_of_items_do_not_change_when_others_are_deleted() -> None:
    async with ScriptedUpstream(answer("So:", calls=weather_calls(4))) as upstream:
        async with facade_over(upstream) as facade:
            items = facade.client.conversations.items
            name, listed = await with_calls(facade, 4)
            for index in (2, 1, 4):
                await items.delete(listed[index].id or "", conversation_id=name)
            left = [item async for item in items.list(name, order="asc")]
            assert left == [listed[index] for index in (0, 3, 5)]


async def test_concurrent_deletions_delete_all_their_items() -> None:
    async with ScriptedUpstream(answer("So:", calls=weather_calls(12))) as upstream:
        async with facade_over(upstream) as facade:
            items = facade.client.conversations.items
            name, listed = await with_calls(facade, 12)
            deletions = [items.delete(item.id or "", conversation_id=name) for item in listed[2:]]
            assert all(isinstance(each, Conversation) for each in await gathered(*deletions))
            assert [item async for item in items.list(name, order="asc")] == listed[:2]


async def test_results_that_do_not_exist_are_not_items() -> None:
    script = [answer("So:", calls=weather_calls(2)), answer("Sunny.")]
    async with ScriptedUpstream(*script) as upstream, facade_over(upstream) as facade:
        items, responses = facade.client.conversations.items, facade.client.responses
        name, _ = await with_calls(facade, 2)
        given: list[tuple[str, Any]] = []
        for call_id, output in (("c0", "warm"), ("c1", "dry")):
            result: Any = {"type": "function_call_output", "call_id": call_id, "output": output}
            response = await responses.create(model=MODEL, input=[result], conversation=name)
            given.append((call_id, output))
            of_conversation = [item async for item in items.list(name, order="asc")]
            of_response = [item async for item in responses.input_items.list(response.id, order="asc")]
            for listed in (of_conversation, of_response):
                outputs = [item for item in listed if item.type == "function_call_output"]
                assert [(item.call_id, item.output) for item in outputs] == given
        [message] = [item for item in of_conversation if item.type == "function_call_output"][1:]
        await items.delete(message.id or "", conversation_id=name)
        left = [item async for item in items.list(name, order="asc") if item.type == "function_call_output"]
        assert [item.call_id for item in left] == ["c0"]
