"""Push notifications: their contents, order, format and retries, and isolation from the task."""

import logging
import socket
from collections.abc import AsyncIterator, Iterator
from typing import Any

import aiohttp
import anyio
import pytest
from aiohttp import web

from support.agents import ask_back
from support.live_server import serving
from support.rpc import Rpc, message, text_of
from support.webhook_agents import WORKED, GivenUp, Updates, agent, answering, create, holding, send, settings
from support.webhook_receiver import Delivery, Receiver, accept, receiving
from tailrace.server import Turn, create_app
from tailrace.server.runtime.webhooks.delivery import MAX_CONFIGS, MAX_MISSED
from tailrace.streaming import ArtifactUpdate, StatusUpdate, TaskState
from tailrace.streaming.a2a.models import Artifact, Part, StreamResponse
from tailrace.streaming.a2a.requests import AuthenticationInfo
from tailrace.streaming.task.task_record import agent_message


@pytest.fixture
async def webhook() -> AsyncIterator[Receiver]:
    async with receiving() as receiver:
        yield receiver


def closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


@pytest.fixture
def given_up() -> Iterator[GivenUp]:
    handler, logger = GivenUp(), logging.getLogger("tailrace.server")
    logger.addHandler(handler)
    yield handler
    logger.removeHandler(handler)


# --- notifications in the format of each version ------------------------------------------------------------


async def test_a_webhook_receives_every_status_update_and_then_the_complete_task(
    webhook: Receiver,
) -> None:
    config = {
        "url": webhook.url + "?for=me",
        "token": "t-0",
        "authentication": {"scheme": "Bearer", "credentials": "c-0"},
    }
    async with serving(create_app(settings(), handler=ask_back)) as url, Rpc(url) as rpc:
        params = {**message("hello"), "configuration": {"taskPushNotificationConfig": config}}
        events = await rpc.stream("SendStreamingMessage", params)
        *deliveries, last = await webhook.until_end()
        task = await rpc.result("GetTask", {"id": events[0][1]["task"]["id"]})
    numbers = [(number, event) for number, event in events if "artifactUpdate" not in event]
    assert [each.body for each in deliveries] == [event for _, event in numbers]
    assert [each.event for each in deliveries] == [f"{task['id']}/{number}" for number, _ in numbers]
    assert last.body == {"task": task}
    assert text_of(last.body["task"]) == "hello"
    for each in webhook.deliveries:
        StreamResponse.model_validate(each.body)
        assert each.path == "/hook?for=me"
        assert each.headers["Content-Type"] == "application/a2a+json"
        assert each.headers["Authorization"] == "Bearer c-0"
        assert each.headers["X-A2A-Notification-Token"] == "t-0"
    assert len({each.event for each in webhook.deliveries}) == len(webhook.deliveries)


async def test_a_webhook_of_0_3_receives_the_task_at_every_change(webhook: Receiver) -> None:
    config = {"url": webhook.url, "authentication": {"schemes": ["Basic"], "credentials": "eA=="}}
    async with serving(create_app(settings(), handler=ask_back)) as url, Rpc(url) as rpc:
        user_message = {"messageId": "m", "role": "user", "parts": [{"kind": "text", "text": "hello"}]}
        configuration = {"pushNotificationConfig": config, "blocking": True}
        task = await rpc.result("message/send", {"message": user_message, "configuration": configuration})
        deliveries = await webhook.until(
            lambda deliveries: bool(deliveries) and deliveries[-1].state == "completed"
        )
        got = await rpc.result("tasks/pushNotificationConfig/get", {"id": task["id"]})
        assert got == {"taskId": task["id"], "pushNotificationConfig": {"id": "default", **config}}
        assert await rpc.result("tasks/pushNotificationConfig/list", {"id": task["id"]}) == [got]
        gone = {"id": task["id"], "pushNotificationConfigId": "default"}
        for _ in range(2):
            assert await rpc.result("tasks/pushNotificationConfig/delete", gone) is None
    assert [each.state for each in deliveries] == ["submitted", "working", "completed"]
    assert {each.body["kind"] for each in deliveries} == {"task"}
    assert {each.body["id"] for each in deliveries} == {task["id"]}
    assert deliveries[-1].body == task
    for each in deliveries:
        assert each.headers["Content-Type"] == "application/json"
        assert each.headers["Authorization"] == "Basic eA=="
        assert "X-A2A-Notification-Token" not in each.headers


async def test_a_webhook_of_before_0_2_receives_the_task_in_that_form(webhook: Receiver) -> None:
    async with serving(create_app(settings(), handler=ask_back)) as url, Rpc(url) as rpc:
        user_message = {"role": "user", "parts": [{"type": "text", "text": "hello"}]}
        config = {"url": webhook.url, "token": "t"}
        await rpc.result("tasks/send", {"id": "mine", "message": user_message, "pushNotification": config})
        deliveries = await webhook.until(
            lambda deliveries: bool(deliveries) and deliveries[-1].state == "completed"
        )
        got = await rpc.result("tasks/pushNotification/get", {"id": "mine"})
    assert got == {"id": "mine", "pushNotificationConfig": {"id": "default", **config}}
    assert [each.state for each in deliveries] == ["submitted", "working", "completed"]
    assert {each.body["id"] for each in deliveries} == {"mine"}
    assert deliveries[-1].body["artifacts"][0]["parts"] == [{"type": "text", "text": "hello"}]
    assert "history" not in deliveries[-1].body
    assert {each.headers["Content-Type"] for each in deliveries} == {"application/json"}


@pytest.mark.parametrize("with_message", [False, True])
async def test_a_webhook_set_later_receives_the_following_updates(
    webhook: Receiver, with_message: bool
) -> None:
    async with agent() as operations:
        waiting = await send(operations, "?")
        if not with_message:
            await create(operations, waiting, webhook.url)
        assert webhook.deliveries == []
        url = webhook.url if with_message else None
        await send(operations, "this one", task_id=waiting.id, webhook=url)
        deliveries = await webhook.until_end()
    assert [each.state for each in deliveries] == WORKED[1:]


async def test_a_webhook_is_notified_of_a_failed_task(webhook: Receiver) -> None:
    async def fail(turn: Turn) -> Updates:
        yield StatusUpdate(TaskState.WORKING)
        raise RuntimeError("broken")

    async with agent(fail) as operations:
        await send(operations, webhook=webhook.url)
        deliveries = await webhook.until_end()
    assert [each.state for each in deliveries][2:] == ["TASK_STATE_FAILED"] * 2


async def test_a_large_task_is_delivered_completely(webhook: Receiver) -> None:
    text = "0123456789abcdef" * 256 * 1024  # 4 MiB

    async def write(turn: Turn) -> Updates:
        yield ArtifactUpdate(Artifact(artifact_id="text", parts=(Part(text=text),)))

    async with agent(write) as operations:
        await send(operations, webhook=webhook.url)
        deliveries = await webhook.until_end()
    assert text_of(deliveries[-1].body["task"]) == text


# --- the four operations ------------------------------------------------------------------------------------


async def test_webhooks_are_set_read_listed_replaced_and_deleted_over_http_json() -> None:
    async with serving(create_app(settings(), handler=ask_back)) as url, aiohttp.ClientSession(url) as http:

        async def ask(method: str, path: str, body: object = None) -> tuple[int, dict[str, Any]]:
            async with http.request(method, path, json=body) as response:
                return response.status, await response.json()

        _, sent = await ask("POST", "/message:send", message())
        task_id = sent["task"]["id"]
        path = f"/tasks/{task_id}/pushNotificationConfigs"
        config = {
            "url": "https://8.8.8.8/hook",
            "token": "t",
            "authentication": {"scheme": "Bearer", "credentials": "c"},
        }
        status, made = await ask("POST", path, config)
        assert status == 200
        assert made == {**config, "id": made["id"], "taskId": task_id}
        assert await ask("GET", f"{path}/{made['id']}") == (200, made)
        _, other = await ask("POST", path, {**config, "id": "~other"})
        _, replaced = await ask("POST", path, {"url": "https://8.8.4.4/", "id": made["id"]})
        assert replaced == {"url": "https://8.8.4.4/", "id": made["id"], "taskId": task_id}
        assert await ask("GET", path) == (200, {"configs": [replaced, other]})

        _, first = await ask("GET", f"{path}?pageSize=1")
        assert first["configs"] == [replaced]
        token = first["nextPageToken"]
        assert await ask("GET", f"{path}?pageSize=1&pageToken={token}") == (200, {"configs": [other]})
        status, _ = await ask("GET", f"{path}?pageToken=%FF")
        assert status == 400

        for _ in range(2):
            assert await ask("DELETE", f"{path}/{made['id']}") == (200, {})
        status, error = await ask("GET", f"{path}/{made['id']}")
        assert (status, error["error"]["details"][0]["reason"]) == (404, "TASK_NOT_FOUND")
        assert await ask("GET", path) == (200, {"configs": [other]})
        for method, wrong in (("GET", ""), ("POST", ""), ("GET", "/x"), ("DELETE", "/x")):
            status, error = await ask(method, f"/tasks/none/pushNotificationConfigs{wrong}", config)
            assert (status, error["error"]["details"][0]["reason"]) == (404, "TASK_NOT_FOUND")


async def test_without_push_notifications_the_card_declares_none_and_requests_are_rejected() -> None:
    app = create_app(settings(push_notifications=False), handler=ask_back)
    named = {"taskId": "none", "id": "c"}
    async with serving(app) as url, Rpc(url) as rpc:
        async with rpc.http.get(f"{url}/.well-known/agent-card.json") as response:
            assert (await response.json())["capabilities"]["pushNotifications"] is False
        for method, params in (
            ("CreateTaskPushNotificationConfig", {**named, "url": "https://8.8.8.8/"}),
            ("GetTaskPushNotificationConfig", named),
            ("ListTaskPushNotificationConfigs", {"taskId": "none"}),
            ("DeleteTaskPushNotificationConfig", named),
            ("tasks/pushNotificationConfig/get", {"id": "none"}),
            ("tasks/pushNotification/get", {"id": "none"}),
        ):
            assert (await rpc.error(method, params))["code"] == -32003
        webhook = {"taskPushNotificationConfig": {"url": "https://8.8.8.8/"}}
        error = await rpc.error("SendMessage", {**message(), "configuration": webhook})
        assert error["code"] == -32003
        assert (await rpc.result("ListTasks", {}))["totalSize"] == 0
    async with serving(create_app(settings(), handler=ask_back)) as url, Rpc(url) as rpc:
        for version in ("1.0", "0.3"):
            headers = {"A2A-Version": version}
            async with rpc.http.get(f"{url}/.well-known/agent-card.json", headers=headers) as response:
                assert (await response.json())["capabilities"]["pushNotifications"] is True


async def test_a_task_has_so_many_webhooks_and_no_more() -> None:
    async with serving(create_app(settings(), handler=ask_back)) as url, Rpc(url) as rpc:
        task_id = (await rpc.result("SendMessage", message()))["task"]["id"]
        config = {"taskId": task_id, "url": "https://8.8.8.8/"}
        for number in range(MAX_CONFIGS):
            await rpc.result("CreateTaskPushNotificationConfig", {**config, "id": str(number)})
        error = await rpc.error("CreateTaskPushNotificationConfig", config)
        assert error["code"] == -32602
        assert str(MAX_CONFIGS) in error["message"]
        await rpc.result("CreateTaskPushNotificationConfig", {**config, "id": "0"})


async def test_a_webhook_without_a_task_is_refused() -> None:
    async with serving(create_app(settings(), handler=ask_back)) as url, Rpc(url) as rpc:
        error = await rpc.error("CreateTaskPushNotificationConfig", {"url": "https://8.8.8.8/"})
    assert error["code"] == -32602
    assert "taskId" in error["message"]


# --- attempts -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("statuses", "tries", "reasons"),
    [
        pytest.param((503, 408, 204, 500, 425), (3, 3, 1, 1), [], id="temporary"),
        pytest.param((404, 410), (1, 1, 1, 1), ["status 404", "status 410"], id="permanent"),
        # All tries for the first and for the last state, one for a change of a webhook that was given up.
        pytest.param((500,) * 8, (4, 1, 4, 1), ["status 500"] * 2, id="given up"),
    ],
)
async def test_what_may_pass_is_tried_again_and_the_order_is_kept(
    webhook: Receiver,
    given_up: GivenUp,
    statuses: tuple[int, ...],
    tries: tuple[int, ...],
    reasons: list[str],
) -> None:
    webhook.answer = answering(*statuses)
    async with agent() as operations:
        await send(operations, webhook=webhook.url)
        deliveries = await webhook.until_end()
    expected = [state for state, count in zip(WORKED, tries, strict=True) for _ in range(count)]
    assert [each.state for each in deliveries] == expected
    assert len({each.event for each in deliveries}) == len(WORKED)
    assert given_up.reasons == reasons


@pytest.mark.parametrize("when", ["0", "Wed, 21 Oct 2015 07:28:00 GMT"])
async def test_a_webhook_sets_the_time_of_the_next_attempt(webhook: Receiver, when: str) -> None:
    webhook.answer = answering(429, 503, **{"Retry-After": when})
    # Without the header, the next attempt would be long after the end of the test.
    async with agent(first_pause=1000) as operations:
        await send(operations, webhook=webhook.url)
        deliveries = await webhook.until_end()
    assert len(deliveries) == len(WORKED) + 2


async def test_a_dead_webhook_costs_neither_the_task_nor_other_webhooks_anything(webhook: Receiver) -> None:
    dead = f"http://127.0.0.1:{closed_port()}/"
    go_on = anyio.Event()

    async def wait(turn: Turn) -> Updates:
        yield StatusUpdate(TaskState.WORKING)
        await go_on.wait()
        yield StatusUpdate(TaskState.COMPLETED)

    async with agent(wait, first_pause=1000, grace=0) as operations:
        task = await send(operations, wait=False, webhook=dead)
        await create(operations, task, webhook.url)
        go_on.set()
        deliveries = await webhook.until_end()
        assert deliveries[-1].state == "TASK_STATE_COMPLETED"


async def test_what_is_given_up_is_logged_without_secrets(given_up: GivenUp) -> None:
    dead = f"http://127.0.0.1:{closed_port()}"
    secret = AuthenticationInfo(scheme="Bearer", credentials="secret-credentials")
    async with agent(attempts=2) as operations:
        waiting = await send(operations, "?")
        config = await create(
            operations, waiting, f"{dead}/secret?key=secret", token="secret-token", authentication=secret
        )
        await send(operations, "this", task_id=waiting.id)
        await given_up.until(3)
    texts = given_up.texts
    assert all(dead in text and config.id in text and waiting.id in text for text in texts)
    assert ["attempt 2 of 2" in text for text in texts] == [True, True, True]
    assert "secret" not in "".join(texts)


async def test_a_slow_webhook_delays_no_other_and_misses_nothing(webhook: Receiver) -> None:
    gate = anyio.Event()
    webhook.answer = holding(gate)
    async with agent() as operations, receiving() as quick:
        waiting = await send(operations, "?")
        await create(operations, waiting, webhook.url)
        await create(operations, waiting, quick.url)
        await send(operations, "this", task_id=waiting.id)
        await quick.until_end()
        await webhook.until(lambda deliveries: len(deliveries) == 1)
        gate.set()
        await webhook.until_end()
    assert webhook.states == quick.states == WORKED[1:]
    assert [each.event for each in webhook.deliveries] == [each.event for each in quick.deliveries]


async def test_a_delivery_that_times_out_is_retried(webhook: Receiver) -> None:
    never = anyio.Event()

    async def hang_once(delivery: Delivery) -> web.StreamResponse:
        webhook.answer = accept
        await never.wait()
        return await accept(delivery)

    webhook.answer = hang_once
    async with agent(answer_within=0.2) as operations:
        await send(operations, webhook=webhook.url)
        deliveries = await webhook.until_end()
    assert [each.state for each in deliveries] == [WORKED[0], *WORKED]


async def test_a_lagging_webhook_receives_the_newest_state(webhook: Receiver) -> None:
    gate, begun = anyio.Event(), anyio.Event()

    async def hold(delivery: Delivery) -> web.StreamResponse:
        begun.set()
        await gate.wait()
        return await accept(delivery)

    async def report(turn: Turn) -> Updates:
        await begun.wait()
        for number in range(MAX_MISSED + 50):
            yield StatusUpdate(TaskState.WORKING, agent_message(f"step {number}"))
        yield ArtifactUpdate(Artifact(artifact_id="text", parts=(Part(text="done"),)))

    webhook.answer = hold
    async with agent(report) as operations:
        await send(operations, webhook=webhook.url)
        gate.set()
        first, last = await webhook.until(lambda deliveries: deliveries[-1].state == "TASK_STATE_COMPLETED")
    assert first.state == "TASK_STATE_SUBMITTED"
    assert text_of(last.body["task"]) == "done"


async def test_many_slow_webhooks_of_one_host_leave_others_alone(webhook: Receiver) -> None:
    gate = anyio.Event()
    webhook.answer = holding(gate)
    async with agent() as operations, receiving() as quick:
        slow = 100
        async with anyio.create_task_group() as group:
            for _ in range(slow):
                group.start_soon(lambda: send(operations, webhook=webhook.url))
        await send(operations, webhook=quick.url)
        await quick.until_end()
        assert len(webhook.deliveries) < slow
        gate.set()
        deliveries = await webhook.until(
            lambda deliveries: sum(each.event.endswith("/task") for each in deliveries) == slow, seconds=40
        )
    assert len({each.event for each in deliveries}) == len(deliveries) == slow * len(WORKED)
