"""HTTP+JSON of A2A 0.3: every address, its errors, and the official SDK's client of that version."""

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from a2a.compat.v0_3.rest_transport import CompatRestTransport
from a2a.types import a2a_pb2
from a2a.utils.errors import TaskNotCancelableError

from support.agents import echo
from support.http_json import HttpJson
from support.live_server import serving
from support.rpc import Rpc
from tailrace.server import Settings, create_app

SETTINGS = Settings(store="sqlite://", max_request_bytes=10_000, push_notifications="private")


@pytest.fixture
async def http() -> AsyncIterator[HttpJson]:
    async with serving(create_app(SETTINGS, handler=echo)) as url, Rpc(url) as rpc:
        yield HttpJson(rpc)


def content(text: str = "hello", **fields: Any) -> dict[str, Any]:
    """Return the body of a blocking send, in the ProtoJSON of 0.3."""
    message = {"messageId": "m", "role": "ROLE_USER", "content": [{"text": text}], **fields}
    return {"message": message, "configuration": {"blocking": True}}


async def test_a_message_is_answered_with_its_task(http: HttpJson) -> None:
    task = (await http.ok("POST", "/v1/message:send", content("river")))["task"]
    assert task["status"]["state"] == "TASK_STATE_COMPLETED"
    assert task["artifacts"][0]["parts"] == [{"text": "river"}]
    assert task["history"][0]["content"] == [{"text": "river"}]
    assert await http.ok("GET", f"/v1/tasks/{task['id']}") == task
    assert [each["id"] for each in await http.ok("GET", "/v1/tasks")] == [task["id"]]
    new = await http.ok("GET", f"/tasks/{task['id']}")
    assert new["history"][0]["parts"] == [{"text": "river"}]


async def test_a_stream_is_of_the_protos_events(http: HttpJson) -> None:
    events = await http.stream("POST", "/v1/message:stream", content("river"))
    assert [next(iter(data)) for _, _, data in events] == [
        "task",
        "statusUpdate",
        "artifactUpdate",
        "statusUpdate",
    ]
    assert [data["statusUpdate"]["final"] for _, _, data in events if "statusUpdate" in data] == [False, True]
    assert [number for number, _, _ in events] == ["1", "2", "3", "4"]


@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_following_a_task_that_is_over_gives_it_as_it_stands(http: HttpJson, method: str) -> None:
    """Required by the proto of 0.3; 1.0 refuses."""
    task = (await http.ok("POST", "/v1/message:send", content()))["task"]
    [only] = await http.stream(method, f"/v1/tasks/{task['id']}:subscribe")
    assert only[2]["task"]["status"]["state"] == "TASK_STATE_COMPLETED"
    resumed = await http.stream(method, f"/v1/tasks/{task['id']}:subscribe", headers={"last-event-id": "2"})
    assert [(number, kind) for number, kind, _ in resumed] == [("3", ""), ("4", "")]
    status, _ = await http.ask("POST", f"/tasks/{task['id']}:subscribe", {})
    assert status == 400


async def test_webhooks_are_set_got_listed_and_deleted(http: HttpJson) -> None:
    task = (await http.ok("POST", "/v1/message:send", content("ask")))["task"]
    path = f"/v1/tasks/{task['id']}/pushNotificationConfigs"
    name = f"tasks/{task['id']}/pushNotificationConfigs/c1"
    webhook = {"url": "http://127.0.0.1:9/hook", "token": "opaque"}
    body = {"configId": "c1", "config": {"pushNotificationConfig": webhook}}
    made = await http.ok("POST", path, body)
    assert (made["name"], made["pushNotificationConfig"]["url"]) == (name, webhook["url"])
    assert await http.ok("GET", f"{path}/c1") == made
    assert await http.ok("GET", path) == {"configs": [made]}
    by_rpc = await http.rpc.call("tasks/pushNotificationConfig/list", {"id": task["id"]})
    assert [each["pushNotificationConfig"]["id"] for each in by_rpc["result"]] == ["c1"]
    for _ in range(2):
        assert await http.ok("DELETE", f"{path}/c1") == {}
    status, _ = await http.ask("GET", f"{path}/c1")
    assert status == 404


async def test_an_error_has_its_name_and_its_number(http: HttpJson) -> None:
    task = (await http.ok("POST", "/v1/message:send", content()))["task"]
    requests: list[tuple[str, str, object, int, str, int | None]] = [
        ("GET", "/v1/tasks/none", None, 404, "TaskNotFoundError", -32001),
        ("POST", f"/v1/tasks/{task['id']}:cancel", None, 400, "TaskNotCancelableError", -32002),
        ("POST", "/v1/message:send", {}, 400, "InvalidParamsError", -32602),
        ("POST", "/v1/message:send", [], 400, "InvalidParamsError", -32602),
        ("POST", "/v1/message:send", content("x" * 20_000), 413, "RequestTooLargeError", -32600),
        ("GET", "/agent/authenticatedExtendedCard", None, 400, "UnsupportedOperationError", -32004),
        ("GET", "/v1/tasks/none:subscribe", None, 404, "TaskNotFoundError", -32001),
        ("PUT", "/v1/tasks/none", None, 405, "MethodNotAllowedError", None),
        ("GET", "/v1/message:nothing", None, 404, "NotFoundError", None),
    ]
    for method, path, body, http_status, name, code in requests:
        status, answer = await http.ask(method, path, body)
        assert (status, answer["error"], answer["type"]) == (http_status, name, name)
        assert answer.get("code") == code
        assert answer["message"]
    status, answer = await http.ask("POST", "/v1/message:send", {}, {"content-type": "text/plain"})
    assert (status, answer["error"]) == (415, "ContentTypeNotSupportedError")


@pytest.mark.parametrize(
    ("version", "status"),
    [("0.3", 200), ("0.3.7", 200), ("0.2", 200), ("0.2.5", 200), ("", 200), ("1.0", 400), ("99.0", 400)],
)
async def test_these_addresses_are_for_0_3(http: HttpJson, version: str, status: int) -> None:
    by_header, answer = await http.ask("GET", "/v1/tasks", headers={"A2A-Version": version})
    by_query, _ = await http.ask("GET", f"/v1/tasks?A2A-Version={version}")
    assert (by_header, by_query) == (status, status), answer


async def test_the_public_card_is_where_a_client_looks_for_more(http: HttpJson) -> None:
    card = await http.ok("GET", "/v1/card")
    assert (card["protocolVersion"], card["url"]) == ("0.3.0", f"{http.rpc.url}/")
    assert card == await http.ok("GET", "/.well-known/agent.json")
    assert {"url": http.rpc.url, "transport": "HTTP+JSON"} in card["additionalInterfaces"]


# --- the official SDK's client ----------------------------------------------------------------------------------


@pytest.fixture
async def client(http: HttpJson) -> AsyncIterator[CompatRestTransport]:
    async with httpx.AsyncClient() as connections:
        yield CompatRestTransport(connections, None, http.rpc.url)


def send_request(text: str) -> a2a_pb2.SendMessageRequest:
    message = a2a_pb2.Message(message_id="m", role=a2a_pb2.Role.ROLE_USER, parts=[a2a_pb2.Part(text=text)])
    return a2a_pb2.SendMessageRequest(message=message)


async def test_the_official_client_sends_gets_and_cancels(client: CompatRestTransport) -> None:
    task = (await client.send_message(send_request("ask"))).task
    while task.status.state != a2a_pb2.TaskState.TASK_STATE_INPUT_REQUIRED:  # this client does not block
        task = await client.get_task(a2a_pb2.GetTaskRequest(id=task.id))
    same = await client.get_task(a2a_pb2.GetTaskRequest(id=task.id, history_length=1))
    assert (same.context_id, same.history[0].parts[0].text) == (task.context_id, "ask")
    canceled = await client.cancel_task(a2a_pb2.CancelTaskRequest(id=task.id))
    assert canceled.status.state == a2a_pb2.TaskState.TASK_STATE_CANCELED
    with pytest.raises(TaskNotCancelableError):
        await client.cancel_task(a2a_pb2.CancelTaskRequest(id=task.id))


async def test_the_official_client_streams_and_follows(client: CompatRestTransport) -> None:
    events = [event async for event in client.send_message_streaming(send_request("river"))]
    assert [event.WhichOneof("payload") for event in events] == [
        "task",
        "status_update",
        "artifact_update",
        "status_update",
    ]
    assert events[2].artifact_update.artifact.parts[0].text == "river"
    again = client.subscribe(a2a_pb2.SubscribeToTaskRequest(id=events[0].task.id))
    assert [event.task.artifacts[0].parts[0].text async for event in again] == ["river"]


async def test_the_official_client_sets_a_webhook(client: CompatRestTransport) -> None:
    task = (await client.send_message(send_request("ask"))).task
    webhook = a2a_pb2.TaskPushNotificationConfig(task_id=task.id, id="c1", url="http://127.0.0.1:9/hook")
    made = await client.create_task_push_notification_config(webhook)
    request = a2a_pb2.GetTaskPushNotificationConfigRequest(task_id=task.id, id="c1")
    assert await client.get_task_push_notification_config(request) == made
    assert made.url == webhook.url
