"""The ledger has the tokens that providers count, whatever clients and connections do."""

import random
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import aiohttp
import anyio
import pytest

from support.agents import Scripted
from support.continuing import FORMAT_OF, ContinuingServer
from support.live_server import serving
from support.metrics import scrape
from support.rpc import Rpc, message
from support.upstream import Cut, Hang, Received, ScriptedUpstream, SetEvent, Step, json_answer, openai_stream
from support.usage import sums_by_state, totals
from tailrace.server import DirectHandler, Settings, Turn, create_app
from tailrace.server.runtime.handlers import Item
from tailrace.streaming import Agent
from tailrace.streaming.a2a.lifecycle import TaskState
from tailrace.streaming.a2a.models import Message, Part, Role
from tailrace.streaming.task.updates import StatusUpdate
from tailrace.wrappers.providers import create_model

PIECES = ["Water ", "flows ", "to the sea", "."]
FAST: dict[str, Any] = {"bounds": {"upstream_retries": 0}}


class CountingProvider:
    """A provider that counts the tokens of each response, reports them, and breaks some responses off.

    Args:
        chance: Decides which responses break off, and where.
        cut: The share of responses that break off.

    Attributes:
        reported: The counts that were sent to the client.
        requests: The number of requests.
    """

    def __init__(self, chance: random.Random, cut: float = 0.0) -> None:
        self._chance = chance
        self._cut = cut
        self.reported: list[tuple[int, int]] = []
        self.requests = 0

    def respond(self, request: Received) -> Sequence[Step]:
        """The script of a response."""
        if request.method == "GET":
            return json_answer({"object": "list", "data": []})
        self.requests += 1
        counts = self._chance.randrange(1, 1000), self._chance.randrange(1, 1000)
        usage = {"prompt_tokens": counts[0], "completion_tokens": counts[1], "total_tokens": sum(counts)}
        script = openai_stream(PIECES, usage=usage)
        if self._chance.random() < self._cut:
            return [*script[: self._chance.randrange(1, len(PIECES) + 1)], Cut()]
        self.reported.append(counts)
        return script

    @property
    def total(self) -> tuple[int, int]:
        """The sums of the reported counts."""
        return sum(given for given, _ in self.reported), sum(made for _, made in self.reported)


@asynccontextmanager
async def serving_model(respond: Any, name: str = "openai:m", **settings: Any) -> AsyncGenerator[str]:
    async with ScriptedUpstream(respond, lists_models=True) as upstream:
        model = {"model": name, "base_url": upstream.base_url, "api_key": "none"}
        async with serving(create_app(Settings(store="sqlite://", **model, **FAST, **settings))) as url:
            yield url


async def until_ended(url: str, count: int) -> None:
    """Wait until a number of tasks have ended."""
    with anyio.fail_after(30):
        while (await scrape(url)).value("tailrace_turns_total") < count:
            pass


async def test_clients_that_leave_and_responses_that_break_off_change_no_sum() -> None:
    """200 responses break off about half of the time, and half of the clients leave after the first event."""
    provider = CountingProvider(random.Random(25), cut=0.5)
    async with serving_model(provider.respond) as url, aiohttp.ClientSession() as http:

        async def run(number: int) -> None:
            body = {"jsonrpc": "2.0", "id": 1, "method": "SendStreamingMessage", "params": message("Rivers?")}
            async with http.post(url, json=body, headers={"A2A-Version": "1.0"}) as response:
                await response.content.readline()
                if number % 2:
                    await response.read()

        for start in range(0, 200, 20):
            async with anyio.create_task_group() as group:
                for number in range(start, start + 20):
                    group.start_soon(run, number)
        await until_ended(url, 200)
        states = await sums_by_state(url)
    assert provider.requests > 250
    assert totals(states) == provider.total
    assert states["final"]["attempts"] == len(provider.reported)
    assert states["cut"]["attempts"] == provider.requests - len(provider.reported)
    assert states.keys() == {"final", "cut"}


@pytest.mark.parametrize("kind", sorted(FORMAT_OF))
@pytest.mark.parametrize("at", [0.3, 0.95])
async def test_each_format_is_counted_with_its_cuts(kind: str, at: float) -> None:
    server = ContinuingServer(kind, PIECES)
    server.cut = int(len(server.first_body) * at)
    async with AsyncExitStack() as stack:
        upstream = await stack.enter_async_context(ScriptedUpstream(server.respond, lists_models=True))
        model: dict[str, Any] = {
            "model": f"{FORMAT_OF[kind]}:m",
            "base_url": upstream.base_url,
            "api_key": "none",
        }
        settings = Settings(store="sqlite://", upstream_background=kind == "openai-background", **model)
        url = await stack.enter_async_context(serving(create_app(settings)))
        rpc = await stack.enter_async_context(Rpc(url))
        await rpc.stream("SendStreamingMessage", message("Rivers?"))
        states = await sums_by_state(url)
    before = server.usage_before_cut
    counted = [*server.usages, before]
    assert totals(states) == (sum(each[0] for each in counted), sum(each[1] for each in counted))
    requests = [each for each in upstream.requests if each.method == "POST"]
    # An attempt that another one attached to is not counted.
    assert sum(each["attempts"] for each in states.values()) == len(requests)


async def test_a_canceled_response_is_recorded_as_cut() -> None:
    begun = anyio.Event()
    script = [*openai_stream(PIECES[:2], finish=None), SetEvent(begun), Hang()]
    async with serving_model(script) as url, Rpc(url) as rpc:
        sent = await rpc.result(
            "SendMessage", {**message("Rivers?"), "configuration": {"returnImmediately": True}}
        )
        await begun.wait()
        await rpc.result("CancelTask", {"id": sent["task"]["id"]})
        states = await sums_by_state(url)
    assert states["cut"]["attempts"] == states["cut"]["incomplete_attempts"] == 1
    assert states.keys() == {"cut"}


async def test_a_response_without_usage_is_recorded_as_unreported() -> None:
    async with serving_model(openai_stream(PIECES)) as url, Rpc(url) as rpc:
        await rpc.stream("SendStreamingMessage", message("Rivers?"))
        states = await sums_by_state(url)
    assert states.keys() == {"unreported"}
    assert states["unreported"]["incomplete_attempts"] == 1


async def test_the_first_responses_have_costs_of_the_price_table() -> None:
    usage = {"prompt_tokens": 60, "completion_tokens": 40, "total_tokens": 100}
    script = openai_stream(PIECES, usage=usage)
    async with serving_model(script, "openai:gpt-4o") as url, Rpc(url) as rpc:
        async with anyio.create_task_group() as group:
            for _ in range(3):
                group.start_soon(rpc.stream, "SendStreamingMessage", message("Rivers?"))
        states = await sums_by_state(url)
    assert states["final"]["attempts"] == 3
    assert states["final"]["unpriced_attempts"] == 0
    assert float(states["final"]["cost_usd"]) > 0


async def test_a_rejected_request_is_recorded_without_tokens() -> None:
    async with serving_model(json_answer({"error": {"message": "no"}}, 401)) as url, Rpc(url) as rpc:
        await rpc.stream("SendStreamingMessage", message("Rivers?"))
        states = await sums_by_state(url)
        found = await scrape(url)
    assert states.keys() == {"failed"}
    assert states["failed"]["incomplete_attempts"] == 0
    labels = {"gen_ai_provider_name": "openai", "gen_ai_request_model": "m"}
    assert found.value("tailrace_usage_attempts_total", state="failed", **labels) == 1


async def test_a_deleted_conversation_remains_in_the_sums() -> None:
    provider = CountingProvider(random.Random(1))
    async with serving_model(provider.respond) as url, Rpc(url) as rpc:
        for _ in range(2):  # rows without a task do not conflict
            events = await rpc.stream("SendStreamingMessage", message("Rivers?"))
            await rpc.result("DeleteTask", {"id": events[0][1]["task"]["id"]})
        assert totals(await sums_by_state(url)) == provider.total


@pytest.mark.parametrize("is_direct", [False, True])
async def test_agents_in_handlers_are_counted(is_direct: bool) -> None:
    """Also if the response is a message without a task, so that no event is persisted."""
    provider = CountingProvider(random.Random(2))
    async with ScriptedUpstream(provider.respond) as upstream:
        agent = Agent(create_model("openai:m", base_url=upstream.base_url, api_key="none"))

        async def handle(turn: Turn) -> AsyncIterator[Item]:
            result = await agent.run("Rivers?")
            if is_direct:
                yield Message(message_id="m", role=Role.AGENT, parts=(Part(text=result.output),))
            else:
                yield StatusUpdate(TaskState.COMPLETED)

        app = create_app(Settings(store="sqlite://"), handler=DirectHandler(handle))
        async with serving(app) as url, Rpc(url) as rpc:
            answer = await rpc.result("SendMessage", message("Rivers?"))
            assert ("message" in answer) == is_direct
            await until_ended(url, 1)
            assert totals(await sums_by_state(url)) == provider.total
        await agent.model.aclose()


async def test_the_usage_that_a_remote_agent_reports_is_counted() -> None:
    provider = CountingProvider(random.Random(3))
    async with serving_model(provider.respond) as behind:
        settings = Settings(store="sqlite://", agent=behind)
        app = await anyio.to_thread.run_sync(create_app, settings)  # fetches the card of the agent
        async with serving(app) as url, Rpc(url) as rpc:
            for _ in range(2):
                await rpc.stream("SendStreamingMessage", message("Rivers?"))
            states = await sums_by_state(url, ",model")
            assert totals(states) == totals(await sums_by_state(behind)) == provider.total
    assert states["final"]["model"] == ""


async def test_a_handler_without_usage_is_not_counted() -> None:
    async with serving(create_app(Settings(store="sqlite://"), handler=Scripted())) as url, Rpc(url) as rpc:
        await rpc.result("SendMessage", message("Rivers?"))
        assert await sums_by_state(url) == {}
