"""Push notifications of deleted and replaced webhooks, after restarts and stops, and to refused addresses."""

import logging
import socket
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest
from aiohttp import web

from support.agents import ask_back
from support.live_server import serving
from support.processes import served
from support.rpc import Rpc, message
from support.upstream import Hang, ScriptedUpstream, openai_stream
from support.webhook_agents import (
    WORKED,
    GivenUp,
    Updates,
    agent,
    answering,
    create,
    delete,
    holding,
    hook,
    send,
    settings,
)
from support.webhook_receiver import Answer, Delivery, Receiver, accept, receiving
from tailrace.server import Turn, create_app
from tailrace.server.runtime.caller import Caller
from tailrace.server.runtime.engine import Engine
from tailrace.server.runtime.handlers import FunctionHandler
from tailrace.server.runtime.operations import Operations
from tailrace.server.runtime.webhooks.addresses import WebhookGuard
from tailrace.server.runtime.webhooks.client import WebhookClient
from tailrace.server.runtime.webhooks.delivery import PushNotifier
from tailrace.server.store.store import PushConfig, Store
from tailrace.streaming import StatusUpdate, TaskState
from tailrace.streaming.a2a.errors import TaskNotFoundError
from tailrace.streaming.a2a.models import Task
from tailrace.streaming.a2a.requests import AuthenticationInfo, GetTaskPushNotificationConfigRequest
from tailrace.streaming.a2a.version_codec import Operation
from tailrace.wrappers import StoreError


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


@pytest.fixture
def given_up() -> Iterator[GivenUp]:
    handler, logger = GivenUp(), logging.getLogger("tailrace.server")
    logger.addHandler(handler)
    yield handler
    logger.removeHandler(handler)


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
