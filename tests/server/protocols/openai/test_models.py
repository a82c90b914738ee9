"""The list of models, requested with OpenAI's own client."""

from typing import Any

import openai
import pytest

from support.agents import Scripted
from support.openai_api import facade_over
from support.rounds import answer
from support.upstream import ScriptedUpstream

HELLO: Any = {"role": "user", "content": "Hello?"}


async def test_the_agent_and_its_model_are_listed() -> None:
    async with ScriptedUpstream() as upstream, facade_over(upstream, agent_name="Rivers") as facade:
        models = await facade.client.models.list()
        one = await facade.client.models.retrieve("scripted")
        with pytest.raises(openai.NotFoundError) as raised:
            await facade.client.models.retrieve("gpt-9")
    assert [model.id for model in models.data] == ["Rivers", "scripted"]
    assert (one.id, one.object) == ("scripted", "model")
    assert raised.value.code == "model_not_found"


@pytest.mark.parametrize("name", ["tailrace", "scripted", "openai:scripted", ""])
async def test_every_name_that_is_listed_is_taken_and_repeated(name: str) -> None:
    async with ScriptedUpstream(answer("Hi")) as upstream, facade_over(upstream) as facade:
        completion = await facade.client.chat.completions.create(model=name, messages=[HELLO])
    assert completion.model == (name or "tailrace")
    assert upstream.requests[0].json["model"] == "scripted"


async def test_a_model_that_is_not_served_is_not_found() -> None:
    async with facade_over(handler=Scripted()) as facade:
        with pytest.raises(openai.NotFoundError) as raised:
            await facade.client.chat.completions.create(model="gpt-9", messages=[HELLO])
        with pytest.raises(openai.NotFoundError):
            await facade.client.responses.create(model="gpt-9", input="Hello?")
    assert (raised.value.code, raised.value.param) == ("model_not_found", "model")


async def test_names_may_hold_slashes() -> None:
    async with ScriptedUpstream() as upstream, facade_over(upstream, agent_name="team/rivers") as facade:
        model = await facade.client.models.retrieve("team/rivers")
    assert model.id == "team/rivers"


async def test_the_facade_can_be_switched_off() -> None:
    async with facade_over(handler=Scripted(), endpoints=()) as facade:
        with pytest.raises(openai.NotFoundError):
            await facade.client.models.list()
