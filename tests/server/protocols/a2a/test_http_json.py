"""The HTTP+JSON binding: every address, its errors, and the stream for a browser's EventSource."""

from collections.abc import AsyncIterator

import anyio
import pytest

from support.agents import echo
from support.http_json import HttpJson
from support.live_server import serving
from support.rpc import Rpc, message, text_of
from tailrace.server import Settings, Turn, create_app
from tailrace.streaming import ArtifactUpdate, StatusUpdate, TaskState, Update
from tailrace.streaming.a2a.models import Artifact, Message, Part
from tailrace.streaming.a2a.stream_extension import EXTENSION_URI

SETTINGS = Settings(store="sqlite://", max_request_bytes=10_000)


@pytest.fixture
async def http() -> AsyncIterator[HttpJson]:
    async with serving(create_app(SETTINGS, handler=echo)) as url, Rpc(url) as rpc:
        yield HttpJson(rpc)


async def test_a_message_is_answered_with_its_task(http: HttpJson) -> None:
    task = (await http.ok("POST", "/message:send", message("river")))["task"]
    assert text_of(task) == "river"
    assert await http.ok("GET", f"/tasks/{task['id']}") == task
    short = await http.ok("GET", f"/tasks/{task['id']}?historyLength=0")
    assert "history" not in short


async def test_a_stream_is_of_bare_events(http: HttpJson) -> None:
    events = await http.stream("POST", "/message:stream", message("river"))
    assert [next(iter(data)) for _, _, data in events] == [
        "task",
        "statusUpdate",
        "artifactUpdate",
        "statusUpdate",
    ]
    assert [number for number, _, _ in events] == ["1", "2", "3", "4"]


async def test_an_event_source_resumes_and_receives_the_end(http: HttpJson) -> None:
    task = (await http.ok("POST", "/message:send", message()))["task"]
    path = f"/tasks/{task['id']}:subscribe?A2A-Version=1.0"
    by_header = await http.stream("GET", path, headers={"last-event-id": "2"})
    assert by_header == await http.stream("GET", path + "&after=2")
    assert [(number, kind) for number, kind, _ in by_header] == [("3", ""), ("4", "")]
    with_extension = await http.stream("GET", f"{path}&after=2&A2A-Extensions={EXTENSION_URI}")
    assert [(number, kind) for number, kind, _ in with_extension] == [("3", ""), ("4", ""), ("4", "end")]
    posted = await http.stream("POST", f"/tasks/{task['id']}:subscribe", {}, {"last-event-id": "2"})
    assert [kind for _, kind, _ in posted] == ["", ""]


async def test_an_event_source_that_reconnects_after_the_end_is_stopped(http: HttpJson) -> None:
    """A browser reconnects after every stream that ends, and stops at 204 (No Content)."""
    task = (await http.ok("POST", "/message:send", message()))["task"]
    waiting = (await http.ok("POST", "/message:send", message("ask")))["task"]
    for task_id, number, status in (
        (task["id"], "4", 204),
        (task["id"], "3", 200),
        (waiting["id"], "0", 200),
    ):
        url = f"{http.rpc.url}/tasks/{task_id}:subscribe"
        async with http.rpc.http.get(url, headers={"last-event-id": number}) as response:
            assert response.status == status
    async with http.rpc.http.get(f"{http.rpc.url}/tasks/nobody:subscribe?after=4") as response:
        assert response.status == 404


async def test_a_waiting_task_is_cancelled(http: HttpJson) -> None:
    task = (await http.ok("POST", "/message:send", message("ask")))["task"]
    assert task["status"]["state"] == "TASK_STATE_INPUT_REQUIRED"
    canceled = await http.ok("POST", f"/tasks/{task['id']}:cancel")
    assert canceled["status"]["state"] == "TASK_STATE_CANCELED"
    status, answer = await http.ask("POST", f"/tasks/{task['id']}:cancel", {})
    assert status == 400
    assert answer["error"]["details"][0]["reason"] == "TASK_NOT_CANCELABLE"


async def test_a_status_that_is_unspecified_filters_nothing(http: HttpJson) -> None:
    await http.ok("POST", "/message:send", message("one"))
    listed = await http.ok("GET", "/tasks?status=TASK_STATE_UNSPECIFIED")
    assert listed["totalSize"] == 1


async def test_a_task_without_artifacts_is_listed_with_an_empty_list_of_them(http: HttpJson) -> None:
    await http.ok("POST", "/message:send", message("ask"))
    [task] = (await http.ok("GET", "/tasks?includeArtifacts=true"))["tasks"]
    assert task["artifacts"] == []
    [task] = (await http.ok("GET", "/tasks"))["tasks"]
    assert "artifacts" not in task


async def test_an_error_names_json_types(http: HttpJson) -> None:
    wrong: dict[str, object] = {"message": {"messageId": "m", "role": "ROLE_USER", "parts": {}}}
    _, answer = await http.ask("POST", "/message:send", wrong)
    assert "message.parts: Input should be a valid list" in answer["error"]["message"]


async def test_tasks_are_listed_newest_first_in_pages(http: HttpJson) -> None:
    texts = ["one", "two", "ask", "three", "four"]
    for text in texts:
        await http.ok("POST", "/message:send", message(text, contextId="c1"))
    await http.ok("POST", "/message:send", message("elsewhere"))
    first = await http.ok("GET", "/tasks?contextId=c1&pageSize=2&includeArtifacts=true")
    assert [text_of(task) for task in first["tasks"]] == ["four", "three"]
    assert (first["totalSize"], first["pageSize"]) == (5, 2)
    second = await http.ok("GET", f"/tasks?contextId=c1&pageSize=3&pageToken={first['nextPageToken']}")
    assert [task["history"][0]["parts"][0]["text"] for task in second["tasks"]] == ["ask", "two", "one"]
    assert second["nextPageToken"] == ""
    assert all("artifacts" not in task for task in second["tasks"])
    waiting = await http.ok("GET", "/tasks?status=TASK_STATE_INPUT_REQUIRED&historyLength=0")
    assert (waiting["totalSize"], "history" in waiting["tasks"][0]) == (1, False)
    newest = first["tasks"][0]["status"]["timestamp"]
    since = await http.ok("GET", f"/tasks?contextId=c1&statusTimestampAfter={newest}")
    assert first["tasks"][0]["id"] in [task["id"] for task in since["tasks"]]
    nothing = await http.ok("GET", "/tasks?contextId=none")
    assert nothing == {"tasks": [], "nextPageToken": "", "pageSize": 0, "totalSize": 0}


async def test_a_running_task_is_listed_as_it_stands() -> None:
    started, go_on = anyio.Event(), anyio.Event()

    async def wait(turn: Turn) -> AsyncIterator[Update | Message]:
        yield StatusUpdate(TaskState.WORKING)
        yield ArtifactUpdate(Artifact(artifact_id="text", parts=(Part(text="so far"),)), last=False)
        started.set()
        await go_on.wait()

    async with serving(create_app(SETTINGS, handler=wait)) as url, Rpc(url) as rpc:
        http = HttpJson(rpc)
        sent = {**message(), "configuration": {"returnImmediately": True}}
        await http.ok("POST", "/message:send", sent)
        await started.wait()
        page = await http.ok("GET", "/tasks?status=TASK_STATE_WORKING&includeArtifacts=true")
        go_on.set()
    assert [text_of(task) for task in page["tasks"]] == ["so far"]


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("pageSize=0", "pageSize"),
        ("pageSize=101", "pageSize"),
        ("pageSize=many", "pageSize"),
        ("historyLength=-1", "historyLength"),
        ("status=TASK_STATE_HAPPY", "status"),
        ("statusTimestampAfter=yesterday", "statusTimestampAfter"),
        ("includeArtifacts=perhaps", "includeArtifacts"),
        ("pageToken=bm9uZQ", ""),
        ("pageToken=%00", ""),
    ],
)
async def test_a_wrong_filter_is_named(http: HttpJson, query: str, field: str) -> None:
    status, answer = await http.ask("GET", f"/tasks?{query}")
    assert (status, answer["error"]["code"], answer["error"]["status"]) == (400, 400, "INVALID_ARGUMENT")
    violations = [each for detail in answer["error"]["details"] for each in detail.get("fieldViolations", [])]
    assert [each["field"] for each in violations] == ([field] if field else [])


async def test_a_page_token_belongs_to_its_filters(http: HttpJson) -> None:
    for _ in range(2):
        await http.ok("POST", "/message:send", message(contextId="c1"))
    page = await http.ok("GET", "/tasks?contextId=c1&pageSize=1")
    status, _ = await http.ask("GET", f"/tasks?contextId=c2&pageToken={page['nextPageToken']}")
    assert status == 400


async def test_tenants_see_their_own_tasks(http: HttpJson) -> None:
    task = (await http.ok("POST", "/acme/message:send", message()))["task"]
    assert (await http.ok("GET", f"/acme/tasks/{task['id']}"))["id"] == task["id"]
    for path in (f"/tasks/{task['id']}", f"/other/tasks/{task['id']}"):
        status, answer = await http.ask("GET", path)
        assert (status, answer["error"]["details"][0]["reason"]) == (404, "TASK_NOT_FOUND")
    assert (await http.ok("GET", "/acme/tasks"))["totalSize"] == 1
    assert (await http.ok("GET", "/tasks"))["totalSize"] == 0
    by_rpc = await http.rpc.result("GetTask", {"id": task["id"], "tenant": "acme"})
    assert by_rpc["id"] == task["id"]


@pytest.mark.parametrize(
    ("version", "status"),
    [("1.0", 200), ("1.0.3", 200), (" 1.0 ", 200), ("", 200), ("0.3", 400), ("1.7", 400), ("99.0", 400)],
)
async def test_these_addresses_are_for_1_0(http: HttpJson, version: str, status: int) -> None:
    for path, headers in (("/tasks", {"A2A-Version": version}), (f"/tasks?A2A-Version={version}", {})):
        found, answer = await http.ask("GET", path, headers=headers)
        assert found == status, answer
        if status == 400:
            [info] = answer["error"]["details"]
            assert (info["reason"], info["metadata"]) == (
                "VERSION_NOT_SUPPORTED",
                {"supportedVersions": "1.0"},
            )


async def test_the_path_wins_over_the_body_and_the_query(http: HttpJson) -> None:
    task = (await http.ok("POST", "/message:send", message("ask")))["task"]
    path = f"/tasks/{task['id']}"
    for name in ("id", "taskId", "task_id"):
        assert (await http.ok("GET", f"{path}?{name}=other"))["id"] == task["id"]
    status, answer = await http.ask("GET", "/tasks/none/pushNotificationConfigs?taskId=" + task["id"])
    assert (status, answer["error"]["details"][0]["metadata"]) == (404, {"taskId": "none"})
    for name in ("taskId", "task_id"):
        body = {"url": "http://127.0.0.1/", name: task["id"]}
        status, answer = await http.ask("POST", "/tasks/none/pushNotificationConfigs", body)
        assert (status, answer["error"]["details"][0]["metadata"]) == (404, {"taskId": "none"})
    canceled = await http.ok("POST", f"{path}:cancel", {"id": "other", "tenant": ""})
    assert canceled["id"] == task["id"]


async def test_errors_are_statuses_with_details(http: HttpJson) -> None:
    requests: list[tuple[str, str, object, int]] = [
        ("GET", "/tasks/none", None, 404),
        ("POST", "/message:send", {}, 400),
        ("POST", "/message:send", [], 400),
        ("GET", "/extendedAgentCard", None, 400),
        ("GET", "/tasks/none/pushNotificationConfigs", None, 404),
    ]
    for method, path, body, code in requests:
        status, answer = await http.ask(method, path, body)
        assert (status, answer["error"]["code"]) == (code, code)
        assert answer["error"]["details"][0]["domain"] == "a2a-protocol.org"
    status, answer = await http.ask("GET", "/tasks/x", headers={"A2A-Version": "0.5"})
    assert (status, answer["error"]["details"][0]["reason"]) == (400, "VERSION_NOT_SUPPORTED")
    status, _ = await http.ask("POST", "/message:send", {}, headers={"content-type": "text/plain"})
    assert status == 415
    status, _ = await http.ask("POST", "/message:send", message("x" * 20_000))
    assert status == 413


@pytest.mark.parametrize("kind", ["application/json", "application/a2a+json"])
async def test_the_media_type_is_the_clients(http: HttpJson, kind: str) -> None:
    async with http.rpc.http.get(http.rpc.url + "/tasks", headers={"accept": kind}) as response:
        assert response.headers["content-type"].startswith(kind)
