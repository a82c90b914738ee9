"""Remote agents over the official client: real servers of both versions, and lost connections."""

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, aclosing
from typing import Any, cast

import anyio
import grpc.aio
import pytest
from a2a.compat.v0_3 import a2a_v0_3_pb2, a2a_v0_3_pb2_grpc
from a2a.server.agent_execution import RequestContext
from a2a.server.events import EventQueue

from support.agents import Scripted
from support.live_server import serving
from support.proxy import CuttingProxy
from support.remote_agents import Saying, agent_says, says, sdk_agent, sdk_card
from support.upstream import Cut, Hang, Head, Reset, ScriptedUpstream, Step, json_answer
from tailrace.server import Settings, Turn, create_app
from tailrace.server.remote.event_converter import EventConverter
from tailrace.server.sdk import AgentExecutor, RemoteAgent, RemoteEvent
from tailrace.streaming import ArtifactUpdate, StatusUpdate, TaskState, TextDelta, Update
from tailrace.streaming.a2a.models import (
    Artifact,
    Message,
    Part,
    Role,
    Task,
    TaskArtifactUpdateEvent,
    TaskStatusUpdateEvent,
)
from tailrace.wrappers import ConfigurationError, UpstreamError, UpstreamFault
from tailrace.wrappers.model import MAY_CANCEL

STORE = Settings(store="sqlite://")
PIECES = [f"piece {number} é " for number in range(30)]
AT_ONCE = (0.0,) * 5
OLD_CARD = "/.well-known/agent.json"


def user(text: str, context_id: str = "", task_id: str = "") -> Message:
    parts = (Part(text=text),)
    return Message(message_id="m1", role=Role.USER, parts=parts, context_id=context_id, task_id=task_id)


async def ask(agent: RemoteAgent, message: str | Message) -> list[RemoteEvent]:
    message = user(message) if isinstance(message, str) else message
    async with aclosing(agent.stream(message)) as events:
        return [event async for event in events]


def states(events: Sequence[RemoteEvent]) -> list[TaskState]:
    return [event.status.state for event in events if isinstance(event, Task | TaskStatusUpdateEvent)]


def shown(events: Sequence[RemoteEvent]) -> str:
    """Return the text that a subscriber of the relayed events sees."""
    relay, text = EventConverter(), ""
    for event in events:
        for update in relay.feed(event):
            if isinstance(update, TextDelta):
                text += update.text
            elif isinstance(update, ArtifactUpdate):
                assert not text, "published text was repeated"
                text = "".join(part.text or "" for part in update.artifact.parts)
    return text


async def recite(turn: Turn) -> AsyncIterator[Update | Message]:
    yield StatusUpdate(TaskState.WORKING)
    yield ArtifactUpdate(Artifact(artifact_id="text", parts=(Part(text=PIECES[0]),)), last=False)
    for piece in PIECES[1:]:
        yield TextDelta("text", piece)
    yield StatusUpdate(
        TaskState.COMPLETED, metadata={"urn:tailrace:ext:stream:v1": {"usage": {"totalTokens": 3}}}
    )


# --- versions, bindings, with and without streaming -----------------------------------------------------------------


@pytest.mark.parametrize("path", ["", "/.well-known/agent-card.json", OLD_CARD])
@pytest.mark.parametrize("binding", ["JSONRPC", "HTTP+JSON"])
async def test_our_own_server_is_called_in_each_version_and_binding(path: str, binding: str):
    async with serving(create_app(STORE, handler=Scripted())) as url:
        async with RemoteAgent(url + path, bindings=[binding]) as agent:
            card = await agent.card()
            assert (card.binding, card.version) == (binding, "0.3.0" if path == OLD_CARD else "1.0")
            assert card.numbered
            assert card.streaming
            events = await ask(agent, "river")
            assert states(events) == [TaskState.SUBMITTED, TaskState.WORKING, TaskState.COMPLETED]
            assert shown(events) == "river"
            first = events[0]
            assert isinstance(first, Task)
            task = await agent.get_task(first.id)
            assert shown([task]) == "river"


async def test_grpc_is_used_if_it_is_the_only_binding():
    settings = Settings(store="sqlite://", grpc_port=0)
    async with serving(create_app(settings, handler=Scripted())) as url:
        for path in ("", OLD_CARD):
            async with RemoteAgent(url + path, bindings=["GRPC"]) as agent:
                assert shown(await ask(agent, "river")) == "river"
                with pytest.raises(UpstreamError) as caught:
                    await agent.get_task("nobody's")
                assert caught.value.code == "TASK_NOT_FOUND"


@pytest.mark.parametrize("streaming", [True, False])
@pytest.mark.parametrize("version", ["1.0", "0.3"])
@pytest.mark.parametrize("binding", ["JSONRPC", "HTTP+JSON"])
async def test_a_server_of_the_sdk_is_called_as_its_card_declares(
    binding: str, version: str, streaming: bool
):
    card = sdk_card(binding, version, streaming=streaming)
    async with sdk_agent(AgentExecutor(Scripted()), card) as url, RemoteAgent(url) as agent:
        assert (await agent.card()).numbered is False
        events = await ask(agent, "river")
        assert len(events) == (9 if streaming else 1)
        assert shown(events) == "river"
        assert states(events)[-1] is TaskState.COMPLETED
        waiting = await ask(agent, "ask")
        assert states(waiting)[-1] is TaskState.INPUT_REQUIRED
        [task] = [event for event in waiting if isinstance(event, Task)]
        going_on = await ask(agent, user("brook", task.context_id, task.id))
        assert states(going_on)[-1] is TaskState.COMPLETED
        assert "brook" in shown(going_on)


async def mirror(turn: Turn) -> AsyncIterator[Update | Message]:
    yield ArtifactUpdate(Artifact(artifact_id="mirrored", parts=turn.message.parts))


@pytest.mark.parametrize("streaming", [True, False])
@pytest.mark.parametrize("version", ["1.0", "0.3"])
@pytest.mark.parametrize("binding", ["JSONRPC", "HTTP+JSON"])
async def test_files_reach_a_server_made_with_the_sdk_and_come_back_unchanged(
    binding: str, version: str, streaming: bool
):
    file = Part(raw=b"\x89PNG\x00\xff", media_type="image/png")
    card = sdk_card(binding, version, streaming=streaming)
    async with sdk_agent(AgentExecutor(mirror), card) as url, RemoteAgent(url) as agent:
        events = await ask(agent, Message(message_id="m1", role=Role.USER, parts=(file,)))
    artifacts = [event.artifact for event in events if isinstance(event, TaskArtifactUpdateEvent)]
    artifacts += [artifact for event in events if isinstance(event, Task) for artifact in event.artifacts]
    assert [artifact.parts for artifact in artifacts] == [(file,)]


class Grpc03(a2a_v0_3_pb2_grpc.A2AServiceServicer):
    """A server of 0.3 that returns the message that it receives; as the SDK in JavaScript, it has the bytes of files."""

    def __init__(self) -> None:
        self.received = b""

    async def SendMessage(
        self, request: a2a_v0_3_pb2.SendMessageRequest, context: object
    ) -> a2a_v0_3_pb2.SendMessageResponse:
        self.received = request.request.content[0].file.file_with_bytes
        return a2a_v0_3_pb2.SendMessageResponse(msg=request.request)

    async def SendStreamingMessage(
        self, request: a2a_v0_3_pb2.SendMessageRequest, context: object
    ) -> AsyncIterator[a2a_v0_3_pb2.StreamResponse]:
        self.received = request.request.content[0].file.file_with_bytes
        yield a2a_v0_3_pb2.StreamResponse(msg=request.request)


@pytest.mark.parametrize("streaming", [True, False])
@pytest.mark.parametrize("powered_by", ["Express", ""])
async def test_the_bytes_of_files_over_grpc_of_0_3_are_those_that_the_sdk_of_the_agent_has(
    powered_by: str, streaming: bool
):
    file = Part(raw=b"\x89PNG\x00\xff", media_type="image/png")
    agent_of_0_3, grpc_server = Grpc03(), grpc.aio.server()
    add_to_server = cast("Any", a2a_v0_3_pb2_grpc).add_A2AServiceServicer_to_server
    add_to_server(agent_of_0_3, grpc_server)
    port = grpc_server.add_insecure_port("127.0.0.1:0")
    await grpc_server.start()
    card = {
        "name": "Theirs",
        "url": f"127.0.0.1:{port}",
        "preferredTransport": "GRPC",
        "protocolVersion": "0.3.0",
        "capabilities": {"streaming": streaming},
    }
    head = Head(200, {"content-type": "application/json", "x-powered-by": powered_by})
    try:
        async with ScriptedUpstream([head, json.dumps(card).encode()]) as upstream:
            origins = [f"http://127.0.0.1:{port}"]
            async with RemoteAgent(_root(upstream), bindings=["GRPC"], allowed_origins=origins) as agent:
                [reply] = await ask(agent, Message(message_id="m1", role=Role.USER, parts=(file,)))
    finally:
        await grpc_server.stop(None)
    assert isinstance(reply, Message)
    assert reply.parts == (file,)
    assert agent_of_0_3.received == (file.raw if powered_by else b"iVBORwD/")


async def test_a_bare_message_is_all_there_is():
    for streaming in (True, False):
        async with sdk_agent(Saying(agent_says("hi")), sdk_card(streaming=streaming)) as url:
            async with RemoteAgent(url) as agent:
                [event] = await ask(agent, "hello")
                assert isinstance(event, Message)
                assert event.parts[0].text == "hi"


async def test_facts_of_the_extension_come_through():
    async with serving(create_app(STORE, handler=recite)) as url, RemoteAgent(url) as agent:
        last = (await ask(agent, "hello"))[-1]
        assert isinstance(last, TaskStatusUpdateEvent)
        assert last.metadata["urn:tailrace:ext:stream:v1"]["usage"] == {"totalTokens": 3}


# --- lost connections -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["", OLD_CARD])
@pytest.mark.parametrize("binding", ["JSONRPC", "HTTP+JSON"])
async def test_a_stream_of_ours_that_is_cut_goes_on_after_the_last_event(path: str, binding: str):
    async with serving(create_app(STORE, handler=recite)) as url, CuttingProxy(url) as proxy:
        async with RemoteAgent(proxy.url + path, bindings=[binding], retry_delays=AT_ONCE) as agent:
            await agent.card()
            before = proxy.passed
            whole = await ask(agent, "hello")
            length = proxy.passed - before
            for size in range(100, length, length // 9):
                proxy.cut_after(size)
                events = await ask(agent, "hello")
                assert proxy.cuts
                proxy.cut_after()
                first = events[0]
                assert isinstance(first, Task)
                if not first.artifacts:  # the connection was not cut before the first event
                    # No snapshot either: the same events as on an uninterrupted connection.
                    assert [type(event) for event in events] == [type(event) for event in whole]
                assert shown(events) == "".join(PIECES)


class SnapshotAgent(AgentExecutor):
    """Signals when a turn is over."""

    def __init__(self, scripted: Scripted) -> None:
        super().__init__(scripted)
        self.over = anyio.Event()

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        await super().execute(context, event_queue)
        self.over.set()


@pytest.mark.parametrize(("version", "ends"), [("1.0", False), ("0.3", False), ("1.0", True)])
async def test_a_stream_of_another_server_that_is_cut_goes_on_by_copies(version: str, ends: bool):
    scripted = Scripted()
    executor = SnapshotAgent(scripted)
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(sdk_agent(executor, sdk_card(version=version)))
        proxy = await stack.enter_async_context(CuttingProxy(url))
        agent = await stack.enter_async_context(RemoteAgent(proxy.url, retry_delays=AT_ONCE))
        await agent.card()
        events: list[RemoteEvent] = []
        async with aclosing(agent.stream(user("hold"))) as reading:
            async for event in reading:
                events.append(event)
                if shown(events) == "held" and not proxy.cuts:
                    proxy.cut_now()
                    if ends:
                        scripted.go_on.set()
                        await executor.over.wait()
                if isinstance(event, Task) and proxy.cuts:
                    scripted.go_on.set()  # the client subscribed again
        assert proxy.cuts == 1
        assert shown(events) == "held"
        assert states(events)[-1] is TaskState.COMPLETED


async def test_a_message_whose_fate_is_unknown_is_sent_again_only_under_its_name():
    turns: list[Turn] = []

    async def handle(turn: Turn) -> AsyncIterator[Update | Message]:
        turns.append(turn)
        async for item in recite(turn):
            yield item

    async with serving(create_app(STORE, handler=handle)) as url, CuttingProxy(url) as proxy:
        async with RemoteAgent(proxy.url, retry_delays=AT_ONCE) as agent:
            await agent.card()
            proxy.cut_after(10)  # within the status line
            assert shown(await ask(agent, "hello")) == "".join(PIECES)
            assert len(turns) == 1
    async with serving(create_app(STORE, handler=Scripted())) as url, CuttingProxy(url) as proxy:
        async with RemoteAgent(proxy.url, retry_delays=AT_ONCE) as agent:
            await agent.card()
            proxy.cut_after(10)
            assert states(await ask(agent, "ask"))[-1] is TaskState.INPUT_REQUIRED
    async with sdk_agent(AgentExecutor(Scripted())) as url, CuttingProxy(url) as proxy:
        async with RemoteAgent(proxy.url, retry_delays=AT_ONCE) as agent:
            await agent.card()
            proxy.cut_after(10)
            with pytest.raises(UpstreamError) as caught:
                await ask(agent, "hello")
            assert caught.value.fault is UpstreamFault.CONNECTION


async def test_an_answer_that_is_left_is_cancelled_and_one_that_is_over_is_not():
    scripted = Scripted()
    async with serving(create_app(STORE, handler=scripted)) as url, RemoteAgent(url) as agent:
        async with agent.stream_or_cancel(user("hold")) as events:
            async for event in events:
                if isinstance(event, TaskArtifactUpdateEvent):
                    break
        assert scripted.stopped.is_set()
        async with agent.stream_or_cancel(user("ask")) as events:
            waiting = [event async for event in events]
        [task] = [event for event in waiting if isinstance(event, Task)]
        assert (await agent.get_task(task.id)).status.state is TaskState.INPUT_REQUIRED
        with pytest.raises(UpstreamError) as caught:
            await agent.cancel_task("nobody's")
        assert caught.value.code == "TASK_NOT_FOUND"


async def test_a_task_that_another_process_may_follow_is_not_cancelled():
    async def may_cancel() -> bool:
        return False

    async with serving(create_app(STORE, handler=Scripted())) as url, RemoteAgent(url) as agent:
        token, followed = MAY_CANCEL.set(may_cancel), ""
        try:
            async with agent.stream_or_cancel(user("hold")) as events:
                async for event in events:
                    if isinstance(event, TaskArtifactUpdateEvent):
                        followed = event.task_id
                        break
        finally:
            MAY_CANCEL.reset(token)
        assert (await agent.get_task(followed)).status.state is TaskState.WORKING


async def test_a_cancelled_reader_leaves_nothing_behind():
    scripted = Scripted()
    async with serving(create_app(STORE, handler=scripted)) as url, RemoteAgent(url) as agent:
        async with anyio.create_task_group() as group:

            async def follow() -> None:
                async with agent.stream_or_cancel(user("hold")) as events:
                    async for event in events:
                        if isinstance(event, TaskArtifactUpdateEvent):
                            group.cancel_scope.cancel()

            group.start_soon(follow)
        assert scripted.stopped.is_set()


# --- errors ---------------------------------------------------------------------------------------------------------


async def test_credentials_are_sent_as_the_card_declares():
    card = json_answer(
        {**_CARD, "securitySchemes": {"k": {"apiKeySecurityScheme": {"location": "header", "name": "X-Key"}}}}
    )
    bare = json_answer(_CARD)
    refused = json_answer({}, status=401)
    for answer, header, value in ((card, "x-key", "secret"), (bare, "authorization", "Bearer secret")):
        async with ScriptedUpstream(answer, refused) as upstream:
            async with RemoteAgent(_root(upstream), token="secret", headers={"X-More": "1"}) as agent:
                with pytest.raises(UpstreamError) as caught:
                    await ask(agent, "hello")
            assert (caught.value.fault, caught.value.status) == (UpstreamFault.STATUS, 401)
            assert "rejected the server's credentials" in str(caught.value)
            sent = (await upstream.received(1)).headers
            assert (sent[header], sent["x-more"]) == (value, "1")


@pytest.mark.parametrize(
    ("script", "fault", "words"),
    [
        ([b"<html>"], UpstreamFault.INVALID, "is not an agent card"),
        (json_answer({"name": "x"}), UpstreamFault.INVALID, "no interface at all"),
        (json_answer([1]), UpstreamFault.INVALID, "is not an agent card"),
        ([Head(500), b"x"], UpstreamFault.STATUS, "HTTP 500"),
        ([Reset()], UpstreamFault.CONNECTION, "broke off"),
    ],
)
async def test_an_unavailable_card_is_reported_in_one_line(
    script: list[Step], fault: UpstreamFault, words: str
):
    async with ScriptedUpstream(script, script) as upstream, RemoteAgent(_root(upstream)) as agent:
        with pytest.raises(UpstreamError) as caught:
            await agent.card()
    assert caught.value.fault is fault
    assert words in str(caught.value)


async def test_an_agent_that_is_away_over_grpc():
    grpc = {"url": "127.0.0.1:1", "protocolBinding": "GRPC", "protocolVersion": "1.0"}
    card = json_answer({**_CARD, "supportedInterfaces": [grpc]})
    async with ScriptedUpstream(card) as upstream, RemoteAgent(_root(upstream), retry_delays=()) as agent:
        with pytest.raises(UpstreamError) as caught:
            await ask(agent, "hello")
        assert caught.value.fault is UpstreamFault.CONNECTION
        with pytest.raises(UpstreamError) as caught:
            await agent.get_task("t")
        assert caught.value.fault is UpstreamFault.CONNECTION


async def test_an_agent_that_is_away_and_a_url_that_is_none():
    async with RemoteAgent("127.0.0.1:1") as agent:
        with pytest.raises(UpstreamError) as caught:
            await agent.card()
    assert caught.value.fault is UpstreamFault.CONNECTION
    assert "http://127.0.0.1:1/" in caught.value.diagnosis
    for url in ("ftp://x", "http://", "http://x:y"):
        with pytest.raises(ConfigurationError):
            RemoteAgent(url)


@pytest.mark.parametrize(
    ("script", "fault"),
    [
        ([b"data: not json\n\n"], UpstreamFault.INVALID),
        ([b"data: [1]\n\n"], UpstreamFault.INVALID),
        ([b'data: {"jsonrpc":"2.0","result":{}}\n\n'], UpstreamFault.INVALID),
        ([b'data: {"jsonrpc":"2.0","result":{"task":{"status":{}}}}\n\n'], UpstreamFault.INVALID),
        ([b'data: {"jsonrpc":"2.0","error":{"code":-32603,"message":"oh"}}\n\n'], UpstreamFault.PROVIDER),
        ([b'data: {"jsonrpc":"2.0","error":{"code":1,"message":"oh"}}\n\n'], UpstreamFault.PROVIDER),
        ([Head(503), b"x"], UpstreamFault.STATUS),
        ([b": nothing\n\n"], UpstreamFault.TRUNCATED),
        ([b": nothing\n\n", Cut()], UpstreamFault.CONNECTION),
        ([Hang()], UpstreamFault.TIMEOUT),
        ([b"data: " + b"x" * 1024] * 40_000, UpstreamFault.TOO_LARGE),
    ],
)
async def test_what_an_agent_gets_wrong_is_named(script: list[Step], fault: UpstreamFault):
    async with ScriptedUpstream(json_answer(_CARD), script) as upstream:
        async with RemoteAgent(_root(upstream), read_timeout=2.0) as agent:
            with pytest.raises(UpstreamError) as caught:
                await ask(agent, "hello")
    assert caught.value.fault is fault


async def test_what_an_agent_left_out_is_made_up_where_nothing_depends_on_it():
    events = (
        b'data: {"result":{"task":{"id":"t","contextId":"c","status":{}}}}\n\n'
        b'data: {"result":{"artifactUpdate":{"taskId":"t","artifact":{"parts":[{"text":"hi"}]}}}}\n\n'
        b'data: {"result":{"artifactUpdate":{"taskId":"t","append":true,"lastChunk":true,"artifact":{}}}}\n\n'
        b'data: {"result":{"statusUpdate":{"status":{"state":"TASK_STATE_COMPLETED","message":{}}}}}\n\n'
    )
    async with ScriptedUpstream(json_answer(_CARD), [events]) as upstream:
        async with RemoteAgent(_root(upstream)) as agent:
            received = await ask(agent, "hello")
    assert shown(received) == "hi"
    assert states(received) == [TaskState.WORKING, TaskState.COMPLETED]


async def test_an_agent_that_answers_at_once_with_a_task_at_work_is_looked_at_until_it_is_done():
    def task(state: str, text: str) -> dict[str, object]:
        artifacts = [{"artifactId": "a", "parts": [{"text": text}]}] if text else []
        return {"id": "t", "contextId": "c", "status": {"state": state}, "artifacts": artifacts}

    scripts = [
        json_answer({**_CARD, "capabilities": {}}),
        json_answer({"jsonrpc": "2.0", "id": 1, "result": {"task": task("TASK_STATE_WORKING", "")}}),
        json_answer({"jsonrpc": "2.0", "id": 1, "result": task("TASK_STATE_WORKING", "one ")}),
        json_answer({"jsonrpc": "2.0", "id": 1, "result": task("TASK_STATE_COMPLETED", "one two")}),
    ]
    async with ScriptedUpstream(*scripts) as upstream, RemoteAgent(_root(upstream)) as agent:
        events = await ask(agent, "hello")
    assert shown(events) == "one two"
    assert states(events) == [TaskState.WORKING, TaskState.WORKING, TaskState.COMPLETED]


async def test_a_failure_is_reported_by_the_agent():
    async with sdk_agent(Saying(says("failed", "out of paper"))) as url, RemoteAgent(url) as agent:
        last = (await ask(agent, "hello"))[-1]
        assert isinstance(last, TaskStatusUpdateEvent)
        assert last.status.message is not None
        assert last.status.message.parts[0].text == "out of paper"


_CARD = {
    "name": "Scripted",
    "description": "Does as it is told.",
    "version": "1",
    "supportedInterfaces": [{"url": "/rpc", "protocolBinding": "JSONRPC", "protocolVersion": "1.0"}],
    "capabilities": {"streaming": True},
    "skills": [],
}


def _root(upstream: ScriptedUpstream) -> str:
    return upstream.base_url.removesuffix("/v1")
