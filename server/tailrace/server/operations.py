"""The operations of A2A, as every binding and every dialect carries them out.

A binding says who asks and what; everything else is decided here, once: what a caller may see, what the agent can do,
how long an answer is waited for, and how much history it carries.
"""

import base64
import binascii
import hashlib
import json
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from datetime import datetime
from typing import cast

import anyio

from tailrace.server.auth import AuthError
from tailrace.server.engine import Engine
from tailrace.server.limits import Limits, Place
from tailrace.server.live import CallContext, Subscription
from tailrace.server.observability import NO_OBSERVER, Observer
from tailrace.server.offer import Offer
from tailrace.server.open_streams import OpenStreams
from tailrace.server.push import PushNotifier
from tailrace.server.store import TaskFilter, TaskPosition
from tailrace.streaming.a2a.dialect import Operation
from tailrace.streaming.a2a.errors import (
    ExtendedAgentCardNotConfiguredError,
    InvalidParamsError,
    PushNotificationNotSupportedError,
    UnsupportedOperationError,
)
from tailrace.streaming.a2a.models import A2AModel, AgentCard, Message, StreamResponse, Task
from tailrace.streaming.a2a.requests import (
    CancelTaskRequest,
    Conversation,
    DeleteTaskPushNotificationConfigRequest,
    GetConversationRequest,
    GetTaskPushNotificationConfigRequest,
    GetTaskRequest,
    ListTaskPushNotificationConfigsRequest,
    ListTasksRequest,
    ListTasksResponse,
    SendMessageRequest,
    SubscribeToTaskRequest,
    TaskPushNotificationConfig,
)
from tailrace.streaming.a2a.v0_3 import DEFAULT_CONFIG_ID
from tailrace.streaming.extension import extension_facts
from tailrace.streaming.task import Event

MAX_CONVERSATION = 1000
"""Messages of a conversation that are given at once."""

MAX_SEND_KEY_LENGTH = 256
"""Characters of what a caller names a message by."""


@dataclass(frozen=True)
class Caller:
    """Who asks.

    Attributes:
        user: The name that the caller was authenticated by; empty for anybody.
        tenant: Which of the agent's tenants is asked; empty where it has none.
        names_tasks_in: The version of the protocol in which the caller makes the ids of its tasks; empty where
            the server does.
        speaks: The version of the protocol that the caller speaks.
        extensions: The extensions that the request uses, as `Offer.activated` gives them.
        send_key: What the caller names a message by, so that it is taken once however often it is sent (the header
            ``Idempotency-Key``); empty where it does not. A message's own fact says the same.
        fingerprint: Tells the request that is named so from others, where the message does not: what the message is
            depends on what was said before. Empty where it does.
    """

    user: str = ""
    tenant: str = ""
    names_tasks_in: str = ""
    speaks: str = "1.0"
    extensions: tuple[str, ...] = ()
    send_key: str = ""
    fingerprint: str = ""

    @property
    def owner(self) -> str:
        """Whose tasks these are: a user's within a tenant."""
        if self.tenant or self.user.startswith(
            "["
        ):  # no user's name is to read like another's within a tenant
            return json.dumps([self.tenant, self.user])
        return self.user


ExtendedCard = Callable[[Caller], AgentCard | None]
"""The card for a caller that is known; None where there is none for this one."""


class EventStream:
    """The events that answer one request.

    Args:
        source: Where they come from.
        history_length: How much of the history the task is given with; all of it when None.
        until_interrupted: End also when the task waits for its caller.
        place: What the stream holds of the limits, until it is over.

    Attributes:
        message: The agent's direct answer, which is then the only event; else None.
    """

    def __init__(
        self,
        source: Subscription | Message,
        *,
        history_length: int | None = None,
        until_interrupted: bool = False,
        place: Place | None = None,
    ) -> None:
        self.message = source if isinstance(source, Message) else None
        self._subscription = None if isinstance(source, Message) else source
        self._history_length = history_length
        self._until_interrupted = until_interrupted
        self._place = place or Place.none()

    @property
    def artifact_ids(self) -> Sequence[str]:
        """The artifacts that the task has by now, in the order of their making."""
        return self._subscription.artifact_ids if self._subscription is not None else ()

    def batches(self) -> AsyncGenerator[Sequence[Event]]:
        """The events in batches of what is there; a direct answer is an event without a number (0).

        Raises:
            StoreError: Events could not be kept or read; what was yielded before is kept.
        """
        if self._subscription is None:
            return self._direct_answer()
        batches = self._subscription.batches(until_interrupted=self._until_interrupted, holding=self._place)
        if self._history_length is None:
            return batches  # every token passes here: nothing stands between
        return _with_history(batches, self._history_length)

    async def _direct_answer(self) -> AsyncGenerator[Sequence[Event]]:
        with self._place:
            yield [Event(0, StreamResponse(message=self.message).to_json())]

    def take_at_once(self, take: Callable[[Sequence[Event]], bool] | None) -> None:
        """Have events handed on where they are shown, without a task being woken for them.

        Args:
            take: Given events in the place of `batches` while that waits for them. False when it took none: they come
                from `batches` then. It raises nothing. None: from now on nobody does.
        """
        if self._subscription is not None and self._history_length is None:
            self._subscription.take = take

    def closes(self, event: Event) -> bool:
        """Whether nothing follows this event on this stream."""
        if event.state is None:
            return self._subscription is None
        return event.state.terminal or (self._until_interrupted and event.state.interrupted)


class Operations:
    """Answers requests out of an engine.

    Args:
        engine: What runs the tasks.
        push: What tells webhooks; None where push notifications are not supported.
        offer: What the agent offers and asks for.
        extended_card: Gives the extended card; None where the agent declares none.
        challenge: How a caller says who it is (``WWW-Authenticate``), which it must for the extended card; empty where
            nobody can.
        limits: How much a caller may have; as much as it likes when None.
        observer: Told of streams.

    Attributes:
        offer: As given.
        streams: The SSE streams that are open.
    """

    def __init__(
        self,
        engine: Engine,
        push: PushNotifier | None = None,
        *,
        offer: Offer | None = None,
        extended_card: ExtendedCard | None = None,
        challenge: str = "",
        limits: Limits | None = None,
        observer: Observer = NO_OBSERVER,
    ) -> None:
        self._observer = observer
        self._limits = limits or Limits()
        self.offer = offer or Offer()
        self.streams = OpenStreams()
        self._engine = engine
        self._push = push
        self._extended_card = extended_card
        self._challenge = challenge

    @property
    def stopping(self) -> anyio.Event:
        """Set when the server is told to stop: streams are then to end by themselves."""
        return self._engine.stop_requested

    @property
    def has_extended_card(self) -> bool:
        """Whether there is a further card for callers that are known."""
        return self._extended_card is not None

    async def dialect_of(self, task_id: str, caller: Caller) -> str:
        """The version of the protocol that a task was begun in; see `Engine.dialect_of`."""
        return await self._engine.dialect_of(task_id, caller.owner)

    async def answer(self, operation: Operation, request: A2AModel, caller: Caller) -> A2AModel | None:
        """Carry out an operation that does not stream.

        Returns:
            What A2A 1.0 says: a task or message, a page of tasks, …; None for a deletion.

        Raises:
            A2AError: As the protocol says for the operation.
            AuthError: It is for callers that are known, and this one is not.
            StoreError: Nothing can be kept or read at present.
        """
        self.offer.check_extensions(caller.extensions)
        if operation is Operation.SEND_MESSAGE:
            return await self._send(cast("SendMessageRequest", request), caller)
        if operation is Operation.GET_TASK:
            get = cast("GetTaskRequest", request)
            return await self._engine.get_task(get.id, caller.owner, get.history_length)
        if operation is Operation.LIST_TASKS:
            return await self._list(cast("ListTasksRequest", request), caller)
        if operation is Operation.CANCEL_TASK:
            return await self._engine.cancel_task(cast("CancelTaskRequest", request).id, caller.owner)
        if operation is Operation.GET_EXTENDED_CARD:
            return self._answer_extended_card(caller)
        if operation is Operation.GET_CONVERSATION:
            wanted = cast("GetConversationRequest", request)
            return await self._answer_conversation(wanted, caller)
        return await self._answer_push(operation, request, caller)

    async def stream(
        self,
        operation: Operation,
        request: A2AModel,
        caller: Caller,
        *,
        after: int | None = None,
        repeat_finished: bool = False,
        preceding: Sequence[Message] = (),
    ) -> EventStream:
        """Carry out an operation that streams.

        Args:
            operation: SendStreamingMessage or SubscribeToTask.
            request: Its request.
            caller: Who asks.
            after: For a subscription: go on after the event of this number.
            repeat_finished: For a subscription: give a task that is over as it stands, instead of refusing.
            preceding: For a message: see `Engine.start`.

        Raises:
            A2AError: As `answer`; before anything is streamed.
            StoreError: As `answer`.
        """
        self.offer.check_extensions(caller.extensions)
        # Before anything is begun: what is refused has had no effect.
        place = self._limits.streams.take(caller.owner)
        try:
            if operation is Operation.SUBSCRIBE_TO_TASK:
                subscribe = cast("SubscribeToTaskRequest", request)
                reader = await self._engine.subscribe(
                    subscribe.id, caller.owner, after, repeat_finished=repeat_finished
                )
                self._observer.streaming("subscription" if after is None else "resume")
                return EventStream(reader, place=place)
            send = cast("SendMessageRequest", request)
            return await self._stream_answer(send, caller, place, preceding)
        except BaseException:
            place.release()
            raise

    async def sent_before(self, caller: Caller) -> EventStream | None:
        """The events that answer a message that the caller has sent before under its ``send_key``.

        Returns:
            The task as it stands, and what follows; None where nothing was sent under that name.

        Raises:
            A2AError: Another message was named so, or as `stream`.
            StoreError: As `stream`.
        """
        key = _checked_key(caller.send_key)
        place = self._limits.streams.take(caller.owner)
        try:
            reader = await self._engine.sent_as(key, caller.fingerprint, caller.owner) if key else None
            if reader is not None:
                return EventStream(reader, until_interrupted=True, place=place)
        except BaseException:
            place.release()
            raise
        place.release()
        return None

    async def _stream_answer(
        self, send: SendMessageRequest, caller: Caller, place: Place, preceding: Sequence[Message]
    ) -> EventStream:
        self._check_message(send)
        started = await self._start(send, caller, preceding)
        self._observer.streaming("message")
        return EventStream(
            started,
            history_length=send.configuration.history_length,
            until_interrupted=True,
            place=place,
        )

    def _check_message(self, send: SendMessageRequest) -> None:
        self.offer.check_message(send.message)
        self._limits.check_message(send.message)

    def _answer_extended_card(self, caller: Caller) -> AgentCard:
        """The card for this caller (A2A 1.0, section 3.1.11)."""
        if self._extended_card is None:
            raise UnsupportedOperationError("the agent has no extended card")
        if self._challenge and not caller.user:
            raise AuthError("the extended card is for callers that are known", challenge=self._challenge)
        card = self._extended_card(caller)
        if card is None:
            raise ExtendedAgentCardNotConfiguredError
        return card

    async def _answer_conversation(self, wanted: GetConversationRequest, caller: Caller) -> Conversation:
        length = MAX_CONVERSATION if wanted.history_length is None else wanted.history_length
        said = await self.conversation(wanted.context_id, caller, min(length, MAX_CONVERSATION))
        return Conversation(context_id=wanted.context_id, messages=tuple(said))

    async def conversation(
        self, context_id: str, caller: Caller, limit: int = MAX_CONVERSATION
    ) -> list[Message]:
        """What was said in one of the caller's conversations: its newest messages, oldest first; none of an unknown one.

        Raises:
            StoreError: Nothing can be read at present.
        """
        return await self._engine.conversation(context_id, caller.owner, limit)

    async def _start(
        self, send: SendMessageRequest, caller: Caller, preceding: Sequence[Message] = ()
    ) -> Subscription | Message:
        self.offer.check_message(send.message)
        key = _checked_key(caller.send_key or extension_facts(send.metadata).get("idempotencyKey", ""))
        call = CallContext(
            named_in=caller.names_tasks_in,
            spoken=caller.speaks,
            extensions=caller.extensions,
            send_key=key,
            fingerprint=caller.fingerprint,
        )
        return await self._engine.start(send, caller.owner, call, preceding=preceding)

    async def _send(self, send: SendMessageRequest, caller: Caller) -> Task | Message:
        self._check_message(send)
        started = await self._start(send, caller)
        if isinstance(started, Message):
            return started
        last: Event | None = None
        async with aclosing(started.batches(until_interrupted=True)) as batches:
            async for events in batches:
                if send.configuration.return_immediately:
                    break
                last = events[-1]
        task = await self._engine.get_task(started.task_id, caller.owner, send.configuration.history_length)
        return task if last is None else _answered(task, last)

    async def _answer_push(self, operation: Operation, request: A2AModel, caller: Caller) -> A2AModel | None:
        """The four operations on webhooks; the task is looked up first, as its owner's."""
        push, owner = self._push, caller.owner
        if push is None:
            raise PushNotificationNotSupportedError
        if operation is Operation.CREATE_PUSH_CONFIG:
            config = cast("TaskPushNotificationConfig", request)
            if not config.task_id:
                raise InvalidParamsError("taskId: required")
            return await self._engine.set_webhook(config, owner, caller.speaks)
        if operation is Operation.GET_PUSH_CONFIG:
            get = cast("GetTaskPushNotificationConfigRequest", request)
            task_id, *_ = await self._engine.progress_of(get.task_id, owner)
            get = get.model_copy(update={"task_id": task_id})
            only = await self._only_config(push, get, caller)
            return only or await push.get(task_id, get.id, owner)
        if operation is Operation.LIST_PUSH_CONFIGS:
            wanted = cast("ListTaskPushNotificationConfigsRequest", request)
            task_id, *_ = await self._engine.progress_of(wanted.task_id, owner)
            return await push.list_configs(
                task_id, owner, limit=wanted.page_size, page_token=wanted.page_token
            )
        gone = cast("DeleteTaskPushNotificationConfigRequest", request)
        await self._engine.delete_webhook(gone.task_id, gone.id, owner)
        return None

    async def _only_config(
        self, push: PushNotifier, asked: GetTaskPushNotificationConfigRequest, caller: Caller
    ) -> TaskPushNotificationConfig | None:
        """The webhook that is meant by a client of an older version that names none: the task's only one."""
        if caller.speaks == "1.0" or asked.id != DEFAULT_CONFIG_ID:
            return None
        configs = (await push.list_configs(asked.task_id, caller.owner, limit=2)).configs
        return configs[0] if len(configs) == 1 else None

    async def _list(self, request: ListTasksRequest, caller: Caller) -> ListTasksResponse:
        wanted = TaskFilter(request.context_id, request.status, request.status_timestamp_after)
        after = read_page_token(request.page_token, wanted) if request.page_token else None
        page = await self._engine.list_tasks(wanted, caller.owner, after=after, limit=request.page_size)
        return ListTasksResponse(
            tasks=tuple(_listed(task, request) for task in page.tasks),
            next_page_token=page_token(page.last, wanted) if page.last is not None else "",
            page_size=len(page.tasks),
            total_size=page.total,
        )


def _checked_key(key: object) -> str:
    if not isinstance(key, str) or len(key) > MAX_SEND_KEY_LENGTH:
        raise InvalidParamsError(
            f"the idempotency key must be text of {MAX_SEND_KEY_LENGTH} characters at most"
        )
    return key


def _answered(task: Task, last: Event) -> Task:
    """The task with the status that answered a message, though another message may have brought it further since."""
    update = StreamResponse.model_validate_json(last.body).status_update
    if update is None or task.status.state.terminal or task.status.state.interrupted:
        return task
    return task.model_copy(update={"status": update.status})


def _listed(task: Task, request: ListTasksRequest) -> Task:
    changes: dict[str, object] = {}
    if not request.include_artifacts:
        changes["artifacts"] = ()
    if request.history_length is not None:
        changes["history"] = _newest(task, request.history_length)
    return task.model_copy(update=changes)


def _newest(task: Task, length: int) -> tuple[Message, ...]:
    return task.history[-length:] if length else ()


async def _with_history(
    batches: AsyncGenerator[Sequence[Event]], length: int
) -> AsyncGenerator[Sequence[Event]]:
    """The same, but for tasks, which come with so much of their history."""
    async with aclosing(batches):
        async for events in batches:
            if events[0].body.startswith(b'{"task":'):
                events = [_shorten_history(events[0], length), *events[1:]]
            yield events


def _shorten_history(event: Event, length: int) -> Event:
    task = StreamResponse.model_validate_json(event.body).task
    if task is None:
        return event
    short = task.model_copy(update={"history": _newest(task, length)})
    return Event(event.number, StreamResponse(task=short).to_json(), event.state)


# --- page tokens ------------------------------------------------------------------------------------------------


def page_token(position: TaskPosition, wanted: TaskFilter) -> str:
    """Where a page of tasks ends, as a token for the next one with the same filters."""
    fields = [position.updated.isoformat(), position.id, _fingerprint(wanted)]
    return base64.urlsafe_b64encode(json.dumps(fields).encode()).decode().rstrip("=")


def read_page_token(token: str, wanted: TaskFilter) -> TaskPosition:
    """Where the page before ended.

    Raises:
        InvalidParamsError: The token is none of ours, or belongs to other filters.
    """
    try:
        fields = json.loads(base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)))
        updated, task_id, fingerprint = fields
        position = TaskPosition(datetime.fromisoformat(updated), str(task_id))
    except (binascii.Error, ValueError, TypeError):
        raise InvalidParamsError("pageToken is not one that this agent gave out") from None
    if fingerprint != _fingerprint(wanted):
        raise InvalidParamsError("pageToken belongs to a list with other filters")
    return position


def _fingerprint(wanted: TaskFilter) -> str:
    return hashlib.sha256(repr(wanted).encode()).hexdigest()[:12]
