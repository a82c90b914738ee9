"""The A2A client over real sockets: against our own server, and against scripted agents."""

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from typing import Any

import anyio
import pytest
from pydantic import SecretStr

from support.live_server import serving
from support.proxy import CuttingProxy
from support.upstream import (
    Cut,
    Hang,
    Head,
    Received,
    Reset,
    ScriptedUpstream,
    SetEvent,
    Step,
    json_answer,
    openai_stream,
)
from tailrace.server import Settings, Turn, create_app
from tailrace.server.remote.client import AgentClient, StreamEvent
from tailrace.streaming.a2a import (
    Artifact,
    Message,
    Part,
    Role,
    Task,
    TaskNotCancelableError,
    TaskNotFoundError,
    TaskState,
    UnsupportedOperationError,
)
from tailrace.streaming.a2a.stream_extension import EXTENSION_URI
from tailrace.streaming.task.task_record import agent_message
from tailrace.streaming.task.updates import ArtifactUpdate, StatusUpdate, TextDelta, Update
from tailrace.wrappers import ConfigurationError, TailraceError, UpstreamError, UpstreamFault

PIECES = [f"piece {number} \u2028é " for number in range(30)]
AT_ONCE = (0.0,) * 5
STORE = Settings(store="sqlite://")


class Losses:
    """Records attempts of a client to resume."""

    def __init__(self) -> None:
        self.reasons: list[str] = []
        self.attempts: list[int] = []

    def __call__(self, error: TailraceError, attempt: int) -> None:
        self.reasons.append(str(error))
        self.attempts.append(attempt)


def texts(events: Sequence[StreamEvent]) -> str:
    """Return the text as a client of the protocol assembles it: a task replaces, an update appends or replaces."""
    text = ""
    for event in events:
        if event.response.task is not None:
            text = text_of(event.response.task)
        elif event.response.artifact_update is not None:
            update = event.response.artifact_update
            added = "".join(part.text or "" for part in update.artifact.parts)
            text = text + added if update.append else added
    return text


def text_of(task: Task) -> str:
    return "".join(part.text or "" for artifact in task.artifacts for part in artifact.parts)


def states(events: Sequence[StreamEvent]) -> list[TaskState]:
    found = [event.response.status_update or event.response.task for event in events]
    return [each.status.state for each in found if each is not None]


async def recite(turn: Turn) -> AsyncIterator[Update | Message]:
    yield StatusUpdate(TaskState.WORKING)
    yield ArtifactUpdate(Artifact(artifact_id="text", parts=(Part(text=PIECES[0]),)), last=False)
    for piece in PIECES[1:]:
        yield TextDelta("text", piece)
    yield StatusUpdate(TaskState.COMPLETED)


# --- our own server -------------------------------------------------------------------------------------------------


async def test_a_message_is_answered_by_the_numbered_events_of_a_task_that_can_be_fetched_again():
    upstream = ScriptedUpstream(openai_stream(PIECES))
    async with upstream:
        settings = Settings(
            model="openai:m", base_url=upstream.base_url, api_key=SecretStr("none"), store="sqlite://"
        )
        async with serving(create_app(settings)) as url, AgentClient(url + "/") as client:
            assert (await client.agent()).endpoint == url + "/"
            events = [event async for event in client.stream("hello")]
            first = events[0].response.task
            assert first is not None
            task = await client.get_task(first.id)
    assert [event.id for event in events] == [str(number + 1) for number in range(len(events))]
    assert texts(events) == "".join(PIECES) == text_of(task)
    assert states(events) == [TaskState.SUBMITTED, TaskState.WORKING, TaskState.COMPLETED]
    [prompt] = upstream.requests[0].json["messages"]
    assert "hello" in str(prompt["content"])
    assert events[-1].raw == events[-1].response.to_dict()


async def test_wherever_a_stream_is_cut_it_goes_on_without_loss_or_repeat():
    async with serving(create_app(STORE, handler=recite)) as url, CuttingProxy(url) as proxy:
        async with AgentClient(proxy.url) as client:
            await client.agent()
            before = proxy.passed
            _ = [event async for event in client.stream("hello")]
        length = proxy.passed - before
        for size in range(900, length, 397):
            losses = Losses()
            async with AgentClient(proxy.url, retry_delays=AT_ONCE, on_reconnect=losses) as client:
                await client.agent()
                cuts = proxy.cuts
                proxy.cut_after(size)
                events = [event async for event in client.stream("hello")]
            assert [int(event.id) for event in events] == list(range(1, len(events) + 1))
            assert texts(events) == "".join(PIECES)
            assert states(events)[-1] is TaskState.COMPLETED
            assert losses.attempts == [1] * (proxy.cuts - cuts)
    assert proxy.cuts > 15


async def test_a_stream_that_is_cut_again_and_again_goes_on_as_long_as_something_comes():
    async with serving(create_app(STORE, handler=recite)) as url, CuttingProxy(url) as proxy:
        async with AgentClient(proxy.url, retry_delays=(0.0, 0.0)) as client:
            await client.agent()
            proxy.cut_after(*[900] * 40)
            events = [event async for event in client.stream("hello")]
    assert proxy.cuts >= 8
    assert [int(event.id) for event in events] == list(range(1, len(events) + 1))
    assert texts(events) == "".join(PIECES)


async def test_a_message_is_not_sent_twice_when_its_connection_is_lost_before_the_first_event():
    turns: list[str] = []

    async def handle(turn: Turn) -> AsyncIterator[Update | Message]:
        turns.append(turn.task_id)
        yield StatusUpdate(TaskState.COMPLETED)

    async with serving(create_app(STORE, handler=handle)) as url, CuttingProxy(url) as proxy:
        async with AgentClient(proxy.url, retry_delays=AT_ONCE) as client:
            await client.agent()
            proxy.cut_after(50)
            with pytest.raises(UpstreamError, match="broke off") as caught:
                await anext(client.stream("hello"))
    assert caught.value.fault is UpstreamFault.CONNECTION
    assert len(turns) == 1


async def test_leaving_a_stream_leaves_the_task_running():
    go_on = anyio.Event()

    async def handle(turn: Turn) -> AsyncIterator[Update | Message]:
        yield StatusUpdate(TaskState.WORKING)
        await go_on.wait()
        yield ArtifactUpdate(Artifact(artifact_id="text", parts=(Part(text="done"),)))

    async with serving(create_app(STORE, handler=handle)) as url, AgentClient(url) as client:
        async with aclosing(client.stream("hello")) as events:
            first = (await anext(events)).response.task
        assert first is not None
        assert not (await client.get_task(first.id)).status.state.terminal
        go_on.set()
        async with aclosing(client.stream("and again")) as events:  # its answer follows the first one
            _ = [event async for event in events]
        task = await client.get_task(first.id)
    assert task.status.state is TaskState.COMPLETED
    assert text_of(task) == "done"


async def test_a_task_is_canceled_while_it_streams_and_only_once():
    async def handle(turn: Turn) -> AsyncIterator[Update | Message]:
        yield StatusUpdate(TaskState.WORKING)
        await anyio.sleep_forever()

    async with serving(create_app(STORE, handler=handle)) as url, AgentClient(url) as client:
        events: list[StreamEvent] = []
        async for event in client.stream("hello"):
            events.append(event)
            if states(events)[-1] is TaskState.WORKING:
                assert event.response.status_update is not None
                task = await client.cancel_task(event.response.status_update.task_id)
                assert task.status.state is TaskState.CANCELED
        assert states(events)[-1] is TaskState.CANCELED
        assert events[0].response.task is not None
        with pytest.raises(TaskNotCancelableError):
            await client.cancel_task(events[0].response.task.id)
        with pytest.raises(TaskNotFoundError):
            await client.get_task("nobody")


async def test_a_task_that_waits_ends_the_stream_and_goes_on_with_the_answer():
    async def handle(turn: Turn) -> AsyncIterator[Update | Message]:
        yield StatusUpdate(TaskState.WORKING)
        if turn.number == 1:
            yield StatusUpdate(TaskState.INPUT_REQUIRED, agent_message("Which one?"))
        else:
            text = "".join(part.text or "" for part in turn.message.parts)
            yield ArtifactUpdate(Artifact(artifact_id="text", parts=(Part(text=f"took {text}"),)))

    async with serving(create_app(STORE, handler=handle)) as url, AgentClient(url) as client:
        events = [event async for event in client.stream("buy a book")]
        first = events[0].response.task
        assert first is not None
        assert states(events)[-1] is TaskState.INPUT_REQUIRED
        answer = Message(message_id="m2", role=Role.USER, parts=(Part(text="the red one"),))
        rest = [event async for event in client.stream(answer, task_id=first.id, context_id=first.context_id)]
        with pytest.raises(UnsupportedOperationError, match="the task has ended"):
            await anext(client.stream("one more", task_id=first.id))
    assert states(rest)[-1] is TaskState.COMPLETED
    assert texts(rest) == "took the red one"


async def test_a_stream_that_is_cancelled_from_outside_closes_its_connection():
    working = anyio.Event()
    async with ScriptedUpstream(agent(stream=[sse_task("working"), SetEvent(working), Hang()])) as server:
        async with AgentClient(root(server)) as client:
            with anyio.CancelScope() as scope:
                async with anyio.create_task_group() as group:

                    async def leave() -> None:
                        await working.wait()
                        scope.cancel()

                    group.start_soon(leave)
                    _ = [event async for event in client.stream("hello")]
            assert scope.cancelled_caught
            with anyio.fail_after(5):
                await server.requests[1].client_left.wait()


# --- other agents ---------------------------------------------------------------------------------------------------

CARD = {"supportedInterfaces": [{"url": "/rpc", "protocolBinding": "JSONRPC", "tenant": "acme"}]}
FAILED_TASK = {"id": "t1", "contextId": "c1", "status": {"state": "TASK_STATE_FAILED"}}


def root(server: ScriptedUpstream) -> str:
    return server.base_url.removesuffix("/v1")


def agent(card: object = CARD, **answers: Sequence[Step]):
    """Return the script of an agent: its card, then an answer for each method (``stream``, ``send``, …)."""
    names = {
        "SendStreamingMessage": "stream",
        "SendMessage": "send",
        "SubscribeToTask": "subscribe",
        "GetTask": "get",
        "CancelTask": "cancel",
    }

    def script(request: Received) -> Sequence[Step]:
        if request.method == "GET":
            return json_answer(card)
        return answers[names[request.json["method"]]]

    return script


def result(value: object) -> list[Step]:
    return json_answer({"jsonrpc": "2.0", "id": 1, "result": value})


def error(code: object, message: str, status: int = 200) -> list[Step]:
    return json_answer({"jsonrpc": "2.0", "id": 1, "error": {"code": code, "message": message}}, status)


def frame(value: Mapping[str, Any], id_: str = "") -> bytes:
    head = f"id: {id_}\n" if id_ else ""
    return f"{head}data: {json.dumps({'jsonrpc': '2.0', 'id': 1, 'result': value})}\n\n".encode()


def sse_task(state: str, text: str = "", id_: str = "") -> bytes:
    artifacts = [{"artifactId": "a", "parts": [{"text": text}]}] if text else []
    status = {"state": f"TASK_STATE_{state.upper()}"}
    return frame({"task": {"id": "t1", "contextId": "c1", "status": status, "artifacts": artifacts}}, id_)


def sse_text(text: str, *, append: bool = True, id_: str = "") -> bytes:
    artifact = {"artifactId": "a", "parts": [{"text": text}]}
    update = {"taskId": "t1", "contextId": "c1", "artifact": artifact, "append": append}
    return frame({"artifactUpdate": update}, id_)


def sse_state(state: str, id_: str = "") -> bytes:
    status = {"state": f"TASK_STATE_{state.upper()}"}
    return frame({"statusUpdate": {"taskId": "t1", "contextId": "c1", "status": status}}, id_)


async def streamed(server: ScriptedUpstream, **options: Any) -> list[StreamEvent]:
    async with AgentClient(root(server), retry_delays=AT_ONCE, **options) as client:
        return [event async for event in client.stream("hello")]


async def test_every_request_has_the_version_the_extension_and_the_tenant_of_the_card():
    lost = [sse_task("working", id_="7"), sse_text("a", append=False, id_="8"), Cut()]
    rest = [sse_text("b", id_="9"), sse_state("completed", "10")]
    async with ScriptedUpstream(agent(stream=lost, subscribe=rest)) as server:
        events = await streamed(server)
    card, send, subscribe = server.requests
    assert card.path == "/.well-known/agent-card.json"
    for request in (send, subscribe):
        assert request.path == "/rpc"
        assert request.headers["a2a-version"] == "1.0"
        assert request.headers["a2a-extensions"] == EXTENSION_URI
        assert request.json["params"]["tenant"] == "acme"
    assert "last-event-id" not in send.headers
    assert subscribe.headers["last-event-id"] == "8"
    assert subscribe.json["params"]["id"] == "t1"
    assert texts(events) == "ab"


@pytest.mark.parametrize("break_off", [Cut(), Reset(), None])
async def test_an_agent_that_numbers_nothing_gives_the_whole_task_which_replaces_what_came(
    break_off: Step | None,
):
    lost: list[Step] = [sse_task("working"), sse_text("one ", append=False)]
    lost += [break_off] if break_off else []
    rest = [sse_task("working", "one two "), sse_text("three"), sse_state("completed")]
    # Without numbers, a snapshot may already include the last delta, so it replaces the text.
    copy = {**FAILED_TASK, "artifacts": [{"artifactId": "a", "parts": [{"text": "one two three"}]}]}
    async with ScriptedUpstream(agent(stream=lost, subscribe=rest, get=result(copy))) as server:
        events = await streamed(server)
    assert not [each for each in server.requests if "last-event-id" in each.headers]
    assert texts(events) == "one two three"
    assert states(events)[-1] is TaskState.COMPLETED


async def test_a_task_that_ended_during_a_disconnection_is_fetched():
    task = {**FAILED_TASK, "artifacts": [{"artifactId": "a", "parts": [{"text": "half"}]}]}
    script = agent(
        stream=[sse_task("working"), Cut()], subscribe=error(-32004, "the task has ended"), get=result(task)
    )
    async with ScriptedUpstream(script) as server:
        events = await streamed(server)
    assert texts(events) == "half"
    assert states(events) == [TaskState.WORKING, TaskState.FAILED]
    assert events[-1].raw["task"]["artifacts"] == task["artifacts"]


async def test_a_stream_that_cannot_be_gone_on_with_is_given_up_after_all_tries():
    losses = Losses()
    script = agent(stream=[sse_task("working"), Cut()], subscribe=[Head(503), b"busy"])
    async with ScriptedUpstream(script) as server:
        with pytest.raises(UpstreamError, match="HTTP 503") as caught:
            await streamed(server, on_reconnect=losses)
    assert caught.value.status == 503
    assert losses.attempts == [1, 2, 3, 4, 5]
    assert "broke off" in losses.reasons[0]
    assert "HTTP 503" in losses.reasons[1]


async def test_snapshots_without_progress_do_not_keep_the_tries_going_for_ever():
    script = agent(stream=[sse_task("working")], subscribe=[sse_task("working")])
    async with ScriptedUpstream(script) as server:
        with pytest.raises(UpstreamError, match="ended the stream before the task was over"):
            await streamed(server)
    assert len(server.requests) == 2 + len(AT_ONCE)


async def test_silence_counts_as_a_lost_connection():
    script = agent(stream=[sse_task("working", id_="1"), Hang()], subscribe=[sse_state("completed", "2")])
    async with ScriptedUpstream(script) as server:
        events = await streamed(server, read_timeout=1)
    assert [event.id for event in events] == ["1", "2"]


async def test_a_subscription_ends_when_the_task_waits_for_its_caller_even_if_the_stream_does_not():
    script = agent(stream=[sse_task("working"), Cut()], subscribe=[sse_task("input_required"), Hang()])
    async with ScriptedUpstream(script) as server:
        assert states(await streamed(server))[-1] is TaskState.INPUT_REQUIRED


async def test_the_task_with_which_an_answer_begins_may_still_be_the_waiting_one():
    script = agent(stream=[sse_task("input_required"), sse_state("working"), sse_state("completed")])
    async with ScriptedUpstream(script) as server:
        assert states(await streamed(server))[-1] is TaskState.COMPLETED


async def test_a_subscription_over_http_json_is_sent_with_the_method_that_is_allowed():
    def script(request: Received) -> Sequence[Step]:
        if request.path.endswith(".json"):
            return json_answer({"supportedInterfaces": [{"url": "/", "protocolBinding": "HTTP+JSON"}]})
        if request.path == "/message:stream":
            return [bare(sse_task("working", id_="1")), Cut()]
        assert request.path == "/tasks/t1:subscribe"
        return [bare(sse_state("completed", "2"))] if request.method == "GET" else json_answer({}, 405)

    def bare(data: bytes) -> bytes:
        return data.replace(b'{"jsonrpc": "2.0", "id": 1, "result": ', b"").replace(b"}\n\n", b"\n\n")

    async with ScriptedUpstream(script) as server:
        events = await streamed(server)
    assert [event.id for event in events] == ["1", "2"]
    assert [request.method for request in server.requests] == ["GET", "POST", "POST", "GET"]


@pytest.mark.parametrize("status", [201, 202])
async def test_every_status_of_success_is_one(status: int):
    task = {"id": "t1", "contextId": "c1", "status": {"state": "TASK_STATE_CANCELED"}}
    async with ScriptedUpstream(agent(cancel=json_answer({"result": task}, status))) as server:
        async with AgentClient(root(server)) as client:
            assert (await client.cancel_task("t1")).status.state is TaskState.CANCELED


async def test_a_direct_message_is_the_whole_answer():
    message = {"messageId": "m", "role": "ROLE_AGENT", "parts": [{"text": "hi"}]}
    async with ScriptedUpstream(agent(stream=[frame({"message": message}), Hang()])) as server:
        [event] = await streamed(server)
    assert event.response.message is not None
    assert event.response.message.parts[0].text == "hi"


@pytest.mark.parametrize("code", [-32004, -32601])
async def test_an_agent_that_does_not_stream_receives_a_plain_send(code: int):
    task = {**FAILED_TASK, "status": {"state": "TASK_STATE_COMPLETED"}}
    script = agent(stream=error(code, "no streaming"), send=result({"task": task}))
    async with ScriptedUpstream(script) as server:
        [event] = await streamed(server)
    assert states([event]) == [TaskState.COMPLETED]
    assert server.requests[1].json["params"] == server.requests[2].json["params"]


async def test_an_agent_that_refuses_one_answer_too_is_taken_at_its_word():
    refusal = error(-32004, "This operation is not supported: I am closed")
    async with ScriptedUpstream(agent(stream=refusal, send=refusal)) as server:
        with pytest.raises(UnsupportedOperationError) as caught:
            await streamed(server)
    assert caught.value.detail == "I am closed"


async def test_an_error_in_the_middle_of_a_stream_is_raised_and_nothing_is_sent_again():
    broken = json.dumps({"jsonrpc": "2.0", "id": 1, "error": {"code": -32004, "message": "?"}})
    script = agent(stream=[sse_task("working"), f"data: {broken}\n\n".encode()])
    async with ScriptedUpstream(script) as server:
        with pytest.raises(UnsupportedOperationError):
            await streamed(server)
    assert len(server.requests) == 2


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (error(-32050, "out of coffee"), "the agent reports an error: out of coffee (-32050)"),
        (error("odd", "no number", 500), "the agent reports an error: no number (odd)"),
        (json_answer({"jsonrpc": "2.0", "id": 1}), "the agent's response is not valid JSON-RPC"),
        (json_answer([1]), "the agent's response is not valid JSON-RPC"),
        ([Head(200, {"content-type": "text/html"}), b"<html>"], "the agent's response is not valid JSON-RPC"),
        ([b"data: {broken\n\n"], "the agent's response is not valid JSON-RPC"),
        ([frame({"statusUpdate": {"taskId": "t1"}})], "statusUpdate"),
        ([Head(401), b"who are you?"], "answered with an HTTP error (HTTP 401)"),
    ],
)
async def test_a_protocol_violation_is_reported_in_one_line(answer: Sequence[Step], message: str):
    async with ScriptedUpstream(agent(stream=answer)) as server:
        with pytest.raises(UpstreamError) as caught:
            await streamed(server)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


async def test_a_refusal_with_an_http_status_is_still_the_error_of_the_protocol():
    async with ScriptedUpstream(agent(get=error(-32001, "Task not found", 404))) as server:
        async with AgentClient(root(server)) as client:
            with pytest.raises(TaskNotFoundError):
                await client.get_task("t1")


async def test_an_answer_larger_than_the_bound_is_refused():
    endless = [Head(200, {"content-type": "application/json"}), *[b" " * 2**20] * 33]
    async with ScriptedUpstream(agent(get=endless)) as server:
        async with AgentClient(root(server)) as client:
            with pytest.raises(UpstreamError) as caught:
                await client.get_task("t1")
    assert caught.value.fault is UpstreamFault.TOO_LARGE


# --- no agent -------------------------------------------------------------------------------------------------------


async def test_a_card_may_be_named_itself_and_the_scheme_left_out():
    script = agent(stream=[sse_task("completed")])
    async with ScriptedUpstream(script) as server:
        async with AgentClient(root(server).removeprefix("http://") + "/cards/mine.json") as client:
            _ = [event async for event in client.stream("hello")]
    assert [request.path for request in server.requests] == ["/cards/mine.json", "/rpc"]


async def failure(url: str) -> TailraceError:
    async with AgentClient(url) as client:
        with pytest.raises(TailraceError) as caught:
            await anext(client.stream("hello"))
    return caught.value


async def test_a_closed_port_is_a_connection_error():
    async with ScriptedUpstream() as server:
        gone = root(server)
    error = await failure(gone)
    assert isinstance(error, UpstreamError)
    assert error.fault is UpstreamFault.CONNECTION
    assert "cannot be reached" in str(error)


@pytest.mark.parametrize("url", ["http://127.0.0.1:abc", "ftp://127.0.0.1", "http://"])
async def test_what_is_no_url_is_the_callers_mistake(url: str):
    assert isinstance(await failure(url), ConfigurationError)


async def test_an_address_without_a_card_is_named():
    async with ScriptedUpstream([Head(404), b"nothing here"]) as server:
        error = await failure(root(server))
        assert f"there is no agent card at {root(server)}/.well-known/agent-card.json" in str(error)


async def test_a_client_outside_its_block_raises_an_error():
    with pytest.raises(RuntimeError, match="async with"):
        await AgentClient("http://127.0.0.1").get_task("t1")
