"""Push notifications: delivers changes of a task's status to webhooks (A2A 1.0, section 4.3).

Each webhook has a cursor in the store. Delivery reads the persisted events after this cursor, so it continues correctly after a
restart. Each webhook has its own asyncio task, so that a slow webhook delays neither tasks nor other webhooks.

A webhook receives each status change in order, as a stream event. After the last change, it also receives the complete task with
its artifacts. A webhook of an older protocol version receives the complete task for each change. If a later change already
exists, that task has only the status. If more than `MAX_MISSED` changes wait, a webhook receives only the current task.

A webhook of the operator (`OperatorForm`) receives one notification for one turn, and is then deleted. Callers can neither read
nor change it.
"""

import base64
import binascii
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from uuid import uuid4

import anyio
from anyio.abc import TaskGroup

from tailrace.server.runtime.webhooks.client import Stopping, WebhookClient
from tailrace.server.runtime.webhooks.operator_form import OperatorForm
from tailrace.server.runtime.webhooks.signatures import Signature
from tailrace.server.store.store import PushConfig, Store
from tailrace.streaming.a2a.errors import A2AError, InvalidParamsError, TaskNotFoundError
from tailrace.streaming.a2a.event import Event
from tailrace.streaming.a2a.json_value_counts import cost_of_task
from tailrace.streaming.a2a.lifecycle import TaskState
from tailrace.streaming.a2a.models import StreamResponse, Task
from tailrace.streaming.a2a.requests import (
    ListTaskPushNotificationConfigsResponse,
    TaskPushNotificationConfig,
)
from tailrace.streaming.a2a.stream_extension import extension_metadata, with_extension_metadata
from tailrace.streaming.a2a.v0_1 import Version01
from tailrace.streaming.a2a.v0_3 import Version03
from tailrace.streaming.a2a.version_codec import Dialect, Operation
from tailrace.wrappers import StoreError
from tailrace.wrappers.concurrency.worker_thread import json_text_cost, run_bounded

logger = logging.getLogger("tailrace.server")

MAX_CONFIGS = 20
"""Maximum number of webhooks of a task."""

MAX_MISSED = 100
"""Maximum number of waiting status changes that are delivered separately."""

_STORE_PAUSE = 1.0  # seconds before a failed store is read again

# Webhooks of these versions receive complete tasks. Webhooks of A2A 1.0 receive events.
_OLDER: dict[str, Dialect] = {"0.3": Version03(), "0.1": Version01()}

_OPERATOR = "operator:"  # prefix of the ids and dialects of the operator's webhooks

TaskLoader = Callable[[str, str], Awaitable[Task]]
"""A function that returns the persisted state of a task, by its id and its owner."""


@dataclass(eq=False, slots=True)
class _Webhook:
    """A webhook and the state of its delivery.

    Attributes:
        dialect: The protocol version of the notifications; ``operator:NAME`` for a webhook of the operator with this form.
        last_delivered: The number of the last event that was delivered, or whose delivery failed in all attempts.
        is_lagging: True if there may be events to deliver.
        failing: True if the last notification failed in all attempts.
        is_finished: True if no further notification follows.
        is_gone: True if the webhook was deleted, possibly by another node.
        scope: The cancel scope of the delivery. It is cancelled when the webhook is deleted or replaced.
    """

    owner: str
    dialect: str
    config: TaskPushNotificationConfig
    last_delivered: int
    is_lagging: bool = False
    running: bool = False
    failing: bool = False
    is_finished: bool = False
    is_gone: bool = False
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)


class PushNotifier:
    """Stores the webhooks of tasks, and delivers notifications.

    Args:
        store: The store with webhooks and events. It must be open during `running`.
        grace: Seconds that attempts in progress have to complete when the server stops. Other notifications are delivered after
            the next start.
        sign: Signs notifications to the webhooks of callers; None for no signatures.
        forms: The forms of the operator's webhooks, by name; None if the operator has no webhooks.
    """

    def __init__(
        self,
        store: Store,
        client: WebhookClient,
        *,
        grace: float = 3.0,
        sign: Signature | None = None,
        forms: Mapping[str, OperatorForm] | None = None,
    ) -> None:
        self._store = store
        self._client = client
        self._grace = grace
        self._sign = sign
        self._forms = {f"{_OPERATOR}{name}": form for name, form in (forms or {}).items()}
        # By task id and webhook id, until the end of the task is delivered.
        self._webhooks: dict[str, dict[str, _Webhook]] = {}
        self._group: TaskGroup | None = None
        self._load_task: TaskLoader
        self._load_snapshot: TaskLoader
        self._busy = 0
        self._idle = anyio.Event()

    @asynccontextmanager
    async def running(self, load_task: TaskLoader, load_snapshot: TaskLoader) -> AsyncGenerator[None]:
        """Deliver notifications until the block ends, beginning with the undelivered events of earlier processes.

        At the end, attempts in progress have ``grace`` seconds to complete.

        Args:
            load_task: Returns the complete task.
            load_snapshot: Returns the task with a history of only the caller's messages and the status messages.

        Raises:
            StoreError: The webhooks cannot be read.
        """
        self._load_task, self._load_snapshot = load_task, load_snapshot
        async with self._client.open(), anyio.create_task_group() as self._group:
            self.schedule(await self._store.load_open_push_configs())
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
        """Validate a webhook and give it an id if it has none, without persisting it.

        Args:
            config: The caller's configuration, with the task's id.
            owner: The owner of the task.
            dialect: The protocol version of the notifications.
            after: The number after which the webhook receives events.

        Raises:
            InvalidParamsError: A field is invalid, the URL may not be called, the id is reserved, or the task already has
                `MAX_CONFIGS` webhooks.
            StoreError: The webhooks of the task cannot be read.
        """
        self._client.guard.check(config)
        if config.id.startswith(_OPERATOR):
            raise InvalidParamsError(f"ids of push notification configs must not begin with {_OPERATOR!r}")
        config = config if config.id else config.model_copy(update={"id": str(uuid4())})
        other_ids = {each.id for each in await self._configs(config.task_id, owner)}
        if len(other_ids - {config.id}) >= MAX_CONFIGS:
            raise InvalidParamsError(f"a task has at most {MAX_CONFIGS} push notification configs")
        return PushConfig(owner, dialect, config, after)

    def of_operator(
        self, name: str, task_id: str, message_id: str, owner: str, after: int
    ) -> list[PushConfig]:
        """Return the operator's webhook for one turn in a list; an empty list if the operator has no webhook with this form.

        Args:
            name: The name of the form.
            task_id: The task.
            message_id: The id of the message of the turn.
            owner: The owner of the task.
            after: The number after which the webhook receives events.
        """
        dialect = f"{_OPERATOR}{name}"
        form = self._forms.get(dialect)
        if form is None:
            return []
        config = TaskPushNotificationConfig(url=form.url, id=f"{_OPERATOR}{message_id}", task_id=task_id)
        return [PushConfig(owner, dialect, config, after)]

    async def create(
        self, config: TaskPushNotificationConfig, owner: str, *, dialect: str, after: int, has_ended: bool
    ) -> TaskPushNotificationConfig:
        """Persist a webhook of a task. A webhook with the same id is replaced.

        Args:
            config: The caller's configuration, with the task's id.
            owner: The owner of the task. This is not checked.
            dialect: The protocol version of the notifications.
            after: The number after which the webhook receives events.
            has_ended: True if no events follow.

        Returns:
            The webhook with its id.

        Raises:
            InvalidParamsError: See `accept`.
            StoreError: The webhook cannot be persisted.
        """
        accepted = await self.accept(config, owner, dialect=dialect, after=after)
        await self._store.put_push_config(accepted)
        task_id, config_id = accepted.key
        if not has_ended or config_id in self._webhooks.get(task_id, ()):
            self.notify(task_id, (accepted,))
        return accepted.config

    async def get(self, task_id: str, config_id: str, owner: str) -> TaskPushNotificationConfig:
        """Return one webhook of a task.

        Raises:
            TaskNotFoundError: The task has no webhook with this id (A2A 1.0, section 3.1.8).
            StoreError: The webhook cannot be read.
        """
        for each in await self._configs(task_id, owner):
            if each.id == config_id:
                return each
        raise TaskNotFoundError("no such push notification config", metadata={"taskId": task_id})

    async def list_configs(
        self, task_id: str, owner: str, *, limit: int = 0, page_token: str = ""
    ) -> ListTaskPushNotificationConfigsResponse:
        """Return the webhooks of a task, ordered by id.

        Args:
            task_id: The task.
            owner: The owner of the task.
            limit: Maximum number of webhooks; 0 for all.
            page_token: The token from an earlier page; empty for the first page.

        Raises:
            InvalidParamsError: The token is not valid.
            StoreError: The webhooks cannot be read.
        """
        after = _read_token(page_token)
        configs = await self._configs(task_id, owner)
        rest = [config for config in configs if config.id > after]
        page = rest[:limit] if limit else rest
        token = _page_token(page[-1].id) if len(page) < len(rest) else ""
        return ListTaskPushNotificationConfigsResponse(configs=tuple(page), next_page_token=token)

    async def delete(self, task_id: str, config_id: str) -> None:
        """Delete a webhook of a caller, and cancel an attempt in progress.

        Do nothing if the id is unknown, or belongs to a webhook of the operator.

        Raises:
            StoreError: The webhook cannot be deleted.
        """
        if config_id.startswith(_OPERATOR):
            return
        webhook = self._webhooks.get(task_id, {}).get(config_id)
        if webhook is not None:
            webhook.scope.cancel()
            self._remove(webhook)
        await self._store.delete_push_config(task_id, config_id)

    async def delete_of_operator(self, task_id: str, owner: str) -> None:
        """Delete the operator's webhooks of a task, so that the operator is not notified.

        Raises:
            StoreError: The webhooks cannot be deleted.
        """
        for each in await self._store.load_push_configs(task_id, owner):
            if each.dialect.startswith(_OPERATOR):
                await self._store.delete_push_config(task_id, each.config.id)

    def drop(self, task_id: str) -> None:
        """Cancel all deliveries for a task."""
        for webhook in self._webhooks.pop(task_id, {}).values():
            webhook.scope.cancel()

    def notify(self, task_id: str, new: Sequence[PushConfig] = ()) -> None:
        """Schedule notifications after a status change of a task, and the webhooks ``new``, were persisted."""
        for config in new:
            self._add(config)
        for webhook in self._webhooks.get(task_id, {}).values():
            self._schedule(webhook)

    def schedule(self, configs: Sequence[tuple[PushConfig, bool]]) -> None:
        """Schedule deliveries for persisted webhooks.

        Args:
            configs: The webhooks, each with True if the webhook has undelivered events.
        """
        for config, is_lagging in configs:
            webhook = self._add(config)
            if is_lagging:
                self._schedule(webhook)

    def release_all(self) -> None:
        """Cancel all deliveries, because another process takes over."""
        for task_id in list(self._webhooks):
            self.drop(task_id)

    async def _configs(self, task_id: str, owner: str) -> list[TaskPushNotificationConfig]:
        configs = await self._store.load_push_configs(task_id, owner)
        return [each.config for each in configs if not each.dialect.startswith(_OPERATOR)]

    # --- scheduling -------------------------------------------------------------------------------------------------

    def _add(self, config: PushConfig) -> _Webhook:
        task_id, config_id = config.key
        of_task = self._webhooks.setdefault(task_id, {})
        replaced = of_task.get(config_id)
        delivered = config.last_delivered
        if replaced is not None:
            replaced.scope.cancel()
            delivered = replaced.last_delivered
        webhook = _Webhook(config.owner, config.dialect, config.config, delivered)
        of_task[config_id] = webhook
        return webhook

    def _remove(self, webhook: _Webhook) -> None:
        task_id = webhook.config.task_id
        of_task = self._webhooks.get(task_id, {})
        if of_task.get(webhook.config.id) is webhook:
            del of_task[webhook.config.id]
            if not of_task:
                del self._webhooks[task_id]

    def _schedule(self, webhook: _Webhook) -> None:
        webhook.is_lagging = True
        if not webhook.running and self._group is not None:
            webhook.running = True
            webhook.scope = anyio.CancelScope()
            self._busy += 1
            self._group.start_soon(self._run, webhook, name=f"webhook of {webhook.config.task_id}")

    async def _run(self, webhook: _Webhook) -> None:
        try:
            with webhook.scope:
                while webhook.is_lagging:
                    webhook.is_lagging = False
                    await self._catch_up(webhook)
                if webhook.is_finished or webhook.is_gone:
                    self._remove(webhook)
        except Stopping:
            pass  # delivery continues after the next start
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
        while not webhook.is_finished:
            try:
                changes = await self._changes(webhook)
                if not changes:
                    config = webhook.config
                    webhook.is_gone = not await self._store.has_push_config(config.task_id, config.id)
                    return
                for number, state in changes:
                    if webhook.dialect.startswith(_OPERATOR):
                        await self._send_to_operator(webhook, number, state)
                    else:
                        await self._send_change(webhook, number, state)
                    if webhook.is_finished:
                        break
            except TaskNotFoundError:  # the task was deleted with its webhooks in the meantime
                webhook.is_gone = True
                return
            except (StoreError, A2AError) as error:
                logger.warning("notifications of task %s have to wait: %s", webhook.config.task_id, error)
                await self._client.pause(_STORE_PAUSE)

    async def _changes(self, webhook: _Webhook) -> list[tuple[int, TaskState | None]]:
        """Return the event numbers and states of the next status changes.

        If more than `MAX_MISSED` changes wait, return only the number of the last one, with None as its state.
        """
        task_id = webhook.config.task_id
        found = await self._store.load_status_numbers(task_id, webhook.last_delivered, MAX_MISSED + 1)
        return [(found[-1][0], None)] if len(found) > MAX_MISSED else [*found]

    async def _send_to_operator(self, webhook: _Webhook, number: int, state: TaskState | None) -> None:
        """If the turn has ended, notify the operator's webhook and delete it.

        If the form of the webhook no longer exists, only delete the webhook. If the turn has not ended, keep it.
        """
        if state is not None and not (state.terminal or state.interrupted):
            webhook.last_delivered = number
            return
        config, form = webhook.config, self._forms.get(webhook.dialect)
        notification = None
        if not await self._store.has_push_config(config.task_id, config.id):
            webhook.is_gone = webhook.is_finished = True  # deleted by `delete_of_operator`
            return
        if form is not None:
            task = await self._load_snapshot(config.task_id, webhook.owner)
            notification = await form.write(task, config.id.removeprefix(_OPERATOR))
            if notification is None:
                webhook.last_delivered = number
                await self._store.mark_delivered(config.task_id, config.id, number)
                return
            name, body = notification
            # The notification is sent to the current URL, because the signature uses the operator's current secret.
            current = config.model_copy(update={"url": form.url})
            await self._client.send(
                current, name, body, media_type="application/json", owner=webhook.owner, sign=form.sign
            )
        webhook.last_delivered, webhook.is_finished = number, True
        await self._store.delete_push_config(config.task_id, config.id)

    async def _send_change(self, webhook: _Webhook, number: int, state: TaskState | None) -> None:
        config = webhook.config
        if state is None:
            task = await self._load_task(config.task_id, webhook.owner)
            number, state = extension_metadata(task.metadata)["number"], task.status.state
            notifications = [(f"{config.task_id}/{number}", await _write_task(webhook.dialect, task))]
        else:
            notifications = await self._notifications(webhook, number, state)
        for name, body in notifications:
            accepted = await self._client.send(
                config,
                name,
                body,
                media_type="application/json" if webhook.dialect in _OLDER else "application/a2a+json",
                owner=webhook.owner,
                sign=self._sign,
                once=webhook.failing and not state.terminal,
            )
            webhook.failing = not accepted
        webhook.last_delivered, webhook.is_finished = number, state.terminal
        await self._store.mark_delivered(config.task_id, config.id, number)

    async def _notifications(
        self, webhook: _Webhook, number: int, state: TaskState
    ) -> list[tuple[str, bytes]]:
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
        task = task.model_copy(update={"history": ()})  # in A2A 0.1, a history is returned only on request
    return _OLDER[dialect].write_result(Operation.GET_TASK, task)


def _at_event(task: Task, event: Event) -> Task:
    """Return the task as of a status change. If there is a later change, return only the status."""
    event_response = StreamResponse.from_json(event.body)
    then = event_response.task or event_response.status_update
    if then is None or then.status == task.status:
        return task
    metadata = with_extension_metadata({}, number=event.number)
    return Task(id=task.id, context_id=task.context_id, status=then.status, metadata=metadata)


def _page_token(config_id: str) -> str:
    return base64.urlsafe_b64encode(config_id.encode()).decode().rstrip("=")


def _read_token(token: str) -> str:
    try:
        return base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)).decode()
    except (binascii.Error, ValueError):
        raise InvalidParamsError("pageToken was not created by this agent") from None
