"""Endpoints for probes and metrics."""

import json
import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import anyio
import anyio.lowlevel
import pytest
from fastapi import FastAPI

from support.agents import Scripted
from support.live_server import serving
from support.metrics import openmetrics_names, scrape
from support.rpc import Rpc, message
from tailrace.server import Engine, FunctionHandler, Settings, Store, create_app, create_router
from tailrace.server.runtime.active_task import Subscription
from tailrace.streaming.a2a.models import Message, Part, Role
from tailrace.streaming.a2a.requests import SendMessageRequest
from tailrace.wrappers import StoreError

DASHBOARD = Path(__file__).parents[3] / "docs/grafana/tailrace.json"


@asynccontextmanager
async def server(**settings: Any) -> AsyncGenerator[Rpc]:
    app = create_app(Settings(store="sqlite://", **settings), handler=Scripted())
    async with serving(app) as url, Rpc(url) as rpc:
        yield rpc


async def get(rpc: Rpc, path: str, **headers: str) -> tuple[int, str]:
    async with rpc.http.get(rpc.url + path, headers=headers) as response:
        return response.status, await response.text()


async def test_a_server_that_runs_is_alive_and_ready() -> None:
    async with server(caller_keys="ann:key") as rpc:  # probes send no keys
        status, body = await get(rpc, "/healthz")
        assert (status, json.loads(body)) == (200, {"status": "ok"})
        status, body = await get(rpc, "/readyz")
        assert (status, json.loads(body)) == (
            200,
            {"status": "ready", "checks": {"engine": "ok", "store": "ok"}},
        )
        async with rpc.http.head(f"{rpc.url}/readyz") as response:
            assert response.status == 200


class _Broken(Store):
    async def check(self) -> None:
        raise StoreError("the disk at /srv/secret/path is gone")


async def test_readiness_names_the_failed_check_without_details() -> None:
    app = create_app(Settings(), handler=Scripted(), store=_Broken("sqlite://"))
    async with serving(app) as url, Rpc(url) as rpc:
        status, body = await get(rpc, "/readyz")
        assert status == 503
        assert json.loads(body) == {
            "status": "not ready",
            "checks": {"engine": "ok", "store": "it reports an error"},
        }
        status, _ = await get(rpc, "/healthz")  # a restart would not fix it
        assert status == 200


class _Full(Store):
    full = True

    async def commit(self, writes: Any) -> None:
        if self.full:
            raise StoreError("the disk is full")
        await super().commit(writes)

    async def try_writing(self) -> None:
        if self.full:
            raise StoreError("the disk is full")
        await super().try_writing()


async def test_a_store_that_keeps_nothing_is_not_ready_until_it_does_again() -> None:
    store = _Full("sqlite://")
    engine = Engine(store, FunctionHandler(Scripted()))
    async with engine.running():
        assert (await engine.health()).ready
        user_message = Message(message_id="m", role=Role.USER, parts=(Part(text="hi"),))
        with pytest.raises(StoreError):
            await _answered(engine, user_message)
        health = await engine.health()
        assert health.problems == {"store": "the last transaction failed"}
        store.full = False
        # The server gets no message while it is not ready: it recovers by itself.
        with anyio.fail_after(5):
            while not (await engine.health()).ready:
                await anyio.lowlevel.checkpoint()
        await _answered(engine, user_message)
        engine.stop_requested.set()
        assert (await engine.health()).problems == {"engine": "stopping"}
    health = await engine.health()
    assert set(health.problems) == {"engine", "store"}
    assert health.problems["engine"] == "not running"


async def _answered(engine: Engine, user_message: Message) -> None:
    started = await engine.start(SendMessageRequest(message=user_message))
    assert isinstance(started, Subscription)
    async for _ in started.batches():
        pass


async def test_metrics_require_a_caller_key_unless_they_have_their_own_token() -> None:
    async with server(caller_keys="ann:key") as rpc:
        assert (await get(rpc, "/metrics"))[0] == 401
        assert (await get(rpc, "/metrics", **{"X-API-Key": "key"}))[0] == 200
    async with server(caller_keys="ann:key", metrics_token="scraper") as rpc:
        assert (await get(rpc, "/metrics", **{"X-API-Key": "key"}))[0] == 401
        assert (await get(rpc, "/metrics", Authorization="Bearer wrong"))[0] == 401
        assert (await get(rpc, "/metrics", Authorization="Bearer scraper"))[0] == 200
    async with server(endpoints=()) as rpc:
        assert (await get(rpc, "/metrics"))[0] == 404


async def test_metrics_come_as_openmetrics_where_the_scraper_takes_that() -> None:
    async with server() as rpc:
        await rpc.result("SendMessage", message())
        status, body = await get(rpc, "/metrics", Accept="application/openmetrics-text;version=1.0.0")
    assert status == 200
    assert {"tailrace_turns", "tailrace_store_lag_seconds"} <= openmetrics_names(body)


async def test_two_servers_in_one_process_count_for_themselves() -> None:
    app = FastAPI()
    for name in ("one", "two"):
        router = create_router(Settings(store="sqlite://", agent_name=name), handler=Scripted())
        app.include_router(router, prefix=f"/{name}")
    async with serving(app) as url:
        async with Rpc(url) as rpc:
            body = {"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": message()}
            await rpc.raw(json.dumps(body).encode(), path="/one/")
        one, two = await scrape(f"{url}/one"), await scrape(f"{url}/two")
    assert one.value("gen_ai_invoke_agent_duration_seconds_count", gen_ai_agent_name="one") == 1
    assert two.value("tailrace_turns_total") == 0


async def test_every_query_of_the_dashboard_names_existing_metrics() -> None:
    async with server() as rpc:
        await rpc.result("SendMessage", message())
        async with aiohttp.ClientSession() as http, http.get(f"{rpc.url}/metrics") as response:
            text = await response.text()
        there = await scrape(rpc.url)
    # Metrics with labels have samples only after the first event; their names and types are always listed.
    known = set(there.names)
    for name, kind in re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE):
        known |= {f"{name}{end}" for end in ("_bucket", "_sum", "_count")} if kind == "histogram" else {name}
    dashboard = json.loads(DASHBOARD.read_text())
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())]
    queries += [each["query"]["query"] for each in dashboard["templating"]["list"] if each["type"] == "query"]
    named = "\n".join(re.sub(r"\bby \([^)]*\)", "", query) for query in queries)
    documented = set(re.findall(r"\b(?:tailrace|gen_ai|process)_\w+", named))
    assert len(documented) > 20
    assert documented <= known
    # Every metric of the server appears on a dashboard.
    assert {_family(name) for name in known if name.startswith(("tailrace_", "gen_ai_"))} <= set(
        map(_family, documented)
    )


def _family(name: str) -> str:
    return re.sub(r"_(bucket|sum|count|total|created)$", "", name)
