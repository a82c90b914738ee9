"""Request handling of all protocols except A2A: authenticate, parse, send the message, stream the response.

A disconnect does not cancel the task, except in the OpenAI-compatible API with the setting ``on_disconnect=cancel``. Response
headers contain the ids of the conversation and the task. A2A clients can use these ids, too.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, nullcontext, suppress
from dataclasses import replace
from functools import wraps
from hashlib import sha256
from typing import Any, TypeVar, cast

import anyio
from fastapi import APIRouter, Request, Response
from starlette.requests import ClientDisconnect

from tailrace.server.auth.authentication import Authenticator, Credentials
from tailrace.server.http.request_body import read_json
from tailrace.server.http.request_headers import credentials_of, requested_extensions
from tailrace.server.http.sse import EventResponse
from tailrace.server.protocols.chat_request import ChatRequest
from tailrace.server.protocols.conversation_lookup import AssignedMessage, Conversations, branch_context_ids
from tailrace.server.protocols.encoder import Encoder, encode_json
from tailrace.server.protocols.event_translator import EventTranslator
from tailrace.server.protocols.openai_error import OpenAIError, server_stopping_error
from tailrace.server.protocols.turn_events import RepeatedTurn, repeat_turn
from tailrace.server.runtime.caller import Caller
from tailrace.server.runtime.event_stream import EventStream
from tailrace.server.runtime.operations import Operations
from tailrace.server.settings import Settings
from tailrace.server.store.store import SendKey
from tailrace.streaming.a2a.errors import A2AError
from tailrace.streaming.a2a.event import Event
from tailrace.streaming.a2a.json_value_counts import cost_of
from tailrace.streaming.a2a.models import Message, Task
from tailrace.streaming.a2a.requests import (
    CancelTaskRequest,
    ListTasksRequest,
    ListTasksResponse,
    SendMessageRequest,
    SubscribeToTaskRequest,
)
from tailrace.streaming.a2a.version_codec import Operation
from tailrace.streaming.agent.caller_options import CallerOptions
from tailrace.streaming.conversion.approval_parts import without_decisions
from tailrace.streaming.conversion.message_conversion import is_callers, to_common_message
from tailrace.wrappers.concurrency.worker_thread import json_cost, run_bounded

T = TypeVar("T")

CONVERSATION_HEADER = "X-Conversation-Id"
"""Header with the id of the conversation, in requests and responses."""

TASK_HEADER = "X-Task-Id"
"""Header with the id of the task, in responses."""

_NEWEST_TASKS = 20
"""Number of tasks of a context that `ChatEndpoint.newest_task` considers."""

Endpoint = Callable[[Request], Awaitable[Response]]


class ChatEndpoint:
    """Reads requests, sends their messages to the agent, and streams the responses."""

    def __init__(
        self,
        operations: Operations,
        settings: Settings,
        authenticator: Authenticator,
        credentials: Callable[[Request], Credentials] = credentials_of,
    ) -> None:
        self.operations = operations
        self._settings = settings
        self._authenticator = authenticator
        self._credentials = credentials
        self._conversations = Conversations(operations)

    async def authenticate(self, request: Request) -> Caller:
        """Authenticate a request, and return its caller.

        Raises:
            AuthError: The caller is not authenticated.
            OverloadedError: See `Authenticator.authenticate`.
        """
        identity = await self._authenticator.authenticate(self._credentials(request))
        extensions = self.operations.capabilities.activated(requested_extensions(request))
        return Caller(
            identity.user, extensions=extensions, claims=identity.claims, namespace=identity.namespace
        )

    async def read(self, request: Request, parse: Callable[[Mapping[str, Any]], T]) -> tuple[Caller, T]:
        """Authenticate a request, and parse its body.

        Returns:
            The caller, and the result of ``parse``.

        Raises:
            AuthError: The caller is not authenticated. The body was not read.
            OpenAIError: ``parse`` rejects the body.
            A2AError: See `authenticate` and `read_json`.
            ClientDisconnect: The client disconnected before the body was complete.
        """
        caller = await self.authenticate(request)
        body = await read_json(request, self._settings)
        parsed = await run_bounded(body.cost, parse, body.members)
        send_key = request.headers.get("idempotency-key", "")
        fingerprint = await run_bounded(body.cost, _digest, body.raw) if send_key else ""
        return replace(caller, send_key=send_key, fingerprint=fingerprint, cost=body.cost), parsed

    async def send(
        self, request: ChatRequest, caller: Caller
    ) -> tuple[EventStream | RepeatedTurn, frozenset[str]]:
        """Send the message of a request, and return the events of its turn.

        If an earlier request had the same idempotency key, return the events of its turn instead.

        Returns:
            The events of the task, and the ids of all earlier tool calls of the conversation.

        Raises:
            OpenAIError: See `Conversations.assign`.
            A2AError: See `Operations.stream`.
            StoreError: See `Operations.stream`.
        """
        if caller.send_key and request.choice:
            key = _digest(f"{request.choice} {caller.send_key}".encode())
            caller = replace(caller, send_key=key)
        context_id = await self._conversations.context_of(request, caller)
        lock = self.operations.assignment_lock(context_id, caller) if context_id else nullcontext()
        # While this request holds the lock, no other message can be added to the conversation or its branches.
        async with lock:
            sent = await self._send_once(request, replace(caller, has_assignment_lock=bool(context_id)))
        if isinstance(sent, SendKey):
            return await repeat_turn(self.operations, sent, caller), request.call_ids
        return sent

    async def _send_once(
        self, request: ChatRequest, caller: Caller
    ) -> tuple[EventStream, frozenset[str]] | SendKey:
        """Send the message of a request. If it was sent before, return its key."""
        # This check comes before `_assign`. The stored conversation already contains the message of a repeated request, so
        # `Conversations.assign` would not find the conversation.
        known = await self.operations.sent_before(caller)
        if known is not None:
            return known
        stream, call_ids = await self._assign(request, caller)
        # Without the lock, another request with the same key may have been accepted since the check.
        if stream.repeated_key is not None:
            stream.close()
            return stream.repeated_key
        if caller.has_assignment_lock:
            await stream.wait_for_start()
        return stream, call_ids

    async def _assign(self, request: ChatRequest, caller: Caller) -> tuple[EventStream, frozenset[str]]:
        """Assign the message of a request to a context and a task, and send it. See `send` for the result."""
        skipped: set[str] = set()
        while True:
            assigned = await self._conversations.assign(request, caller, skipped)
            try:
                return await self._send(request, assigned, caller), assigned.call_ids | request.call_ids
            except A2AError:
                message = assigned.message
                if not message.task_id or message.task_id in skipped:
                    raise
                if await self._conversations.still_waits(message, caller):
                    raise
                # Another request has continued this task.
                skipped.add(message.task_id)

    async def _send(self, request: ChatRequest, assigned: AssignedMessage, caller: Caller) -> EventStream:
        options = request.caller_options
        if assigned.message.task_id and not options.model_fields_set:
            # Without any option, the message would have the options of the task's previous message.
            options = CallerOptions(instructions=None)
        send = await run_bounded(caller.cost, _send_request, assigned.message, options)
        caller = replace(
            caller, record=request.record, completion=request.completion, follows=assigned.follows
        )
        return await self.operations.stream(
            Operation.SEND_STREAMING_MESSAGE, send, caller, preceding=assigned.preceding
        )

    async def newest_task(self, key: str, caller: Caller, *, running: bool = False) -> Task | None:
        """Return the newest task of a conversation and its branches; None if there is none.

        Args:
            key: The key that the client chose for the conversation. The context ids of the conversation and its branches are
                derived from it (`branch_context_ids`).
            caller: The owner of the conversation.
            running: True to consider only running tasks.
        """
        found: list[Task] = []
        for context_id in branch_context_ids(key):
            tasks = await self._newest_tasks(context_id, caller)
            if not tasks:
                break
            found += [task for task in tasks if not running or is_running(task)]
        return max(found, key=_changed_at, default=None)

    async def conversation(self, key: str, caller: Caller) -> tuple[Task | None, Sequence[Message]]:
        """Return the newest task of a conversation, and the messages of the task's context.

        If the conversation has no task, return None and no messages. If the task is running, its incomplete response is omitted.
        """
        task = await self.newest_task(key, caller)
        if task is None:
            return None, ()
        stored = await self.operations.conversation(task.context_id, caller)
        if not is_running(task):
            return task, stored
        return task, await run_bounded(cost_of(stored), _before_response, stored, task.id)

    async def _newest_tasks(self, context_id: str, caller: Caller) -> list[Task]:
        """Return up to `_NEWEST_TASKS` tasks of a context. Pages with large tasks may contain fewer tasks."""
        tasks: list[Task] = []
        list_request = ListTasksRequest(context_id=context_id, page_size=_NEWEST_TASKS, history_length=0)
        while True:
            listed = await self.operations.execute(Operation.LIST_TASKS, list_request, caller)
            page = cast("ListTasksResponse", listed)
            tasks += page.tasks
            remaining = _NEWEST_TASKS - len(tasks)
            if remaining <= 0 or not page.next_page_token:
                return tasks
            list_request = list_request.model_copy(
                update={"page_size": remaining, "page_token": page.next_page_token}
            )

    async def subscribe(self, task_id: str, caller: Caller) -> tuple[EventStream, EventTranslator]:
        """Subscribe to a task from the beginning of its response. Return the events, and a translator for them.

        Raises:
            A2AError: See `Operations.stream`.
            StoreError: See `Operations.stream`.
        """
        stream = await self.operations.stream(
            Operation.SUBSCRIBE_TO_TASK, SubscribeToTaskRequest(id=task_id), caller, repeat_finished=True
        )
        return stream, EventTranslator(includes_earlier_turns=True)

    async def stream(
        self,
        stream: EventStream | RepeatedTurn,
        encoder: Encoder,
        headers: Mapping[str, str] | None = None,
        following: Sequence[tuple[EventStream | RepeatedTurn, Encoder]] = (),
        canceled: tuple[Sequence[str], Caller] | None = None,
    ) -> Response:
        """Return a response that streams a turn. Wait for the first events, because they contain the id of the task.

        Args:
            stream: The events of the task.
            encoder: Encodes the events.
            headers: Additional headers. Headers with the ids of the conversation and the task are always sent.
            following: Further turns to stream, one after the other.
            canceled: The ids of tasks, and their caller. A disconnect cancels these tasks if ``on_disconnect`` is ``cancel``.
                None to cancel no tasks.

        Raises:
            OpenAIError: The stream ended before its first event, because the server is stopping.
            StoreError: The first events cannot be read.
        """
        return await self.stream_batches(
            stream.batches(),
            encoder,
            headers,
            [(each.batches(), then) for each, then in following],
            canceled=canceled,
        )

    async def stream_batches(
        self,
        batches: AsyncGenerator[Sequence[Event]],
        encoder: Encoder,
        headers: Mapping[str, str] | None = None,
        following: Sequence[tuple[AsyncGenerator[Sequence[Event]], Encoder]] = (),
        canceled: tuple[Sequence[str], Caller] | None = None,
    ) -> Response:
        """Return a response as `stream` does, but for generators of batches. They are closed after use.

        Args:
            batches: The batches of the first turn.
            encoder: See `stream`.
            headers: See `stream`.
            following: See `stream`.
            canceled: See `stream`.

        Raises:
            OpenAIError: See `stream`.
            EventsDropped: The first events are no longer stored.
            StoreError: The first events cannot be read.
        """
        try:
            first = await anext(batches, None)
            if first is None:
                raise server_stopping_error()
            frames = await _encoded(encoder, first)
        except BaseException:
            await batches.aclose()
            raise
        rest = _frames([(batches, encoder), *following], frames)
        if canceled is not None and self._settings.on_disconnect == "cancel":
            rest = self._canceling(rest, *canceled)
        return EventResponse(
            rest,
            settings=self._settings,
            headers={**(headers or {}), **conversation_headers(encoder.translator)},
            streams=self.operations.streams,
        )

    async def _canceling(
        self, frames: AsyncGenerator[bytes], task_ids: Sequence[str], caller: Caller
    ) -> AsyncGenerator[bytes]:
        is_complete = False
        try:
            async with aclosing(frames):
                async for each in frames:
                    yield each
            is_complete = True
        finally:
            for task_id in task_ids if not is_complete else ():
                # A2AError: the task has already ended.
                with anyio.CancelScope(shield=True), suppress(A2AError):
                    request = CancelTaskRequest(id=task_id)
                    await self.operations.execute(Operation.CANCEL_TASK, request, caller)


async def _frames(
    turns: Sequence[tuple[AsyncGenerator[Sequence[Event]], Encoder]], first: bytes
) -> AsyncGenerator[bytes]:
    frames = first
    for batches, encoder in turns:
        async with aclosing(batches):
            try:
                while True:
                    if frames:
                        yield frames
                    if encoder.translator.ended:
                        break
                    batch = await anext(batches, None)
                    if batch is None:
                        raise server_stopping_error()
                    frames = await _encoded(encoder, batch)
            except Exception as error:
                yield encoder.fail(OpenAIError.from_exception(error))
                return
        if encoder.ends_response:
            return
        frames = b""


async def _encoded(encoder: Encoder, events: Sequence[Event]) -> bytes:
    return await run_bounded(encoder.cost(events), lambda: b"".join(map(encoder.feed, events)))


async def cancel_on_disconnect(request: Request, work: Awaitable[T]) -> T:
    """Return the result of ``work``. If the client disconnects, cancel ``work``.

    Args:
        request: The request. Its body must have been read.
        work: The awaitable. Its exceptions are raised again.

    Raises:
        ClientDisconnect: The client disconnected.
    """
    outcome: list[T] = []
    failure: Exception | None = None

    async def watch() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass
        group.cancel_scope.cancel()

    async with anyio.create_task_group() as group:
        group.start_soon(watch)
        try:
            outcome.append(await work)
        except Exception as error:
            failure = error
        group.cancel_scope.cancel()
    if failure is not None:
        raise failure
    if not outcome:
        raise ClientDisconnect
    return outcome[0]


async def json_response(value: object, headers: Mapping[str, str] | None = None) -> Response:
    """Return an uncacheable JSON response. A large value is encoded in a thread."""
    body = await run_bounded(json_cost(value), encode_json, value)
    response_headers = {"cache-control": "no-store", **(headers or {})}
    return Response(body, headers=response_headers, media_type="application/json")


def add_routes(
    router: APIRouter,
    routes: Mapping[tuple[str, str], Endpoint],
    refuse: Callable[[OpenAIError], Response] = OpenAIError.response,
) -> None:
    """Add endpoints to a router.

    Args:
        router: The router.
        routes: The endpoints by method and path.
        refuse: Creates the response for an error of an endpoint.
    """

    def with_error_response(endpoint: Endpoint) -> Endpoint:
        @wraps(endpoint)
        async def respond(request: Request) -> Response:
            try:
                return await endpoint(request)
            except ClientDisconnect:
                return Response(status_code=400)  # the client does not receive it
            except Exception as error:
                return refuse(OpenAIError.from_exception(error))

        return respond

    for (method, path), endpoint in routes.items():
        router.add_api_route(
            path,
            with_error_response(endpoint),
            methods=[method],
            include_in_schema=False,
            response_model=None,
        )


def conversation_headers(translator: EventTranslator) -> dict[str, str]:
    """Return the headers with the ids of the conversation and the task. Ids that are invalid in headers are omitted."""
    names = {CONVERSATION_HEADER: translator.context_id, TASK_HEADER: translator.task_id}
    return {name: value for name, value in names.items() if value and value.isascii() and value.isprintable()}


def _send_request(message: Message, options: CallerOptions) -> SendMessageRequest:
    metadata = options.to_metadata() if options.model_fields_set else {}
    return SendMessageRequest(message=message, metadata=metadata)


def _digest(body: bytes) -> str:
    return sha256(body).hexdigest()


def is_running(task: Task) -> bool:
    """Return whether a task has not ended and does not wait for its caller."""
    return not (task.status.state.terminal or task.status.state.interrupted)


def _before_response(stored: Sequence[Message], task_id: str) -> Sequence[Message]:
    for at in range(len(stored) - 1, -1, -1):
        each = stored[at]
        if each.task_id == task_id and is_callers(each) and not _is_results(each):
            return stored[: at + 1]
    return stored


def _is_results(stored: Message) -> bool:
    """Return whether a message consists only of tool results and of decisions about calls."""
    rest = without_decisions(stored)
    if rest is None:
        return True
    message = to_common_message(rest)
    return bool(message.tool_results) and len(message.tool_results) == len(message.content)


def _changed_at(task: Task) -> float:
    return task.status.timestamp.timestamp() if task.status.timestamp is not None else 0.0
