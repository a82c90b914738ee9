"""Each method of OpenAI's own client for responses, conversations and chat completions, as the page lists them."""

import re
from collections.abc import Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import openai
import pytest
from pydantic import BaseModel

from support.openai_api import MODEL, Facade, facade_over, user
from support.rounds import answer
from support.upstream import ScriptedUpstream

PAGE = (Path(__file__).parents[4] / "docs/openai.md").read_text(encoding="utf-8")
RESOURCES = ("responses", "conversations", "chat.completions")


def listed() -> Mapping[str, str]:
    """The methods in the table of the page, and their behavior."""
    _, _, rest = PAGE.partition("\n| method | behavior |\n|---|---|\n")
    rows = [line.split("|")[1:3] for line in rest.partition("\n\n")[0].splitlines()]
    assert rows
    return {name: behavior.strip() for names, behavior in rows for name in re.findall(r"`([^`]+)`", names)}


def methods_of(client: openai.AsyncOpenAI, resource: str) -> Iterator[str]:
    """The names of the methods of a resource and of the resources in it."""
    found: Any = client
    for name in resource.split("."):
        found = getattr(found, name)
    for name in dir(found):
        member = getattr(found, name)
        if name.startswith(("_", "with_")):
            continue
        if hasattr(member, "with_raw_response"):
            yield from methods_of(client, f"{resource}.{name}")
        elif callable(member):
            yield f"{resource}.{name}"


async def test_the_page_lists_each_method_of_the_openai_package() -> None:
    async with openai.AsyncOpenAI(api_key="none") as client:
        methods = {name for resource in RESOURCES for name in methods_of(client, resource)}
    assert set(listed()) == methods


class River(BaseModel):
    """The parsed form of a response."""

    name: str


async def call_each(facade: Facade) -> dict[str, Any]:
    """Call each method that the server supports; return the results."""
    client: Any = facade.client
    done: dict[str, Any] = {}

    async def call(name: str, method: Callable[..., Awaitable[Any]], *args: Any, **options: Any) -> Any:
        done[name] = await method(*args, **options)
        return done[name]

    responses, conversations, completions = client.responses, client.conversations, client.chat.completions
    given = {"model": MODEL, "input": "Hi"}
    made = await call("responses.create", responses.create, **given)
    await call("responses.retrieve", responses.retrieve, made.id)
    await call("responses.input_items.list", responses.input_items.list, made.id)
    await call("responses.cancel", responses.cancel, made.id)
    parsed = await call("responses.parse", responses.parse, **given, text_format=River)
    assert parsed.output_parsed == River(name="Loire")
    async with responses.stream(**given, background=True) as stream:
        done["responses.stream"] = await stream.get_final_response()
    async with responses.stream(response_id=done["responses.stream"].id) as stream:
        assert await stream.get_final_response() == done["responses.stream"]
    await call("responses.delete", responses.delete, made.id)

    items = [{"type": "message", "role": "user", "content": "Hi"}]
    conversation = (await call("conversations.create", conversations.create)).id
    await call("conversations.retrieve", conversations.retrieve, conversation)
    await call("conversations.update", conversations.update, conversation, metadata={"a": "b"})
    added = await call("conversations.items.create", conversations.items.create, conversation, items=items)
    item = {"item_id": added.data[0].id, "conversation_id": conversation}
    await call("conversations.items.list", conversations.items.list, conversation)
    await call("conversations.items.retrieve", conversations.items.retrieve, **item)
    await call("conversations.items.delete", conversations.items.delete, **item)
    await call("conversations.delete", conversations.delete, conversation)

    chat = {"model": MODEL, "messages": [user("Hi")]}
    completion = (await call("chat.completions.create", completions.create, **chat, store=True)).id
    await call("chat.completions.retrieve", completions.retrieve, completion)
    await call("chat.completions.update", completions.update, completion, metadata={"a": "b"})
    await call("chat.completions.list", completions.list)
    await call("chat.completions.messages.list", completions.messages.list, completion)
    parsed = await call("chat.completions.parse", completions.parse, **chat, response_format=River)
    assert parsed.choices[0].message.parsed == River(name="Loire")
    async with completions.stream(**chat) as stream:
        done["chat.completions.stream"] = await stream.get_final_completion()
    await call("chat.completions.delete", completions.delete, completion)
    return done


async def test_each_method_that_the_page_supports_succeeds() -> None:
    async with ScriptedUpstream(*[answer('{"name": "Loire"}')] * 6) as upstream:
        async with facade_over(upstream) as facade:
            done = await call_each(facade)
    assert set(done) == {name for name, behavior in listed().items() if behavior != "not available"}


async def test_methods_that_are_not_available_raise_an_error_of_the_client() -> None:
    async with ScriptedUpstream() as upstream, facade_over(upstream) as facade:
        responses = facade.client.responses
        with pytest.raises(openai.APIStatusError) as compacting:
            await responses.compact(model="gpt-5.1", input="Hi")
        with pytest.raises(openai.APIStatusError) as counting:
            await responses.input_tokens.count(model="gpt-5.1", input="Hi")
        assert {compacting.value.status_code, counting.value.status_code} <= {404, 405}
    assert upstream.requests == []
