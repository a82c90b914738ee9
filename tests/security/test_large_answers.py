"""Answers of a hostile remote agent are bounded: bytes, JSON values, artifacts, parts, and processing time."""

import base64
import json
from collections.abc import Callable, Iterator
from typing import Any

import anyio
import pytest
from pydantic import SecretStr

from support.callers import CALLER_KEYS, headers_of
from support.live_server import serving
from support.loop_lag import LoopLag
from support.rpc import Rpc, message
from support.upstream import Head, Received, ScriptedUpstream, Step, json_answer, sse
from tailrace.server import Settings, create_app
from tailrace.server.remote import agent_handler, client, event_converter, http_calls
from tailrace.server.remote.http_codecs import Binding
from tailrace.streaming.a2a import models
from tailrace.wrappers.concurrency.worker_thread import in_event_loop
from tailrace.wrappers.decoding.json_value_counter import count_json_values

IDS = {"taskId": "t", "contextId": "c"}
CARD: dict[str, Any] = {
    "name": "Hostile",
    "description": "Sends too much.",
    "version": "1",
    "supportedInterfaces": [{"url": "/rpc", "protocolBinding": "JSONRPC", "protocolVersion": "1.0"}],
    "capabilities": {"streaming": True},
    "skills": [],
}
TEXT = {"text": "x"}
NONE: list[int] = []

Result = dict[str, Any]


def artifact(name: str, *parts: object, append: bool = False) -> Result:
    made = {"artifactId": name, "parts": list(parts)}
    return {"artifactUpdate": {**IDS, "artifact": made, "append": append}}


def status(state: str, *parts: object) -> Result:
    status_message: dict[str, Any] = {"messageId": "m", "role": "ROLE_AGENT", "parts": list(parts)}
    return {
        "statusUpdate": {
            **IDS,
            "status": {"state": f"TASK_STATE_{state}", **({"message": status_message} if parts else {})},
        }
    }


def agent(*results: Result) -> Callable[[Received], list[Step]]:
    """Return the script of an agent that streams these results and then completes its task."""

    def script(request: Received) -> list[Step]:
        if request.method == "GET":
            return json_answer(CARD, headers={"set-cookie": "card=1; Path=/"})
        call = request.json
        if call["method"] != "SendStreamingMessage":
            task = {"id": "t", "contextId": "c", "status": {"state": "TASK_STATE_CANCELED"}}
            return json_answer({"jsonrpc": "2.0", "id": call["id"], "result": task})
        begin = {"task": {"id": "t", "contextId": "c", "status": {"state": "TASK_STATE_WORKING"}}}
        events = [begin, *results, status("COMPLETED")]
        head = Head(200, {"content-type": "text/event-stream", "set-cookie": "session=of-a-caller; Path=/"})
        return [head, *(sse({"jsonrpc": "2.0", "id": call["id"], "result": each}) for each in events)]

    return script


async def answer_of(
    script: Callable[[Received], list[Step]], **settings: Any
) -> tuple[dict[str, Any], float]:
    """Return the task made from a hostile agent's answer, and the longest delay of the event loop in seconds of CPU."""
    async with ScriptedUpstream(script) as upstream:
        given = Settings(agent=upstream.base_url.removesuffix("/v1"), store="sqlite://", **settings)
        app = await anyio.to_thread.run_sync(create_app, given)
        async with serving(app) as url, Rpc(url) as rpc:
            params = {**message("go"), "configuration": {"historyLength": 0}}
            async with LoopLag() as lag:
                task = (await rpc.result("SendMessage", params))["task"]
    return task, lag.worst_cpu


def many(count: int) -> Iterator[Result]:
    return (artifact(f"a{number}", TEXT) for number in range(count))


HOSTILE: dict[str, Callable[[], list[Result]]] = {
    "values in data": lambda: [artifact("a", {"data": {"k": [1] * 200_000}})],
    "empty lists": lambda: [artifact("a", {"data": {"k": [NONE] * 200_000}})],
    "parts": lambda: [artifact("a", *[TEXT] * 60_000)],
    "parts with metadata": lambda: [artifact("a", *[{**TEXT, "metadata": {"k": 1}}] * 12_000)],
    "appended parts": lambda: [
        artifact("a", *[{"data": {"k": 1}}] * 1_000, append=number > 0) for number in range(11)
    ],
    "parts of a message": lambda: [status("WORKING", *[TEXT] * 3_000)],
    "artifacts of a task": lambda: [
        {
            "task": {
                "id": "t",
                "contextId": "c",
                "status": {"state": "TASK_STATE_WORKING"},
                "artifacts": [{"artifactId": f"a{number}", "parts": [TEXT]} for number in range(2_000)],
            }
        }
    ],
    "artifacts": lambda: list(many(1_001)),
    "history": lambda: [
        {
            "task": {
                "id": "t",
                "contextId": "c",
                "status": {"state": "TASK_STATE_WORKING"},
                "history": [{"messageId": "m", "role": "ROLE_AGENT", "parts": [TEXT]}] * 30_000,
            }
        }
    ],
}


@pytest.mark.parametrize("results", HOSTILE.values(), ids=HOSTILE)
async def test_an_answer_that_is_too_large_fails_the_task(results: Callable[[], list[Result]]) -> None:
    task, lag = await answer_of(agent(*results()))
    assert task["status"]["state"] == "TASK_STATE_FAILED"
    error = task["metadata"]["urn:tailrace:ext:stream:v1"]["error"]
    assert error["type"] == "event_too_large"
    assert lag < 3  # of CPU time; without bounds, 3 s (history) to more than a minute (parts)


async def test_all_events_together_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_calls, "MAX_RESPONSE_BYTES", 1_000_000)
    growing = [artifact("a", {"text": "x" * 100_000}, append=number > 0) for number in range(12)]
    task, _ = await answer_of(agent(*growing))
    assert task["status"]["state"] == "TASK_STATE_FAILED"
    kept = "".join(part["text"] for each in task["artifacts"] for part in each["parts"])
    assert 800_000 <= len(kept) < 1_000_000


async def test_the_reason_of_a_failure_is_bounded() -> None:
    task, _ = await answer_of(
        agent(status("FAILED", *[{"text": f"because {number}"} for number in range(1_900)]))
    )
    assert task["status"]["state"] == "TASK_STATE_FAILED"
    assert len(task["status"]["message"]["parts"]) == 20


async def test_a_large_answer_within_the_bounds_is_relayed() -> None:
    value = {"k": [{"n": number, "text": 'a "quoted", [bracketed] {text},' * 5} for number in range(5_000)]}
    copies = [artifact("copied", *[{"data": {"n": number}}] * 100) for number in range(200)]
    pieces = [artifact("text", {"text": "a, [b] {c}"}, append=number > 0) for number in range(3_000)]
    task, _ = await answer_of(agent(artifact("data", {"data": value}), *copies, *pieces))
    assert task["status"]["state"] == "TASK_STATE_COMPLETED"
    made = {each["artifactId"]: each["parts"] for each in task["artifacts"]}
    assert made["data"] == [{"data": value}]
    assert made["copied"] == [{"data": {"n": 199}}] * 100
    assert made["text"] == [{"text": "a, [b] {c}" * 3_000}]


async def test_json_that_is_nested_too_deep_fails_the_task(caplog: pytest.LogCaptureFixture) -> None:
    nested = json.loads("[" * 500 + "]" * 500)
    task, _ = await answer_of(agent(artifact("a", {"data": {"k": nested}})))
    assert task["status"]["state"] == "TASK_STATE_FAILED"
    assert "Traceback" not in caplog.text


async def test_a_cookie_of_an_agent_is_not_sent_with_the_next_call() -> None:
    """The agent identifies callers by conversation: a session cookie would be shared by all of them."""
    async with ScriptedUpstream(agent(artifact("a", TEXT))) as upstream:
        # A host name, because some clients store no cookies for IP addresses.
        url = upstream.base_url.removesuffix("/v1").replace("127.0.0.1", "localhost")
        settings = Settings(agent=url, store="sqlite://", caller_keys=SecretStr(CALLER_KEYS))
        app = await anyio.to_thread.run_sync(create_app, settings)
        async with serving(app) as server, Rpc(server) as rpc:
            for caller in ("alice", "bob"):
                await rpc.call("SendMessage", message("go"), headers_of(caller))
    assert len(upstream.requests) > 2
    assert [request.headers.get("cookie") for request in upstream.requests] == [None] * len(upstream.requests)


VALUES: list[Any] = [
    [],
    {},
    "a",
    [1, 2, 3],
    {"a": [1, {"b": [[], {}]}], "c": 'quoted "," \\" \\\\ [{'},
    ["\\", "\\\\", '"', ",", "[", "{", "\\u0022"],
    [{"text": "x" * 70_000, "n": [1] * 7}, ["\\" * 65_535, "a,b"]],
]


@pytest.mark.parametrize("value", VALUES)
def test_values_are_counted_outside_of_texts(value: object) -> None:
    text = json.dumps(value).encode()
    outside, in_string, escaped = 1, False, False
    for character in text.decode():
        if in_string:
            escaped, in_string = (not escaped and character == "\\"), escaped or character != '"'
        elif character == '"':
            in_string = True
        else:
            outside += character in ",[{"
    assert count_json_values(text, 1_000_000) == outside


def test_counting_stops_at_the_limit() -> None:
    assert 10 < count_json_values(b"[" + b"1," * 10_000_000, 10) < 100_000


# --- bytes of an artifact, and work outside of the event loop -----------------------------------------------------

FILE = {"raw": base64.b64encode(bytes(300_000)).decode()}

TOO_MANY_BYTES: dict[str, list[Result]] = {
    "file": [artifact("a", {"raw": base64.b64encode(bytes(1_100_000)).decode()})],
    "text": [artifact("a", {"text": "x" * 1_100_000})],
    "appended files": [artifact("a", FILE, append=number > 0) for number in range(4)],
    "message": [status("WORKING", {"text": "x" * 1_100_000})],
    "metadata": [
        {
            "artifactUpdate": {
                **IDS,
                "artifact": {"artifactId": "a", "parts": [TEXT], "metadata": {"k": "x" * 1_100_000}},
            }
        }
    ],
}


@pytest.mark.parametrize("results", TOO_MANY_BYTES.values(), ids=TOO_MANY_BYTES)
async def test_the_bytes_of_an_artifact_are_bounded(
    results: list[Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_converter, "MAX_ARTIFACT_BYTES", 1_000_000)
    task, _ = await answer_of(agent(*results))
    assert task["status"]["state"] == "TASK_STATE_FAILED"
    error = task["metadata"]["urn:tailrace:ext:stream:v1"]["error"]
    assert error["type"] == "event_too_large"
    assert "1000000 bytes" in task["status"]["message"]["parts"][0]["text"]


async def test_several_files_and_a_long_text_are_relayed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_converter, "MAX_ARTIFACT_BYTES", 1_000_000)
    files = [artifact(f"file-{number}", FILE) for number in range(4)]
    text = [artifact("text", {"text": "x" * 100_000}, append=number > 0) for number in range(12)]
    task, _ = await answer_of(agent(*files, *text))
    assert task["status"]["state"] == "TASK_STATE_COMPLETED"
    assert len(task["artifacts"]) == 5


async def test_large_messages_to_and_from_an_agent_are_converted_outside_of_the_event_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    in_loop: list[str] = []
    off_loop: set[str] = set()

    def watch(owner: Any, name: str) -> None:
        original: Callable[..., Any] = getattr(owner, name)

        def watched(*arguments: Any) -> Any:
            if any("x" * 100_000 in repr(argument) for argument in arguments):
                in_loop.append(name) if in_event_loop() else off_loop.add(name)
            return original(*arguments)

        monkeypatch.setattr(owner, name, watched)

    watch(agent_handler, "_idempotency_key")
    watch(client, "read_model")
    watch(Binding, "read")
    watch(Binding, "write")
    watch(models.A2AModel, "to_dict")
    large = "x" * 1_000_000
    async with ScriptedUpstream(agent(artifact("a", {"text": large}))) as upstream:
        given = Settings(agent=upstream.base_url.removesuffix("/v1"), store="sqlite://")
        app = await anyio.to_thread.run_sync(create_app, given)
        async with serving(app) as url, Rpc(url) as rpc:
            task = (await rpc.result("SendMessage", message(large)))["task"]
    assert task["artifacts"][0]["parts"] == [{"text": large}]
    assert in_loop == []
    assert off_loop == {"_idempotency_key", "read_model", "read", "write", "to_dict"}
