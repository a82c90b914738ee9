"""``GET /usage``: who may read which usage."""

import csv
import io
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import aiohttp
import pytest

from support.live_server import serving
from support.rpc import Rpc, message
from support.upstream import ScriptedUpstream, openai_stream
from tailrace.server import Settings, Turn, create_app
from tailrace.server.runtime.handlers import Item
from tailrace.streaming.a2a.lifecycle import TaskState
from tailrace.streaming.a2a.stream_extension import EXTENSION_URI
from tailrace.streaming.task.updates import StatusUpdate

OPERATOR = {"Authorization": "Bearer of-operators"}
KEYS = {"caller_keys": "ann:key-of-ann,bob:key-of-bob", "operator_token": "of-operators"}
PRICES = {"openai:m": {"input": "1", "output": "10", "cached": "0.1"}}


def usage(number: int) -> dict[str, Any]:
    """The usage of a response with a number: no two of them have the same counts."""
    given, made = 10**number, 2 * 10**number
    details = {"prompt_tokens_details": {"cached_tokens": number}}
    return {"prompt_tokens": given, "completion_tokens": made, "total_tokens": given + made, **details}


@asynccontextmanager
async def server(*numbers: int, **settings: Any) -> AsyncGenerator[str]:
    """A server whose model reports the usage with these numbers, one a response."""
    scripts = [openai_stream(["Hello"], usage=usage(number)) for number in numbers]
    async with ScriptedUpstream(*scripts) as upstream:
        model = {"model": "openai:m", "base_url": upstream.base_url, "api_key": "none"}
        async with serving(create_app(Settings(store="sqlite://", **model, **settings))) as url:
            yield url


async def ask(url: str, key: str = "") -> None:
    async with Rpc(url) as rpc:
        headers = {"A2A-Version": "1.0", **({"X-API-Key": key} if key else {})}
        await rpc.stream("SendStreamingMessage", message("Hello?"), headers)


async def get(url: str, query: str = "", **headers: str) -> tuple[int, Any]:
    async with aiohttp.ClientSession() as http, http.get(f"{url}/usage{query}", headers=headers) as response:
        is_json = response.content_type == "application/json"
        return response.status, await (response.json() if is_json else response.text())


async def rows(url: str, query: str, **headers: str) -> list[dict[str, Any]]:
    status, body = await get(url, query, **headers)
    assert status == 200, body
    return body["groups"]


async def test_callers_see_their_own_usage_only() -> None:
    async with server(1, 2, **KEYS) as url:
        await ask(url, "key-of-ann")
        await ask(url, "key-of-bob")
        for query in ("", "?caller=bob", "?caller=", "?caller=*", "?group_by=caller", "?caller=nobody"):
            _, body = await get(url, query, **{"X-API-Key": "key-of-ann"})
            assert "bob" not in str(body), query
            assert body["total"]["output_tokens"] in (0, 20), query
        _, own = await get(url, "?caller=ann", **{"X-API-Key": "key-of-ann"})
        assert own["total"]["input_tokens"] == 10
        strange = [
            await get(url, f"?caller={name}", **{"X-API-Key": "key-of-ann"}) for name in ("bob", "nobody")
        ]
        for _, body in strange:
            del body["start"], body["end"]
        assert strange[0] == strange[1]
        assert strange[0][1]["total"]["attempts"] == 0
        for headers in ({}, {"X-API-Key": "wrong"}, {"Authorization": "Bearer wrong"}):
            assert (await get(url, **headers))[0] == 401


async def test_operators_see_the_usage_of_all_callers() -> None:
    async with server(1, 2, prices=PRICES, **KEYS) as url:
        await ask(url, "key-of-ann")
        await ask(url, "key-of-bob")
        found = await rows(url, "?group_by=caller,model", **OPERATOR)
        assert [(each["caller"], each["input_tokens"], each["output_tokens"]) for each in found] == [
            ("ann", 10, 20),
            ("bob", 100, 200),
        ]
        _, body = await get(url, "?caller=bob&model=m&agent=tailrace", **OPERATOR)
        assert body["total"] == {
            "attempts": 1,
            "incomplete_attempts": 0,
            "unpriced_attempts": 0,
            "input_tokens": 100,
            "cached_tokens": 2,
            "output_tokens": 200,
            "reasoning_tokens": 0,
            "cost_usd": "0.0020982",  # 98 at 1, 2 at 0.1, and 200 at 10 dollars for a million tokens
        }
        assert (await get(url, "?model=other", **OPERATOR))[1]["total"]["attempts"] == 0


async def test_usage_is_grouped_by_day_within_a_period() -> None:
    async with server(1) as url:
        await ask(url)
        today = datetime.now(UTC).date()
        [row] = await rows(url, "?group_by=day,agent,provider")
        assert row["day"] in {str(today), str(datetime.now(UTC).date())}
        assert (row["agent"], row["provider"]) == ("tailrace", "openai")
        assert row["unpriced_attempts"] == 1
        assert await rows(url, f"?group_by=day&end={today - timedelta(days=1)}") == []
        assert len(await rows(url, f"?group_by=day&start={today - timedelta(days=1)}T00:00:00%2B02:00")) == 1


@pytest.mark.parametrize("how", ["query", "header"])
async def test_usage_is_exported_as_csv(how: str) -> None:
    async with server(1) as url:
        await ask(url)
        query, headers = ("&format=csv", {}) if how == "query" else ("", {"Accept": "text/csv"})
        status, body = await get(url, f"?group_by=model{query}", **headers)
        assert status == 200
        [row] = csv.DictReader(io.StringIO(body))
        assert (row["model"], row["input_tokens"], row["output_tokens"]) == ("m", "10", "20")


@pytest.mark.parametrize(
    "query",
    [
        "?start=yesterday",
        "?end=0001-01-01",
        "?group_by=task",
        "?format=xml",
        "?callers=ann",
        "?start=9999-12-31",
    ],
)
async def test_invalid_parameters_are_rejected(query: str) -> None:
    async with server(1) as url:
        status, body = await get(url, query)
        assert status == 400
        assert body["error"]["status"] == "INVALID_ARGUMENT"


async def test_the_usage_that_a_handler_reports_counts() -> None:
    async def handle(turn: Turn) -> AsyncIterator[Item]:
        reported = {"inputTokens": 7, "outputTokens": 8, "totalTokens": 15}
        yield StatusUpdate(TaskState.COMPLETED, metadata={EXTENSION_URI: {"usage": reported}})

    async with serving(create_app(Settings(store="sqlite://"), handler=handle)) as url:
        await ask(url)
        [row] = await rows(url, "?group_by=provider,model")
        assert (row["provider"], row["model"], row["input_tokens"], row["output_tokens"]) == ("", "", 7, 8)
