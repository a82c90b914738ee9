"""Push notifications: their contents, order, format, retries, and isolation from the task."""

import logging
import socket
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import anyio
import anyio.lowlevel
import pytest
from aiohttp import web

from support.agents import ask_back
from support.live_server import serving
from support.processes import served
from support.rpc import Rpc, message, text_of
from support.upstream import Hang, ScriptedUpstream, openai_stream
from support.webhook_receiver import Answer, Delivery, Receiver, accept, receiving
from tailrace.server import Settings, Turn, create_app
from tailrace.server.runtime.caller import Caller
from tailrace.server.runtime.engine import Engine
from tailrace.server.runtime.handlers import FunctionHandler, HandlerFunction
from tailrace.server.runtime.operations import Operations
from tailrace.server.runtime.webhooks.addresses import WebhookGuard
from tailrace.server.runtime.webhooks.client import WebhookClient
from tailrace.server.runtime.webhooks.delivery import MAX_CONFIGS, MAX_MISSED, PushNotifier
from tailrace.server.store.store import PushConfig, Store
from tailrace.streaming import ArtifactUpdate, StatusUpdate, TaskState, Update
from tailrace.streaming.a2a.errors import TaskNotFoundError
from tailrace.streaming.a2a.models import Artifact, Message, Part, Role, StreamResponse, Task
from tailrace.streaming.a2a.requests import (
    AuthenticationInfo,
    DeleteTaskPushNotificationConfigRequest,
    GetTaskPushNotificationConfigRequest,
    SendMessageConfiguration,
    SendMessageRequest,
    TaskPushNotificationConfig,
)
from tailrace.streaming.a2a.version_codec import Operation
from tailrace.streaming.task.task_record import agent_message
from tailrace.wrappers import StoreError

Updates = AsyncIterator[Update | Message]

WORKED = ["TASK_STATE_SUBMITTED", "TASK_STATE_WORKING", "TASK_STATE_COMPLETED", "TASK_STATE_COMPLETED"]
"""The notifications of a task that completes: every change of status, then the complete task."""


def settings(**values: object) -> Settings:
    return Settings.model_validate({"store": "sqlite://", "push_notifications": "private", **values})


@asynccontextmanager
async def agent(
    handler: HandlerFunction = ask_back,
    store: str = "sqlite://",
    *,
    guard: WebhookGuard | None = None,
    answer_within: float = 10.0,
    attempts: int = 4,
    first_pause: float = 0.01,
    grace: float = 3.0,
) -> AsyncGenerator[Operations]:
    """Return an agent without bindings, with short pauses between attempts."""
    kept = Store(store)
    client = WebhookClient(
        guard or WebhookGuard(allow_private=True),
        timeout=answer_within,
        attempts=attempts,
        first_pause=first_pause,
    )
    push = PushNotifier(kept, client, grace=grace)
    async with Engine(kept, FunctionHandler(handler), push=push).running() as engine:
        yield Operations(engine, push)


def hook(url: str, **fields: Any) -> TaskPushNotificationConfig:
    return TaskPushNotificationConfig(url=url, **fields)


async def send(
    agent: Operations,
    text: str = "hello",
    *,
    wait: bool = True,
    webhook: str | None = None,
    task_id: str = "",
) -> Task:
    user_message = Message(message_id="m", role=Role.USER, parts=(Part(text=text),), task_id=task_id)
    configuration = SendMessageConfiguration(
        return_immediately=not wait, task_push_notification_config=hook(webhook) if webhook else None
    )
    request = SendMessageRequest(message=user_message, configuration=configuration)
    task = await agent.execute(Operation.SEND_MESSAGE, request, Caller())
    assert isinstance(task, Task)
    return task


async def create(agent: Operations, task: Task, url: str, **fields: Any) -> TaskPushNotificationConfig:
    config = hook(url, task_id=task.id, **fields)
    created = await agent.execute(Operation.CREATE_PUSH_CONFIG, config, Caller())
    assert isinstance(created, TaskPushNotificationConfig)
    return created


async def delete(agent: Operations, task: Task, config_id: str) -> None:
    request = DeleteTaskPushNotificationConfigRequest(task_id=task.id, id=config_id)
    assert await agent.execute(Operation.DELETE_PUSH_CONFIG, request, Caller()) is None


def answering(*statuses: int, **headers: str) -> Answer:
    """Answer the first requests with these statuses, and accept every later one."""
    rest = list(statuses)

    async def answer(delivery: Delivery) -> web.StreamResponse:
        return web.Response(status=rest.pop(0), headers=headers) if rest else await accept(delivery)

    return answer


def holding(gate: anyio.Event) -> Answer:
    """Respond after the gate opens."""

    async def answer(delivery: Delivery) -> web.StreamResponse:
        await gate.wait()
        return await accept(delivery)

    return answer


def hanging(left: anyio.Event) -> Answer:
    """Never respond, and signal when the caller disconnects."""

    async def answer(delivery: Delivery) -> web.StreamResponse:
        try:
            await anyio.sleep_forever()
        finally:
            left.set()
        raise AssertionError("unreachable")

    return answer


@pytest.fixture
async def webhook() -> AsyncIterator[Receiver]:
    async with receiving() as receiver:
        yield receiver


def closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


class GivenUp(logging.Handler):
    """Collects log records of abandoned notifications.

    Attributes:
        texts: The messages.
    """

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []
        self._changed = anyio.Event()

    @property
    def reasons(self) -> list[str]:
        """The reasons, in order."""
        return [text.rpartition(": ")[2] for text in self.texts]

    def emit(self, record: logging.LogRecord) -> None:
        """Record a message of the log."""
        if "given up" in record.getMessage():
            self.texts.append(record.getMessage())
            self._changed.set()

    async def until(self, count: int) -> None:
        """Wait until that many notifications were abandoned."""
        with anyio.fail_after(20):
            while len(self.texts) < count:
                self._changed = anyio.Event()
                await self._changed.wait()


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


# --- deleting and replacing ---------------------------------------------------------------------------------


async def test_deleting_a_webhook_ends_its_deliveries_and_aborts_the_current_request(
    webhook: Receiver,
) -> None:
    left = anyio.Event()
    webhook.answer = hanging(left)
    async with agent() as operations, receiving() as other:
        waiting = await send(operations, "?")
        config = await create(operations, waiting, webhook.url)
        await create(operations, waiting, other.url)
        await send(operations, "?", task_id=waiting.id)
        await webhook.until(lambda deliveries: len(deliveries) == 1)
        await delete(operations, waiting, config.id)
        with anyio.fail_after(10):
            await left.wait()
        await send(operations, "this", task_id=waiting.id)
        await other.until_end()
        get = GetTaskPushNotificationConfigRequest(task_id=waiting.id, id=config.id)
        with pytest.raises(TaskNotFoundError):
            await operations.execute(Operation.GET_PUSH_CONFIG, get, Caller())
    assert len(webhook.deliveries) == 1


async def test_a_webhook_that_is_replaced_goes_on_at_its_new_address(webhook: Receiver) -> None:
    left = anyio.Event()
    hang = hanging(left)

    async def take_one(delivery: Delivery) -> web.StreamResponse:
        webhook.answer = hang
        return await accept(delivery)

    webhook.answer = take_one
    async with agent() as operations, receiving() as new:
        waiting = await send(operations, "?")
        config = await create(operations, waiting, webhook.url)
        await send(operations, "?", task_id=waiting.id)
        await webhook.until(lambda deliveries: len(deliveries) == 2)
        await create(operations, waiting, new.url, id=config.id)
        with anyio.fail_after(5):
            await left.wait()
        await send(operations, "this", task_id=waiting.id)
        await new.until_end()
    assert webhook.states == ["TASK_STATE_WORKING", "TASK_STATE_INPUT_REQUIRED"]
    assert new.states == ["TASK_STATE_INPUT_REQUIRED", *WORKED[1:]]


# --- durability ---------------------------------------------------------------------------------------------


async def test_a_webhook_receives_only_persisted_events(tmp_path: Path, webhook: Receiver) -> None:
    url = f"sqlite:///{tmp_path}/t.db"
    store = Store(url)
    unkept: list[str] = []

    async def check(delivery: Delivery) -> web.StreamResponse:
        task_id, number = delivery.event.split("/")[:2]
        if not await store.load_events(task_id, int(number) - 1, limit=1):
            unkept.append(delivery.event)
        return await accept(delivery)

    webhook.answer = check
    push = PushNotifier(store, WebhookClient(WebhookGuard(allow_private=True)))
    async with Engine(store, FunctionHandler(ask_back), push=push).running() as engine:
        await send(Operations(engine, push), webhook=webhook.url)
        await webhook.until_end()
    assert unkept == []


async def test_the_webhook_of_a_finished_task_is_in_the_store_and_not_in_memory(
    webhook: Receiver,
) -> None:
    store = Store("sqlite://")
    push = PushNotifier(store, WebhookClient(WebhookGuard(allow_private=True)))
    async with Engine(store, FunctionHandler(ask_back), push=push).running() as engine:
        task = await send(Operations(engine, push), webhook=webhook.url)
        await webhook.until_end()
        with anyio.fail_after(10):
            while push._webhooks:  # pyright: ignore[reportPrivateUsage]
                await anyio.lowlevel.checkpoint()
        [kept] = await store.load_push_configs(task.id, "")
        assert (kept.config.url, kept.dialect) == (webhook.url, "1.0")
        assert await store.load_push_configs(task.id, "somebody") == []


class FailingStore(Store):
    """A real store whose first read of status numbers fails."""

    def __init__(self, error: Exception) -> None:
        super().__init__("sqlite://")
        self._error: Exception | None = error

    async def load_status_numbers(self, task_id: str, after: int, limit: int) -> list[tuple[int, TaskState]]:
        error, self._error = self._error, None
        if error is not None:
            raise error
        return await super().load_status_numbers(task_id, after, limit)


@pytest.mark.parametrize("error", [StoreError("locked"), RuntimeError("no idea")])
async def test_a_store_that_fails_for_a_moment_costs_a_webhook_nothing(
    webhook: Receiver, error: Exception
) -> None:
    store = FailingStore(error)
    push = PushNotifier(store, WebhookClient(WebhookGuard(allow_private=True)))
    async with Engine(store, FunctionHandler(ask_back), push=push).running() as engine:
        operations = Operations(engine, push)
        waiting = await send(operations, "?", webhook=webhook.url)
        await send(operations, "this", task_id=waiting.id)
        deliveries = await webhook.until_end()
    assert [each.state for each in deliveries] == [*WORKED[:2], "TASK_STATE_INPUT_REQUIRED", *WORKED[1:]]


class DeletedTasks(Engine):
    """An engine whose tasks are deleted before their webhooks read them."""

    async def get_task(self, task_id: str, owner: str = "", history_length: int | None = None) -> Task:
        await anyio.lowlevel.checkpoint()
        raise TaskNotFoundError(metadata={"taskId": task_id})


async def test_the_deletion_of_a_task_ends_its_deliveries_without_a_warning(
    webhook: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    store = Store("sqlite://")
    push = PushNotifier(store, WebhookClient(WebhookGuard(allow_private=True)))
    async with DeletedTasks(store, FunctionHandler(ask_back), push=push).running() as engine:
        with pytest.raises(TaskNotFoundError):
            await send(Operations(engine, push), webhook=webhook.url)
    assert [each for each in caplog.messages if "have to wait" in each] == []


async def test_deliveries_continue_after_a_restart_without_duplicates(
    tmp_path: Path, webhook: Receiver
) -> None:
    url = f"sqlite:///{tmp_path}/t.db"
    webhook.answer = answering(204, *[503] * 1000)
    async with agent(store=url, first_pause=1000) as operations:
        task = await send(operations, webhook=webhook.url)
        await webhook.until(lambda deliveries: len(deliveries) == 2)
    webhook.deliveries.clear()
    webhook.answer = accept
    async with agent(store=url):
        deliveries = await webhook.until_end()
    assert [each.state for each in deliveries] == WORKED[1:]
    assert deliveries[-1].body["task"]["id"] == task.id
    webhook.deliveries.clear()
    async with agent(store=url) as operations:
        # Any repeated notification would be delivered before this one.
        await send(operations, webhook=webhook.url)
        deliveries = await webhook.until_end()
    assert {each.event.partition("/")[0] == task.id for each in deliveries} == {False}


async def test_webhooks_of_tasks_that_wait_for_their_caller_survive_a_restart(
    tmp_path: Path, webhook: Receiver
) -> None:
    url = f"sqlite:///{tmp_path}/t.db"
    async with agent(store=url) as operations:
        waiting = await send(operations, "?", webhook=webhook.url)
        await webhook.until(lambda deliveries: len(deliveries) == 3)
    webhook.deliveries.clear()
    async with agent(store=url) as operations:
        await send(operations, "this", task_id=waiting.id)
        deliveries = await webhook.until_end()
    assert [each.state for each in deliveries] == WORKED[1:]


async def test_a_stopping_server_notifies_webhooks_of_the_end_of_its_tasks(webhook: Receiver) -> None:
    async def work(turn: Turn) -> Updates:
        yield StatusUpdate(TaskState.WORKING)
        await anyio.sleep_forever()

    async with agent(work) as operations:
        await send(operations, wait=False, webhook=webhook.url)
        await webhook.until(lambda deliveries: len(deliveries) == 2)
    assert webhook.states[2:] == ["TASK_STATE_FAILED"] * 2


async def test_a_server_that_stops_waits_for_no_webhook_for_long(webhook: Receiver) -> None:
    webhook.answer = holding(anyio.Event())
    with anyio.fail_after(10):
        async with agent(answer_within=1000, grace=0.1) as operations:
            await send(operations, webhook=webhook.url)
            await webhook.until(lambda deliveries: len(deliveries) == 1)


async def test_a_server_that_stops_waits_for_no_further_try(webhook: Receiver) -> None:
    webhook.answer = answering(503)
    with anyio.fail_after(10):
        async with agent(first_pause=1000, grace=1000) as operations:
            await send(operations, webhook=webhook.url)
            await webhook.until(lambda deliveries: len(deliveries) == 1)
    assert len(webhook.deliveries) == 1


async def test_after_a_crash_the_end_of_the_task_is_delivered(tmp_path: Path, webhook: Receiver) -> None:
    store = f"sqlite:///{tmp_path}/t.db"
    script = [*openai_stream(["Hel", "lo"], finish=None), Hang()]
    async with ScriptedUpstream(script) as upstream:
        options = ("--model", "openai:m", "--base-url", upstream.base_url, "--store", store)
        with served(tmp_path / "1.log", *options, TAILRACE_PUSH_NOTIFICATIONS="private") as server:
            await server.ready()
            async with Rpc(server.url) as rpc:
                configuration = {
                    "returnImmediately": True,
                    "taskPushNotificationConfig": {"url": webhook.url, "token": "t"},
                }
                await rpc.result("SendMessage", {**message(), "configuration": configuration})
            await webhook.until(lambda deliveries: len(deliveries) == 2)
            server.kill()
        options = (*options, "--on-crash", "fail")
        with served(tmp_path / "2.log", *options, TAILRACE_PUSH_NOTIFICATIONS="private") as server:
            await server.ready()
            deliveries = await webhook.until_end()
    states = [each.state for each in deliveries]
    # A notification delivered just before the crash may be delivered again with the same id.
    assert list(dict.fromkeys(states)) == [*WORKED[:2], "TASK_STATE_FAILED"]
    assert len({each.event for each in deliveries}) == 4
    assert {each.headers["X-A2A-Notification-Token"] for each in deliveries} == {"t"}


# --- refused addresses --------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]", "localhost", "[::ffff:10.0.0.1]", "169.254.169.254"])
async def test_without_the_switch_a_webhook_of_this_network_is_refused_when_it_is_set(host: str) -> None:
    app = create_app(settings(push_notifications=True), handler=ask_back)
    async with serving(app) as url, Rpc(url) as rpc:
        task_id = (await rpc.result("SendMessage", message()))["task"]["id"]
        config = {"taskId": task_id, "url": f"http://{host}:8080/", "token": "secret"}
        error = await rpc.error("CreateTaskPushNotificationConfig", config)
        inline = {**message(), "configuration": {"taskPushNotificationConfig": config}}
        assert (await rpc.error("SendMessage", inline))["code"] == error["code"] == -32602
        assert error["data"][1]["fieldViolations"][0]["field"] == "url"
        assert "secret" not in str(error)
        assert (await rpc.result("ListTaskPushNotificationConfigs", {"taskId": task_id}))["configs"] == []


async def test_a_name_is_called_at_the_address_that_was_checked_and_at_no_other(
    webhook: Receiver, given_up: GivenUp
) -> None:
    port = webhook.url.rpartition(":")[2].partition("/")[0]
    answers = [["127.0.0.1"], ["10.0.0.1", "127.0.0.1", "169.254.169.254"]]
    lookups: list[str] = []

    async def lookup(host: str, port: int) -> Sequence[str]:
        lookups.append(host)
        return answers[len(lookups) % 2]

    async with agent(guard=WebhookGuard(lookup=lookup)) as operations:
        await send(operations, webhook=f"http://hook.example:{port}/hook")
        await given_up.until(4)
    assert lookups == ["hook.example"] * 4
    assert webhook.deliveries == []
    assert set(given_up.reasons) == {"its host name resolves to no address that this agent may call"}

    async with agent(guard=WebhookGuard(allow_private=True, lookup=lookup)) as operations:
        answers = [["127.0.0.1"]] * 2
        await send(operations, webhook=f"http://hook.example:{port}/hook")
        deliveries = await webhook.until_end()
    assert {each.headers["Host"] for each in deliveries} == {f"hook.example:{port}"}


async def test_a_redirect_is_not_followed(webhook: Receiver, given_up: GivenUp) -> None:
    async with receiving() as inside, agent() as operations:
        webhook.answer = answering(*[307] * len(WORKED), Location=inside.url)
        await send(operations, webhook=webhook.url)
        await given_up.until(len(WORKED))
        assert inside.deliveries == []
    assert given_up.reasons == ["status 307"] * len(WORKED)


async def test_a_webhook_is_checked_again_when_it_is_called(
    tmp_path: Path, webhook: Receiver, given_up: GivenUp
) -> None:
    url = f"sqlite:///{tmp_path}/t.db"
    async with agent(store=url) as operations:
        waiting = await send(operations, "?", webhook=webhook.url)
        await webhook.until(lambda deliveries: len(deliveries) == 3)
    async with agent(store=url, guard=WebhookGuard()) as operations:
        await send(operations, "this", task_id=waiting.id)
        await given_up.until(3)
    assert len(webhook.deliveries) == 3
    assert set(given_up.reasons) == {"the webhook's address may not be called"}


async def test_names_that_cannot_be_resolved_are_looked_up_again(webhook: Receiver) -> None:
    port = webhook.url.rpartition(":")[2].partition("/")[0]
    lookups: list[str] = []

    async def lookup(host: str, port: int) -> Sequence[str]:
        lookups.append(host)
        if len(lookups) < 3:
            raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
        return ["127.0.0.1"]

    async with agent(guard=WebhookGuard(allow_private=True, lookup=lookup)) as operations:
        await send(operations, webhook=f"http://hook.example:{port}/hook")
        deliveries = await webhook.until_end()
    assert [each.state for each in deliveries] == WORKED


def test_secrets_are_in_no_repr() -> None:
    authentication = AuthenticationInfo(scheme="Bearer", credentials="secret-credentials")
    config = hook("https://8.8.8.8/", token="secret-token", authentication=authentication)
    assert "secret" not in repr(PushConfig("me", "1.0", config))
    assert "secret" not in repr(config)
    assert "secret" not in str(config)
