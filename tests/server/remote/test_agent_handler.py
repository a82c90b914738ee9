"""A remote agent behind our server: callers see the same as at the remote."""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, cast

import anyio
import pytest
from a2a.server.agent_execution import AgentExecutor as SdkExecutor
from a2a.types import AgentCard

from support.agents import Scripted
from support.live_server import serving
from support.proxy import CuttingProxy
from support.remote_agents import Saying, agent_says, says, sdk_agent, sdk_card
from support.rounds import answer
from support.rpc import Rpc, message, streamed_text, text_of
from support.upstream import ScriptedUpstream
from tailrace.server import Settings, Turn, create_app
from tailrace.server.runtime.handlers import Item
from tailrace.server.runtime.upstream_gate import UpstreamGate
from tailrace.server.sdk import AgentExecutor, RemoteAgent, RemoteAgentHandler
from tailrace.streaming import ArtifactUpdate, StatusUpdate, TaskState, TextDelta
from tailrace.streaming.a2a.models import Artifact, Message, Part, Role
from tailrace.streaming.a2a.stream_extension import EXTENSION_URI
from tailrace.streaming.task.task_record import agent_message
from tailrace.streaming.task.updates import MessageAdded

STORE = Settings(store="sqlite://")
AT_ONCE = (0.0,) * 5


@asynccontextmanager
async def fronted(
    url: str, settings: Settings = STORE, gate: UpstreamGate | None = None, **options: Any
) -> AsyncGenerator[Rpc]:
    """Return our server in front of the agent at a URL."""
    handler = RemoteAgentHandler(RemoteAgent(url, retry_delays=AT_ONCE, **options), gate=gate)
    async with serving(create_app(settings, handler=handler)) as front, Rpc(front) as rpc:
        yield rpc


@asynccontextmanager
async def in_front_of(remote: Any) -> AsyncGenerator[Rpc]:
    """Return our server in front of another one with a handler."""
    async with serving(create_app(STORE, handler=remote)) as url, fronted(url) as rpc:
        yield rpc


@asynccontextmanager
async def in_front_of_sdk(executor: SdkExecutor, card: AgentCard | None = None) -> AsyncGenerator[Rpc]:
    async with sdk_agent(executor, card) as url, fronted(url) as rpc:
        yield rpc


Events = list[tuple[int, dict[str, Any]]]


async def send(rpc: Rpc, text: str, **fields: Any) -> dict[str, Any]:
    return (await rpc.result("SendMessage", message(text, **fields)))["task"]


def state(task: dict[str, Any]) -> str:
    return task["status"]["state"].removeprefix("TASK_STATE_").lower()


def words(task: dict[str, Any]) -> str:
    return "".join(part.get("text", "") for part in task["status"]["message"]["parts"])


def outline(turn: Turn) -> list[tuple[str, str]]:
    return [(str(each.role), each.text) for each in turn.history.conversation]


# --- one turn -------------------------------------------------------------------------------------------------------


async def test_an_answer_is_relayed_piece_by_piece():
    async with in_front_of(Scripted()) as rpc:
        events: Events = await rpc.stream("SendStreamingMessage", message("river"))
    assert streamed_text(events) == "river"
    assert [number for number, _ in events] == list(range(1, len(events) + 1))
    artifacts = [event["artifactUpdate"] for _, event in events if "artifactUpdate" in event]
    assert [update.get("append", False) for update in artifacts] == [False, *[True] * 5]
    assert [update.get("lastChunk", False) for update in artifacts] == [*[False] * 5, True]
    assert {update["artifact"]["artifactId"] for update in artifacts} == {"text"}
    assert events[-1][1]["statusUpdate"]["status"]["state"] == "TASK_STATE_COMPLETED"


@pytest.mark.parametrize("streaming", [True, False])
@pytest.mark.parametrize("version", ["1.0", "0.3"])
@pytest.mark.parametrize("binding", ["JSONRPC", "HTTP+JSON"])
async def test_any_agent_of_the_sdk_can_stand_behind(binding: str, version: str, streaming: bool):
    scripted = Scripted()
    card = sdk_card(binding, version, streaming=streaming)
    async with in_front_of_sdk(AgentExecutor(scripted), card) as rpc:
        first = await send(rpc, "river")
        assert (state(first), text_of(first)) == ("completed", "river")
        second = await send(rpc, "brook", contextId=first["contextId"])
        assert (state(second), text_of(second)) == ("completed", "brook")
        question = await send(rpc, "ask")
        assert (state(question), words(question)) == ("input_required", "which one?")
        answer = await send(rpc, "pond", taskId=question["id"])
        assert (state(answer), text_of(answer)) == ("completed", "pond")
        assert answer["id"] == question["id"]
    first_turn, second_turn, asking, answered = scripted.turns
    assert first_turn.context_id == second_turn.context_id != first["contextId"]
    assert outline(second_turn) == [("user", "river"), ("model", "river"), ("user", "brook")]
    assert (asking.task_id, answered.number) == (answered.task_id, 2)


async def test_artifacts_of_every_kind_keep_what_they_are():
    async def handle(turn: Turn) -> AsyncIterator[Item]:
        yield StatusUpdate(TaskState.WORKING, agent_message("drawing"), {"step": 1})
        picture = Part(raw=b"\x89PNG", media_type="image/png", filename="p.png", metadata={"dpi": 72})
        yield ArtifactUpdate(Artifact(artifact_id="f", name="File", parts=(picture,), metadata={"a": 1}))
        rows = (Part(data={"rows": [1, 2.5, None]}), Part(text="a"), Part(text="b", media_type="text/csv"))
        yield ArtifactUpdate(Artifact(artifact_id="d", description="Rows", parts=rows), last=False)
        yield ArtifactUpdate(Artifact(artifact_id="d", parts=(Part(url="http://x/y"),)), append=True)
        yield ArtifactUpdate(Artifact(artifact_id="d", parts=(Part(text="anew"),)), last=False)
        yield TextDelta("d", "!", last=True)
        facts = {EXTENSION_URI: {"usage": {"totalTokens": 7}, "finishReason": "stop"}}
        yield StatusUpdate(TaskState.COMPLETED, agent_message("done"), facts)

    async with serving(create_app(STORE, handler=handle)) as url, fronted(url) as rpc, Rpc(url) as direct:
        there = [_without_ids(event) for _, event in await direct.stream("SendStreamingMessage", message())]
        here = [_without_ids(event) for _, event in await rpc.stream("SendStreamingMessage", message())]
    working, remote_task = here.pop(1), here.pop(1)  # the front's own
    assert working == {"statusUpdate": {"status": {"state": "TASK_STATE_WORKING"}}}
    assert "remoteTask" in remote_task["statusUpdate"]["metadata"][EXTENSION_URI]
    assert [_without_number(event) for event in here] == [_without_number(event) for event in there]


def _without_number(event: dict[str, Any]) -> dict[str, Any]:
    return {key: {**value, "metadata": None} if key == "task" else value for key, value in event.items()}


def _without_ids(value: Any) -> Any:
    if isinstance(value, dict):
        own = ("taskId", "contextId", "messageId", "timestamp", "id")
        fields = cast("dict[str, Any]", value)
        return {key: _without_ids(each) for key, each in fields.items() if key not in own}
    return [_without_ids(each) for each in cast("list[Any]", value)] if isinstance(value, list) else value


async def test_the_message_goes_on_as_it_is_but_for_its_ids():
    turns: list[Turn] = []

    async def handle(turn: Turn) -> AsyncIterator[Item]:
        turns.append(turn)
        yield StatusUpdate(TaskState.COMPLETED)

    parts = [
        {"text": "look", "metadata": {"x": 1}},
        {"raw": "iVBORw==", "mediaType": "image/png", "filename": "a.png"},
        {"data": {"k": [1, 2]}},
    ]
    params = message(
        parts=parts, metadata={"m": True}, contextId="ours", messageId="mine", referenceTaskIds=["other"]
    )
    params["configuration"] = {"acceptedOutputModes": ["text/plain"]}
    params["metadata"] = {"r": 1, EXTENSION_URI: {"temperature": 0.5, "idempotencyKey": "k"}}
    async with in_front_of(handle) as rpc:
        await rpc.result("SendMessage", params)
    [turn] = turns
    assert turn.message.context_id not in ("", "ours")
    assert turn.message.message_id not in ("", "mine")
    assert turn.message.reference_task_ids == ()
    assert [part.to_dict() for part in turn.message.parts] == parts
    assert turn.message.metadata["m"] is True
    assert turn.accepted_output_modes == ("text/plain",)
    assert turn.caller_options.temperature == 0.5
    assert turn.metadata["r"] == 1


# --- final states ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["failed", "rejected", "canceled", "auth_required", "input_required"])
async def test_an_unsuccessful_task_keeps_its_state_and_the_message_of_the_agent(how: str):
    async with in_front_of_sdk(Saying(says(how, "no paper"))) as rpc:
        task = await send(rpc, "print")
        assert (state(task), words(task)) == (how, "no paper")
    if how != "canceled":
        async with in_front_of_sdk(Saying(says(how))) as rpc:
            task = await send(rpc, "print")
            assert state(task) == how
            assert "without" in words(task)


async def test_an_agent_that_makes_no_artifacts_has_its_words_as_the_answer():
    for executor in (Saying(agent_says("hi")), Saying(says("working", "hm"), says("completed", "hi"))):
        for streaming in (True, False):
            async with in_front_of_sdk(executor, sdk_card(streaming=streaming)) as rpc:
                task = await send(rpc, "hello")
                assert (state(task), text_of(task, "message")) == ("completed", "hi")
                assert "message" not in task["status"]


async def test_an_agent_that_crashes_or_is_away_fails_the_task_in_a_line():
    async with in_front_of(Scripted()) as rpc:
        task = await send(rpc, "crash")
        assert state(task) == "failed"
        assert "secret" not in words(task)
    async with fronted("http://127.0.0.1:1") as rpc:
        task = await send(rpc, "hello")
        assert state(task) == "failed"
        assert "cannot be reached" in words(task)
        assert task["metadata"][EXTENSION_URI]["error"]["type"] == "connection_failed"


async def test_an_unreachable_agent_later_receives_the_users_messages_alone():
    scripted = Scripted()
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(serving(create_app(STORE, handler=scripted)))
        proxy = await stack.enter_async_context(CuttingProxy(url))
        rpc = await stack.enter_async_context(fronted(proxy.url))
        proxy.turn_to("http://127.0.0.1:1")
        away = await send(rpc, "river")
        proxy.turn_to(url)
        back = await send(rpc, "brook", contextId=away["contextId"])
    assert (state(away), state(back)) == ("failed", "completed")
    transcript, _ = scripted.turns[0].message.parts
    assert transcript.text is not None
    assert "User: river" in transcript.text
    assert "Agent" not in transcript.text


async def test_what_arrived_before_an_agent_was_lost_is_kept():
    scripted = Scripted()
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(serving(create_app(STORE, handler=scripted)))
        proxy = await stack.enter_async_context(CuttingProxy(url))
        rpc = await stack.enter_async_context(fronted(proxy.url))

        def cut(events: Events) -> None:
            if streamed_text(events) == "held" and not proxy.cuts:
                proxy.cut_after(*[1] * 50)
                proxy.cut_now()

        events = await rpc.stream("SendStreamingMessage", message("hold"), seen=cut)
        proxy.cut_after()
        scripted.go_on.set()
    assert streamed_text(events) == "held"
    last = events[-1][1]["statusUpdate"]
    assert last["status"]["state"] == "TASK_STATE_FAILED"
    assert "broke off" in last["status"]["message"]["parts"][0]["text"]


async def test_a_connection_that_is_cut_is_not_seen_by_the_caller():
    for remote in ("ours", "the SDK's"):
        scripted = Scripted()
        async with AsyncExitStack() as stack:
            served = (
                serving(create_app(STORE, handler=scripted))
                if remote == "ours"
                else sdk_agent(AgentExecutor(scripted))
            )
            proxy = await stack.enter_async_context(CuttingProxy(await stack.enter_async_context(served)))
            rpc = await stack.enter_async_context(fronted(proxy.url))

            def cut(events: Events, proxy: CuttingProxy = proxy, scripted: Scripted = scripted) -> None:
                if streamed_text(events) == "held" and not proxy.cuts:
                    proxy.cut_now()
                    scripted.go_on.set()

            events = await rpc.stream("SendStreamingMessage", message("hold"), seen=cut)
            assert proxy.cuts == 1
            assert streamed_text(events) == "held"
            assert events[-1][1]["statusUpdate"]["status"]["state"] == "TASK_STATE_COMPLETED"


@pytest.mark.parametrize("path", ["", "/.well-known/agent.json"])
async def test_cancelling_reaches_the_remote(path: str):
    scripted = Scripted()
    async with serving(create_app(STORE, handler=scripted)) as url, fronted(url + path) as rpc:
        async with anyio.create_task_group() as group:
            held = anyio.Event()
            task_ids: list[str] = []

            def seen(events: Events) -> None:
                if streamed_text(events) == "held":
                    task_ids.append(events[0][1]["task"]["id"])
                    held.set()

            async def follow() -> None:
                await rpc.stream("SendStreamingMessage", message("hold"), seen=seen)

            group.start_soon(follow)
            await held.wait()
            task = await rpc.result("CancelTask", {"id": task_ids[0]})
            assert state(task) == "canceled"
        assert scripted.stopped.is_set()
        async with Rpc(url) as direct:
            there = await direct.result("GetTask", {"id": scripted.turns[0].task_id})
            assert state(there) == "canceled"


class Authorized:
    """A handler that waits for credentials."""

    def __init__(self) -> None:
        self.granted = anyio.Event()
        self.left = anyio.Event()

    async def __call__(self, _turn: Turn) -> AsyncIterator[Item]:
        yield StatusUpdate(TaskState.AUTH_REQUIRED, agent_message("Open the page."), continues=True)
        try:
            await self.granted.wait()
        finally:
            self.left.set()
        yield StatusUpdate(TaskState.WORKING)
        yield ArtifactUpdate(Artifact(artifact_id="text", parts=(Part(text="authorized"),)))


def states(events: Events) -> list[str]:
    updates = [event["statusUpdate"] for _, event in events if "statusUpdate" in event]
    return [update["status"]["state"].removeprefix("TASK_STATE_") for update in updates]


async def test_a_remote_that_waits_for_credentials_continues_on_the_same_stream():
    remote = Authorized()

    def seen(events: Events) -> None:
        if states(events)[-1:] == ["AUTH_REQUIRED"]:
            remote.granted.set()

    async with in_front_of(remote) as rpc:
        events = await rpc.stream("SendStreamingMessage", message("river"), seen=seen)
        task = await rpc.result("GetTask", {"id": events[0][1]["task"]["id"]})
    assert states(events) == ["WORKING", "WORKING", "AUTH_REQUIRED", "WORKING", "COMPLETED"]
    assert (state(task), text_of(task)) == ("completed", "authorized")
    agent_texts = [each["parts"][0]["text"] for each in task["history"] if each["role"] == "ROLE_AGENT"]
    assert agent_texts == ["Open the page.", "authorized"]


async def test_a_connection_that_is_cut_while_the_remote_waits_for_credentials_is_not_seen():
    remote = Authorized()
    async with serving(create_app(STORE, handler=remote)) as url, CuttingProxy(url) as proxy:
        async with fronted(proxy.url) as rpc:

            def cut(events: Events) -> None:
                if states(events)[-1:] == ["AUTH_REQUIRED"] and not proxy.cuts:
                    proxy.cut_now()
                    remote.granted.set()

            events = await rpc.stream("SendStreamingMessage", message("river"), seen=cut)
        assert proxy.cuts == 1
    assert states(events) == ["WORKING", "WORKING", "AUTH_REQUIRED", "WORKING", "COMPLETED"]
    assert streamed_text(events) == "authorized"


async def test_cancelling_reaches_a_remote_that_waits_for_credentials():
    remote = Authorized()
    async with in_front_of(remote) as rpc:
        async with anyio.create_task_group() as group:
            required = anyio.Event()
            task_ids: list[str] = []

            def seen(events: Events) -> None:
                if states(events)[-1:] == ["AUTH_REQUIRED"]:
                    task_ids.append(events[0][1]["task"]["id"])
                    required.set()

            async def follow() -> None:
                await rpc.stream("SendStreamingMessage", message("river"), seen=seen)

            group.start_soon(follow)
            await required.wait()
            assert state(await rpc.result("CancelTask", {"id": task_ids[0]})) == "canceled"
        with anyio.fail_after(30):
            await remote.left.wait()


async def test_a_remote_whose_stream_ends_with_a_request_for_credentials_is_continued_by_the_next_message():
    turns: list[Turn] = []

    async def handle(turn: Turn) -> AsyncIterator[Item]:
        turns.append(turn)
        if turn.number == 1:
            yield StatusUpdate(TaskState.AUTH_REQUIRED, agent_message("Sign in."))
        else:
            yield ArtifactUpdate(Artifact(artifact_id="text", parts=(Part(text="in"),)))

    async with in_front_of(handle) as rpc:
        required = await send(rpc, "river")
        assert (state(required), words(required)) == ("auth_required", "Sign in.")
        done = await send(rpc, "signed in", taskId=required["id"])
    assert (state(done), text_of(done)) == ("completed", "in")
    assert turns[0].task_id == turns[1].task_id
    agent_texts = [each["parts"][0]["text"] for each in done["history"] if each["role"] == "ROLE_AGENT"]
    assert agent_texts == ["Sign in.", "in"]


async def test_calls_wait_at_the_gate():
    gate = UpstreamGate(1, 0)
    scripted = Scripted()
    async with serving(create_app(STORE, handler=scripted)) as url, fronted(url, gate=gate) as rpc:
        async with anyio.create_task_group() as group:
            held = anyio.Event()

            def seen(events: Events) -> None:
                if streamed_text(events) == "held":
                    held.set()

            async def follow() -> None:
                await rpc.stream("SendStreamingMessage", message("hold"), seen=seen)

            group.start_soon(follow)
            await held.wait()
            task = await send(rpc, "river")
            assert state(task) == "failed"
            assert "try again later" in words(task)
            scripted.go_on.set()
        assert gate.running_calls == 0


# --- several turns --------------------------------------------------------------------------------------------------


class ToolAsking:
    """Asks the caller to run a tool, and answers with its result."""

    def __init__(self) -> None:
        self.turns: list[Turn] = []

    async def __call__(self, turn: Turn) -> AsyncIterator[Item]:
        self.turns.append(turn)
        last = turn.history.conversation[-1]
        if last.tool_results:
            yield ArtifactUpdate(
                Artifact(artifact_id="text", parts=(Part(text=str(last.tool_results[0].output)),))
            )
            return
        calls = [{"call_id": "c1", "name": "weather", "arguments": {"city": "Rome"}}]
        call = Part(data={"tool_calls": calls})
        yield ArtifactUpdate(Artifact(artifact_id="said", parts=(Part(text="Let me see."),)))
        question = Message(message_id="q", role=Role.AGENT, parts=(call,))
        yield MessageAdded(question.model_copy(update={"parts": (Part(text="Let me see."), call)}))
        yield StatusUpdate(TaskState.INPUT_REQUIRED, question)


async def test_tool_calls_come_through_and_results_go_back_on_the_same_task_after_a_restart(tmp_path: Path):
    remote = ToolAsking()
    settings = Settings(store=f"sqlite:///{tmp_path}/front.db")
    async with serving(create_app(STORE, handler=remote)) as url:
        async with fronted(url, settings) as rpc:
            question = await send(rpc, "weather?")
            assert state(question) == "input_required"
            [part] = question["status"]["message"]["parts"]
            [call] = part["data"]["tool_calls"]
            assert (call["call_id"], call["name"], call["arguments"]) == ("c1", "weather", {"city": "Rome"})
        async with fronted(url, settings) as rpc:
            results = [{"data": {"tool_results": [{"call_id": "c1", "name": "weather", "output": "sunny"}]}}]
            done = await send(rpc, "", taskId=question["id"], parts=results)
            assert (state(done), text_of(done)) == ("completed", "sunny")
            assert text_of(done, "said") == "Let me see."
            further = await send(rpc, "and now?", contextId=question["contextId"])
            assert state(further) == "input_required"
    first, second, third = remote.turns
    assert (first.task_id, first.context_id) == (second.task_id, second.context_id)
    assert (third.task_id != first.task_id, third.context_id) == (True, first.context_id)
    assert [str(each.role) for each in third.history.conversation] == [
        "user",
        "model",
        "tool",
        "model",
        "user",
    ]


async def test_a_conversation_unknown_to_the_remote_agent_is_sent_to_it(tmp_path: Path):
    settings = Settings(store=f"sqlite:///{tmp_path}/front.db")
    before, scripted = Scripted(), Scripted()
    async with serving(create_app(settings, handler=before)) as url, Rpc(url) as rpc:
        first = await send(rpc, "river")
    async with serving(create_app(STORE, handler=scripted)) as url, fronted(url, settings) as rpc:
        second = await send(rpc, "brook", contextId=first["contextId"])
        await send(rpc, "pond", contextId=first["contextId"])
    transcript, question = scripted.turns[0].message.parts
    assert transcript.text is not None
    assert "User: river\n\nAgent: river" in transcript.text
    assert question.text == "brook"
    assert state(second) == "completed"
    assert [part.text for part in scripted.turns[1].message.parts] == ["pond"]


async def test_a_branch_is_a_new_conversation_of_the_remote_agent():
    scripted = Scripted()
    async with in_front_of(scripted) as rpc:
        first = await send(rpc, "river")
        await send(rpc, "brook", contextId=first["contextId"], messageId="m2")
        origin = {"contextId": first["contextId"], "messageId": "m2"}
        branch = await send(rpc, "pond", metadata={EXTENSION_URI: {"branch": origin}})
    assert state(branch) == "completed"
    _, second, third = scripted.turns
    assert third.context_id != second.context_id
    transcript, question = third.message.parts
    assert transcript.text is not None
    assert "User: river\n\nAgent: river" in transcript.text
    assert "brook" not in transcript.text
    assert question.text == "pond"


async def test_a_conversation_that_is_sent_later_includes_tools_files_and_data(tmp_path: Path):
    settings = Settings(store=f"sqlite:///{tmp_path}/front.db")
    scripted = Scripted()
    async with serving(create_app(settings, handler=ToolAsking())) as url, Rpc(url) as rpc:
        file = {"raw": "eA==", "filename": "a.png", "mediaType": "image/png"}
        question = await send(rpc, "", parts=[{"text": "weather?"}, file, {"data": {"k": 1}}])
        results = [{"data": {"tool_results": [{"call_id": "c1", "name": "weather", "output": {"sun": 1}}]}}]
        await send(rpc, "", taskId=question["id"], parts=results)
    async with serving(create_app(STORE, handler=scripted)) as url, fronted(url, settings) as rpc:
        await send(rpc, "river", contextId=question["contextId"])
    transcript, _ = scripted.turns[0].message.parts
    assert transcript.text is not None
    assert transcript.text.split("\n\n")[1:-2] == [
        "User: weather?",
        "User: [file a.png]",
        'User: {"k": 1}',
        "Agent: Let me see.",
        'Agent calls the tool weather: {"city": "Rome"}',
        'The tool weather answers: {"sun": 1}',
        "Agent: {'sun': 1}",
    ]


async def test_a_task_that_does_not_wait_any_more_is_followed_by_another():
    scripted = Scripted()
    async with serving(create_app(STORE, handler=scripted)) as url, fronted(url) as rpc, Rpc(url) as direct:
        question = await send(rpc, "ask")
        await direct.result("CancelTask", {"id": scripted.turns[0].task_id})
        # Another task of the conversation is not the waiting one.
        other = await send(rpc, "brook", contextId=question["contextId"])
        answered = await send(rpc, "river", taskId=question["id"])
    assert (text_of(other), text_of(answered, "text-turn-2")) == ("brook", "river")
    assert len({turn.task_id for turn in scripted.turns}) == 3
    assert len({turn.context_id for turn in scripted.turns}) == 1


async def test_a_remote_that_forgot_the_task_that_waited_begins_another():
    scripted = Scripted()
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(serving(create_app(STORE, handler=scripted)))
        proxy = await stack.enter_async_context(CuttingProxy(first))
        rpc = await stack.enter_async_context(fronted(proxy.url))
        question = await send(rpc, "ask")
        proxy.cut_now()
        proxy.turn_to(await stack.enter_async_context(serving(create_app(STORE, handler=scripted))))
        answered = await send(rpc, "river", taskId=question["id"])
    assert (state(answered), text_of(answered, "text-turn-2")) == ("completed", "river")
    assert scripted.turns[1].number == 1


async def test_a_task_of_several_turns_keeps_what_each_made():
    async with in_front_of(Scripted()) as rpc:
        question = await send(rpc, "ask")
        second = await send(rpc, "river", taskId=question["id"])
        assert text_of(second) == "river"


# --- a model behind two servers -------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["", "/.well-known/agent.json"])
async def test_tools_of_the_caller_reach_the_model_and_its_facts_the_caller(path: str):
    asks = answer("I look.", calls=[("c1", "weather", {"city": "Rome"})], finish="tool_calls", reasoning="hm")
    tool: dict[str, Any] = {"name": "weather", "description": "Now.", "parameters": {"type": "object"}}
    question = message("How is Rome?")
    question["metadata"] = {EXTENSION_URI: {"tools": [tool], "temperature": 0}}
    async with ScriptedUpstream(asks, answer("Sunny.")) as upstream:
        settings = Settings.model_validate(
            {"store": "sqlite://", "model": "openai:m", "base_url": upstream.base_url, "api_key": "none"}
        )
        async with serving(create_app(settings)) as url, fronted(url + path) as rpc, Rpc(url) as direct:
            events = await rpc.stream("SendStreamingMessage", question)
            waiting = events[-1][1]["statusUpdate"]
            [part] = waiting["status"]["message"]["parts"]
            [call] = part["data"]["tool_calls"]
            results = [
                {"data": {"tool_results": [{"call_id": call["call_id"], "name": "weather", "output": "sun"}]}}
            ]
            done = await send(rpc, "", taskId=waiting["taskId"], parts=results)
            there = (await direct.result("ListTasks", {"includeArtifacts": True}))["tasks"]
            received = await conversation(rpc, done["contextId"])
            kept = await conversation(direct, there[0]["contextId"])
        first, second = [(await upstream.received(at)).json for at in (0, 1)]
    assert waiting["status"]["state"] == "TASK_STATE_INPUT_REQUIRED"
    assert waiting["metadata"][EXTENSION_URI]["usage"]["totalTokens"] == 15
    assert [each["function"]["name"] for each in first["tools"]] == ["weather"]
    assert first["temperature"] == 0
    assert [each["role"] for each in second["messages"]] == ["user", "assistant", "tool"]
    assert second["tools"] == first["tools"]
    assert state(done) == "completed"
    [task] = there
    assert [_without_ids(artifact) for artifact in done["artifacts"]] == [
        _without_ids(artifact) for artifact in task["artifacts"]
    ]
    assert {artifact["artifactId"] for artifact in done["artifacts"]} >= {"text", "reasoning", "tool-call-1"}
    assert received == kept


async def conversation(rpc: Rpc, context_id: str) -> list[tuple[str, Any]]:
    """Return roles and texts of a conversation; the provider's field name for reasoning is irrelevant."""
    recorded = (await rpc.result("GetConversation", {"contextId": context_id}))["messages"]
    return [(each["role"], [{**part, "metadata": None} for part in each["parts"]]) for each in recorded]
