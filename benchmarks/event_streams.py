"""Comparison of the two implementations of server-sent events: ``python -m benchmarks.event_streams``.

*lean* is the implementation of ``tailrace serve``; *sse-starlette* is used under other ASGI servers. Each is measured

- in process: a response of prepared frames, with a ``send`` that does nothing;
- as a separate server: CPU time per token of 100 tasks with a stream each, and per delivery of one task to 100 subscribers;
  memory and asyncio tasks per idle stream.

The CPU time includes the engine and the store.
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

import aiohttp
import psutil
import uvicorn
from fastapi import FastAPI
from starlette.types import Receive, Scope, Send

from tailrace.server import Settings, Turn, create_app
from tailrace.server.http.deferred_response import with_deferral
from tailrace.server.http.sse import EventResponse
from tailrace.server.runtime.stream_registry import OpenStreams
from tailrace.server.settings import Bounds
from tailrace.streaming import ArtifactUpdate, StatusUpdate, TaskState, TextDelta, Update
from tailrace.streaming.a2a.models import Artifact, Part

KINDS = ("lean", "sse-starlette")
STREAMS = 100
TOKENS = 250
PAUSE = 0.04  # seconds between the tokens of a task
IDLE = 500
EVENTS = 50_000
FRAME = (
    b'id: 12\ndata: {"jsonrpc":"2.0","id":1,"result":{"artifactUpdate":{"taskId":"' + b"x" * 200 + b'"}}}\n\n'
)


# --- in process -------------------------------------------------------------------------------------------------


async def microseconds_an_event(kind: str) -> float:
    """Measure the CPU time of one frame in process."""

    async def frames() -> AsyncGenerator[bytes]:
        for _ in range(EVENTS):
            yield FRAME

    async def receive() -> Any:
        await asyncio.get_running_loop().create_future()

    async def send(message: Any) -> None:
        pass

    extensions: dict[str, Any] = {"tailrace.afterwards": []} if kind == "lean" else {}
    scope: Scope = {"type": "http", "method": "GET", "headers": [], "extensions": extensions}
    response = EventResponse(frames(), settings=Settings(), headers={}, streams=OpenStreams())
    begun = time.process_time()
    await response(scope, receive, send)
    for rest in extensions.get("tailrace.afterwards", ()):
        await rest()
    return (time.process_time() - begun) / EVENTS * 1e6


# --- the server -------------------------------------------------------------------------------------------------


async def paced(turn: Turn) -> AsyncIterator[Update]:
    """Send a response of paced tokens. For the message "idle", wait for input instead."""
    yield StatusUpdate(TaskState.WORKING)
    if turn.history.conversation[-1].text == "idle":
        yield StatusUpdate(TaskState.INPUT_REQUIRED)
        return
    yield ArtifactUpdate(Artifact(artifact_id="text", parts=(Part(text=""),)), last=False)
    await asyncio.sleep(2)  # noqa: TID251 — until all clients are connected
    for _ in range(TOKENS):
        await asyncio.sleep(PAUSE)  # noqa: TID251
        yield TextDelta("text", " token")


def serve(kind: str) -> None:
    app: FastAPI = create_app(Settings(store="sqlite://", bounds=Bounds(max_streams=0)), handler=paced)

    @app.get("/measure")
    async def measure() -> dict[str, float]:
        process = psutil.Process()
        return {
            "cpu": time.process_time(),
            "kb": process.memory_info().rss / 1024,
            "tasks": len(asyncio.all_tasks()),
        }

    async def lean_app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await app(scope, receive, send)
            return
        scope = {**scope, "extensions": {**scope.get("extensions", {})}}
        await with_deferral(app, scope, receive, send)

    config = uvicorn.Config(lean_app if kind == "lean" else app, port=0, log_level="info", access_log=False)
    uvicorn.Server(config).run()


# --- the clients ------------------------------------------------------------------------------------------------


def call(method: str, params: dict[str, Any]) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}


def message(text: str) -> dict[str, Any]:
    return {"message": {"messageId": os.urandom(8).hex(), "role": "ROLE_USER", "parts": [{"text": text}]}}


async def drain(http: aiohttp.ClientSession, body: dict[str, Any]) -> None:
    async with http.post("/", json=body) as response:
        async for _ in response.content.iter_any():
            pass


async def sent(http: aiohttp.ClientSession, text: str) -> str:
    """Begin a task, and return its id."""
    params = {**message(text), "configuration": {"returnImmediately": True}}
    async with http.post("/", json=call("SendMessage", params)) as response:
        return json.loads(await response.read())["result"]["task"]["id"]


async def measured(http: aiohttp.ClientSession) -> dict[str, float]:
    async with http.get("/measure") as response:
        return await response.json()


async def measure_server(url: str) -> dict[str, float]:
    connector = aiohttp.TCPConnector(limit=0)
    timeout = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(url, connector=connector, timeout=timeout) as http:
        await drain_all(http, ["warm up"] * 5)
        before = await measured(http)
        await drain_all(http, ["go"] * STREAMS)
        after = await measured(http)
        token = (after["cpu"] - before["cpu"]) / (STREAMS * TOKENS) * 1e6

        task_id = await sent(http, "go")
        before = await measured(http)
        async with asyncio.TaskGroup() as group:
            for _ in range(STREAMS):
                group.create_task(drain(http, call("SubscribeToTask", {"id": task_id})))
        after = await measured(http)
        delivery = (after["cpu"] - before["cpu"]) / (STREAMS * TOKENS) * 1e6

        task_id = await sent(http, "idle")
        await asyncio.sleep(1)  # noqa: TID251
        before = await measured(http)
        readers = [
            asyncio.ensure_future(drain(http, call("SubscribeToTask", {"id": task_id}))) for _ in range(IDLE)
        ]
        await asyncio.sleep(4)  # noqa: TID251
        after = await measured(http)
        for reader in readers:
            reader.cancel()
        await asyncio.gather(*readers, return_exceptions=True)
    return {
        "token": token,
        "delivery": delivery,
        "kb": (after["kb"] - before["kb"]) / IDLE,
        "tasks": (after["tasks"] - before["tasks"]) / IDLE,
    }


async def drain_all(http: aiohttp.ClientSession, texts: list[str]) -> None:
    async with asyncio.TaskGroup() as group:
        for text in texts:
            group.create_task(drain(http, call("SendStreamingMessage", message(text))))


def measure(kind: str) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.event_streams", "--serve", kind]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        for line in process.stderr:
            if "running on " in line:
                url = line.partition("running on ")[2].split()[0]
                break
        else:
            raise RuntimeError("the server did not start")
        return asyncio.run(measure_server(url))
    finally:
        process.terminate()
        process.wait()


def main() -> None:
    """Print a table of both implementations, with the lowest figures of several rounds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--serve", choices=KINDS, help=argparse.SUPPRESS)
    parser.add_argument("--rounds", type=int, default=3, help="rounds; the lowest figures count (default: 3)")
    given = parser.parse_args()
    if given.serve:
        serve(given.serve)
        return
    best: dict[str, dict[str, float]] = {kind: {} for kind in KINDS}
    for _ in range(given.rounds):
        for kind in KINDS:  # in turn, under the same load
            figures = {"event": asyncio.run(microseconds_an_event(kind)), **measure(kind)}
            best[kind] = {name: min(value, best[kind].get(name, value)) for name, value in figures.items()}
    rows = {
        "event": "µs of CPU per event in process",
        "token": f"µs of CPU per paced token, {STREAMS} streams",
        "delivery": f"µs of CPU per delivery, {STREAMS} subscribers",
        "kb": "KB per idle stream",
        "tasks": "asyncio tasks per idle stream",
    }
    print(f"| | {' | '.join(KINDS)} |\n|---|--:|--:|")
    for name, title in rows.items():
        print(f"| {title} | {' | '.join(f'{best[kind][name]:.1f}' for kind in KINDS)} |")


if __name__ == "__main__":
    main()
