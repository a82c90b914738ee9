"""The examples, unchanged, with scripted providers and otherwise real components.

Examples in a browser are run by ``tests/e2e/ui_streams/test_pages.py``.
"""

import importlib.util
import re
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from support.live_server import serving
from support.rounds import answer, sent
from support.rpc import Rpc, message, streamed_text, text_of
from support.sdk_server import client_at
from support.upstream import Received, ScriptedUpstream, Step, openai_stream, sse

EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> "Load":
    """Load an example that uses a scripted provider."""
    monkeypatch.setenv("TAILRACE_STORE", "sqlite://")
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    monkeypatch.setenv("ANTHROPIC_API_KEY", "none")

    def load(name: str, upstream: ScriptedUpstream) -> ModuleType:
        monkeypatch.setenv("OPENAI_BASE_URL", upstream.base_url)
        monkeypatch.setenv("ANTHROPIC_BASE_URL", upstream.base_url.removesuffix("/v1"))
        spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    return load


Load = Callable[[str, ScriptedUpstream], ModuleType]


async def test_minimal(load: Load) -> None:
    async with ScriptedUpstream(openai_stream(["The ", "Rhine."])) as upstream:
        async with serving(load("minimal", upstream).app) as url, Rpc(url) as rpc:
            events = await rpc.stream("SendStreamingMessage", message("Name a river."))
        assert streamed_text(events) == "The Rhine."
        assert (await upstream.received()).json["model"] == "gpt-5-mini"


def _convert_a_height(request: Received) -> list[bytes]:
    """A model that looks up a height and converts it."""
    results = [each["content"] for each in sent(request) if each["role"] == "tool"]
    match results:
        case []:
            return answer(calls=[("a", "height_of", {"mountain": "Zugspitze"})])
        case [metres]:
            return answer(calls=[("b", "feet", {"metres": float(metres)})])
        case [_, feet]:
            return answer(f"It is {feet} feet high.")
        case _:
            raise AssertionError(results)


async def test_tools(load: Load) -> None:
    async with ScriptedUpstream(_convert_a_height) as upstream:
        async with serving(load("tools", upstream).app) as url, Rpc(url) as rpc:
            task = (await rpc.result("SendMessage", message("How high is it in feet?")))["task"]
        assert text_of(task, "text-round-3") == "It is 9717.8 feet high."
        [height_of, feet] = upstream.requests[0].json["tools"]
        assert height_of["function"]["parameters"]["properties"]["mountain"]["description"] == "Its name."
        assert feet["function"]["description"] == "Convert metres to feet."


def _current_time(request: Received) -> list[bytes]:
    """A model that requests the time in a city."""
    last = sent(request)[-1]
    if last["role"] == "tool":
        return answer(f"It says {last['content']}")
    return answer(calls=[("a", "get_current_time", {"timezone": "Asia/Tokyo"})])


async def test_mcp_tools(load: Load) -> None:
    async with ScriptedUpstream(_current_time) as upstream:
        async with serving(load("mcp_tools", upstream).app) as url, Rpc(url) as rpc:
            task = (await rpc.result("SendMessage", message("What time is it in Tokyo?")))["task"]
    assert '"timezone": "Asia/Tokyo"' in text_of(task, "text-round-2")
    assert "+09:00" in text_of(task, "text-round-2")


def _of_either_provider(request: Received) -> list[bytes]:
    """The response in the format of the requested API: the number of messages in the request."""
    count = f"{len(sent(request))} messages"
    if not request.path.endswith("/messages"):
        return openai_stream([f"OpenAI: {count}"])
    usage = {"input_tokens": 3, "output_tokens": 1}
    events: list[dict[str, Any]] = [
        {"type": "message_start", "message": {"id": "m", "model": "claude", "content": [], "usage": usage}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {
            "type": "content_block_delta",
            "index": 0,
            "delta": {"type": "text_delta", "text": f"Claude: {count}"},
        },
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 2}},
        {"type": "message_stop"},
    ]
    return [sse(*events)]


async def test_several_providers(load: Load) -> None:
    async with ScriptedUpstream(_of_either_provider) as upstream:
        async with serving(load("several_providers", upstream).app) as url, Rpc(url) as rpc:
            texts = list[str]()
            for provider in ("openai", "anthropic", "openai"):
                params = message("Hello.", contextId="c") | {"metadata": {"provider": provider}}
                texts.append(text_of((await rpc.result("SendMessage", params))["task"]))
            wrong = message("Hello.") | {"metadata": {"provider": "nobody"}}
            failed = (await rpc.result("SendMessage", wrong))["task"]["status"]
    assert texts == ["OpenAI: 1 messages", "Claude: 3 messages", "OpenAI: 5 messages"]
    assert failed["state"] == "TASK_STATE_FAILED"
    assert "there is no 'nobody'" in failed["message"]["parts"][0]["text"]


def _river(request: Received) -> list[Step]:
    length = len(sent(request))
    return [*openai_stream(["The ", "Rhine."] if length == 1 else ["In ", "Europe."])]


async def test_openai_client(load: Load, capsys: pytest.CaptureFixture[str]) -> None:
    async with ScriptedUpstream(_river) as upstream:
        async with serving(load("minimal", upstream).app) as url, Rpc(url) as rpc:
            await load("openai_client", upstream).main(f"{url}/v1")
            tasks = (await rpc.result("ListTasks", {}))["tasks"]
    assert capsys.readouterr().out == "> Name a river.\nThe Rhine.\n> Where is it?\nIn Europe.\n"
    assert len(tasks) == 2
    assert len({task["contextId"] for task in tasks}) == 1  # only the new message was sent


async def test_sdk_server(load: Load) -> None:
    from a2a.helpers import get_stream_response_text, new_text_message
    from a2a.types import Role, SendMessageRequest, TaskState

    broken = openai_stream(["The "], finish=None)
    scripts = iter([openai_stream(["The ", "Rhine."]), broken])
    async with ScriptedUpstream(lambda _: next(scripts)) as upstream:
        module = load("sdk_server", upstream)
        async with serving(module.app) as url, client_at(url) as client:
            for text, state in (
                ("The Rhine.", TaskState.TASK_STATE_COMPLETED),
                ("The ", TaskState.TASK_STATE_FAILED),
            ):
                request = SendMessageRequest(message=new_text_message("Name a river.", role=Role.ROLE_USER))
                events = [event async for event in client.send_message(request)]
                pieces = [event for event in events if event.HasField("artifact_update")]
                assert "".join(map(get_stream_response_text, pieces)) == text
                assert events[-1].status_update.status.state == state
        await module.handler.aclose()
        assert sent(upstream.requests[0]) == [{"role": "user", "content": "Name a river."}]


async def test_own_app(load: Load) -> None:
    async with ScriptedUpstream(openai_stream(["Hello."])) as upstream:
        async with serving(load("own_app", upstream).app) as url, Rpc(f"{url}/agent") as rpc:
            ada, ben = ({"Authorization": f"Bearer token-of-{user}"} for user in ("ada", "ben"))
            for headers, status in (({}, 401), ({"Authorization": "Bearer x"}, 401), (ada, 200)):
                async with rpc.http.get(f"{url}/me", headers=headers) as response:
                    assert response.status == status
                async with rpc.http.get(f"{url}/agent/tasks", headers=headers) as response:
                    assert response.status == status
            task = (await rpc.call("SendMessage", message(), ada))["result"]["task"]
            assert text_of(task) == "Hello."
            assert (await rpc.error("GetTask", {"id": task["id"]}, ben))["code"] == -32001
            assert (await rpc.call("GetTask", {"id": task["id"]}, ada))["result"]["id"] == task["id"]
            async with rpc.http.get(f"{url}/agent/.well-known/agent-card.json") as response:
                assert "bearer" in (await response.json())["securitySchemes"]


def test_every_example_is_run_and_linked() -> None:
    tests = {name.removeprefix("test_") for name in globals() if name.startswith("test_")}
    scripts = {path.stem for path in EXAMPLES.glob("*.py")}
    assert scripts <= tests
    pages = {f"browser/{path.stem}" for path in (EXAMPLES / "browser").glob("*.html")}
    linked = set(re.findall(r"\]\(((?:browser/)?\w+)\.(?:py|jsx?)\)", (EXAMPLES / "README.md").read_text()))
    assert linked == scripts | pages
