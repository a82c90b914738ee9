"""A server whose settings name a remote agent: its card, and errors of configuration."""

import subprocess
import sys
from functools import partial
from typing import Any

import anyio
import anyio.to_thread
import pytest

from support.agents import Scripted
from support.live_server import serving
from support.proxy import CuttingProxy
from support.remote_agents import sdk_agent, sdk_card
from support.rpc import Rpc, message, streamed_text, text_of
from tailrace.server import Settings, create_app
from tailrace.server.remote.client import RETRY_DELAYS
from tailrace.server.sdk import AgentExecutor
from tailrace.server.settings import Bounds
from tailrace.streaming.a2a.models import AgentSkill
from tailrace.wrappers import ConfigurationError, UpstreamError

LOST = 2 + len(RETRY_DELAYS)
"""More attempts than a client makes by default."""


async def card_of(url: str, **options: Any) -> dict[str, Any]:
    """Return the card of a server in front of the agent at a URL."""
    settings = Settings.model_validate({"store": "sqlite://", "agent": url, **options.pop("settings", {})})
    # In a thread, because this event loop serves the agent.
    app = await anyio.to_thread.run_sync(partial(create_app, settings, **options))
    async with serving(app) as front, Rpc(front) as rpc:
        task = (await rpc.result("SendMessage", message("river")))["task"]
        assert text_of(task) == "river"
        async with rpc.http.get(f"{front}/.well-known/agent-card.json") as response:
            return await response.json()


async def test_members_without_a_setting_are_those_of_the_agents_card():
    async with sdk_agent(AgentExecutor(Scripted()), sdk_card()) as url:
        theirs = await card_of(url)
        skill = AgentSkill(id="o", name="Ours", description="o", tags=("t",))
        named = {"agent_name": "Mine", "card": {"output_modes": ["text/html"]}}
        ours = await card_of(url, settings=named, skills=[skill], input_modes=["text/plain"])
    assert (theirs["name"], theirs["description"]) == ("Their agent", "Made with the SDK.")
    assert [each["name"] for each in theirs["skills"]] == ["Talking"]
    assert theirs["defaultInputModes"] == ["text"]
    assert theirs["defaultOutputModes"] == ["text/plain", "image/png"]
    assert theirs["capabilities"]["streaming"] is True
    assert (ours["name"], ours["description"]) == ("Mine", "Made with the SDK.")
    assert [each["name"] for each in ours["skills"]] == ["Ours"]
    assert (ours["defaultInputModes"], ours["defaultOutputModes"]) == (["text/plain"], ["text/html"])


def test_one_of_agent_model_and_handler_does_the_work():
    for given in ({"model": "openai:x"}, {}):
        settings = Settings.model_validate({"store": "sqlite://", "agent": "http://127.0.0.1:1", **given})
        with pytest.raises(ConfigurationError, match="more than one"):
            create_app(settings, handler=None if given else Scripted())
    with pytest.raises(ConfigurationError, match="--agent URL"):
        create_app(Settings(store="sqlite://", model=None))


def test_an_agent_that_is_away_is_an_error_at_the_start():
    with pytest.raises(UpstreamError, match="cannot be reached"):
        create_app(Settings(store="sqlite://", agent="127.0.0.1:1"))


def test_the_official_sdk_is_not_needed():
    code = "import sys; sys.modules['a2a'] = None; import tailrace.server.remote.client, tailrace.server.remote.agent_proxy"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("deadline", [60.0, 0.0])
async def test_a_lost_stream_is_resumed_until_the_deadline_of_continuations(deadline: float) -> None:
    """Not only for a number of attempts: the settings are those for responses of models."""
    scripted = Scripted()
    async with (
        serving(create_app(Settings(store="sqlite://"), handler=scripted)) as url,
        CuttingProxy(url) as proxy,
    ):
        bounds = Bounds(continue_delay=0.0, continue_deadline=deadline)
        settings = Settings(store="sqlite://", agent=proxy.url, bounds=bounds)
        app = await anyio.to_thread.run_sync(create_app, settings)

        def cut(events: list[tuple[int, dict[str, Any]]]) -> None:
            if streamed_text(events) == "held" and not proxy.cuts:
                proxy.cut_after(*[1] * LOST)
                proxy.cut_now()
                scripted.go_on.set()

        async with serving(app) as front, Rpc(front) as rpc:
            events = await rpc.stream("SendStreamingMessage", message("hold"), seen=cut)
    state = events[-1][1]["statusUpdate"]["status"]["state"]
    if deadline:
        assert (state, proxy.cuts) == ("TASK_STATE_COMPLETED", 1 + LOST)
    else:
        assert state == "TASK_STATE_FAILED"
