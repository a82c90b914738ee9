"""A handler or a model inside a server built with the official SDK."""

from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import anyio
import pytest
from a2a.types import (
    CancelTaskRequest,
    GetTaskRequest,
    SendMessageConfiguration,
    StreamResponse,
    SubscribeToTaskRequest,
)
from a2a.types import Role as SdkRole
from a2a.utils.errors import InvalidParamsError, TaskNotCancelableError

from support.agents import Scripted
from support.sdk import facts, kinds, send, state, streamed, text_of
from support.sdk_server import SdkServer, sdk_server
from support.upstream import ScriptedUpstream, openai_stream
from tailrace.server import AgentHandler, DirectHandler, Handler, Settings, Turn, create_model
from tailrace.server.sdk import AgentExecutor, executor
from tailrace.streaming import Agent, ArtifactUpdate, StatusUpdate, TaskState, Update
from tailrace.streaming.a2a.models import Artifact, Message, Part
from tailrace.streaming.task.task_record import agent_message
from tailrace.wrappers import History
from tailrace.wrappers.concurrency.worker_thread import in_event_loop

Updates = AsyncIterator[Update | Message]


async def collect(server: SdkServer, text: str, **fields: Any) -> list[StreamResponse]:
    return [event async for event in server.client.send_message(send(text, **fields))]


async def test_a_turn_is_the_task_then_its_events_in_order() -> None:
    async with sdk_server(AgentExecutor(Scripted())) as server:
        events = await collect(server, "river")
        assert kinds(events) == ["task submitted", "working", *["artifact"] * 6, "completed"]
        assert streamed(events) == "river"
        assert all(not facts(event) for event in events), "this server does not number events"
        task = await server.client.get_task(GetTaskRequest(id=events[0].task.id))
        assert (state(task), text_of(task)) == ("completed", "river")
        assert [message.parts[0].text for message in task.history] == ["river"]
        [done] = [event async for event in server.patient.send_message(send("brook"))]
        assert (state(done.task), text_of(done.task)) == ("completed", "brook")


async def test_a_model_answers_with_its_facts_and_remembers_the_conversation() -> None:
    scripts = (
        openai_stream(["Par", "is"], usage={"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}),
        openai_stream(["Rome"]),
    )
    async with ScriptedUpstream(*scripts) as upstream:
        settings = Settings.model_validate(
            {"model": "openai:scripted", "base_url": upstream.base_url, "api_key": "none"}
        )
        executor = AgentExecutor(AgentHandler(Agent(create_model(settings), instructions="Be brief.")))
        async with executor.running(), sdk_server(executor) as server:
            first = await collect(server, "Capital of France?")
            assert streamed(first) == "Paris"
            assert facts(first[-1])["usage"]["totalTokens"] == 3
            context_id = first[0].task.context_id
            second = await collect(server, "And of Italy?", context_id=context_id)
            assert second[0].task.id != first[0].task.id
            assert streamed(second) == "Rome"
        sent = (await upstream.received(1)).json["messages"]
    assert [message["role"] for message in sent] == ["system", "user", "assistant", "user"]
    assert "Paris" in str(sent[2])


async def test_a_question_is_answered_in_the_same_task() -> None:
    scripted = Scripted()
    async with sdk_server(AgentExecutor(scripted)) as server:
        events = await collect(server, "ask")
        assert kinds(events) == ["task submitted", "working", "input_required"]
        task = events[0].task
        again = await collect(server, "that one", task_id=task.id, context_id=task.context_id)
        assert kinds(again)[-1] == "completed"
        done = await server.client.get_task(GetTaskRequest(id=task.id))
    history = [(message.role, message.parts[0].text) for message in done.history]
    assert history == [(1, "ask"), (2, "which one?"), (1, "that one")]
    assert [turn.number for turn in scripted.turns] == [1, 2]
    assert scripted.turns[1].task_id == task.id


async def test_a_message_that_names_its_task_alone_goes_on_in_the_tasks_context() -> None:
    """The SDK generates another context for it; the task's own takes precedence."""
    async with sdk_server(AgentExecutor(Scripted())) as server:
        task = (await collect(server, "ask"))[0].task
        for text, kind in (("ask", "input_required"), ("that one", "completed")):
            events = await collect(server, text, task_id=task.id)
            assert kinds(events)[-1] == kind
            assert events[-1].status_update.context_id == task.context_id
        done = await server.client.get_task(GetTaskRequest(id=task.id))
    assert (state(done), done.context_id) == ("completed", task.context_id)


async def test_a_task_that_is_older_than_the_process_goes_on_with_its_own_history() -> None:
    first, second = Scripted(), Scripted()
    async with sdk_server(AgentExecutor(first)) as server:
        task = (await collect(server, "ask"))[0].task
        # Another process has the tasks, and no state in memory.
        store = server.handler.task_store
        async with sdk_server(AgentExecutor(second), store=store) as later:  # pyright: ignore[reportArgumentType] — the SDK's union
            again = await collect(later, "that one", task_id=task.id, context_id=task.context_id)
    assert kinds(again)[-1] == "completed"
    texts = [item.text for item in second.turns[0].history.conversation]
    assert texts == ["ask", "which one?", "that one"]
    assert second.turns[0].number == 2


async def test_canceling_stops_the_work_completes_what_is_open_and_ends_the_stream() -> None:
    scripted = Scripted()
    events: list[StreamResponse] = []
    async with sdk_server(AgentExecutor(scripted)) as server:
        with anyio.fail_after(10):
            async for event in server.client.send_message(send("hold")):
                events.append(event)
                if streamed(events) == "held" and not scripted.stopped.is_set():
                    request = CancelTaskRequest(id=events[0].task.id)
                    canceled = await server.patient.cancel_task(request)
                    assert state(canceled) == "canceled"
                    assert scripted.stopped.is_set()
        with pytest.raises(TaskNotCancelableError):
            await server.client.cancel_task(CancelTaskRequest(id=events[0].task.id))
    assert kinds(events)[-1] == "canceled"
    assert events[-2].artifact_update.last_chunk


async def test_a_task_that_waits_is_canceled() -> None:
    async with sdk_server(AgentExecutor(Scripted())) as server:
        task = (await collect(server, "ask"))[0].task
        assert state(await server.client.cancel_task(CancelTaskRequest(id=task.id))) == "canceled"
        assert state(await server.client.get_task(GetTaskRequest(id=task.id))) == "canceled"


async def test_another_client_follows_and_one_that_leaves_changes_nothing() -> None:
    scripted = Scripted()
    second: list[StreamResponse] = []
    async with sdk_server(AgentExecutor(scripted)) as server:
        at_once = SendMessageConfiguration(return_immediately=True)
        request = send("hold", configuration=at_once)
        [begun] = [event async for event in server.patient.send_message(request)]
        with anyio.fail_after(10):
            async for event in server.client.subscribe(SubscribeToTaskRequest(id=begun.task.id)):
                second.append(event)
                if "held" in (text_of(second[0].task) + streamed(second)):
                    scripted.go_on.set()
        done = await server.client.get_task(GetTaskRequest(id=begun.task.id))
    assert kinds(second)[-1] == "completed"
    assert (state(done), text_of(done)) == ("completed", "held")


@pytest.mark.parametrize(
    ("text", "words"),
    [("fail", "the provider is down"), ("crash", "the agent failed; see the log of the server")],
)
async def test_a_handler_that_fails_is_a_failed_task_with_a_safe_reason(text: str, words: str) -> None:
    async with sdk_server(AgentExecutor(Scripted())) as server:
        events = await collect(server, text)
        assert kinds(events)[-1] == "failed"
        assert words in events[-1].status_update.status.message.parts[0].text
        assert "secret" not in str(events)
        task = await server.client.get_task(GetTaskRequest(id=events[0].task.id))
        assert state(task) == "failed"


async def test_a_handler_that_just_ends_has_completed_its_task() -> None:
    async def silent(_turn: Turn) -> Updates:
        yield ArtifactUpdate(Artifact(artifact_id="a", parts=(Part(text="open"),)), last=False)

    async with sdk_server(AgentExecutor(silent)) as server:
        events = await collect(server, "x")
    assert kinds(events) == ["task submitted", "artifact", "artifact", "completed"]
    assert events[2].artifact_update.last_chunk


async def test_a_direct_answer_is_a_message_without_a_task() -> None:
    async def direct(_turn: Turn) -> Updates:
        yield agent_message("right here")

    executor = AgentExecutor(DirectHandler(direct))
    async with sdk_server(executor) as server:
        for client in (server.client, server.patient):
            [event] = [event async for event in client.send_message(send())]
            assert event.message.parts[0].text == "right here"
            assert event.message.context_id


async def test_a_handler_that_may_answer_directly_may_still_make_a_task() -> None:
    async with sdk_server(AgentExecutor(DirectHandler(Scripted()))) as server:
        assert kinds(await collect(server, "x"))[::3] == ["task submitted", "artifact"]


async def test_a_message_after_the_task_has_begun_is_the_agents_fault() -> None:
    async def confused(_turn: Turn) -> Updates:
        yield StatusUpdate(TaskState.WORKING)
        yield agent_message("too late")

    async with sdk_server(AgentExecutor(confused)) as server:
        events = await collect(server, "x")
    assert kinds(events) == ["task submitted", "working", "failed"]
    assert "direct message" in events[-1].status_update.status.message.parts[0].text


async def test_a_last_update_that_cannot_be_carried_out_still_ends_the_task() -> None:
    nonsense: list[Any] = [
        StatusUpdate(TaskState.COMPLETED, metadata={"what": object()}),
        StatusUpdate("nonsense"),  # pyright: ignore[reportArgumentType] — a mistake of a handler
        "nonsense",
    ]

    async def wrong(_turn: Turn) -> Updates:
        yield nonsense[0]

    async with sdk_server(AgentExecutor(wrong)) as server:
        while nonsense:
            events = await collect(server, "x")
            assert kinds(events) == ["task submitted", "failed"]
            nonsense.pop(0)


async def test_a_cancellation_that_a_handler_lets_out_is_its_failure() -> None:
    async def careless(_turn: Turn) -> Updates:
        yield StatusUpdate(TaskState.WORKING)
        raise anyio.get_cancelled_exc_class()

    async with sdk_server(AgentExecutor(careless)) as server:
        with anyio.fail_after(5):
            events = await collect(server, "x")
    assert kinds(events)[-1] == "failed"


async def test_a_message_that_no_agent_can_be_handed_is_refused() -> None:
    scripted = Scripted()
    async with sdk_server(AgentExecutor(scripted)) as server:
        request = send()
        request.message.role = SdkRole.ROLE_AGENT
        with pytest.raises(InvalidParamsError, match="ROLE_USER"):
            _ = [event async for event in server.client.send_message(request)]
    assert not scripted.turns


async def test_a_turn_has_the_output_modes_and_metadata_of_the_request() -> None:
    scripted = Scripted()
    async with sdk_server(AgentExecutor(scripted)) as server:
        request = send("x", configuration=SendMessageConfiguration(accepted_output_modes=["text/plain"]))
        request.metadata.update({"a": [1, {"b": None}]})
        _ = [event async for event in server.client.send_message(request)]
    [turn] = scripted.turns
    assert turn.accepted_output_modes == ("text/plain",)
    assert turn.metadata == {"a": [1, {"b": None}]}


async def test_each_user_has_conversations_of_its_own() -> None:
    scripted = Scripted()
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(sdk_server(AgentExecutor(scripted)))
        alice = await stack.enter_async_context(server.client_of("alice"))
        bob = await stack.enter_async_context(server.client_of("bob"))
        for client in (alice, bob, alice):
            _ = [event async for event in client.send_message(send("x", context_id="shared"))]
    assert [len(turn.history.conversation) for turn in scripted.turns] == [1, 1, 3]


async def test_a_handler_that_does_not_let_itself_be_cancelled_is_not_listened_to() -> None:
    begun, go_on = anyio.Event(), anyio.Event()

    async def stubborn(_turn: Turn) -> Updates:
        yield StatusUpdate(TaskState.WORKING)
        begun.set()
        try:
            await go_on.wait()
        except anyio.get_cancelled_exc_class():
            yield ArtifactUpdate(Artifact(artifact_id="a", parts=(Part(text="still here"),)))

    async with sdk_server(AgentExecutor(stubborn)) as server:
        at_once = SendMessageConfiguration(return_immediately=True)
        request = send(configuration=at_once)
        [event] = [event async for event in server.patient.send_message(request)]
        with anyio.fail_after(5):
            await begun.wait()
            canceled = await server.client.cancel_task(CancelTaskRequest(id=event.task.id))
    assert (state(canceled), text_of(canceled)) == ("canceled", "")


async def test_a_server_that_ends_stops_the_work() -> None:
    scripted = Scripted()
    async with sdk_server(AgentExecutor(scripted)) as server:
        at_once = SendMessageConfiguration(return_immediately=True)
        _ = [event async for event in server.patient.send_message(send("hold", configuration=at_once))]
    with anyio.fail_after(5):
        await scripted.stopped.wait()


async def test_the_handler_is_held_running_with_the_executor() -> None:
    class Held(Handler):
        held = False

        def run(self, turn: Turn) -> Updates:
            raise NotImplementedError

        @asynccontextmanager
        async def running(self) -> AsyncGenerator[None]:
            self.held = True
            yield
            self.held = False

    handler = Held()
    async with AgentExecutor(handler).running():
        assert handler.held
    assert not handler.held


async def test_a_large_conversation_is_converted_outside_of_the_event_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    converted: list[bool] = []  # whether in the event loop
    convert = executor._history_of  # pyright: ignore[reportPrivateUsage]

    def watched(messages: Iterable[Message]) -> History:
        converted.append(in_event_loop())
        return convert(messages)

    async def complete(_: Turn) -> Updates:
        yield StatusUpdate(TaskState.COMPLETED)

    monkeypatch.setattr(executor, "_history_of", watched)
    async with sdk_server(AgentExecutor(complete)) as server:
        for text in ("short", "x" * 1_000_000):
            await collect(server, text)
    assert converted == [True, False]
