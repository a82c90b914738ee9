"""Every version of the protocol at one address: the requests and responses of each one's clients."""

import json
from collections.abc import AsyncIterator
from typing import Any

import anyio
import pytest
from multidict import CIMultiDict

from support.agents import ask_back
from support.live_server import serving
from support.rpc import Rpc, message
from tailrace.server import Settings, Turn, create_app
from tailrace.server.runtime.handlers import DirectHandler
from tailrace.streaming import A2ATaskBridge, ArtifactUpdate, StatusUpdate, TaskState, TextDelta, Update
from tailrace.streaming.a2a.models import Artifact, Message, Part, Role
from tailrace.streaming.conversion.a2a_task_bridge import BridgeDialect

SETTINGS = Settings(store="sqlite://")


@pytest.fixture
async def rpc() -> AsyncIterator[Rpc]:
    async with serving(create_app(SETTINGS, handler=ask_back)) as url, Rpc(url) as caller:
        yield caller


def kind_message(text: str = "hello", **fields: Any) -> dict[str, Any]:
    """Return the params of a send in the format of 0.3."""
    parts = [{"kind": "text", "text": text}]
    return {"message": {"kind": "message", "messageId": "m", "role": "user", "parts": parts, **fields}}


def type_message(task_id: str, text: str = "hello", **fields: Any) -> dict[str, Any]:
    """Return the params of a send in the format before 0.2."""
    return {"id": task_id, "message": {"role": "user", "parts": [{"type": "text", "text": text}]}, **fields}


# --- 0.3 --------------------------------------------------------------------------------------------------------


async def test_a_stream_of_0_3_has_kinds_and_marks_the_final_event(rpc: Rpc) -> None:
    events = [event for _, event in await rpc.stream("message/stream", kind_message())]
    assert [event["kind"] for event in events] == [
        "task",
        "status-update",
        "artifact-update",
        "artifact-update",
        "artifact-update",
        "status-update",
    ]
    assert [event["final"] for event in events if "final" in event] == [False, True]
    assert [event["status"]["state"] for event in events if "status" in event] == [
        "submitted",
        "working",
        "completed",
    ]
    chunks = [event for event in events if event["kind"] == "artifact-update"]
    assert [part for chunk in chunks for part in chunk["artifact"]["parts"]] == [
        {"kind": "text", "text": "he"},
        {"kind": "text", "text": "llo"},
        {"kind": "text", "text": ""},
    ]
    assert chunks[-1]["lastChunk"]
    assert events[0]["history"][0]["role"] == "user"


async def test_a_send_of_0_3_waits_only_if_it_is_blocking(rpc: Rpc) -> None:
    waited = await rpc.result("message/send", {**kind_message(), "configuration": {"blocking": True}})
    assert (waited["kind"], waited["status"]["state"]) == ("task", "completed")
    assert waited["artifacts"][0]["parts"] == [{"kind": "text", "text": "hello"}]

    async def wait(turn: Turn) -> AsyncIterator[Update | Message]:
        yield StatusUpdate(TaskState.WORKING)
        await anyio.sleep_forever()

    async with serving(create_app(SETTINGS, handler=wait)) as url, Rpc(url) as other:
        at_once = await other.result("message/send", kind_message())
        assert at_once["status"]["state"] in ("submitted", "working")
        assert (await other.result("tasks/cancel", {"id": at_once["id"]}))["status"]["state"] == "canceled"


async def test_a_question_of_0_3_is_final_and_can_be_answered(rpc: Rpc) -> None:
    events = [event for _, event in await rpc.stream("message/stream", kind_message("?"))]
    assert (events[-1]["status"]["state"], events[-1]["final"]) == ("input-required", True)
    assert events[-1]["status"]["message"]["parts"] == [{"kind": "text", "text": "Which one?"}]
    answer = {**kind_message("that", taskId=events[0]["id"]), "configuration": {"blocking": True}}
    task = await rpc.result("message/send", answer)
    assert task["status"]["state"] == "completed"
    assert [entry["parts"][0]["text"] for entry in task["history"]] == ["?", "Which one?", "that", "that"]


async def test_a_task_is_the_same_in_every_version(rpc: Rpc) -> None:
    task = (await rpc.result("SendMessage", message("river")))["task"]
    old = await rpc.result("tasks/get", {"id": task["id"], "historyLength": 5})
    assert (old["kind"], old["contextId"], old["status"]["state"]) == ("task", task["contextId"], "completed")
    assert old["artifacts"][0]["parts"] == [{"kind": "text", "text": "river"}]
    assert (await rpc.error("tasks/cancel", {"id": task["id"]}))["code"] == -32002
    # As over HTTP+JSON and gRPC: the bindings of 0.3 are equivalent, and its proto returns a finished task.
    [(_, again)] = await rpc.stream("tasks/resubscribe", {"id": task["id"]})
    assert (again["kind"], again["status"]["state"]) == ("task", "completed")
    resumed = await rpc.stream("tasks/resubscribe", {"id": task["id"]}, {"last-event-id": "3"})
    assert [number for number, _ in resumed] == [4, 5, 6]


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"message": {}},
        {"message": {"messageId": "m", "role": "user", "parts": []}},
        {"message": {"messageId": "m", "role": "someone", "parts": [{"kind": "text", "text": "a"}]}},
        {"message": {"messageId": "m", "role": "user", "parts": [{"kind": "video"}]}},
        {"message": {"messageId": "m", "role": "user", "parts": [{"kind": "text"}]}},
        {"message": {"messageId": "m", "role": "user", "parts": [{"type": "video", "text": "a"}]}},
        {"message": {"messageId": "m", "role": "user", "parts": {"kind": "text"}}},
        {**kind_message(), "configuration": {"blocking": "yes"}},
        {**kind_message(), "configuration": {"historyLength": -1}},
        {**kind_message(), "configuration": []},
    ],
)
async def test_what_is_no_message_of_0_3_is_refused(rpc: Rpc, params: dict[str, Any]) -> None:
    assert (await rpc.error("message/send", params))["code"] == -32602


async def test_a_client_of_0_3_that_requests_a_stream_gets_its_error_in_a_stream(rpc: Rpc) -> None:
    """Clients of 0.3 read only streams here. In 1.0 an error before the first event is no stream."""
    body: dict[str, Any] = {"jsonrpc": "2.0", "id": 7, "params": {"id": "none"}}
    for method, accept, kind in (
        ("tasks/resubscribe", "text/event-stream", "text/event-stream"),
        ("message/stream", "text/event-stream", "text/event-stream"),
        ("tasks/resubscribe", "application/json", "application/json"),
        ("tasks/get", "text/event-stream", "application/json"),
        ("SubscribeToTask", "text/event-stream", "application/json"),
        ("tasks/sendSubscribe", "text/event-stream", "application/json"),
    ):
        request = {**body, "method": method}
        async with rpc.http.post(rpc.url + "/", json=request, headers={"accept": accept}) as response:
            text = await response.text()
            assert (response.status, response.content_type) == (200, kind), method
        if kind == "text/event-stream":
            assert text.startswith("data: ")
            assert text.endswith("\n\n")
        answer = json.loads(text.removeprefix("data: "))
        assert answer["id"] == 7
        assert answer["error"]["code"] in (-32001, -32602)


async def test_every_accept_header_counts(rpc: Rpc) -> None:
    """The official Python client of 0.3 sends two."""
    body = {"jsonrpc": "2.0", "id": 7, "method": "message/stream", "params": {"id": "none"}}
    accepted = CIMultiDict([("accept", "*/*"), ("accept", "text/event-stream")])
    async with rpc.http.post(rpc.url + "/", json=body, headers=accepted) as response:
        assert response.content_type == "text/event-stream"
        assert (await response.text()).startswith("data: ")


async def test_a_webhook_that_was_set_by_a_name_is_found_without_one_while_it_is_the_only_one() -> None:
    """A client of 0.2 supports one webhook per task, and requests it by the task alone."""
    settings = SETTINGS.model_copy(update={"push_notifications": "private"})
    async with serving(create_app(settings, handler=ask_back)) as url, Rpc(url) as rpc:
        task_id = (await rpc.result("message/send", kind_message("? which")))["id"]
        found: list[Any] = []
        for name in ("first", "second"):
            config = {"id": name, "url": "http://127.0.0.1:9/hook"}
            wanted = {"taskId": task_id, "pushNotificationConfig": config}
            await rpc.result("tasks/pushNotificationConfig/set", wanted)
            found.append(await rpc.call("tasks/pushNotificationConfig/get", {"id": task_id}))
    assert found[0]["result"]["pushNotificationConfig"]["id"] == "first"
    assert found[1]["error"]["code"] == -32001  # with several webhooks, the id is required


# --- before 0.2 -------------------------------------------------------------------------------------------------


async def test_the_client_names_the_task_before_0_2(rpc: Rpc) -> None:
    task = await rpc.result("tasks/send", type_message("mine", sessionId="s1"))
    assert (task["id"], task["sessionId"], task["status"]["state"]) == ("mine", "s1", "completed")
    assert task["artifacts"] == [
        {**task["artifacts"][0], "index": 0, "parts": [{"type": "text", "text": "hello"}]}
    ]
    assert "history" not in task
    assert "kind" not in task


async def test_a_task_is_written_as_in_the_version_that_it_was_begun_in(rpc: Rpc) -> None:
    await rpc.result("tasks/send", type_message("mine"))
    old = await rpc.result("tasks/get", {"id": "mine", "historyLength": 10})
    assert "sessionId" in old
    assert [(entry["role"], entry["parts"]) for entry in old["history"]] == [
        ("user", [{"type": "text", "text": "hello"}]),
        ("agent", [{"type": "text", "text": "hello"}]),
    ]
    new = await rpc.result("GetTask", {"id": "mine"})
    assert new["status"]["state"] == "TASK_STATE_COMPLETED"
    response = await rpc.call("tasks/get", {"id": "mine"}, {"A2A-Version": "0.3"})
    assert response["result"]["kind"] == "task"


async def test_a_stream_before_0_2_is_of_statuses_and_artifacts(rpc: Rpc) -> None:
    events = [event for _, event in await rpc.stream("tasks/sendSubscribe", type_message("mine"))]
    assert all(event["id"] == "mine" for event in events)
    assert [event["status"]["state"] for event in events if "status" in event] == ["working", "completed"]
    assert [event["final"] for event in events if "status" in event] == [False, True]
    artifacts = [event["artifact"] for event in events if "artifact" in event]
    assert [artifact["parts"][0]["text"] for artifact in artifacts] == ["he", "llo", ""]
    assert [artifact.get("append", False) for artifact in artifacts] == [False, True, True]
    assert {artifact["index"] for artifact in artifacts} == {0}
    assert artifacts[-1]["lastChunk"]


async def test_a_known_id_goes_on_with_its_task_before_0_2(rpc: Rpc) -> None:
    question = await rpc.result("tasks/send", type_message("mine", "?"))
    assert question["status"]["state"] == "input-required"
    assert question["status"]["message"]["parts"] == [{"type": "text", "text": "Which one?"}]
    done = await rpc.result("tasks/send", type_message("mine", "that"))
    assert (done["id"], done["status"]["state"]) == ("mine", "completed")
    assert (await rpc.error("tasks/send", type_message("mine")))["code"] == -32004


async def test_a_stream_that_goes_on_with_a_task_begins_with_its_work_before_0_2(rpc: Rpc) -> None:
    await rpc.result("tasks/send", type_message("mine", "?"))
    events = [event for _, event in await rpc.stream("tasks/sendSubscribe", type_message("mine", "that"))]
    assert events[0]["status"]["state"] == "working"
    assert not events[0]["final"]
    assert (events[-1]["status"]["state"], events[-1]["final"]) == ("completed", True)


async def test_a_file_is_read_as_the_first_examples_wrote_it_too(rpc: Rpc) -> None:
    for bytes_name in ("bytes", "data"):
        params = type_message(f"with-{bytes_name}")
        file = {"name": "a.txt", "mimeType": "text/plain", bytes_name: "aGk="}
        params["message"]["parts"].append({"type": "file", "file": file})
        await rpc.result("tasks/send", params)
        [message] = (await rpc.result("GetTask", {"id": f"with-{bytes_name}"}))["history"][:1]
        assert message["parts"][1] == {"raw": "aGk=", "filename": "a.txt", "mediaType": "text/plain"}


async def test_of_messages_that_name_the_same_new_task_at_once_one_begins_it(rpc: Rpc) -> None:
    answers: list[dict[str, Any]] = []

    async def send() -> None:
        answers.append(await rpc.call("tasks/send", type_message("mine")))

    async with anyio.create_task_group() as group:
        for _ in range(20):
            group.start_soon(send)
    taken = [answer["result"] for answer in answers if "result" in answer]
    assert {(task["id"], task["status"]["state"]) for task in taken} == {("mine", "completed")}
    # The other clients found it completed, or reached the limit of waiting requests.
    assert {answer["error"]["code"] for answer in answers if "error" in answer} <= {-32004}
    task = await rpc.result("tasks/get", {"id": "mine", "historyLength": 100})
    assert len([entry for entry in task["history"] if entry["role"] == "user"]) == len(taken)


async def test_a_name_for_a_task_is_its_callers_alone() -> None:
    settings = Settings.model_validate({"store": "sqlite://", "caller_keys": "alice:KA,bob:KB"})
    alice, bob = {"X-API-Key": "KA"}, {"X-API-Key": "KB"}

    async def work(turn: Turn) -> AsyncIterator[Update | Message]:
        yield StatusUpdate(TaskState.INPUT_REQUIRED)

    async with serving(create_app(settings, handler=work)) as url, Rpc(url) as rpc:
        for who in (bob, alice):
            task = (await rpc.call("tasks/send", type_message("order-1"), who))["result"]
            assert (task["id"], task["status"]["state"]) == ("order-1", "input-required")
            # The next message continues it, and every other method accepts that id.
            await rpc.call("tasks/send", type_message("order-1"), who)
            for method in ("tasks/get", "tasks/pushNotification/set", "tasks/cancel"):
                params: dict[str, Any] = {"id": "order-1", "historyLength": 9}
                if "push" in method:
                    params["pushNotificationConfig"] = {"url": "https://example.org/hook"}
                result = (await rpc.call(method, params, who))["result"]
                assert result["id"] == "order-1", method
                if method == "tasks/get":
                    assert [entry["role"] for entry in result["history"]] == ["user", "user"]
            # In 1.0 both its own id and the client's id find it.
            found = (await rpc.call("GetTask", {"id": "order-1"}, who))["result"]
            assert (await rpc.call("GetTask", {"id": found["id"]}, who))["result"] == found
            other = alice if who is bob else bob
            assert (await rpc.call("GetTask", {"id": found["id"]}, other))["error"]["code"] == -32001


async def test_without_callers_a_task_cannot_be_named_like_one_of_a_tenant() -> None:
    async def work(turn: Turn) -> AsyncIterator[Update | Message]:
        yield StatusUpdate(TaskState.INPUT_REQUIRED)

    async with serving(create_app(SETTINGS, handler=work)) as url, Rpc(url) as rpc:
        theirs = (await rpc.result("SendMessage", {**message("?"), "tenant": "acme"}))["task"]
        assert (await rpc.error("tasks/send", type_message(theirs["id"])))["code"] == -32602
        assert (await rpc.result("GetTask", {"id": theirs["id"], "tenant": "acme"})) == theirs


async def test_a_stream_that_is_gone_on_with_before_0_2_numbers_the_artifacts_as_before() -> None:
    async def work(turn: Turn) -> AsyncIterator[Update | Message]:
        for name in ("reason", "text"):
            yield ArtifactUpdate(Artifact(artifact_id=name, parts=(Part(text=name),)), last=False)
            yield TextDelta(name, "!", last=True)

    async with serving(create_app(SETTINGS, handler=work)) as url, Rpc(url) as rpc:
        events = await rpc.stream("tasks/sendSubscribe", type_message("mine"))
        for at, (number, _) in enumerate(events):
            again = await rpc.stream("tasks/resubscribe", {"id": "mine"}, {"Last-Event-ID": str(number)})
            assert again == events[at + 1 :]


async def test_a_direct_answer_before_0_2_has_the_clients_id() -> None:
    async def reply(turn: Turn) -> AsyncIterator[Update | Message]:
        yield Message(message_id="m", role=Role.AGENT, parts=(Part(text="yes"),))

    async with serving(create_app(SETTINGS, handler=DirectHandler(reply))) as url, Rpc(url) as rpc:
        assert (await rpc.result("tasks/send", type_message("mine")))["id"] == "mine"
        [(_, event)] = await rpc.stream("tasks/sendSubscribe", type_message("mine"))
        assert event["id"] == "mine"


async def test_a_running_task_is_cancelled_before_0_2() -> None:
    started, go_on = anyio.Event(), anyio.Event()

    async def wait(turn: Turn) -> AsyncIterator[Update | Message]:
        yield StatusUpdate(TaskState.WORKING)
        started.set()
        await go_on.wait()

    async with serving(create_app(SETTINGS, handler=wait)) as url, Rpc(url) as rpc:
        events: list[Any] = []
        task: dict[str, Any] = {}

        async def follow() -> None:
            events.extend(await rpc.stream("tasks/sendSubscribe", type_message("mine")))

        async with anyio.create_task_group() as group:
            group.start_soon(follow)
            await started.wait()
            task = await rpc.result("tasks/cancel", {"id": "mine"})
    assert task["status"]["state"] == "canceled"
    assert (events[-1][1]["status"]["state"], events[-1][1]["final"]) == ("canceled", True)


@pytest.mark.parametrize("params", [{}, {"id": ""}, {"id": 7}, {"id": "x" * 300}, {"id": "a", "message": {}}])
async def test_what_is_no_message_before_0_2_is_refused(rpc: Rpc, params: dict[str, Any]) -> None:
    sent = {**type_message("a"), **params}
    sent = sent if params else {}
    assert (await rpc.error("tasks/send", sent))["code"] == -32602


# --- the bridge for sub-agents ----------------------------------------------------------------------------------


@pytest.mark.parametrize("dialect", ["0.1", "0.3", "1.0"])
async def test_the_bridge_lives_a_whole_life_against_this_server(rpc: Rpc, dialect: BridgeDialect) -> None:
    bridge = A2ATaskBridge(dialect)

    async def post_to_agent(request: dict[str, Any]) -> dict[str, Any]:
        async with rpc.http.post(rpc.url + "/", json=request) as response:
            return await response.json()

    result = bridge.parse_response(await post_to_agent(bridge.build_send_request("? Translate to French")))
    while result.status != "input-required":
        result = bridge.parse_response(await post_to_agent(bridge.build_get_request(result.task_id)))
    assert bridge.get_result_text(result) == "Which one?"
    request = bridge.build_send_request("Hello, world!", task_id=result.task_id)
    final = bridge.parse_response(await post_to_agent(request))
    while final.status != "completed":
        final = bridge.parse_response(await post_to_agent(bridge.build_get_request(result.task_id)))
    assert bridge.get_result_text(final).startswith("Hello, world!")
    cancelled = bridge.parse_response(await post_to_agent(bridge.build_cancel_request(result.task_id)))
    assert cancelled.status == "failed"
    assert cancelled.error is not None
    assert "cannot be canceled" in cancelled.error
