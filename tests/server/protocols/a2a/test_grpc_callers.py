"""The gRPC binding: versions, extensions, tenants, callers, the official client, load and shutdown."""

import signal
import socket
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, cast

import aiohttp
import anyio
import grpc
import grpc.aio
import pytest
from a2a.client import ClientCallContext, ClientConfig, create_client
from a2a.types import (
    GetExtendedAgentCardRequest,
    GetTaskRequest,
    ListTasksRequest,
    StreamResponse,
    SubscribeToTaskRequest,
)
from a2a.utils.errors import InvalidParamsError, TaskNotFoundError

from support.agents import Scripted
from support.grpc_agents import GrpcAgent, failure_of, grpc_address, rest_of
from support.grpc_calls import Metadata, agent_with, follow, stream_of, stub_of
from support.live_server import serving
from support.missing_packages import run_without
from support.processes import served
from support.sdk import facts, kinds, numbers, send, streamed
from support.sdk import text_of as sdk_text_of
from support.upstream import Hang, ScriptedUpstream, openai_stream
from tailrace.server import Engine, FunctionHandler, Settings, Store, Turn, create_app
from tailrace.server.auth.authentication import Anonymous, Authenticator, Credentials, Identity
from tailrace.server.http.origin_guard import OriginGuard
from tailrace.server.protocols.a2a.card import build_card
from tailrace.server.protocols.a2a.grpc import GrpcServer
from tailrace.server.runtime.auth_error import AuthError
from tailrace.server.runtime.caller import Caller
from tailrace.server.runtime.operations import Operations
from tailrace.server.settings import Bounds
from tailrace.streaming import EXTENSION_URI, ArtifactUpdate, TextDelta, Update
from tailrace.streaming.a2a.models import AgentCard, AgentExtension, Artifact, Message, Part
from tailrace.wrappers import ConfigurationError


@pytest.fixture
async def agent() -> AsyncGenerator[GrpcAgent]:
    async with agent_with() as agent:
        yield agent


# --- versions, extensions, tenants --------------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["1.0", "1.0.3", "", None])
async def test_a_call_in_version_1_0_or_in_none_is_answered(agent: GrpcAgent, version: str | None) -> None:
    metadata = () if version is None else (("a2a-version", version),)
    assert kinds(await stream_of(agent, "x", metadata))[-1] == "completed"


@pytest.mark.parametrize("version", ["0.3", "0.5", "1.7", "99.0", "one"])
async def test_a_call_in_another_version_is_refused(agent: GrpcAgent, version: str) -> None:
    metadata = (("a2a-version", version),)
    for call in (
        agent.stub.SendMessage(send(), metadata=metadata),
        agent.stub.SendStreamingMessage(send(), metadata=metadata),
    ):
        found = await failure_of(call)
        assert found.code is grpc.StatusCode.FAILED_PRECONDITION
        assert found.info.reason == "VERSION_NOT_SUPPORTED"
        assert found.info.metadata["supportedVersions"] == "1.0"


async def test_a_requested_extension_is_confirmed(agent: GrpcAgent) -> None:
    for headers, confirmed in (
        ((("a2a-extensions", f"urn:x, {EXTENSION_URI}"),), EXTENSION_URI),
        ((("a2a-extensions", "urn:x"), ("a2a-extensions", EXTENSION_URI)), EXTENSION_URI),
        ((("a2a-extensions", "urn:x"),), None),
        ((), None),
    ):
        for call in (
            agent.stub.SendMessage(send("x"), metadata=headers),
            agent.stub.SendStreamingMessage(send("x"), metadata=headers),
        ):
            metadata: Mapping[str, Any] = dict(await call.initial_metadata())
            assert metadata.get("a2a-extensions") == confirmed


async def test_a_required_extension_must_be_requested() -> None:
    required = AgentExtension(uri="urn:must", required=True)
    async with agent_with(extensions=[required]) as agent:
        found = await failure_of(agent.stub.SendMessage(send()))
        assert found.code is grpc.StatusCode.FAILED_PRECONDITION
        assert found.info.reason == "EXTENSION_SUPPORT_REQUIRED"
        assert await agent.stub.SendMessage(send(), metadata=(("a2a-extensions", "urn:must"),))
        assert agent.scripted.turns[0].extensions == ("urn:must",)


async def test_each_tenant_has_tasks_of_its_own(agent: GrpcAgent) -> None:
    task = (await agent.stub.SendMessage(send("river", tenant="acme"))).task
    assert (await agent.stub.GetTask(GetTaskRequest(id=task.id, tenant="acme"))).id == task.id
    for tenant in ("", "other"):
        found = await failure_of(agent.stub.GetTask(GetTaskRequest(id=task.id, tenant=tenant)))
        assert found.info.reason == "TASK_NOT_FOUND"


# --- callers ----------------------------------------------------------------------------------------------------


ALICE: Metadata = (("x-api-key", "k1"),)
BOB: Metadata = (("x-api-key", "k2"),)


async def test_callers_are_known_by_their_metadata_and_see_their_own_tasks() -> None:
    settings = Settings.model_validate(
        {"store": "sqlite://", "grpc_port": 0, "caller_keys": "alice:k1,bob:k2"}
    )
    async with agent_with(settings) as agent:
        task = (await agent.stub.SendMessage(send("river"), metadata=ALICE)).task
        assert (await agent.stub.GetTask(GetTaskRequest(id=task.id), metadata=ALICE)).id == task.id
        found = await failure_of(agent.stub.GetTask(GetTaskRequest(id=task.id), metadata=BOB))
        assert found.info.reason == "TASK_NOT_FOUND"
        assert not (await agent.stub.ListTasks(ListTasksRequest(), metadata=BOB)).tasks
        for wrong in ((), (("x-api-key", "k3"),), (("a2a-version", "99.0"),)):
            for call in (
                agent.stub.GetTask(GetTaskRequest(id=task.id), metadata=wrong),
                agent.stub.SendStreamingMessage(send(), metadata=wrong),
            ):
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await rest_of(call)
                assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
                trailing = dict(cast("Any", caught.value.trailing_metadata()))
                assert "X-API-Key" in trailing["www-authenticate"]


class Choosy(Authenticator):
    """Identifies everyone with a token, and authorizes one of them."""

    async def authenticate(self, credentials: Credentials) -> Identity:
        if credentials.bearer != "good":
            raise AuthError("not yöu", challenge='Bearer realm="ü"', forbidden=bool(credentials.bearer))
        return Identity("good")

    def schemes(self) -> Mapping[str, Any]:
        return {"bearer": {"httpAuthSecurityScheme": {"scheme": "Bearer"}}}


async def test_a_caller_that_is_known_and_may_not_is_denied() -> None:
    async with agent_with(authenticator=Choosy()) as agent:
        assert await agent.stub.ListTasks(ListTasksRequest(), metadata=(("authorization", "Bearer good"),))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await agent.stub.ListTasks(ListTasksRequest(), metadata=(("authorization", "Bearer bad"),))
        assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED
        assert caught.value.details() == "not yöu"


async def test_the_extended_card_is_for_callers_that_are_known() -> None:
    async with agent_with(authenticator=Choosy(), extended_card=extended) as agent:
        request = GetExtendedAgentCardRequest()
        card = await agent.stub.GetExtendedAgentCard(request, metadata=(("authorization", "Bearer good"),))
    assert card.name == "for good"


def extended(caller: Caller) -> AgentCard:
    return build_card(Settings(agent_name=f"for {caller.user}"), "http://h/")


# --- the official client ----------------------------------------------------------------------------------------


async def test_the_official_client_finds_the_binding_in_the_card_and_uses_it(agent: GrpcAgent) -> None:
    config = ClientConfig(
        grpc_channel_factory=grpc.aio.insecure_channel, supported_protocol_bindings=["GRPC"]
    )
    async with await create_client(agent.url, config) as client:
        events = [event async for event in client.send_message(send("river"))]
        assert streamed(events) == "river"
        assert numbers(events) == list(range(1, 10))
        task = await client.get_task(GetTaskRequest(id=events[0].task.id))
        assert sdk_text_of(task) == "river"
        assert len((await client.list_tasks(ListTasksRequest())).tasks) == 1
        context = ClientCallContext(service_parameters={"last-event-id": "4"})
        request = SubscribeToTaskRequest(id=task.id)
        assert [event async for event in client.subscribe(request, context=context)] == events[4:]
        with pytest.raises(TaskNotFoundError, match="Task not found"):
            await client.get_task(GetTaskRequest(id="nobody"))
        wrong = send()
        wrong.message.ClearField("parts")
        with pytest.raises(InvalidParamsError) as caught:
            _ = [event async for event in client.send_message(wrong)]
        assert vars(caught.value)["data"]["errors"][0]["field"] == "message.parts"


# --- load, disconnects, shutdown --------------------------------------------------------------------------------


async def test_many_streams_at_a_time_get_their_own_events_whole(agent: GrpcAgent) -> None:
    results: dict[int, list[StreamResponse]] = {}

    async def run(number: int) -> None:
        results[number] = await stream_of(agent, f"{number:03}" * 10)

    async with anyio.create_task_group() as group:
        for number in range(30):
            group.start_soon(run, number)
    for number, events in results.items():
        assert streamed(events) == f"{number:03}" * 10
        assert numbers(events) == list(range(1, len(events) + 1))


async def read_into(seen: list[StreamResponse], call: Any) -> None:
    while True:
        seen.append(await call.read())


BURST = 1 + 400 * 10_000


async def burst(turn: Turn) -> AsyncIterator[Update | Message]:
    yield ArtifactUpdate(Artifact(artifact_id="text", parts=(Part(text="."),)), last=False)
    for _ in range(400):
        yield TextDelta("text", "x" * 10_000)


async def test_a_client_that_reads_nothing_is_disconnected_and_delays_no_other(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", "tailrace.server")
    settings = Settings(store="sqlite://", grpc_port=0, bounds=Bounds(send_timeout=2))
    narrow = [("grpc.http2.bdp_probe", 0)]  # the client grants a window of 64 KiB, without growth
    async with (
        agent_with(settings, handler=burst) as agent,
        grpc.aio.insecure_channel(agent.address, options=narrow) as channel,
    ):
        stalled = stub_of(channel).SendStreamingMessage(send())
        seen: list[StreamResponse] = [await stalled.read()]
        with anyio.fail_after(20):
            assert len(streamed(await stream_of(agent, "x"))) == BURST
            while "closed the stream of a client that read nothing" not in caplog.text:  # noqa: ASYNC110 — the log is the only state to wait on
                await anyio.sleep(0.02)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await read_into(seen, stalled)
            whole = await follow(agent, seen[0].task.id, after=0)
    assert caught.value.code() is grpc.StatusCode.ABORTED
    assert len(streamed(whole)) == BURST
    assert whole[: len(seen)] == seen
    assert len(seen) < len(whole)


async def test_a_server_that_stops_ends_its_streams_with_their_last_event() -> None:
    events: list[StreamResponse] = []
    with anyio.fail_after(10):
        async with AsyncExitStack() as client:
            async with agent_with() as agent:
                channel = await client.enter_async_context(grpc.aio.insecure_channel(agent.address))
                call = stub_of(channel).SendStreamingMessage(send("hold"))
                while streamed(events) != "held":
                    events.append(await call.read())
            events += await rest_of(call)
    assert kinds(events)[-1] == "failed"
    assert "the server was stopped" in events[-1].status_update.status.message.parts[0].text
    assert numbers(events) == list(range(1, len(events) + 1))


async def test_the_program_serves_both_and_ends_both_in_good_order(tmp_path: Path) -> None:
    script = [*openai_stream(["half"], finish=None), Hang()]
    async with ScriptedUpstream(script) as upstream:
        options = ("--model", "openai:scripted", "--base-url", upstream.base_url)
        store = ("--store", f"sqlite:///{tmp_path}/t.db")
        no_time: Any = {"TAILRACE_SHUTDOWN_GRACE": "0"}
        with served(tmp_path / "log", *options, *store, "--grpc-port", "0", **no_time) as server:
            await server.ready()
            async with grpc.aio.insecure_channel(await grpc_address(server.url)) as channel:
                call = stub_of(channel).SendStreamingMessage(send())
                events: list[StreamResponse] = []
                while streamed(events) != "half":
                    events.append(await call.read())
                server.process.send_signal(signal.SIGTERM)
                with anyio.fail_after(20):
                    events += await rest_of(call)
                    assert await anyio.to_thread.run_sync(server.process.wait) == 0
    assert kinds(events)[-1] == "working"
    assert facts(events[-1])["suspended"] is True  # the next server continues the turn
    assert "Traceback" not in (tmp_path / "log").read_text()


async def test_a_port_that_is_taken_is_an_error_at_the_start() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        settings = Settings(store="sqlite://", grpc_port=port)
        operations = Operations(Engine(Store("sqlite://"), FunctionHandler(Scripted())))
        guard = OriginGuard(settings, authenticated=False)
        with pytest.raises(ConfigurationError, match=f"TAILRACE_GRPC_PORT.*{port}"):
            async with GrpcServer(operations, settings, Anonymous(), origin_guard=guard).running():
                raise AssertionError("it listens on a port that is taken")


# --- without gRPC -----------------------------------------------------------------------------------------------


async def test_without_a_port_there_is_no_grpc_and_the_card_names_none() -> None:
    app = create_app(Settings(store="sqlite://"), handler=Scripted())
    async with serving(app) as url, aiohttp.ClientSession() as http:
        async with http.get(f"{url}/.well-known/agent-card.json") as response:
            card = await response.json()
    assert "GRPC" not in {each["protocolBinding"] for each in card["supportedInterfaces"]}


def test_a_port_without_its_packages_is_refused_with_the_command_to_install_them() -> None:
    code = """
from tailrace.server import Settings, create_app
from tailrace.wrappers import ConfigurationError
try:
    create_app(Settings(store="sqlite://", grpc_port=0), handler=lambda turn: None)
except ConfigurationError as error:
    print(error)
"""
    printed = run_without("grpc", code)
    assert "TAILRACE_GRPC_PORT" in printed
    assert "pip install 'tailrace[grpc]'" in printed
