"""``tailrace serve --agent`` as a real process in front of other agents: cards, answers, restarts."""

import signal
import subprocess
from pathlib import Path
from typing import Any

import aiohttp
import anyio
import pytest
from pydantic import SecretStr

from support.agents import Scripted
from support.live_server import serving
from support.processes import served, tailrace
from support.remote_agents import sdk_agent, sdk_card
from support.rpc import Rpc, message, streamed_text, text_of
from support.upstream import ScriptedUpstream, openai_stream
from tailrace.server import CardSettings, Settings, create_app
from tailrace.server.sdk import AgentExecutor
from tailrace.streaming.a2a.models import AgentSkill

SKILL = AgentSkill(id="echo", name="Echo", description="Says it back", tags=("t",))


def in_front_of(url: str, store: Path) -> list[str]:
    return ["--agent", url, "--store", f"sqlite:///{store}"]


async def send(rpc: Rpc, text: str, **fields: Any) -> dict[str, Any]:
    return (await rpc.result("SendMessage", message(text, **fields)))["task"]


async def test_the_card_and_the_answers_are_those_of_the_agent_behind(tmp_path: Path) -> None:
    settings = Settings(
        store="sqlite://", agent_name="Echo agent", card=CardSettings(description="Says things back.")
    )
    remote = create_app(
        settings, handler=Scripted(), skills=[SKILL], input_modes=["text/*"], output_modes=["text/markdown"]
    )
    async with serving(remote) as url:
        with served(tmp_path / "log", *in_front_of(url, tmp_path / "t.db")) as server:
            await server.ready()
            async with Rpc(server.url) as rpc:
                async with rpc.http.get(f"{server.url}/.well-known/agent-card.json") as response:
                    card = await response.json()
                events = await rpc.stream("SendStreamingMessage", message("river"))
    assert (card["name"], card["description"]) == ("Echo agent", "Says things back.")
    assert [skill["name"] for skill in card["skills"]] == ["Echo"]
    assert (card["defaultInputModes"], card["defaultOutputModes"]) == (["text/*"], ["text/markdown"])
    assert card["supportedInterfaces"][0]["url"].startswith(server.url)
    assert streamed_text(events) == "river"
    assert [number for number, _ in events] == list(range(1, len(events) + 1))


@pytest.mark.parametrize("version", ["1.0", "0.3"])
async def test_a_question_survives_a_restart_of_the_server(tmp_path: Path, version: str) -> None:
    scripted = Scripted()
    async with sdk_agent(AgentExecutor(scripted), sdk_card(version=version)) as url:
        options = in_front_of(url, tmp_path / "t.db")
        with served(tmp_path / "first", *options) as server:
            await server.ready()
            async with Rpc(server.url) as rpc:
                question = await send(rpc, "ask")
            server.kill()
        with served(tmp_path / "second", *options, TAILRACE_AGENT_NAME="Mine") as server:
            await server.ready()
            async with Rpc(server.url) as rpc:
                async with rpc.http.get(f"{server.url}/.well-known/agent-card.json") as response:
                    card = await response.json()
                # The remote card lists "text", which stands for text/plain.
                done = await send(rpc, "river", taskId=question["id"])
                again = await send(rpc, "brook", contextId=question["contextId"])
    assert (card["name"], card["description"]) == ("Mine", "Made with the SDK.")
    assert question["status"]["state"] == "TASK_STATE_INPUT_REQUIRED"
    assert (done["status"]["state"], text_of(done)) == ("TASK_STATE_COMPLETED", "river")
    assert text_of(again) == "brook"
    first, second, third = scripted.turns
    assert first.task_id == second.task_id != third.task_id
    assert first.context_id == third.context_id


async def test_an_agent_that_is_restarted_between_two_turns_goes_on_with_the_conversation(
    tmp_path: Path,
) -> None:
    async with ScriptedUpstream(openai_stream(["Paris"]), openai_stream(["Rome"])) as upstream:
        model = ["--model", "openai:m", "--base-url", upstream.base_url]
        model += ["--store", f"sqlite:///{tmp_path}/remote.db"]
        with served(tmp_path / "remote", *model) as remote:
            await remote.ready()
            port = remote.url.rpartition(":")[2]
            with served(tmp_path / "front", *in_front_of(remote.url, tmp_path / "front.db")) as front:
                await front.ready()
                async with Rpc(front.url) as rpc:
                    first = await send(rpc, "France?")
                    remote.process.send_signal(signal.SIGTERM)
                    assert await anyio.to_thread.run_sync(remote.process.wait) == 0
                    away = await send(rpc, "Spain?")
                    with served(tmp_path / "again", *model, "--port", port) as again:
                        await again.ready()
                        second = await send(rpc, "Italy?", contextId=first["contextId"])
        messages = (await upstream.received(1)).json["messages"]
    assert (text_of(first), text_of(second)) == ("Paris", "Rome")
    assert away["status"]["state"] == "TASK_STATE_FAILED"
    assert [each["role"] for each in messages] == ["user", "assistant", "user"]
    assert "Paris" in str(messages[1])


async def test_an_answer_that_a_crash_interrupted_is_gone_on_with(tmp_path: Path) -> None:
    scripted = Scripted()
    async with serving(create_app(Settings(store="sqlite://"), handler=scripted)) as url:
        options = in_front_of(url, tmp_path / "t.db")
        with served(tmp_path / "first", *options) as server:
            await server.ready()
            task_ids: list[str] = []

            def seen(events: list[tuple[int, dict[str, Any]]]) -> None:
                if streamed_text(events) == "held":
                    task_ids.append(events[0][1]["task"]["id"])
                    server.kill()

            async with Rpc(server.url) as rpc:
                with pytest.raises(aiohttp.ClientError):
                    await rpc.stream("SendStreamingMessage", message("hold"), seen=seen)
        with served(tmp_path / "second", *options, TAILRACE_ON_CRASH="restart") as server:
            await server.ready()
            scripted.go_on.set()
            async with Rpc(server.url) as rpc:
                params = {"id": task_ids[0]}
                events = await rpc.stream("SubscribeToTask", params, {"Last-Event-ID": "0"})
                task = await rpc.result("GetTask", params)
    assert events[-1][1]["statusUpdate"]["status"]["state"] == "TASK_STATE_COMPLETED"
    assert text_of(task) == "held"
    assert len(scripted.turns) == 1, "the remote agent received another request"


async def test_a_token_lets_the_server_in(tmp_path: Path) -> None:
    settings = Settings(store="sqlite://", caller_keys=SecretStr("front:secret"))
    async with serving(create_app(settings, handler=Scripted())) as url:
        options = in_front_of(url, tmp_path / "t.db")
        with served(tmp_path / "with", *options, TAILRACE_AGENT_TOKEN="secret") as server:
            await server.ready()
            async with Rpc(server.url) as rpc:
                assert text_of(await send(rpc, "river")) == "river"
        with served(tmp_path / "without", *options) as server:
            await server.ready()
            async with Rpc(server.url) as rpc:
                refused = await send(rpc, "river")
    assert refused["status"]["state"] == "TASK_STATE_FAILED"
    assert "rejected the server's credentials" in str(refused["status"]["message"])
    assert "secret" not in (tmp_path / "with").read_text()


def test_what_cannot_be_served_is_one_line_and_status_2(tmp_path: Path) -> None:
    for arguments, words in (
        (["--agent", "http://127.0.0.1:1"], "cannot be reached"),
        (["--agent", "ftp://x"], "not the URL of an agent"),
        (["--agent", "http://127.0.0.1:1", "--model", "openai:x"], "more than one of these is set"),
    ):
        done = subprocess.run(
            tailrace("serve", *arguments),
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env={"PATH": "", "TAILRACE_API_KEY": "none"},
            check=False,
        )
        assert done.returncode == 2, done
        assert words in done.stderr
        assert len(done.stderr.strip().splitlines()) == 1
