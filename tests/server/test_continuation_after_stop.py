"""Responses that a server leaves unfinished when it is stopped (SIGTERM), and the next server continues."""

import json
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anyio
import pytest

from support.continued_events import Events, folded, texts_of
from support.continuing import ContinuingServer
from support.processes import served
from support.restarts import across_a_stop, arguments_of, state_of
from support.rpc import Rpc, message
from support.upstream import Received, ScriptedUpstream, Step, json_answer
from tailrace.server import Store
from tailrace.server.store.usage_store import UsageFilter
from tailrace.streaming.a2a.stream_extension import EXTENSION_URI

PIECES = ["# Rivers\n\n", "Water ", "flows ", "to the 🌊", ".\n\n", "- Rhine\n", "- Aare", " and more."]
TEXT = "".join(PIECES)
PUBLISHED = "".join(PIECES[: PIECES.index("- Aare")])


def holding(kind: str) -> ContinuingServer:
    """A server whose first response delivers `PUBLISHED` and then nothing."""
    server = ContinuingServer(kind, PIECES, ending="silence")
    server.cut = server.first_body.index(b"- Aare")
    return server


def is_published(events: Events) -> bool:
    return folded(events)[0] == PUBLISHED


@pytest.mark.parametrize(("kind", "route"), [("llamacpp", "prefill"), ("other", "replace")])
async def test_a_response_is_continued_after_a_stop(kind: str, route: str, tmp_path: Path) -> None:
    """The stream ends without a last status, and a subscriber resumes without a lost or repeated event."""
    server = holding(kind)
    async with ScriptedUpstream(server.respond, lists_models=True) as upstream:
        events = await across_a_stop(tmp_path, upstream, "openai", is_published)
    text, steps, last = folded(events)
    assert text == (TEXT if route == "prefill" else ContinuingServer.SECOND + TEXT)
    assert ([step["route"] for step in steps], state_of(events)) == ([route], "TASK_STATE_COMPLETED")
    assert len(last["attempts"]) == 2
    assert "interrupted by the stop of a server" in (tmp_path / "second.log").read_text()


async def test_a_stop_does_not_count_as_a_crash(tmp_path: Path) -> None:
    server = holding("llamacpp")
    async with ScriptedUpstream(server.respond, lists_models=True) as upstream:
        events = await across_a_stop(tmp_path, upstream, "openai", is_published)
    facts = [
        each["statusUpdate"].get("metadata", {}).get(EXTENSION_URI, {})
        for _, each in events
        if "statusUpdate" in each
    ]
    assert [each["suspended"] for each in facts if "suspended" in each] == [True, False]
    assert [each["restarts"] for each in facts if "restarts" in each] == [0]


async def test_a_response_at_the_provider_is_not_cancelled_by_a_stop(tmp_path: Path) -> None:
    """The next server reads the rest of the response."""
    server = holding("openai-background")
    async with ScriptedUpstream(server.respond, lists_models=True) as upstream:
        background = {"TAILRACE_UPSTREAM_BACKGROUND": "true"}
        events = await across_a_stop(tmp_path, upstream, "openai-responses", is_published, **background)
        paths = [each.path for each in upstream.requests if "resp_1" in each.path]
    assert paths == ["/v1/responses/resp_1?stream=true"]
    texts, replaced = texts_of(events)
    assert (texts["text"], replaced, server.generations) == (TEXT, 0, 1)


async def test_the_attempts_of_a_suspended_turn_are_recorded_once(tmp_path: Path) -> None:
    server = holding("llamacpp")
    async with ScriptedUpstream(server.respond, lists_models=True) as upstream:
        events = await across_a_stop(tmp_path, upstream, "openai", is_published)
    store = Store(f"sqlite:///{tmp_path}/t.db")
    await store.open()
    try:
        last = await store.usage.last_attempt(events[0][1]["task"]["id"], 1)
        assert last is not None
        assert last.attempt == 2
    finally:
        await store.close()


@pytest.mark.parametrize("is_gone", [False, True])
async def test_an_attached_response_is_one_attempt(is_gone: bool, tmp_path: Path) -> None:
    """If the provider no longer has the response, the attempt before the stop counts."""
    server = holding("openai-background")

    def respond(request: Received) -> Sequence[Step]:
        if is_gone and request.method == "GET" and "resp_1" in request.path:
            return json_answer({"error": {"message": "not found"}}, 404)
        return server.respond(request)

    async with ScriptedUpstream(respond, lists_models=True) as upstream:
        background = {"TAILRACE_UPSTREAM_BACKGROUND": "true"}
        await across_a_stop(tmp_path, upstream, "openai-responses", is_published, **background)
    store = Store(f"sqlite:///{tmp_path}/t.db")
    await store.open()
    try:
        states = await store.usage.sums(UsageFilter(0, 2**62), ("state",), 9)
        (spent,) = await store.usage.spent(None, 0, 2**62)
    finally:
        await store.close()
    counted = {each.group[0]: each.attempts for each in states}
    assert counted == ({"final": 1, "cut": 1, "failed": 1} if is_gone else {"final": 1})
    assert (spent.missing_tokens > 0) == is_gone


async def test_a_stop_does_not_count_as_a_crash_of_waiting_tasks(tmp_path: Path) -> None:
    """Tasks whose turns had not begun have no lost attempt and no restart, and keep their order."""
    server = holding("llamacpp")
    async with ScriptedUpstream(server.respond, lists_models=True) as upstream:
        arguments = arguments_of(tmp_path, upstream, "openai")
        sent: list[str] = []
        with served(tmp_path / "first.log", *arguments, TAILRACE_SHUTDOWN_GRACE="0") as process:
            await process.ready()
            async with Rpc(process.url) as rpc:
                for number in range(4):
                    params = message(f"Rivers {number}?", contextId="c")
                    params["configuration"] = {"returnImmediately": True}
                    sent.append((await rpc.result("SendMessage", params))["task"]["id"])
                with anyio.fail_after(30):
                    await upstream.received()
                process.process.send_signal(signal.SIGTERM)
                process.process.wait(30)
        with served(tmp_path / "second.log", *arguments) as process:
            await process.ready()
            async with Rpc(process.url) as rpc:
                for task_id in sent:
                    events = await rpc.stream("SubscribeToTask", {"id": task_id}, {"Last-Event-ID": "0"})
                    assert state_of(events) == "TASK_STATE_COMPLETED"
                    assert '"restarts":1' not in json.dumps(events, separators=(",", ":"))
                tasks = [await rpc.result("GetTask", {"id": task_id}) for task_id in sent]
    ends = [each["status"]["timestamp"] for each in tasks]
    assert ends == sorted(ends)
    store = Store(f"sqlite:///{tmp_path}/t.db")
    await store.open()
    try:
        states = await store.usage.sums(UsageFilter(0, 2**62), ("state",), 9)
    finally:
        await store.close()
    assert "lost" not in [each.group[0] for each in states]


async def test_a_request_without_streaming_returns_the_unfinished_task(tmp_path: Path) -> None:
    """The client can follow the task on the next server."""
    server = holding("llamacpp")
    async with ScriptedUpstream(server.respond, lists_models=True) as upstream:
        arguments = arguments_of(tmp_path, upstream, "openai")
        with served(tmp_path / "first.log", *arguments, TAILRACE_SHUTDOWN_GRACE="0") as process:
            await process.ready()
            tasks: list[dict[str, Any]] = []
            async with Rpc(process.url) as rpc, anyio.create_task_group() as group:

                async def ask() -> None:
                    tasks.append((await rpc.result("SendMessage", message("Rivers?")))["task"])

                group.start_soon(ask)
                with anyio.fail_after(30):
                    await upstream.received()
                    process.process.send_signal(signal.SIGTERM)
        assert tasks[0]["status"]["state"] == "TASK_STATE_WORKING"
        with served(tmp_path / "second.log", *arguments) as process:
            await process.ready()
            async with Rpc(process.url) as rpc:
                events = await rpc.stream("SubscribeToTask", {"id": tasks[0]["id"]}, {"Last-Event-ID": "0"})
    assert state_of(events) == "TASK_STATE_COMPLETED"
    assert folded(events)[0].endswith(TEXT)  # begun again if the stop came before the text
