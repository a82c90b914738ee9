"""Branches of conversations: requests after the same message, concurrently and while responses run or wait."""

from collections.abc import Callable
from functools import partial
from typing import Any

import anyio
import openai
import pytest
from pydantic import SecretStr

from support.live_server import serving
from support.openai_api import MODEL, assistant, facade_over, user
from support.rounds import answer, sent
from support.rpc import Rpc, message
from support.upstream import Received, ScriptedUpstream, Step, Wait
from tailrace.server import Settings, create_app
from tailrace.server.runtime.stream_filter import FilterStream, StreamFilter

Texts = list[list[str]]


def answering(gates: dict[str, anyio.Event] | None = None) -> Callable[[Received], list[Step]]:
    """A model that answers with "re " and the question, some questions after an event."""

    def respond(request: Received) -> list[Step]:
        question = sent(request)[-1]["content"]
        begin, *rest = answer("re ", question)
        gate = (gates or {}).get(question)
        return [begin, *([Wait(gate)] if gate is not None else []), *rest]

    return respond


def given(upstream: ScriptedUpstream) -> Texts:
    """The texts of each conversation that the model received, in the order of the conversations."""
    return sorted([message["content"] for message in sent(each)] for each in upstream.requests)


@pytest.mark.parametrize("background", [True, False])
async def test_concurrent_responses_after_one_response_do_not_see_each_other(background: bool) -> None:
    async with ScriptedUpstream(answering()) as upstream, facade_over(upstream) as facade:
        create: Any = facade.client.responses.create
        first = await create(model=MODEL, input="start")
        item = [{"type": "item_reference", "id": first.output[-1].id}, {"role": "user", "content": "c"}]
        requests = [{"previous_response_id": first.id, "input": each} for each in ("a", "b")]
        conversations: list[str] = []

        async def ask(request: dict[str, Any]) -> None:
            made = await create(model=MODEL, background=background, **request)
            conversations.append(made.conversation.id)
            async for _ in await facade.client.responses.retrieve(made.id, stream=True):
                pass

        async with anyio.create_task_group() as group:
            for request in (*requests, {"input": item}):
                group.start_soon(ask, request)
    assert given(upstream) == [["start"], *(["start", "re start", each] for each in "abc")]
    assert len(set(conversations)) == 3
    assert first.conversation.id in conversations


@pytest.mark.parametrize("begins", [True, False])
async def test_concurrent_requests_with_the_same_name_and_messages_do_not_see_each_other(
    begins: bool,
) -> None:
    named = {"extra_headers": {"X-Conversation-Id": "chat"}}
    async with ScriptedUpstream(answering()) as upstream, facade_over(upstream) as facade:
        earlier: list[Any] = []
        if not begins:
            earlier = [user("start"), assistant(await facade.chat(user("start"), **named))]
        names: list[str] = []

        async def ask(question: str) -> None:
            _, name, _ = await facade.chat_named(*earlier, user(question), **named)
            names.append(name)

        async with anyio.create_task_group() as group:
            for question in "abc":
                group.start_soon(ask, question)
    texts = [message["content"] for message in earlier]
    assert given(upstream)[0 if begins else 1 :] == [[*texts, each] for each in "abc"]
    assert sorted(names) == ["chat", "chat~2", "chat~3"]


async def test_a_branch_of_a_running_response_waits_for_its_end() -> None:
    gates = {"start": anyio.Event(), "b": anyio.Event()}
    async with ScriptedUpstream(answering(gates)) as upstream, facade_over(upstream) as facade:
        responses = facade.client.responses

        async def create(text: str, previous: str | None) -> Any:
            return await responses.create(
                model=MODEL, input=text, background=True, previous_response_id=previous
            )

        first = await create("start", None)
        await upstream.received()
        second, third = await create("b", first.id), await create("c", first.id)
        # The branch of a response that waits, and the continuation of a branch that waits.
        fourth, fifth, sixth = (
            await create("d", second.id),
            await create("e", second.id),
            await create("f", third.id),
        )
        made = [second, third, fourth, fifth, sixth]
        assert [each.status for each in made] == ["queued"] * 5
        branches = [each.conversation.id for each in made]
        assert branches[0] == branches[2] == first.conversation.id
        assert branches[1] == branches[4]
        assert len(set(branches)) == 3
        for gate in gates.values():
            gate.set()
        for each in made:
            events = [event async for event in await responses.retrieve(each.id, stream=True)]
            assert events[-1].type == "response.completed"
        items: list[Any] = [item async for item in responses.input_items.list(fifth.id, order="asc")]
    begun = ["start", "re start"]
    assert given(upstream) == [
        ["start"],
        [*begun, "b"],
        [*begun, "b", "re b", "d"],
        [*begun, "b", "re b", "e"],
        [*begun, "c"],
        [*begun, "c", "re c", "f"],
    ]
    assert [item.content[0].text for item in items] == [*begun, "b", "re b", "e"]


async def test_a_response_that_was_canceled_before_it_began_is_not_in_the_conversation() -> None:
    gates = {"start": anyio.Event()}
    async with ScriptedUpstream(answering(gates)) as upstream, facade_over(upstream) as facade:
        responses: Any = facade.client.responses

        async def create(text: str, **options: Any) -> Any:
            return await responses.create(model=MODEL, input=text, background=True, **options)

        first = await create("start")
        await upstream.received()
        second = await create("a", previous_response_id=first.id)
        branch = await create("b", previous_response_id=first.id)
        third = await create("c", previous_response_id=second.id)
        for each in (branch, third):
            assert (await responses.cancel(each.id)).status == "cancelled"
            with pytest.raises(openai.BadRequestError, match="before it began"):
                await create("d", previous_response_id=each.id)
        gates["start"].set()
        async for _ in await responses.retrieve(second.id, stream=True):
            pass
    assert given(upstream) == [["start"], ["start", "re start", "a"]]


@pytest.mark.parametrize("whole_conversation", [False, True])
async def test_a_deletion_cancels_the_turns_that_wait_first(whole_conversation: bool) -> None:
    async with ScriptedUpstream(answering({"start": anyio.Event()})) as upstream:
        async with facade_over(upstream) as facade:
            client: Any = facade.client
            conversation = await client.conversations.create()

            async def create(text: str, **options: Any) -> Any:
                return await client.responses.create(model=MODEL, input=text, background=True, **options)

            first = await create("start", conversation=conversation.id)
            await upstream.received()
            second = await create("b", previous_response_id=first.id)
            others = [second, await create("c", previous_response_id=second.id)]
            branches = [await create("d", previous_response_id=each.id) for each in (first, second)]
            branches.append(await create("e", previous_response_id=branches[0].id))
            other = await create("other")
            if whole_conversation:
                await client.conversations.delete(conversation.id)
                for each in others:
                    with pytest.raises(openai.NotFoundError):
                        await client.responses.retrieve(each.id)
                others = []
            else:
                await client.responses.delete(first.id)
            for each in (*others, *branches):
                assert (await client.responses.retrieve(each.id)).status == "cancelled"
            async for _ in await client.responses.retrieve(other.id, stream=True):
                pass
    assert given(upstream) == [["other"], ["start"]]


async def test_the_deletion_of_a_waiting_response_cancels_only_those_after_it() -> None:
    gates = {"start": anyio.Event()}
    async with ScriptedUpstream(answering(gates)) as upstream, facade_over(upstream) as facade:
        responses: Any = facade.client.responses

        async def create(text: str, previous: str) -> Any:
            options: dict[str, Any] = {"previous_response_id": previous} if previous else {}
            return await responses.create(model=MODEL, input=text, background=True, **options)

        first = await create("start", "")
        await upstream.received()
        second = await create("b", first.id)
        third = await create("c", second.id)
        fourth = await create("d", third.id)
        branch = await create("e", first.id)
        await responses.delete(third.id)
        assert (await responses.retrieve(fourth.id)).status == "cancelled"
        gates["start"].set()
        for each in (second, branch):
            events = [event async for event in await responses.retrieve(each.id, stream=True)]
            assert events[-1].type == "response.completed"
    begun = ["start", "re start"]
    assert given(upstream) == [["start"], [*begun, "b"], [*begun, "e"]]


class _Holding(StreamFilter, FilterStream):
    """An input filter that holds a message with one text until an event."""

    def __init__(self, text: str) -> None:
        self._text = text
        self.reached, self.go_on = anyio.Event(), anyio.Event()

    def open(self) -> FilterStream:
        return self

    async def feed(self, text: str) -> str:
        if text == self._text:
            self.reached.set()
            await self.go_on.wait()
        return text

    async def close(self) -> str:
        return ""


@pytest.mark.parametrize("method", ["SendMessage", "SendStreamingMessage", "items"])
async def test_a_message_of_another_protocol_does_not_come_between_a_response_and_its_continuation(
    method: str,
) -> None:
    hold = _Holding("b")
    async with ScriptedUpstream(answering()) as upstream:
        settings = Settings(
            store="sqlite://", model=f"openai:{MODEL}", base_url=upstream.base_url, api_key=SecretStr("none")
        )
        async with serving(create_app(settings, input_filters=[hold])) as url, Rpc(url) as rpc:
            async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
                create: Any = client.responses.create
                first = await create(model=MODEL, input="start")
                context_id = first.conversation.id

                async def send(text: str, context: str) -> None:
                    if method == "items":
                        items: Any = [{"type": "message", "role": "user", "content": text}]
                        await client.conversations.items.create(context, items=items)
                    elif method == "SendStreamingMessage":
                        await rpc.stream(method, message(text, contextId=context))
                    else:
                        await rpc.result(method, message(text, contextId=context))

                async with anyio.create_task_group() as group:
                    group.start_soon(partial(create, model=MODEL, input="b", previous_response_id=first.id))
                    await hold.reached.wait()
                    group.start_soon(send, "a", context_id)
                    other = await client.conversations.create()
                    await send("c", other.id)  # a request that is sent later, and waits for nothing
                    hold.go_on.set()
    begun = ["start", "re start"]
    assert [*begun, "b"] in given(upstream)
    assert ([*begun, "b", "re b", "a"] in given(upstream)) is (method != "items")
