"""``tailrace serve --agent`` that is killed in the middle of a response of the agent behind it."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from a2a.server.agent_execution import AgentExecutor as SdkExecutor
from a2a.server.agent_execution import RequestContext
from a2a.server.events import EventQueue

from support.live_server import serving
from support.processes import served
from support.remote_agents import sdk_agent, sdk_card
from support.rpc import Rpc, message, streamed_text
from tailrace.server import Settings, Turn, create_app
from tailrace.server.runtime.handlers import Item
from tailrace.server.sdk import AgentExecutor
from tailrace.streaming import ArtifactUpdate, StatusUpdate, TaskState, TextDelta
from tailrace.streaming.a2a.models import Artifact, Part
from tailrace.streaming.task.task_record import agent_message

PIECES = [f"{number} " for number in range(60)]
TEXT = "".join(PIECES)


class Counting:
    """A handler that sends pieces of a text, and waits in the middle.

    Attributes:
        turns: The turns.
        go_on: Ends the wait.
        ended: Set when a turn has ended.
        left: Set when a turn was cancelled.
    """

    def __init__(self) -> None:
        self.turns: list[Turn] = []
        self.go_on = anyio.Event()
        self.ended = anyio.Event()
        self.left = anyio.Event()

    async def __call__(self, turn: Turn) -> AsyncIterator[Item]:
        self.turns.append(turn)
        yield StatusUpdate(TaskState.WORKING, agent_message("thinking"))
        if turn.message.parts[0].text == "ask":
            yield StatusUpdate(TaskState.INPUT_REQUIRED, agent_message("how far?"))
            return
        first = Artifact(artifact_id="first", parts=(Part(text="complete"),))
        yield ArtifactUpdate(first)
        yield ArtifactUpdate(Artifact(artifact_id="text", parts=(Part(text=PIECES[0]),)), last=False)
        try:
            for at, piece in enumerate(PIECES[1:], 1):
                if at == 30:
                    await self.go_on.wait()
                yield TextDelta("text", piece)
        except BaseException:
            self.left.set()
            raise
        yield TextDelta("text", "", last=True)
        self.ended.set()


def texts_of(task: dict[str, Any]) -> list[str]:
    return ["".join(part["text"] for part in artifact["parts"]) for artifact in task["artifacts"]]


def in_front_of(url: str, store: Path, *options: str) -> list[str]:
    return ["--agent", url, "--store", f"sqlite:///{store}", *options]


async def interrupt(folder: Path, url: str, *, asks: bool = False) -> str:
    """Kill a server after it has published half of a response; return the id of its task.

    Args:
        folder: For the database and the log.
        url: The agent.
        asks: The response is the second one of its task, after a question of the agent.
    """
    task_ids: list[str] = []
    with served(folder / "killed", *in_front_of(url, folder / "t.db")) as server:
        await server.ready()
        async with Rpc(server.url) as rpc, anyio.create_task_group() as group:
            fields = {}
            if asks:
                asking = (await rpc.result("SendMessage", message("ask")))["task"]
                fields = {"taskId": asking["id"]}
            reached = anyio.Event()

            def seen(events: list[tuple[int, dict[str, Any]]]) -> None:
                if "29 " in streamed_text(events):
                    task_ids.append(events[0][1]["task"]["id"])
                    reached.set()

            async def read() -> None:
                with anyio.CancelScope() as scope:
                    scopes.append(scope)
                    await rpc.stream("SendStreamingMessage", message("count", **fields), seen=seen)

            scopes: list[anyio.CancelScope] = []
            group.start_soon(read)
            with anyio.fail_after(60):
                await reached.wait()
            scopes[0].cancel()
        server.kill()
    return task_ids[0]


async def completed(folder: Path, url: str, task_id: str, handler: Counting) -> None:
    """Start the server again, and check the complete task and its events."""
    with served(folder / "again", *in_front_of(url, folder / "t.db")) as server:
        await server.ready()
        handler.go_on.set()
        async with Rpc(server.url) as rpc:
            events = await rpc.stream("SubscribeToTask", {"id": task_id}, headers={"last-event-id": "0"})
            task = await rpc.result("GetTask", {"id": task_id})
            assert (task["status"]["state"], texts_of(task)) == ("TASK_STATE_COMPLETED", ["complete", TEXT])
            assert [number for number, _ in events] == list(range(1, len(events) + 1))
            statuses = [event["statusUpdate"]["status"] for _, event in events if "statusUpdate" in event]
            messages = [each["message"]["parts"][0]["text"] for each in statuses if "message" in each]
            assert messages.count("thinking") == len(handler.turns)
            shown = [event["artifactUpdate"] for _, event in events if "artifactUpdate" in event]
            growing = [each for each in shown if each["artifact"]["artifactId"] == "text"]
            assert [each.get("append", False) for each in growing[1:]] == [True] * (len(growing) - 1)
            texts = [part.get("text", "") for each in growing for part in each["artifact"]["parts"]]
            assert "".join(texts) == TEXT
            again = await rpc.result("SendMessage", message("more", contextId=task["contextId"]))
            assert texts_of(again["task"]) == ["complete", TEXT]
    first, second = handler.turns
    assert first.context_id == second.context_id
    assert [entry.text for entry in second.history.conversation][:2] == ["count", f"complete{TEXT}"]


async def test_the_rest_of_a_response_of_tailrace_is_read_after_a_crash(tmp_path: Path) -> None:
    handler = Counting()
    async with serving(create_app(Settings(store="sqlite://"), handler=handler)) as url:
        task_id = await interrupt(tmp_path, url)
        await completed(tmp_path, url, task_id, handler)


@pytest.mark.parametrize(("binding", "version"), [("JSONRPC", "1.0"), ("HTTP+JSON", "0.3")])
async def test_the_rest_of_a_response_of_the_sdk_is_read_after_a_crash(
    tmp_path: Path, binding: str, version: str
) -> None:
    handler = Counting()
    async with sdk_agent(AgentExecutor(handler), sdk_card(binding, version)) as url:
        task_id = await interrupt(tmp_path, url)
        await completed(tmp_path, url, task_id, handler)


async def test_a_response_that_ended_during_the_outage_is_complete(tmp_path: Path) -> None:
    handler = Counting()
    async with serving(create_app(Settings(store="sqlite://"), handler=handler)) as url:
        task_id = await interrupt(tmp_path, url)
        handler.go_on.set()
        with anyio.fail_after(30):
            await handler.ended.wait()
        await completed(tmp_path, url, task_id, handler)


async def test_a_task_whose_agent_is_gone_fails_with_its_output(tmp_path: Path) -> None:
    async with serving(create_app(Settings(store="sqlite://"), handler=Counting())) as url:
        task_id = await interrupt(tmp_path, url)
        port = url.rpartition(":")[2]
    # Another agent at the same address, which does not know the task.
    model = ["--model", "openai:m", "--base-url", "http://127.0.0.1:1/v1", "--port", port]
    with served(tmp_path / "other", *model, "--store", f"sqlite:///{tmp_path}/other.db") as other:
        await other.ready()
        with served(tmp_path / "again", *in_front_of(other.url, tmp_path / "t.db")) as server:
            await server.ready()
            async with Rpc(server.url) as rpc:
                await rpc.stream("SubscribeToTask", {"id": task_id}, headers={"last-event-id": "0"})
                task = await rpc.result("GetTask", {"id": task_id})
    assert task["status"]["state"] == "TASK_STATE_FAILED"
    assert texts_of(task) == ["complete", "".join(PIECES[:30])]


async def test_a_task_is_canceled_at_the_agent_after_a_crash(tmp_path: Path) -> None:
    handler = Counting()
    async with serving(create_app(Settings(store="sqlite://"), handler=handler)) as url:
        task_id = await interrupt(tmp_path, url)
        with served(tmp_path / "again", *in_front_of(url, tmp_path / "t.db")) as server:
            await server.ready()
            async with Rpc(server.url) as rpc:
                task = await rpc.result("CancelTask", {"id": task_id})
        assert task["status"]["state"] == "TASK_STATE_CANCELED"
        with anyio.fail_after(30):
            await handler.left.wait()


async def test_a_task_fails_after_a_crash_where_that_is_set(tmp_path: Path) -> None:
    handler = Counting()
    async with serving(create_app(Settings(store="sqlite://"), handler=handler)) as url:
        task_id = await interrupt(tmp_path, url)
        options = in_front_of(url, tmp_path / "t.db", "--on-crash", "fail")
        with served(tmp_path / "again", *options) as server:
            await server.ready()
            async with Rpc(server.url) as rpc:
                task = await rpc.result("GetTask", {"id": task_id})
            with anyio.fail_after(30):
                await handler.left.wait()  # the agent's task is cancelled
    assert task["status"]["state"] == "TASK_STATE_FAILED"
    assert len(handler.turns) == 1


async def test_the_answer_to_a_question_of_the_agent_is_read_after_a_crash(tmp_path: Path) -> None:
    handler = Counting()
    async with sdk_agent(AgentExecutor(handler), sdk_card()) as url:
        task_id = await interrupt(tmp_path, url, asks=True)
        with served(tmp_path / "again", *in_front_of(url, tmp_path / "t.db")) as server:
            await server.ready()
            handler.go_on.set()
            async with Rpc(server.url) as rpc:
                await rpc.stream("SubscribeToTask", {"id": task_id}, headers={"last-event-id": "0"})
                task = await rpc.result("GetTask", {"id": task_id})
    assert (task["status"]["state"], texts_of(task)) == ("TASK_STATE_COMPLETED", ["complete", TEXT])
    first, second = handler.turns
    assert (first.task_id, second.number) == (second.task_id, 2)
    # The conversation has the complete response, also the artifact that was complete before the crash.
    assert "".join(part["text"] for part in task["history"][-1]["parts"]) == f"complete{TEXT}"


class Silent(SdkExecutor):
    """Sends nothing.

    Attributes:
        messages: The number of received messages.
        received: Set by the first one.
    """

    def __init__(self) -> None:
        self.messages = 0
        self.received = anyio.Event()

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        self.messages += 1
        self.received.set()
        await anyio.sleep_forever()

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        """Do nothing."""


async def test_a_message_is_not_sent_again_to_an_agent_that_would_not_recognize_it(tmp_path: Path) -> None:
    executor = Silent()
    async with sdk_agent(executor, sdk_card()) as url:
        with served(tmp_path / "killed", *in_front_of(url, tmp_path / "t.db")) as server:
            await server.ready()
            async with Rpc(server.url) as rpc:
                params = {**message("count"), "configuration": {"returnImmediately": True}}
                task_id = (await rpc.result("SendMessage", params))["task"]["id"]
            with anyio.fail_after(30):
                await executor.received.wait()
            server.kill()
        with served(tmp_path / "again", *in_front_of(url, tmp_path / "t.db")) as server:
            await server.ready()
            async with Rpc(server.url) as rpc:
                await rpc.stream("SubscribeToTask", {"id": task_id}, headers={"last-event-id": "0"})
                task = await rpc.result("GetTask", {"id": task_id})
    assert task["status"]["state"] == "TASK_STATE_FAILED"
    assert "may have received it" in task["status"]["message"]["parts"][0]["text"]
    assert executor.messages == 1
