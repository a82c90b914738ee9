"""Budgets: refusals on every protocol, and the end of running responses."""

import sys
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import aiohttp
import anyio
import grpc.aio
import pytest
from a2a.types import a2a_pb2_grpc
from pydantic import SecretStr

from support.continuing import ContinuingServer
from support.grpc_agents import grpc_address
from support.live_server import serving
from support.rpc import Rpc, message, streamed_text
from support.sdk import send
from support.store_objects import open_store, write
from support.ui_streams import RUN
from support.upstream import Received, ScriptedUpstream, Step, Wait, openai_stream
from support.usage import sums_by_state
from tailrace.server import Budget, ModelPrice, Settings, Store, create_app
from tailrace.server.runtime.budgets import BudgetExceededError, Budgets, period_of
from tailrace.server.runtime.limits import OverloadedError
from tailrace.server.runtime.prices import NANO, PriceTable
from tailrace.server.store.store import AttemptState, TaskWrite, UsageRecord
from tailrace.streaming.a2a.stream_extension import EXTENSION_URI
from tailrace.wrappers import ConfigurationError

KEYS = {"caller_keys": "ann:a,bob:b"}
USAGE = {"prompt_tokens": 60, "completion_tokens": 40, "total_tokens": 100}
DAY: dict[str, Any] = {"period": "day"}


@asynccontextmanager
async def serving_model(
    script: Sequence[Step] | Callable[[Received], Sequence[Step]],
    *budgets: dict[str, Any],
    name: str = "openai:m",
    **settings: Any,
) -> AsyncGenerator[str]:
    async with ScriptedUpstream(script) as upstream:
        model: dict[str, Any] = {"model": name, "base_url": upstream.base_url, "api_key": "none"}
        given = Settings(
            store="sqlite://", budgets=tuple(map(Budget.model_validate, budgets)), **model, **settings
        )
        async with serving(create_app(given)) as url:
            yield url


async def ask(url: str, key: str = "") -> dict[str, Any]:
    async with Rpc(url) as rpc:
        headers = {"A2A-Version": "1.0", **({"X-API-Key": key} if key else {})}
        body = {"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": message("Hello?")}
        async with rpc.http.post(url, json=body, headers=headers) as response:
            return await response.json()


CHAT = {"model": "m", "messages": [{"role": "user", "content": "Hello?"}]}
UI = {"id": "u1", "role": "user", "parts": [{"type": "text", "text": "Hello?"}]}
REQUESTS: dict[str, tuple[str, Any]] = {
    "http": ("/message:send", message("Hello?")),
    "chat": ("/v1/chat/completions", CHAT),
    "chat-stream": ("/v1/chat/completions", {**CHAT, "stream": True}),
    "responses": ("/v1/responses", {"model": "m", "input": "Hello?"}),
    "ai-sdk": ("/ai-sdk", {"id": "c", "messages": [UI]}),
    "ag-ui": ("/ag-ui", {**RUN, "messages": [{"id": "u1", "role": "user", "content": "Hello?"}]}),
}


async def test_a_message_is_refused_on_every_protocol_when_the_budget_is_used_up() -> None:
    endpoints = ("openai", "ai-sdk", "ag-ui")
    script = openai_stream(["Hi"], usage=USAGE)
    async with serving_model(script, {"tokens": 100, **DAY}, endpoints=endpoints, grpc_port=0) as url:
        first = await ask(url)
        assert first["result"]["task"]["status"]["state"] == "TASK_STATE_COMPLETED"
        refused = await ask(url)
        assert refused["error"]["code"] == -32010
        assert "100 tokens in one day, is used up" in refused["error"]["message"]
        [info, *_] = refused["error"]["data"]
        assert (info["reason"], info["metadata"]["limit"]) == ("BUDGET_EXCEEDED", "budgets")
        async with aiohttp.ClientSession() as http:
            for name, (path, body) in REQUESTS.items():
                async with http.post(url + path, json=body, headers={"A2A-Version": "1.0"}) as response:
                    assert response.status == 429, name
                    assert 0 < int(response.headers["Retry-After"]) <= 86_400, name
                    assert "it renews at" in await response.text(), name
                    if name.startswith(("chat", "responses")):
                        error = (await response.json())["error"]
                        assert (error["type"], error["code"]) == ("rate_limit_error", "budget_exceeded")
        async with grpc.aio.insecure_channel(await grpc_address(url)) as channel:
            stub: Any = a2a_pb2_grpc.A2AServiceStub(channel)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await stub.SendMessage(send("Hello?"), metadata=(("a2a-version", "1.0"),))
            assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_budgets_belong_to_callers_or_to_all_of_them() -> None:
    script = openai_stream(["Hi"], usage=USAGE)
    own, shared = {"tokens": 250, "caller": "ann", **DAY}, {"tokens": 450, "shared": True, **DAY}
    async with serving_model(script, own, shared, **KEYS) as url:
        outcomes = ["error" in await ask(url, key) for key in "aaaabbb"]
        assert outcomes == [False, False, False, True, False, False, True]


class PacedProvider:
    """A provider whose chunks leave one by one, when the test requests them.

    Args:
        count: The number of chunks.
        expected: The number of requests after which `all_requested` is set.
    """

    def __init__(self, count: int, expected: int = 1) -> None:
        self._expected = expected
        self.all_requested = anyio.Event()
        self.next = [anyio.Event() for _ in range(count)]
        self.script = [
            step
            for chunk, event in zip(openai_stream(["word "] * count, finish=None)[1:], self.next, strict=True)
            for step in (Wait(event), chunk)
        ]

    def respond(self, _request: Received) -> Sequence[Step]:
        """The script of a response."""
        self._expected -= 1
        if not self._expected:
            self.all_requested.set()
        return self.script


@pytest.mark.parametrize(
    ("limit", "settings"),
    [
        ({"tokens": 5}, {}),
        ({"usd": "0.00001"}, {"prices": {"openai:m": ModelPrice(input=Decimal(1), output=Decimal(2))}}),
        ({"usd": "0.00005"}, {"name": "openai:gpt-4o"}),  # from the price table: 10 US dollars per million
    ],
    ids=["tokens", "configured-price", "price-table"],
)
async def test_a_running_response_ends_with_the_read_that_exceeds_the_budget(
    limit: dict[str, Any], settings: dict[str, Any]
) -> None:
    provider = PacedProvider(20)
    sent = 1
    budget = {**limit, **DAY}

    def seen(events: list[tuple[int, dict[str, Any]]]) -> None:
        nonlocal sent
        if streamed_text(events) == "word " * sent:
            provider.next[sent].set()
            sent += 1

    async with serving_model(provider.script, budget, **settings) as url, Rpc(url) as rpc:
        provider.next[0].set()
        with anyio.fail_after(10):
            events = await rpc.stream("SendStreamingMessage", message("Hello?"), seen=seen)
        states = await sums_by_state(url)
        refused = await ask(url)
    assert streamed_text(events) == "word " * 5
    assert sent == 6  # the sixth chunk exceeds the budget
    last = events[-1][1]["statusUpdate"]
    assert last["status"]["state"] == "TASK_STATE_FAILED"
    assert "is used up" in last["status"]["message"]["parts"][0]["text"]
    assert last["metadata"][EXTENSION_URI]["error"]["code"] == "budget_exceeded"
    assert states.keys() == {"cut"}
    assert refused["error"]["code"] == -32010  # although the provider reported no usage


async def test_a_server_with_a_budget_in_dollars_does_not_start_without_its_prices(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "genai_prices", object())
    app = create_app(
        Settings(model="openai:m", api_key=SecretStr("k"), budgets=(Budget(usd=Decimal(1), period="day"),))
    )
    with pytest.raises(ConfigurationError, match="prices of genai-prices cannot be loaded"):
        async with app.router.lifespan_context(app):
            pass


async def test_running_responses_share_a_budget() -> None:
    provider = PacedProvider(20, expected=2)
    async with serving_model(provider.respond, {"tokens": 7, **DAY}) as url, Rpc(url) as rpc:
        texts: list[str] = []

        async def run() -> None:
            texts.append(streamed_text(await rpc.stream("SendStreamingMessage", message("Hello?"))))

        async with anyio.create_task_group() as group:
            group.start_soon(run)
            group.start_soon(run)
            with anyio.fail_after(10):
                await provider.all_requested.wait()  # a message after the end of a response would be refused
            for event in provider.next:
                event.set()
    received = sum(text.count("word") for text in texts)
    assert received <= 7


async def test_the_openai_api_reports_a_response_that_the_budget_ended() -> None:
    script = openai_stream(["word "] * 50, usage=USAGE)
    async with serving_model(script, {"tokens": 5, **DAY}) as url, aiohttp.ClientSession() as http:
        async with http.post(f"{url}/v1/chat/completions", json=CHAT) as response:
            assert response.status == 429
            assert int(response.headers["Retry-After"]) > 0
            assert (await response.json())["error"]["code"] == "budget_exceeded"


async def test_calls_are_refused_while_the_ledger_cannot_be_read(caplog: pytest.LogCaptureFixture) -> None:
    budgets = Budgets(
        [Budget(tokens=100, **DAY)], Store("sqlite://"), PriceTable()
    )  # a store that is not open
    with pytest.raises(OverloadedError, match="the budget cannot be checked at present"):
        await budgets.check("ann")
    assert "budgets cannot be checked: the store is closed" in caplog.text


async def test_servers_share_a_budget_in_the_database(store_url: str) -> None:
    async with open_store(store_url) as store:
        budget = Budget(tokens=100, period="month")
        first, second = (Budgets([budget], store, PriceTable(), is_shared=True) for _ in range(2))
        await first.check("ann")
        await second.check("ann")
        now = int(datetime.now(UTC).timestamp() * 1000)
        record = UsageRecord(1, 1, "ann", "", "openai", "m", AttemptState.CUT, now, now, chunks=30)
        await commit(store, write("t", 1), record)
        await second.check("ann")
        final = UsageRecord(1, 2, "ann", "", "openai", "m", AttemptState.FINAL, now, now, "", 60, 0, 10)
        await commit(store, write("t", 2), final)
        for budgets in (first, second):
            with pytest.raises(BudgetExceededError):
                await budgets.check('["tenant", "ann"]')  # the tenants of a caller share its budget
            await budgets.check("bob")


async def commit(store: Any, events: TaskWrite, record: UsageRecord) -> None:
    await store.commit([TaskWrite(events.task_id, events.owner, "c", events.events, usage=(record,))])


async def test_costs_of_incomplete_responses_count_with_their_chunks(store_url: str) -> None:
    async with open_store(store_url) as store:
        prices = PriceTable({"openai:m": ModelPrice(input=Decimal(1), output=Decimal(10))})
        now = int(datetime.now(UTC).timestamp() * 1000)
        record = UsageRecord(
            1, 1, "ann", "", "openai", "m", AttemptState.CUT, now, now, cost=NANO // 1000, chunks=1000
        )
        await commit(store, write("t", 1), record)
        await Budgets([Budget(usd=Decimal("0.0111"), period="day")], store, prices).check("ann")
        with pytest.raises(BudgetExceededError):
            await Budgets([Budget(usd=Decimal("0.011"), period="day")], store, prices).check("ann")


async def test_an_attached_response_counts_once_within_a_process(tmp_path: Path) -> None:
    """The chunks before a lost connection do not count, because the next attempt reports the usage of the complete response."""
    server = ContinuingServer("openai-background", [f"{number} " for number in range(40)])
    server.cut = server.first_body.index(b'"30 "')
    async with ScriptedUpstream(server.respond, lists_models=True) as upstream:
        settings = Settings(
            store=f"sqlite:///{tmp_path}/t.db",
            model="openai-responses:m",
            base_url=upstream.base_url,
            api_key=SecretStr("none"),
            upstream_background=True,
            budgets=(Budget(tokens=60, period="month"),),
        )
        async with serving(create_app(settings)) as url:
            assert "TASK_STATE_COMPLETED" in str(await ask(url))
            assert "TASK_STATE_COMPLETED" in str(await ask(url))
    assert server.attachments == 1


async def test_attempts_of_the_complete_period_count_once(store_url: str) -> None:
    """Older attempts are read once, and newer ones before each call."""
    async with open_store(store_url) as store:
        start, _ = period_of("month", datetime.now(UTC))
        first = int(start.timestamp() * 1000)
        now = int(datetime.now(UTC).timestamp() * 1000)
        budgets = Budgets([Budget(tokens=100, period="month")], store, PriceTable(), is_shared=True)

        async def spend(number: int, ended: int, tokens: int) -> None:
            record = UsageRecord(
                1, number, "ann", "", "openai", "m", AttemptState.FINAL, ended, ended, "", tokens
            )
            await commit(store, write("t", number), record)

        for number, ended in enumerate([first - 1, first, (first + now) // 2], 1):
            await spend(number, ended, 32)
        for number, tokens in enumerate([16, 16, 3], 4):
            await budgets.check("ann")
            await budgets.check("ann")
            await spend(number, now, tokens)
        await budgets.check("ann")
        await spend(7, now, 1)
        with pytest.raises(BudgetExceededError):
            await budgets.check("ann")


@pytest.mark.parametrize(
    ("name", "start", "end"),
    [
        ("minute", "2028-02-29T23:59:00", "2028-03-01T00:00:00"),
        ("hour", "2028-02-29T23:00:00", "2028-03-01T00:00:00"),
        ("day", "2028-02-29T00:00:00", "2028-03-01T00:00:00"),
        ("month", "2028-02-01T00:00:00", "2028-03-01T00:00:00"),
    ],
)
def test_periods_begin_and_end_in_utc(name: str, start: str, end: str) -> None:
    found = period_of(name, datetime(2028, 2, 29, 23, 59, 30, 5, tzinfo=UTC))
    assert [f"{each:%Y-%m-%dT%H:%M:%S}" for each in found] == [start, end]


@pytest.mark.parametrize(
    "members",
    [
        {},
        {"tokens": 1, "usd": "1"},
        {"tokens": 0},
        {"usd": "0"},
        {"tokens": 1, "caller": "a", "shared": True},
    ],
)
def test_contradictory_budgets_are_refused(members: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="budgets"):
        Settings.model_validate({"budgets": [{**members, **DAY}]})
