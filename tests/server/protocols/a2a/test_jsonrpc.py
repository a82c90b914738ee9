"""The JSON-RPC binding over a real server: the five methods, the envelope, and invalid requests."""

import json
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

import aiohttp
import anyio
import pytest

from support.live_server import serving
from support.rpc import Rpc, message, streamed_text, text_of
from tailrace.server import Settings, Turn, create_app
from tailrace.server.runtime.handlers import DirectHandler
from tailrace.streaming import ArtifactUpdate, StatusUpdate, TaskState, TextDelta, Update
from tailrace.streaming.a2a.models import Artifact, Message, Part, Role
from tailrace.streaming.a2a.stream_extension import EXTENSION_URI
from tailrace.streaming.task.task_record import agent_message

SETTINGS = Settings(store="sqlite://", max_request_bytes=10_000)


async def echo(turn: Turn) -> AsyncIterator[Update | Message]:
    """Send every word of the message as a chunk of one artifact; ask for input on request."""
    yield StatusUpdate(TaskState.WORKING)
    words = (turn.message.parts[0].text or "").split(" ")
    yield ArtifactUpdate(Artifact(artifact_id="text", parts=(Part(text=words[0]),)), last=False)
    for word in words[1:]:
        yield TextDelta("text", " " + word)
    if words[0] == "ask" and turn.number == 1:
        yield StatusUpdate(TaskState.INPUT_REQUIRED, agent_message("Go on?"))


@pytest.fixture
async def rpc() -> AsyncGenerator[Rpc]:
    async with serving(create_app(SETTINGS, handler=echo)) as url, Rpc(url) as rpc:
        yield rpc


# --- methods ----------------------------------------------------------------------------------------------------


async def test_a_blocking_send_answers_with_the_finished_task(rpc: Rpc) -> None:
    task = (await rpc.result("SendMessage", message("one two")))["task"]
    assert task["status"]["state"] == "TASK_STATE_COMPLETED"
    assert text_of(task) == "one two"
    assert [entry["role"] for entry in task["history"]] == ["ROLE_USER", "ROLE_AGENT"]
    for entry in task["history"]:
        assert entry["parts"] == [{"text": "one two"}]
        assert entry["taskId"] == task["id"]
        assert entry["contextId"] == task["contextId"]


async def test_a_send_that_returns_immediately_answers_before_the_work_is_done() -> None:
    go_on = anyio.Event()

    async def wait(turn: Turn) -> AsyncIterator[Update | Message]:
        yield StatusUpdate(TaskState.WORKING)
        await go_on.wait()

    async with serving(create_app(SETTINGS, handler=wait)) as url, Rpc(url) as rpc:
        params = {**message(), "configuration": {"returnImmediately": True}}
        task = (await rpc.result("SendMessage", params))["task"]
        assert task["status"]["state"] in ("TASK_STATE_SUBMITTED", "TASK_STATE_WORKING")
        go_on.set()
        events = await rpc.stream("SubscribeToTask", {"id": task["id"]}, {"last-event-id": "0"})
    assert events[-1][1]["statusUpdate"]["status"]["state"] == "TASK_STATE_COMPLETED"


async def test_a_stream_numbers_its_events_from_one_without_gaps(rpc: Rpc) -> None:
    events = await rpc.stream("SendStreamingMessage", message("a b c"))
    assert [number for number, _ in events] == list(range(1, len(events) + 1))
    kinds = [next(iter(event)) for _, event in events]
    assert kinds == ["task", "statusUpdate", *["artifactUpdate"] * (len(events) - 3), "statusUpdate"]
    assert streamed_text(events) == "a b c"
    updates = [event["artifactUpdate"] for _, event in events if "artifactUpdate" in event]
    assert "append" not in updates[0]
    assert all(update["append"] for update in updates[1:])
    assert ["lastChunk" in update for update in updates] == [False] * (len(updates) - 1) + [True]


@pytest.mark.parametrize("after", range(8))
async def test_a_stream_is_resumed_after_any_event_also_when_the_task_is_over(rpc: Rpc, after: int) -> None:
    events = await rpc.stream("SendStreamingMessage", message("a b c"))
    task_id = events[0][1]["task"]["id"]
    again = await rpc.stream("SubscribeToTask", {"id": task_id}, {"Last-Event-ID": str(after)})
    assert again == events[after:]


async def test_a_cursor_that_is_no_event_of_the_task_is_refused(rpc: Rpc) -> None:
    task = (await rpc.result("SendMessage", message("a")))["task"]
    for cursor in ("99", "-1", "two", "1e3", "9" * 40):
        error = await rpc.error("SubscribeToTask", {"id": task["id"]}, {"Last-Event-ID": cursor})
        assert error["code"] == -32602


async def test_a_finished_task_is_not_subscribed_to_without_a_cursor(rpc: Rpc) -> None:
    task = (await rpc.result("SendMessage", message("a")))["task"]
    error = await rpc.error("SubscribeToTask", {"id": task["id"]})
    assert error["code"] == -32004
    assert error["data"][0]["reason"] == "UNSUPPORTED_OPERATION"


async def test_a_question_waits_for_its_answer_and_the_task_goes_on(rpc: Rpc) -> None:
    first = await rpc.stream("SendStreamingMessage", message("ask me"))
    task = first[0][1]["task"]
    assert first[-1][1]["statusUpdate"]["status"]["state"] == "TASK_STATE_INPUT_REQUIRED"
    second = await rpc.stream("SendStreamingMessage", message("ask no more", taskId=task["id"]))
    snapshot = second[0][1]["task"]
    assert snapshot["id"] == task["id"]
    assert snapshot["status"]["state"] == "TASK_STATE_WORKING"
    assert [entry["parts"][0]["text"] for entry in snapshot["history"]] == ["ask me", "Go on?", "ask no more"]
    assert [number for number, _ in second] == list(range(second[0][0], second[-1][0] + 1))
    assert second[0][0] == first[-1][0] + 1
    assert second[-1][1]["statusUpdate"]["status"]["state"] == "TASK_STATE_COMPLETED"


async def test_a_subscriber_stays_while_the_task_waits_for_its_caller(rpc: Rpc) -> None:
    task = (await rpc.result("SendMessage", message("ask me")))["task"]
    seen: list[Any] = []
    waiting = anyio.Event()

    async def subscribe() -> None:
        seen.extend(
            await rpc.stream("SubscribeToTask", {"id": task["id"]}, seen=lambda events: waiting.set())
        )

    async with anyio.create_task_group() as group:
        group.start_soon(subscribe)
        await waiting.wait()
        await rpc.result("SendMessage", message("go on", taskId=task["id"]))
    assert seen[0][1]["task"]["status"]["state"] == "TASK_STATE_INPUT_REQUIRED"
    assert seen[-1][1]["statusUpdate"]["status"]["state"] == "TASK_STATE_COMPLETED"
    assert [number for number, _ in seen] == list(range(seen[0][0], seen[-1][0] + 1))


async def test_a_waiting_task_can_be_canceled_once(rpc: Rpc) -> None:
    task = (await rpc.result("SendMessage", message("ask me")))["task"]
    canceled = await rpc.result("CancelTask", {"id": task["id"]})
    assert canceled["status"]["state"] == "TASK_STATE_CANCELED"
    error = await rpc.error("CancelTask", {"id": task["id"]})
    assert error["code"] == -32002
    assert await rpc.result("GetTask", {"id": task["id"]}) == canceled


async def test_history_has_the_requested_length(rpc: Rpc) -> None:
    task = (await rpc.result("SendMessage", message("ask me")))["task"]
    await rpc.result("SendMessage", message("end", taskId=task["id"]))

    async def lengths(value: int | None) -> int:
        params = {"id": task["id"]} | ({} if value is None else {"historyLength": value})
        return len((await rpc.result("GetTask", params)).get("history", []))

    assert [await lengths(value) for value in (None, 0, 1, 2, 99)] == [5, 0, 1, 2, 5]
    params = {**message("x"), "configuration": {"historyLength": 0}}
    assert "history" not in (await rpc.result("SendMessage", params))["task"]
    assert "history" not in (await rpc.stream("SendStreamingMessage", params))[0][1]["task"]


async def test_a_handler_may_answer_with_a_bare_message() -> None:
    async def greet(turn: Turn) -> AsyncIterator[Update | Message]:
        yield Message(message_id="m", role=Role.AGENT, parts=(Part(text="hi"),))

    async with serving(create_app(SETTINGS, handler=DirectHandler(greet))) as url, Rpc(url) as rpc:
        answer = await rpc.result("SendMessage", message(contextId="c1"))
        [(number, event)] = await rpc.stream("SendStreamingMessage", message())
    assert answer["message"]["parts"] == [{"text": "hi"}]
    assert answer["message"]["contextId"] == "c1"
    assert number == 0
    assert event["message"]["parts"] == [{"text": "hi"}]


async def test_a_client_that_leaves_does_not_cancel_its_task() -> None:
    go_on, started = anyio.Event(), anyio.Event()

    async def wait(turn: Turn) -> AsyncIterator[Update | Message]:
        yield StatusUpdate(TaskState.WORKING)
        started.set()
        await go_on.wait()
        yield ArtifactUpdate(Artifact(artifact_id="text", parts=(Part(text="done"),)))

    async with serving(create_app(SETTINGS, handler=wait)) as url, Rpc(url) as rpc:
        body = {"jsonrpc": "2.0", "id": 1, "method": "SendStreamingMessage", "params": message()}
        async with aiohttp.ClientSession() as http:
            async with http.post(url + "/", json=body) as response:
                first = await response.content.readuntil(b"\n\n")
                await started.wait()
        task_id = json.loads(first.split(b"data: ", 1)[1])["result"]["task"]["id"]
        go_on.set()
        events = await rpc.stream("SubscribeToTask", {"id": task_id}, {"last-event-id": "1"})
    assert events[-1][1]["statusUpdate"]["status"]["state"] == "TASK_STATE_COMPLETED"
    assert streamed_text(events) == "done"


# --- refusals ---------------------------------------------------------------------------------------------------

WRONG_BODIES: list[tuple[bytes, int]] = [
    (b"", -32700),
    (b"{", -32700),
    (b'{"jsonrpc":"2.0","id":1,"method":"GetTask","params":{"id":"x"}', -32700),
    (b"\xff\xfe", -32700),
    (b"[" * 100_000, -32700),
    (b"[]", -32600),
    (b'[{"jsonrpc":"2.0","id":1,"method":"GetTask"}]', -32600),
    (b"7", -32600),
    (b"{}", -32600),
    (b'{"jsonrpc":"1.0","id":1,"method":"GetTask"}', -32600),
    (b'{"jsonrpc":"2.0","id":{},"method":"GetTask"}', -32600),
    (b'{"jsonrpc":"2.0","id":true,"method":"GetTask"}', -32600),
    (b'{"jsonrpc":"2.0","id":1,"method":7}', -32600),
    (b'{"jsonrpc":"2.0","id":1}', -32600),
    (b'{"jsonrpc":"2.0","id":1,"method":"Nope","params":{}}', -32601),
    (b'{"jsonrpc":"2.0","id":1,"method":"message/sent","params":{}}', -32601),
    (b'{"jsonrpc":"2.0","id":1,"method":"message/send","params":{}}', -32602),
    (b'{"jsonrpc":"2.0","id":1,"method":"tasks/send","params":{}}', -32602),
    (b'{"jsonrpc":"2.0","id":1,"method":"GetTask"}', -32602),
    (b'{"jsonrpc":"2.0","id":1,"method":"GetTask","params":[]}', -32602),
    (b'{"jsonrpc":"2.0","id":1,"method":"GetTask","params":null}', -32602),
    (b'{"jsonrpc":"2.0","id":1,"method":"GetTask","params":{"id":""}}', -32602),
    (b'{"jsonrpc":"2.0","id":1,"method":"GetTask","params":{"id":"x"}}', -32001),
    (b'{"jsonrpc":"2.0","id":1,"method":"CancelTask","params":{"id":"x"}}', -32001),
    (b'{"jsonrpc":"2.0","id":1,"method":"SubscribeToTask","params":{"id":"x"}}', -32001),
]


@pytest.mark.parametrize(("body", "code"), WRONG_BODIES, ids=[repr(body[:70]) for body, _ in WRONG_BODIES])
async def test_a_wrong_request_gets_its_error_and_leaves_the_server_well(
    rpc: Rpc, body: bytes, code: int
) -> None:
    body = body[:9_000]
    status, answer = await rpc.raw(body)
    assert status == 200
    assert answer["jsonrpc"] == "2.0"
    assert answer["error"]["code"] == code
    assert isinstance(answer["error"]["message"], str)
    assert "result" not in answer
    expected = json.loads(body).get("id") if code > -32600 or code in (-32601, -32602, -32001) else None
    assert answer["id"] in (expected, 1, None)
    assert (await rpc.result("SendMessage", message("well")))["task"]["status"]["state"]


WRONG_MESSAGES: list[tuple[dict[str, Any], str]] = [
    ({}, "message"),
    ({"message": {}}, "message.messageId"),
    ({"message": {"messageId": "m", "role": "ROLE_USER"}}, "message.parts"),
    ({"message": {"messageId": "m", "role": "ROLE_USER", "parts": []}}, "message.parts"),
    ({"message": {"messageId": "m", "role": "ROLE_USER", "parts": [{}]}}, "message.parts[0]"),
    ({"message": {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "a", "url": "b"}]}}, "parts[0]"),
    ({"message": {"messageId": "m", "role": "somebody", "parts": [{"text": "a"}]}}, "message.role"),
    ({"message": {"messageId": "m", "role": "ROLE_AGENT", "parts": [{"text": "a"}]}}, "message.role"),
    ({**message(), "configuration": {"historyLength": -1}}, "configuration.historyLength"),
    (message(parts=[{"data": {"tool_results": [{"name": "x"}]}}]), "tool_results[0]"),
    (message(parts=[{"data": {"tool_calls": [{"call_id": "1", "name": "x"}]}}]), "tool_calls"),
]


@pytest.mark.parametrize(("params", "where"), WRONG_MESSAGES)
@pytest.mark.parametrize("method", ["SendMessage", "SendStreamingMessage"])
async def test_wrong_params_are_refused_by_name(
    rpc: Rpc, method: str, params: dict[str, Any], where: str
) -> None:
    error = await rpc.error(method, params)
    assert error["code"] == -32602
    assert where in json.dumps(error)


async def test_a_webhook_that_cannot_be_called_is_refused_before_anything_happens(rpc: Rpc) -> None:
    params = {**message(), "configuration": {"taskPushNotificationConfig": {"url": "http://127.0.0.1:1/"}}}
    error = await rpc.error("SendMessage", params)
    assert error["code"] == -32602
    assert (await rpc.result("ListTasks", {}))["totalSize"] == 0


async def test_a_message_to_an_unknown_finished_or_foreign_task_is_refused(rpc: Rpc) -> None:
    done = (await rpc.result("SendMessage", message("a")))["task"]
    waiting = (await rpc.result("SendMessage", message("ask")))["task"]
    unknown = await rpc.error("SendMessage", message(taskId="nobody"))
    over = await rpc.error("SendMessage", message(taskId=done["id"]))
    mixed = await rpc.error("SendMessage", message(taskId=waiting["id"], contextId="another"))
    assert [each["code"] for each in (unknown, over, mixed)] == [-32001, -32004, -32602]
    assert (await rpc.result("GetTask", {"id": waiting["id"]})) == waiting


async def test_a_message_to_a_busy_task_waits_for_its_turn() -> None:
    go_on = anyio.Event()

    async def wait(turn: Turn) -> AsyncIterator[Update | Message]:
        yield StatusUpdate(TaskState.WORKING)
        await go_on.wait()

    async with serving(create_app(SETTINGS, handler=wait)) as url, Rpc(url) as rpc:
        at_once = {"configuration": {"returnImmediately": True}}
        task = (await rpc.result("SendMessage", {**message(), **at_once}))["task"]
        busy = (await rpc.result("SendMessage", {**message("more", taskId=task["id"]), **at_once}))["task"]
        go_on.set()
        events = await rpc.stream("SubscribeToTask", {"id": task["id"]}, {"last-event-id": "0"})
    assert busy["status"]["state"] == "TASK_STATE_WORKING"
    assert [entry["parts"][0]["text"] for entry in busy["history"]] == ["hello", "more"]
    statuses = [event["statusUpdate"] for _, event in events if "statusUpdate" in event]
    received = [status["metadata"][EXTENSION_URI]["received"] for status in statuses if "metadata" in status]
    assert received == [busy["history"][1]]
    states = [status["status"]["state"].removeprefix("TASK_STATE_") for status in statuses]
    assert states == ["WORKING", "WORKING", "WORKING", "COMPLETED"]


async def test_unsupported_versions_are_refused(rpc: Rpc) -> None:
    for version in ("1.0", "1.0.3"):
        await rpc.call("GetTask", {"id": "x"}, {"A2A-Version": version})
    for version in ("1.7", "99.0", "x"):
        error = await rpc.error("GetTask", {"id": "x"}, {"A2A-Version": version})
        assert error["code"] == -32009
        assert error["data"][0]["metadata"]["supportedVersions"] == "1.0, 0.3, 0.1"
    for version, method in (("0.3", "GetTask"), ("1.0", "message/send"), ("0.2.6", "tasks/send")):
        assert (await rpc.error(method, {"id": "x"}, {"A2A-Version": version}))["code"] == -32601


async def test_the_version_may_stand_in_the_address(rpc: Rpc) -> None:
    """For clients that cannot set headers; the header takes precedence."""
    for query, headers, code in (
        ("?A2A-Version=1.0", {}, -32001),
        ("?A2A-Version=99.0", {}, -32009),
        ("?A2A-Version=99.0", {"A2A-Version": "1.0"}, -32001),
        ("?A2A-Version=1.0", {"A2A-Version": "99.0"}, -32009),
        ("?A2A-Version=", {"A2A-Version": ""}, -32001),
    ):
        body = b'{"jsonrpc":"2.0","id":1,"method":"GetTask","params":{"id":"x"}}'
        _, answer = await rpc.raw(body, headers, path="/" + query)
        assert answer["error"]["code"] == code, (query, headers)


async def test_an_id_that_no_text_can_be_is_that_of_no_task(rpc: Rpc) -> None:
    """Half of a surrogate pair is valid JSON and cannot be stored; it must not cause a server error."""
    for method in ("GetTask", "tasks/get", "tasks/cancel", "tasks/resubscribe"):
        assert (await rpc.error(method, {"id": "\ud800"}))["code"] == -32001


async def test_only_json_of_a_bounded_size_is_read(rpc: Rpc) -> None:
    async with rpc.http.post(rpc.url + "/", data=b"{}", headers={"content-type": "text/plain"}) as response:
        assert (response.status, response.content_type) == (415, "application/json")
        answer = await response.json()
    assert (answer["id"], answer["error"]["code"]) == (None, -32005)
    assert answer["error"]["data"][0]["reason"] == "CONTENT_TYPE_NOT_SUPPORTED"
    big = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "GetTask", "params": {"id": "x" * 20_000}})
    headers = {"content-type": "application/json"}
    async with rpc.http.post(rpc.url + "/", data=big, headers=headers) as response:
        assert (response.status, response.content_type) == (413, "application/json")
        answer = await response.json()
    assert (answer["id"], answer["error"]["code"]) == (None, -32600)
    assert answer["error"]["data"][0]["metadata"] == {"limit": "max_request_bytes", "allowed": "10000"}
    await rpc.result("SendMessage", message("well"))


async def test_the_request_id_comes_back_as_it_was(rpc: Rpc) -> None:
    for request_id in (1, "one", 1.5, None, "\u2028 line", 2**40):
        body = {"jsonrpc": "2.0", "id": request_id, "method": "GetTask", "params": {"id": "x"}}
        _, answer = await rpc.raw(json.dumps(body).encode())
        assert answer["id"] == request_id


async def test_requested_extensions_are_named_in_the_response(rpc: Rpc) -> None:
    uri = "urn:tailrace:ext:stream:v1"
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "GetTask", "params": {"id": "x"}})
    for requested, named in ((f"urn:other, {uri}", uri), ("urn:other", None), ("", None)):
        headers = {"content-type": "application/json", "A2A-Extensions": requested}
        async with rpc.http.post(rpc.url + "/", data=body, headers=headers) as response:
            assert response.headers.get("A2A-Extensions") == named


async def test_a_handler_that_fails_fails_its_task_and_keeps_its_secrets() -> None:
    async def explode(turn: Turn) -> AsyncIterator[Update | Message]:
        yield ArtifactUpdate(Artifact(artifact_id="text", parts=(Part(text="half"),)), last=False)
        raise RuntimeError("password is hunter2")

    async with serving(create_app(SETTINGS, handler=explode)) as url, Rpc(url) as rpc:
        task = (await rpc.result("SendMessage", message()))["task"]
    assert task["status"]["state"] == "TASK_STATE_FAILED"
    assert text_of(task) == "half"
    assert "hunter2" not in json.dumps(task)
