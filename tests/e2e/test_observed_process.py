"""Observability of a real ``tailrace serve`` process: log, probes, and spans at a collector."""

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
from aiohttp import web
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from support.metrics import scrape
from support.processes import served
from support.rpc import Rpc, message
from support.upstream import ScriptedUpstream, openai_stream

TRACE = "0af7651916cd43dd8448eb211c80319c"


class Collector:
    """Receives OTLP/HTTP exports.

    Attributes:
        url: Its URL.
        spans: Every exported span.
        services: The service names of the exporters.
    """

    def __init__(self) -> None:
        self.url = ""
        self.spans: list[Span] = []
        self.services: set[str] = set()

    async def take(self, request: web.Request) -> web.Response:
        if request.path == "/v1/traces":
            for sent in ExportTraceServiceRequest.FromString(await request.read()).resource_spans:
                facts = {each.key: each.value.string_value for each in sent.resource.attributes}
                self.services.add(facts["service.name"])
                self.spans += [span for scope in sent.scope_spans for span in scope.spans]
        return web.Response()


@asynccontextmanager
async def collecting() -> AsyncGenerator[Collector]:
    collector = Collector()
    app = web.Application()
    app.router.add_post("/{path:.*}", collector.take)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    collector.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield collector
    finally:
        await runner.cleanup()


async def test_a_served_model_can_be_observed_from_outside(tmp_path: Path) -> None:
    log = tmp_path / "log"
    async with ScriptedUpstream(openai_stream(["Hel", "lo"])) as upstream, collecting() as collector:
        options = ("--model", "openai:scripted", "--base-url", upstream.base_url, "--store", "sqlite://")
        environment = {
            "TAILRACE_LOG_FORMAT": "json",
            "TAILRACE_CALLER_KEYS": "ann:key",
            "TAILRACE_METRICS_TOKEN": "scraper",
            "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url,
            "OTEL_METRICS_EXPORTER": "none",
            "OTEL_LOGS_EXPORTER": "none",
        }
        with served(log, *options, **environment) as server:
            await server.ready()
            async with Rpc(server.url) as rpc:
                async with rpc.http.get(f"{server.url}/readyz") as response:
                    assert (await response.json())["checks"] == {"engine": "ok", "store": "ok"}
                headers = {"traceparent": f"00-{TRACE}-b7ad6b7169203331-01", "X-API-Key": "key"}
                await rpc.stream("SendStreamingMessage", message("a secret of mine"), headers)
                headers["X-API-Key"] = "not this one"
                async with rpc.http.post(server.url, json={}, headers=headers) as response:
                    assert response.status == 401
            seen = await scrape(server.url, {"Authorization": "Bearer scraper"})
            server.process.terminate()
            assert await anyio.to_thread.run_sync(server.process.wait) == 0
        sent = (await upstream.received()).headers["traceparent"]
    spans = {span.name: span for span in collector.spans if span.trace_id.hex() == TRACE}
    assert spans.keys() == {"POST /", "invoke_agent tailrace", "chat scripted"}
    assert spans["invoke_agent tailrace"].trace_id.hex() == TRACE
    assert sent == f"00-{TRACE}-{spans['chat scripted'].span_id.hex()}-01"
    assert collector.services == {"tailrace"}
    assert seen.value("tailrace_turns_total", outcome="completed") == 1
    assert seen.value("process_resident_memory_bytes") > 0
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert {"uvicorn.error", "tailrace.server"} <= {line["logger"] for line in lines}
    warnings = ("tailrace.server", "warning")
    [refused] = [line for line in lines if (line["logger"], line["level"]) == warnings]
    assert refused["trace_id"] == TRACE
    text = log.read_text()
    assert "secret" not in text
    assert "not this one" not in text
