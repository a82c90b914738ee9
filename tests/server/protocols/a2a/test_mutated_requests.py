"""Thousands of malformed JSON-RPC requests to a real server: each gets a JSON-RPC response, none a server error.

A seeded generator mutates valid requests of every version, so that failures are reproducible.
``TAILRACE_MUTATIONS=10000 pytest tests/server/protocols/a2a/test_mutated_requests.py`` sends more of them.
"""

import json
import os
import random
from collections.abc import AsyncIterator, Callable
from copy import deepcopy
from typing import Any, cast

import aiohttp
import anyio
import pytest

from support.live_server import serving
from tailrace.server import Bounds, Settings, Turn, create_app
from tailrace.streaming import ArtifactUpdate, Update
from tailrace.streaming.a2a.models import Artifact, Message, Part

REQUESTS = int(os.environ.get("TAILRACE_MUTATIONS", "2000"))
CALLERS = 8
TIMEOUT = 60 + REQUESTS / 20

SETTINGS = Settings(store="sqlite://", push_notifications="private", bounds=Bounds(push_attempts=1))

WEBHOOK = {"url": "http://127.0.0.1:9/hook", "token": "t"}
NEW_MESSAGE: dict[str, Any] = {
    "messageId": "m",
    "role": "ROLE_USER",
    "parts": [{"text": "hello"}, {"data": {"a": [1, None]}}, {"raw": "AA==", "filename": "a"}],
    "metadata": {"k": {"l": 1.5}},
    "extensions": ["urn:x"],
    "contextId": "c",
}
OLD_MESSAGE: dict[str, Any] = {
    "kind": "message",
    "messageId": "m",
    "role": "user",
    "parts": [{"kind": "text", "text": "hello"}, {"kind": "file", "file": {"bytes": "AA==", "name": "a"}}],
}
OLDEST_MESSAGE: dict[str, Any] = {"role": "user", "parts": [{"type": "text", "text": "hello"}]}
VALID: list[tuple[str, dict[str, Any]]] = [
    (
        "SendMessage",
        {"message": NEW_MESSAGE, "configuration": {"historyLength": 2, "returnImmediately": True}},
    ),
    ("SendMessage", {"message": NEW_MESSAGE, "configuration": {"taskPushNotificationConfig": WEBHOOK}}),
    ("SendStreamingMessage", {"message": NEW_MESSAGE, "tenant": "acme", "metadata": {}}),
    ("GetTask", {"id": "t", "historyLength": 3}),
    ("ListTasks", {"pageSize": 2, "status": "TASK_STATE_COMPLETED", "includeArtifacts": True}),
    ("ListTasks", {"statusTimestampAfter": "2025-10-28T10:30:00.000Z", "pageToken": "WyJhIl0"}),
    ("CancelTask", {"id": "t", "metadata": {"k": 1}}),
    ("SubscribeToTask", {"id": "t"}),
    ("CreateTaskPushNotificationConfig", {"taskId": "t", **WEBHOOK}),
    ("GetTaskPushNotificationConfig", {"taskId": "t", "id": "c"}),
    ("ListTaskPushNotificationConfigs", {"taskId": "t", "pageSize": 1}),
    ("DeleteTaskPushNotificationConfig", {"taskId": "t", "id": "c"}),
    ("GetExtendedAgentCard", {}),
    ("message/send", {"message": OLD_MESSAGE, "configuration": {"blocking": True, "historyLength": 1}}),
    ("message/stream", {"message": OLD_MESSAGE, "configuration": {"pushNotificationConfig": WEBHOOK}}),
    ("tasks/get", {"id": "t", "historyLength": 1}),
    ("tasks/cancel", {"id": "t"}),
    ("tasks/resubscribe", {"id": "t"}),
    ("tasks/pushNotificationConfig/set", {"taskId": "t", "pushNotificationConfig": WEBHOOK}),
    ("tasks/pushNotificationConfig/get", {"id": "t", "pushNotificationConfigId": "c"}),
    ("tasks/send", {"id": "t", "sessionId": "s", "message": OLDEST_MESSAGE, "historyLength": 2}),
    ("tasks/sendSubscribe", {"id": "u", "message": OLDEST_MESSAGE}),
    ("tasks/pushNotification/set", {"id": "t", "pushNotificationConfig": WEBHOOK}),
]
ODD: list[Any] = [
    *(None, True, False, 0, -1, 1.5, 1e308, 2**31, 2**63, -(2**70), "", " ", "\x00", "\u2028", "x" * 5000),
    *("\ud800", "\U0001f600", "../..", "%2e", "NaN", "1", [], {}, [[]], [None], {"": None}, {"kind": "text"}),
    *({"text": "a", "url": "b"}, ["TASK_STATE_WORKING"], {"__proto__": 1}, "TASK_STATE_UNSPECIFIED"),
]
FRAGMENTS = [
    b'"',
    b"{",
    b"}",
    b"[",
    b"]",
    b",",
    b":",
    b"\\",
    b"\\u",
    b"\xff",
    b"\x00",
    b"null",
    b"1e999",
    b"\xed\xa0",
]


async def repeat(turn: Turn) -> AsyncIterator[Update | Message]:
    yield ArtifactUpdate(Artifact(artifact_id="text", parts=(Part(text=turn.message.message_id),)))


# --- generator --------------------------------------------------------------------------------------------------


def places(value: Any) -> list[tuple[Any, Any]]:
    """Yield the container and the key or index of every member and item of a JSON value."""
    found: list[tuple[Any, Any]] = []
    waiting: list[Any] = [value]  # not a recursion: a mutation may nest a value a thousand levels deep
    while waiting:
        holder = waiting.pop()
        keys: list[Any] = []
        if isinstance(holder, dict):
            keys = list(cast("dict[Any, Any]", holder))
        elif isinstance(holder, list):
            keys = list(range(len(cast("list[Any]", holder))))
        found += [(holder, key) for key in keys]
        waiting += [holder[key] for key in keys]
    return found


def change(request: Any, chance: random.Random) -> None:
    """Replace, remove, rename, duplicate or nest one value of a request."""
    holder, key = chance.choice(places(request))
    match chance.randrange(6):
        case 0 | 1:
            holder[key] = deepcopy(chance.choice(ODD))
        case 2:
            del holder[key]
        case 3 if isinstance(holder, dict):
            holder[chance.choice([key.upper(), key + "_", "kind", "type", "data", ""])] = holder[key]
        case 4:
            depth = chance.choice([1, 5, 45, 200])
            for _ in range(depth):
                holder[key] = {"data": holder[key]} if chance.random() < 0.5 else [holder[key]]
        case _:
            other, name = chance.choice(places(request))
            holder[key] = deepcopy(other[name])


def cut_up(body: bytes, chance: random.Random) -> bytes:
    """Damage the bytes of a request."""
    at = chance.randrange(len(body))
    match chance.randrange(4):
        case 0:
            return body[:at]
        case 1:
            return body[:at] + chance.choice(FRAGMENTS) + body[at:]
        case 2:
            return body[:at] + body[at + chance.randint(1, 20) :]
        case _:
            return body[:at] + bytes([chance.randrange(256)]) + body[at + 1 :]


def mutated(chance: random.Random, ids: list[str]) -> bytes:
    """Return one mutated request; sometimes it names an existing task."""
    method, params = chance.choice(VALID)
    request = json.loads(
        json.dumps({"jsonrpc": "2.0", "id": chance.choice([1, "a", None]), "method": method})
    )
    request["params"] = json.loads(json.dumps(params))
    if ids and chance.random() < 0.4:
        for name in ("id", "taskId"):
            if name in request["params"]:
                request["params"][name] = chance.choice(ids)
    for _ in range(chance.choice([0, 1, 1, 1, 2, 4])):
        if places(request):
            change(request, chance)
    body = json.dumps(request).encode("utf-8", "surrogatepass")
    return cut_up(body, chance) if chance.random() < 0.25 else body


# --- checks -----------------------------------------------------------------------------------------------------


def check_envelope(answer: Any) -> None:
    assert isinstance(answer, dict)
    envelope = cast("dict[str, Any]", answer)
    assert envelope["jsonrpc"] == "2.0"
    assert "id" in envelope
    assert ("result" in envelope) != ("error" in envelope)
    if "error" in envelope:
        assert isinstance(envelope["error"]["message"], str)
        assert envelope["error"]["code"] in {*range(-32009, -32000), -32700, -32600, -32601, -32602}


def ids_in(answer: dict[str, Any]) -> list[str]:
    """Return the ids of the tasks in a response."""
    result = answer.get("result")
    fields = cast("dict[str, Any]", result) if isinstance(result, dict) else {}
    task: Any = fields.get("task", fields)
    return [task["id"]] if isinstance(task, dict) and "status" in task and "id" in task else []


def judge(status: int, media_type: str, body: bytes) -> list[str]:
    """Check a response; return the ids of its tasks."""
    assert status == 200
    if media_type.startswith("text/event-stream"):
        answers = [json.loads(line[6:]) for line in body.split(b"\n") if line.startswith(b"data: ")]
        assert answers
    else:
        assert media_type == "application/json"
        answers = [json.loads(body)]
    for answer in answers:
        check_envelope(answer)
    return [task_id for answer in answers for task_id in ids_in(answer)]


@pytest.mark.timeout(TIMEOUT + 30)
async def test_every_broken_request_is_answered_and_none_is_the_servers_fault() -> None:
    ids: list[str] = []
    kinds: dict[str, int] = {}

    async def send(http: aiohttp.ClientSession, url: str, make: Callable[[], bytes], count: int) -> None:
        for _ in range(count):
            body = make()
            try:
                async with http.post(
                    url, data=body, headers={"content-type": "application/json"}
                ) as response:
                    answer = await response.read()
                    ids.extend(judge(response.status, response.headers["content-type"], answer))
            except Exception as error:
                error.add_note(f"the request was {body!r}")
                raise
            kind = "stream" if answer.startswith(b"id:") else "error" if b'"error":{' in answer else "result"
            kinds[kind] = kinds.get(kind, 0) + 1

    app = create_app(SETTINGS, handler=repeat)
    with anyio.fail_after(TIMEOUT):
        async with serving(app) as url, aiohttp.ClientSession() as http, anyio.create_task_group() as group:
            for caller in range(CALLERS):
                chance = random.Random(caller)
                make = lambda chance=chance: mutated(chance, ids[-50:])  # noqa: E731
                group.start_soon(send, http, url + "/", make, REQUESTS // CALLERS)
    assert sum(kinds.values()) == REQUESTS // CALLERS * CALLERS
    assert min(kinds["stream"], kinds["result"]) > REQUESTS / 50
    assert kinds["error"] > REQUESTS / 3
