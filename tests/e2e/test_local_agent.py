"""A real model that calls a tool, end to end: local model server, agent, A2A, and the official client."""

import pytest

from support.live_server import serving
from support.sdk import kinds, send
from support.sdk_server import client_at
from support.stream_recorder import TOOL_CALL, TOOL_TEMPLATE
from tailrace.server import AgentHandler, Settings, create_app
from tailrace.server.cli.local_model import LocalModel, unavailable_reason
from tailrace.streaming import Agent
from tailrace.wrappers import ConfigurationError
from tailrace.wrappers.openai.model import ChatCompletionsModel

# Makes a model of this size call a tool, and stop after the call.
FORCED = {
    "tool_choice": TOOL_CALL["tool_choice"],
    "extra_body": {"logit_bias": TOOL_CALL["logit_bias"], "stop": ["</tool_call>"]},
    "parallel_tool_calls": False,
    "max_tokens": 80,
}
CITIES: list[str] = []


async def get_weather(city: str) -> str:
    """The weather of a city.

    Args:
        city: Its name.
    """
    CITIES.append(city)
    return f"sunny in {city}"


async def test_the_local_model_calls_a_tool_and_its_arguments_are_streamed() -> None:
    if unavailable_reason() is not None:
        with pytest.raises(ConfigurationError):
            async with LocalModel():
                raise AssertionError("not reached")
        return
    async with LocalModel(chat_template=TOOL_TEMPLATE) as local:
        model = ChatCompletionsModel(local.model, base_url=local.base_url, api_key="none", parameters=FORCED)
        # The model would call the tool for ever; two rounds suffice to see a complete one.
        agent: Agent[str] = Agent(model, tools=[get_weather], max_rounds=2, merge_reads=False)
        app = create_app(Settings(store="sqlite://"), handler=AgentHandler(agent))
        async with serving(app) as url, client_at(url) as client:
            events = [event async for event in client.send_message(send("What is the weather in Paris?"))]
    assert kinds(events)[:2] == ["task submitted", "working"]
    shown: dict[str, list[str]] = {}
    for event in events:
        if event.HasField("artifact_update"):
            artifact = event.artifact_update.artifact
            shown.setdefault(artifact.artifact_id, []).extend(
                part.WhichOneof("content") for part in artifact.parts
            )
    assert len(shown["tool-call-1"]) > 3
    assert shown["tool-call-1"][-1] == "data"
    assert set(shown["tool-call-1"][:-1]) == {"text"}
    assert shown["tool-result-1"] == ["data"]
    assert CITIES
