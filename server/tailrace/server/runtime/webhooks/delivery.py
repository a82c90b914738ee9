"""Push notifications: changes of a task's status, posted to the webhooks of its caller (A2A 1.0, section 4.3).

A webhook is a subscriber with a cursor in the store. So only persisted events are delivered, a restart continues after the last
delivered one, and the backlog of a slow webhook is in the store, not in memory. Each webhook with a backlog has a task of its
own, which delays neither A2A tasks nor other webhooks.

Notifications are the changes of status, in order, as the events of streams; after the last one the complete task with its
artifacts. Chunks of artifacts are not delivered. A webhook that was set in an older protocol version gets the complete task for
each change, in that version's form. A webhook with a backlog of more than `MAX_MISSED` changes gets the current task in place of
all of them.
"""

import base64
import binascii
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from uuid import uuid4

import anyio
from anyio.abc import TaskGroup

from tailrace.server.runtime.webhooks.client import Stopping, WebhookClient
from tailrace.server.store.store import PushConfig, Store
from tailrace.streaming.a2a.costs import cost_of_task
from tailrace.streaming.a2a.dialect import Dialect, Operation
from tailrace.streaming.a2a.errors import A2AError, InvalidParamsError, TaskNotFoundError
from tailrace.streaming.a2a.event import Event
from tailrace.streaming.a2a.extension import extension_facts, with_extension_facts
from tailrace.streaming.a2a.lifecycle import TaskState
from tailrace.streaming.a2a.models import StreamResponse, Task
from tailrace.streaming.a2a.requests import (
    ListTaskPushNotificationConfigsResponse,
    TaskPushNotificationConfig,
)
from tailrace.streaming.a2a.v0_1 import Version01
from tailrace.streaming.a2a.v0_3 import Version03
from tailrace.wrappers import StoreError
from tailrace.wrappers.concurrency.worker_thread import json_text_cost, run_bounded

logger = logging.getLogger("tailrace.server")

MAX_CONFIGS = 20
"""Maximum webhooks of a task."""

MAX_MISSED = 100
"""Maximum backlog of status changes that a webhook gets one by one."""

_STORE_PAUSE = 1.0  # seconds before a failed store is read again

# Versions whose webhooks get tasks; those of 1.0 get events.
_OLDER: dict[str, Dialect] = {"0.3": Version03(), "0.1": Version01()}


LoadTask = Callable[[str, str], Awaitable[Task]]
"""Returns the current task of an id and an owner, with persisted content only."""


@dataclass(eq=False, slots=True)
class _Webhook:
    """A webhook that has or may get notifications.

    Attributes:
        owner: The owner of the task.
        dialect: The protocol version of its notifications.
        config: The caller's configuration.
        delivered: The number of the last event that was delivered or given up.
        is_lagging: There may be more events.
        running: A task delivers notifications to it.
        failing: The last notification was given up.
        is_over: It received the end of the task.
        scope: The cancel scope of the delivery; cancelled when the webhook is deleted or replaced.
    """

    owner: str
    dialect: str
    config: TaskPushNotificationConfig
    delivered: int
    is_lagging: bool = False
    running: bool = False
    failing: bool = False
    is_over: bool = False
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)


class PushNotifier:
    """Manages the webhooks of tasks, and delivers their notifications.

    Args:
        store: The store of webhooks and events; open while `running`.
        client: Posts the notifications.
        grace: Seconds that attempts have when the server stops; the rest is delivered after the next start.
    """

    def __init__(self, store: Store, client: WebhookClient, *, grace: float = 3.0) -> None:
        self._store = store
        self._client = client
        self._grace = grace
        # The webhooks of tasks that have not ended, or whose end was not delivered: by task, by id.
        self._webhooks: dict[str, dict[str, _Webhook]] = {}
        self._group: TaskGroup | None = None
        self._load_task: LoadTask
        self._busy = 0
        self._idle = anyio.Event()

    @asynccontextmanager
    async def running(self, load_task: LoadTask) -> AsyncGenerator[None]:
        """Deliver notifications while the block runs, beginning with the backlog of earlier processes.

        At the end of the block, attempts in progress have `grace` seconds; the backlog remains in the store.

        Args:
            load_task: Loads a task.

        Raises:
            StoreError: The webhooks cannot be read.
        """
        self._load_task = load_task
        async with self._client.open(), anyio.create_task_group() as self._group:
            self.take_up(await self._store.load_open_push_configs())
            try:
                yield
            finally:
                await self._finish()
                self._group.cancel_scope.cancel()
                self._group = None
                self._webhooks.clear()

    # --- the webhooks of a task ---------------------------------------------------------------------------------

    async def accept(
        self, config: TaskPushNotificationConfig, owner: str, *, dialect: str, after: int
    ) -> PushConfig:
        """Return a webhook to persist, with an id.

        Args:
            config: The caller's configuration, with the task's id.
            owner: The owner of the task.
            dialect: The protocol version of its notifications.
            after: It receives the events after this number.

        Raises:
            InvalidParamsError: It cannot be called, or the task has `MAX_CONFIGS` others.
            StoreError: The others cannot be read.
        """
        self._client.guard.check(config)
        config = config if config.id else config.model_copy(update={"id": str(uuid4())})
        others = {each.config.id for each in await self._store.load_push_configs(config.task_id, owner)}
        if len(others - {config.id}) >= MAX_CONFIGS:
            raise InvalidParamsError(f"a task has at most {MAX_CONFIGS} push notification configs")
        return PushConfig(owner, dialect, config, after)

    async def create(
        self, config: TaskPushNotificationConfig, owner: str, *, dialect: str, after: int, is_over: bool
    ) -> TaskPushNotificationConfig:
        """Set a webhook of a task, replacing one with the same id.

        Args:
            config: As for `accept`.
            owner: As for `accept`; the caller of this method has checked that the task is theirs.
            dialect: As for `accept`.
            after: As for `accept`.
            is_over: No events follow.

        Returns:
            The webhook with its id.

        Raises:
            InvalidParamsError: As for `accept`.
            StoreError: It cannot be persisted.
        """
        accepted = await self.accept(config, owner, dialect=dialect, after=after)
        await self._store.put_push_config(accepted)
        task_id, config_id = accepted.key
        if not is_over or config_id in self._webhooks.get(task_id, ()):
            self.notify(task_id, (accepted,))
        return accepted.config

    async def get(self, task_id: str, config_id: str, owner: str) -> TaskPushNotificationConfig:
        """Return one webhook of a task.

        Raises:
            TaskNotFoundError: The task has none of that id (A2A 1.0, section 3.1.8).
            StoreError: It cannot be read.
        """
        for each in await self._store.load_push_configs(task_id, owner):
            if each.config.id == config_id:
                return each.config
        raise TaskNotFoundError("no such push notification config", metadata={"taskId": task_id})

    async def list_configs(
        self, task_id: str, owner: str, *, limit: int = 0, page_token: str = ""
    ) -> ListTaskPushNotificationConfigsResponse:
        """Return the webhooks of a task by id.

        Args:
            task_id: The task.
            owner: Its owner.
            limit: The maximum number; 0 for all.
            page_token: The token of an earlier page.

        Raises:
            InvalidParamsError: The token is not valid.
            StoreError: They cannot be read.
        """
        after = _read_token(page_token)
        found = [each.config for each in await self._store.load_push_configs(task_id, owner)]
        rest = [config for config in found if config.id > after]
        page = rest[:limit] if limit else rest
        token = _page_token(page[-1].id) if len(page) < len(rest) else ""
        return ListTaskPushNotificationConfigsResponse(configs=tuple(page), next_page_token=token)

    async def delete(self, task_id: str, config_id: str) -> None:
        """Delete a webhook, and cancel an attempt in progress. Unknown ids are no error.

        Raises:
            StoreError: It cannot be deleted.
        """
        webhook = self._webhooks.get(task_id, {}).get(config_id)
        if webhook is not None:
            webhook.scope.cancel()
            self._forget(webhook)
        await self._store.delete_push_config(task_id, config_id)

    def notify(self, task_id: str, new: Sequence[PushConfig] = ()) -> None:
        """Schedule notifications after a persisted change of a task's status; return at once.

        Args:
            task_id: The task.
            new: Webhooks that the task has from this event on; they are persisted, too.
        """
        for config in new:
            self._follow(config)
        for webhook in self._webhooks.get(task_id, {}).values():
            self._wake(webhook)

    def take_up(self, found: Sequence[tuple[PushConfig, bool]]) -> None:
        """Schedule the backlog of persisted webhooks, each with whether it is certain to have one."""
        for config, is_lagging in found:
            webhook = self._follow(config)
            if is_lagging:
                self._wake(webhook)

    def release_all(self) -> None:
        """Stop all deliveries: another process takes them over."""
        for of_task in self._webhooks.values():
            for webhook in of_task.values():
                webhook.scope.cancel()
        self._webhooks.clear()

    # --- scheduling -------------------------------------------------------------------------------------------------

    def _follow(self, config: PushConfig) -> _Webhook:
        task_id, config_id = config.key
        of_task = self._webhooks.setdefault(task_id, {})
        replaced = of_task.get(config_id)
        delivered = config.delivered
        if replaced is not None:
            replaced.scope.cancel()
            delivered = replaced.delivered
        webhook = _Webhook(config.owner, config.dialect, config.config, delivered)
        of_task[config_id] = webhook
        return webhook

    def _forget(self, webhook: _Webhook) -> None:
        task_id = webhook.config.task_id
        of_task = self._webhooks.get(task_id, {})
        if of_task.get(webhook.config.id) is webhook:
            del of_task[webhook.config.id]
            if not of_task:
                del self._webhooks[task_id]

    def _wake(self, webhook: _Webhook) -> None:
        webhook.is_lagging = True
        if not webhook.running and self._group is not None:
            webhook.running = True
            webhook.scope = anyio.CancelScope()
            self._busy += 1
            self._group.start_soon(self._run, webhook, name=f"webhook of {webhook.config.task_id}")

    async def _run(self, webhook: _Webhook) -> None:
        """Deliver a webhook's backlog; its errors affect no other webhook."""
        try:
            with webhook.scope:
                while webhook.is_lagging:
                    webhook.is_lagging = False
                    await self._catch_up(webhook)
                if webhook.is_over:
                    self._forget(webhook)
        except Stopping:
            pass  # the next start continues from here
        except Exception:
            logger.exception("notifications to a webhook of task %s failed", webhook.config.task_id)
        finally:
            webhook.running = False
            self._busy -= 1
            if not self._busy:
                self._idle.set()

    async def _finish(self) -> None:
        self._client.stop()
        with anyio.move_on_after(self._grace, shield=True):
            while self._busy:
                self._idle = anyio.Event()
                await self._idle.wait()

    # --- content ----------------------------------------------------------------------------------------------------

    async def _catch_up(self, webhook: _Webhook) -> None:
        """Deliver notifications until there is no backlog."""
        while True:
            try:
                changes = await self._changes(webhook)
                if not changes:
                    return
                for number, state in changes:
                    await self._send_change(webhook, number, state)
            except (StoreError, A2AError) as error:
                logger.warning("notifications of task %s have to wait: %s", webhook.config.task_id, error)
                await self._client.pause(_STORE_PAUSE)

    async def _changes(self, webhook: _Webhook) -> list[tuple[int, TaskState | None]]:
        """Return the next changes of status; one without a state stands for many, up to the newest."""
        task_id = webhook.config.task_id
        found = await self._store.load_status_numbers(task_id, webhook.delivered, MAX_MISSED + 1)
        return [(found[-1][0], None)] if len(found) > MAX_MISSED else [*found]

    async def _send_change(self, webhook: _Webhook, number: int, state: TaskState | None) -> None:
        config = webhook.config
        if state is None:
            task = await self._load_task(config.task_id, webhook.owner)
            number, state = extension_facts(task.metadata)["number"], task.status.state
            notifications = [(f"{config.task_id}/{number}", await _write_task(webhook.dialect, task))]
        else:
            notifications = await self._notifications(webhook, number, state)
        for name, body in notifications:
            taken = await self._client.send(
                config,
                name,
                body,
                media_type="application/json" if webhook.dialect in _OLDER else "application/a2a+json",
                once=webhook.failing and not state.terminal,
            )
            webhook.failing = not taken
        webhook.delivered, webhook.is_over = number, state.terminal
        await self._store.mark_delivered(config.task_id, config.id, number)

    async def _notifications(
        self, webhook: _Webhook, number: int, state: TaskState
    ) -> list[tuple[str, bytes]]:
        """Return the notifications of a change of status: identifiers and bodies."""
        task_id = webhook.config.task_id
        name = f"{task_id}/{number}"
        [event] = await self._store.load_events(task_id, number - 1, limit=1)
        if webhook.dialect in _OLDER:
            task = await self._load_task(task_id, webhook.owner)
            task = await run_bounded(json_text_cost(event.body), _at_event, task, event)
            return [(name, await _write_task(webhook.dialect, task))]
        notifications = [(name, event.body)]
        if state.terminal:
            task = await self._load_task(task_id, webhook.owner)
            notifications.append((f"{name}/task", await _write_task(webhook.dialect, task)))
        return notifications


async def _write_task(dialect: str, task: Task) -> bytes:
    return await run_bounded(cost_of_task(task), _encode_task, dialect, task)


def _encode_task(dialect: str, task: Task) -> bytes:
    if dialect not in _OLDER:
        return StreamResponse(task=task).to_json()
    if dialect == "0.1":
        task = task.model_copy(update={"history": ()})  # that version returns a history only on request
    return _OLDER[dialect].write_result(Operation.GET_TASK, task)


def _at_event(task: Task, event: Event) -> Task:
    """Return the task as of a change of its status: complete if it is the newest, else with that status only."""
    event_response = StreamResponse.from_json(event.body)
    then = event_response.task or event_response.status_update
    if then is None or then.status == task.status:
        return task
    metadata = with_extension_facts({}, number=event.number)
    return Task(id=task.id, context_id=task.context_id, status=then.status, metadata=metadata)


def _page_token(config_id: str) -> str:
    return base64.urlsafe_b64encode(config_id.encode()).decode().rstrip("=")


def _read_token(token: str) -> str:
    try:
        return base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)).decode()
    except (binascii.Error, ValueError):
        raise InvalidParamsError("pageToken is not one that this agent gave out") from None
