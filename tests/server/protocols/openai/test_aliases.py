"""Further names of models (``TAILRACE_MODEL_ALIASES``)."""

from typing import Any

import openai
import pytest
from pydantic import ValidationError

from support.agents import Scripted
from support.openai_api import Facade, facade_over
from support.rounds import answer
from support.upstream import ScriptedUpstream
from tailrace.server import Settings, create_app
from tailrace.wrappers import ConfigurationError

HELLO: Any = {"role": "user", "content": "Hello?"}


async def models_used(facade: Facade, name: str) -> list[str]:
    """The model that the responses of each API name."""
    client = facade.client
    chat = await client.chat.completions.create(model=name, messages=[HELLO])
    response = await client.responses.create(model=name, input="Hello?")
    completion = await client.completions.create(model=name, prompt="Hello?")
    return [chat.model, response.model, completion.model]


async def test_an_alias_is_a_listed_name_of_the_agent() -> None:
    aliases = "gpt-4o=openai:scripted, gpt-4o-mini="
    async with (
        ScriptedUpstream(answer("Hi")) as upstream,
        facade_over(upstream, model_aliases=aliases) as facade,
    ):
        listed = [model.id for model in (await facade.client.models.list()).data]
        one = await facade.client.models.retrieve("gpt-4o")
        used = await models_used(facade, "gpt-4o"), await models_used(facade, "gpt-4o-mini")
        with pytest.raises(openai.NotFoundError, match="TAILRACE_MODEL_ALIASES") as raised:
            await models_used(facade, "gpt-9")
    assert listed == ["tailrace", "scripted", "gpt-4o", "gpt-4o-mini"]
    assert one.id == "gpt-4o"
    assert used == (["gpt-4o"] * 3, ["gpt-4o-mini"] * 3)
    assert {request.json["model"] for request in upstream.requests} == {"scripted"}
    assert raised.value.code == "model_not_found"


async def test_a_star_accepts_any_name() -> None:
    async with (
        ScriptedUpstream(answer("Hi")) as upstream,
        facade_over(upstream, model_aliases="*=") as facade,
    ):
        listed = [model.id for model in (await facade.client.models.list()).data]
        one = await facade.client.models.retrieve("anything/at-all")
        used = await models_used(facade, "anything/at-all")
    assert listed == ["tailrace", "scripted"]
    assert one.id == "anything/at-all"
    assert used == ["anything/at-all"] * 3


async def test_a_handler_has_aliases_too() -> None:
    async with facade_over(handler=Scripted(), model_aliases=["gpt-4o="]) as facade:
        models = await facade.client.models.list()
    assert [model.id for model in models.data] == ["tailrace", "gpt-4o"]


@pytest.mark.parametrize("value", ["gpt-4o", "=openai:gpt-4.1", "a=gpt-4.1", "a=openai:", "a=,a=openai:b"])
def test_an_invalid_alias_is_refused(value: str) -> None:
    with pytest.raises(ValidationError, match="alias"):
        Settings.model_validate({"model_aliases": value})


def test_the_target_is_the_model_or_one_with_embeddings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "none")
    settings = Settings.model_validate(
        {"store": "sqlite://", "model_aliases": "a=anthropic:m", "model": "openai:m", "api_key": "none"}
    )
    with pytest.raises(ConfigurationError, match="'a' is neither this server's model"):
        create_app(settings)
