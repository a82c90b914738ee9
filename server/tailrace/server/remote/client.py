"""Client of A2A agents: sends messages, streams events, and resumes streams after a lost connection.

::

    async with AgentClient("http://127.0.0.1:8000") as client:
        async with aclosing(client.stream("Why is the sky blue?")) as events:
            async for event in events:
                ...

The client supports A2A 1.0 and 0.3 over JSON-RPC, HTTP+JSON and (with ``tailrace[grpc]``) gRPC. It chooses the version and the
binding from the card.
"""

from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar
from uuid import uuid4

import aiohttp
import anyio

from tailrace.server.remote.agent_card import BINDINGS, RemoteCard, credentials, read_card
from tailrace.server.remote.agent_origins import AgentOrigins
from tailrace.server.remote.http_calls import HttpCalls, fetch_card
from tailrace.server.remote.response_validation import MISSING_ID, read_model
from tailrace.streaming.a2a.errors import A2AError, MethodNotFoundError, UnsupportedOperationError
from tailrace.streaming.a2a.json_value_counts import cost_of, cost_of_task
from tailrace.streaming.a2a.models import (
    A2AModel,
    Message,
    Part,
    Role,
    StreamResponse,
    Task,
    TaskArtifactUpdateEvent,
)
from tailrace.streaming.a2a.requests import Conversation
from tailrace.streaming.a2a.stream_extension import EXTENSION_URI
from tailrace.streaming.a2a.version_codec import Operation
from tailrace.wrappers import TailraceError, UpstreamError, UpstreamFault
from tailrace.wrappers.concurrency.worker_thread import json_cost, json_text_cost, run_bounded
from tailrace.wrappers.model import REQUEST_HEADERS

if TYPE_CHECKING:
    from tailrace.server.remote.grpc_calls import GrpcCalls  # requires the extra `grpc`
from tailrace.server.remote.stream_position import StreamEvent, StreamPosition, ends_stream

_Model = TypeVar("_Model", bound=A2AModel)

RETRY_DELAYS = (0.1, 0.5, 1.0, 2.0, 4.0)
"""Delay in seconds before each attempt to resume a lost stream.

An event with new content resets the number of attempts. If all attempts fail, the stream fails.
"""

POLL_DELAYS = (0.2, 0.5, 1.0, 2.0, 5.0)
"""Intervals in seconds at which a task is polled if the agent does not support subscriptions."""

COPY_INTERVAL = 1.0
"""Minimum interval in seconds at which artifacts are fetched from an agent that does not number its events."""

RESPONSE_TIMEOUT = 600.0
"""Timeout in seconds for the response of an agent that does not stream."""

CARD_TIMEOUT = 60.0
"""Timeout in seconds for fetching the agent card."""

_TRANSIENT_FAULTS = frozenset({UpstreamFault.CONNECTION, UpstreamFault.TIMEOUT, UpstreamFault.TRUNCATED})
_TRANSIENT_STATUSES = frozenset({408, 429, 500, 502, 503, 504})


class AgentClient:
    """Client of one agent. Use it as an async context manager.

    The client follows redirects only for the agent card, and only to permitted origins.

    Args:
        url: URL of the agent, or URL of its card (which ends in ``.json``). With the URL of the agent, the card is fetched from
            the well-known path. The default scheme is ``http://``.
        token: Bearer token, or the API key that the card requires; empty for none.
        headers: Further headers of every request, or with gRPC, further metadata; None for none.
        card: The agent card; None to fetch it.
        bindings: Allowed bindings in order of preference.
        connect_timeout: Timeout for opening a connection in seconds.
        read_timeout: Time in seconds after which a connection that delivers no data is considered lost.
        response_timeout: Timeout in seconds for the response of an agent that does not stream.
        retry_delays: See `RETRY_DELAYS`; empty to never resume a stream.
        retry_deadline: Time in seconds after the loss of a connection during which the stream may be resumed; the last delay is
            then repeated. None to make one attempt for each delay.
        on_reconnect: Called before each attempt to resume a stream, with the error and the number of the attempt (from 1).
        allowed_origins: Origins (``https://HOST:PORT``) that are permitted in addition to the origin of ``url``. Nothing is sent
            to other origins.
        answer_timeout: Deprecated name of ``response_timeout``; to be removed in 0.3.

    Raises:
        ConfigurationError: An allowed origin is not valid.
    """

    def __init__(
        self,
        url: str,
        *,
        token: str = "",
        headers: Mapping[str, str] | None = None,
        card: RemoteCard | None = None,
        bindings: Sequence[str] = BINDINGS,
        connect_timeout: float = 10.0,
        read_timeout: float = 60.0,
        response_timeout: float = RESPONSE_TIMEOUT,
        retry_delays: Sequence[float] = RETRY_DELAYS,
        retry_deadline: float | None = None,
        on_reconnect: Callable[[TailraceError, int], None] | None = None,
        allowed_origins: Sequence[str] = (),
        answer_timeout: float | None = None,
    ) -> None:
        if answer_timeout is not None:
            response_timeout = answer_timeout
        self.url = url if "://" in url else f"http://{url}"
        self._origins = AgentOrigins(self.url, allowed_origins)
        self._token = token
        self._headers = {name.lower(): value for name, value in (headers or {}).items()}
        self._card = card
        self._bindings = bindings
        self._timeout = aiohttp.ClientTimeout(None, sock_connect=connect_timeout, sock_read=read_timeout)
        self._unary_timeout = aiohttp.ClientTimeout(
            None, sock_connect=connect_timeout, sock_read=response_timeout
        )
        self._retry_delays = retry_delays
        self._retry_deadline = retry_deadline
        self._on_reconnect = on_reconnect
        self._http: aiohttp.ClientSession | None = None
        self._calls: HttpCalls | GrpcCalls | None = None

    async def __aenter__(self) -> Self:
        self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    def open(self) -> None:
        """Prepare the client for requests, without ``async with``."""
        if self._http is None:
            # Each connection belongs to a turn, and the number of turns is limited.
            connector = aiohttp.TCPConnector(limit=0)
            self._http = aiohttp.ClientSession(
                connector=connector,
                cookie_jar=aiohttp.DummyCookieJar(),  # callers share this session, but must not share cookies
                timeout=self._timeout,
                auto_decompress=False,
            )

    async def aclose(self) -> None:
        """Close the connections. The agent card remains cached."""
        http, calls, self._http, self._calls = self._http, self._calls, None, None
        with anyio.CancelScope(shield=True):
            if calls is not None and not isinstance(calls, HttpCalls):
                await calls.aclose()
            if http is not None:
                await http.close()

    # --- operations -------------------------------------------------------------------------------------------------

    async def card(self) -> RemoteCard:
        """Return the agent card. The first call fetches it.

        Raises:
            UpstreamError: The card does not exist, is not valid, or has no supported interface.
            ConfigurationError: The URL is not valid.
        """
        if self._card is None:
            try:
                with anyio.fail_after(CARD_TIMEOUT):
                    found = await fetch_card(
                        self._session, self.url, {"accept": "application/json", **self.headers}, self._origins
                    )
            except TimeoutError:
                raise UpstreamError(
                    f"the agent at {self.url} did not give its card within {CARD_TIMEOUT:g} seconds",
                    fault=UpstreamFault.TIMEOUT,
                ) from None
            self._card = await run_bounded(
                json_text_cost(found.body),
                read_card,
                found.body,
                found.url,
                self._bindings,
                self._origins,
                found.powered_by,
            )
        return self._card

    agent = card
    """Older name of `card`."""

    @property
    def headers(self) -> dict[str, str]:
        """Headers of every request."""
        bearer = {"authorization": f"Bearer {self._token}"} if self._token else {}
        credential_headers = bearer if self._card is None else credentials(self._card, self._token)
        return {**credential_headers, **self._headers, "accept-encoding": "identity"}

    async def stream(
        self,
        prompt: str | Message,
        *,
        context_id: str = "",
        task_id: str = "",
        metadata: Mapping[str, Any] | None = None,
        accepted_output_modes: Iterable[str] = (),
        extensions: Iterable[str] = (),
        key: str = "",
    ) -> AsyncGenerator[StreamEvent]:
        """Send a message, and yield the events until the task ends or waits for input.

        If the connection is lost, the client resumes the stream after the last event. If the events have no ids, the stream
        continues with full copies, which replace earlier content. If the agent does not stream, the client polls the task until
        it ends. If the generator is closed or cancelled, the task is not cancelled.

        Args:
            prompt: A text or a message.
            context_id: Id of the conversation to continue; empty for a new conversation.
            task_id: Id of a task that waits for input, to continue it; empty for a new task.
            metadata: Metadata of the request; None for none.
            accepted_output_modes: Media types that the caller accepts; empty for any.
            extensions: URIs of further extensions that the request uses.
            key: Idempotency key; empty for none. If the agent supports the stream extension, a message with a key is sent again
                if the connection is lost before the first event.

        Raises:
            A2AError: The agent returns an error of the protocol.
            UpstreamError: The agent cannot be reached or violates the protocol, or all attempts to resume a lost stream failed.
            ConfigurationError: See `card`.
        """
        if isinstance(prompt, str):
            prompt = Message(message_id=str(uuid4()), role=Role.USER, parts=(Part(text=prompt),))
        ids = {"context_id": context_id or prompt.context_id, "task_id": task_id or prompt.task_id}
        prompt = prompt.model_copy(update=ids)
        params: dict[str, Any] = {"message": await run_bounded(cost_of((prompt,)), prompt.to_dict)}
        if metadata:
            params["metadata"] = dict(metadata)
        if modes := list(accepted_output_modes):
            params["configuration"] = {"acceptedOutputModes": modes}
        headers = {"a2a-extensions": ", ".join(dict.fromkeys((EXTENSION_URI, *extensions)))}
        if repeatable := bool(key) and (await self.card()).numbered:
            headers["idempotency-key"] = key
        position = StreamPosition()
        sending = partial(self._send, position, params, headers)
        async with aclosing(self._follow(position, sending, repeatable=repeatable)) as events:
            async for event in events:
                yield event

    def follow(self, task_id: str, *, after: str = "") -> AsyncGenerator[StreamEvent]:
        """Subscribe to an existing task, and yield its events as `stream` does. If the task has ended, yield the task.

        Args:
            task_id: Id of the task.
            after: Id of the last received event, to resume the stream after it; empty to begin with the task.

        Raises:
            A2AError: The agent returns an error of the protocol; `TaskNotFoundError` if the task does not exist.
            UpstreamError: See `stream`.
            ConfigurationError: See `card`.
        """
        position = StreamPosition(task_id, after)
        return self._follow(position, partial(self._subscribe, position))

    async def get_task(self, task_id: str) -> Task:
        """Return the current state of a task.

        Raises:
            A2AError: The agent returns an error of the protocol; `TaskNotFoundError` if the task does not exist.
            UpstreamError: See `stream`.
            ConfigurationError: See `card`.
        """
        return await _read(Task, await self._result(Operation.GET_TASK, {"id": task_id}))

    async def cancel_task(self, task_id: str) -> Task:
        """Cancel a task.

        Returns:
            The task after the cancellation.

        Raises:
            A2AError: The agent returns an error of the protocol; `TaskNotCancelableError` if the task has ended.
            UpstreamError: See `stream`.
            ConfigurationError: See `card`.
        """
        return await _read(Task, await self._result(Operation.CANCEL_TASK, {"id": task_id}))

    async def conversation(self, context_id: str) -> tuple[Message, ...]:
        """Return the messages of a conversation in chronological order.

        Raises:
            MethodNotFoundError: The agent does not support the stream extension.
            A2AError: The agent returns an error of the protocol.
            UpstreamError: See `stream`.
            ConfigurationError: See `card`.
        """
        fields = await self._result(Operation.GET_CONVERSATION, {"contextId": context_id})
        return (await _read(Conversation, fields)).messages

    # --- subscription -----------------------------------------------------------------------------------------------

    async def _follow(
        self,
        position: StreamPosition,
        first: Callable[[], AsyncGenerator[StreamEvent]],
        *,
        repeatable: bool = False,
    ) -> AsyncGenerator[StreamEvent]:
        attempts, lost_at = 0, 0.0
        while True:
            failure = UpstreamError(
                "the agent ended the stream before the task was over", fault=UpstreamFault.TRUNCATED
            )
            try:
                async with aclosing(self._subscribe(position) if position.task_id else first()) as events:
                    async for event in events:
                        if position.advance(event):
                            attempts = 0
                        yield event
                        if position.ended:
                            return
                if position.settled:
                    return
                if position.operation is Operation.SEND_MESSAGE:
                    continue
            except UpstreamError as error:
                if error.fault not in _TRANSIENT_FAULTS and error.status not in _TRANSIENT_STATUSES:
                    raise
                failure = error
            now = anyio.current_time()
            lost_at = lost_at if attempts else now
            delay = self._retry_delay(attempts, now - lost_at)
            if position.awaits_credentials and delay is None:
                return  # the task waits for credentials, which does not need a connection
            # Without a task id, the agent may or may not have received the message.
            if delay is None or not (position.task_id or repeatable):
                raise failure
            attempts += 1
            if self._on_reconnect is not None:
                self._on_reconnect(failure, attempts)
            await anyio.sleep(delay)

    def _retry_delay(self, attempts: int, passed: float) -> float | None:
        """Return the delay before a further attempt to resume a stream; None if there is no further attempt."""
        delays = self._retry_delays
        if self._retry_deadline is None:
            return delays[attempts] if attempts < len(delays) else None
        delay = delays[min(attempts, len(delays) - 1)]
        return delay if passed + delay <= self._retry_deadline else None

    async def _send(
        self, position: StreamPosition, params: dict[str, Any], headers: Mapping[str, str]
    ) -> AsyncGenerator[StreamEvent]:
        card = await self.card()
        streaming = (Operation.SEND_STREAMING_MESSAGE,) if card.may_stream else ()
        for position.operation in (*streaming, Operation.SEND_MESSAGE):
            try:
                async with aclosing(self._events(position.operation, params, headers)) as events:
                    async for event in events:
                        yield event
                return
            except (UnsupportedOperationError, MethodNotFoundError):
                if position.operation is Operation.SEND_MESSAGE or card.streaming or position.task_id:
                    raise

    async def _subscribe(self, position: StreamPosition) -> AsyncGenerator[StreamEvent]:
        """Yield the new events of a task. If the agent does not support subscriptions, poll the task.

        Without ids of events, the client ignores deltas, and fetches copies of the artifacts.
        """
        headers = {"a2a-extensions": EXTENSION_URI}
        if position.last_id:
            headers["last-event-id"] = position.last_id
        position.operation = Operation.SUBSCRIBE_TO_TASK
        try:
            if not (await self.card()).may_stream:
                raise UnsupportedOperationError
            next_copy = 0.0
            events = self._events(position.operation, {"id": position.task_id}, headers)
            async with aclosing(events):
                async for event in events:
                    update, status = event.response.artifact_update, event.response.status_update
                    if not event.id and (update is not None or (status and ends_stream(status.status.state))):
                        if status or anyio.current_time() >= next_copy:
                            for copy in await self._copies(position.task_id):
                                yield copy
                            next_copy = anyio.current_time() + COPY_INTERVAL
                    if event.id or update is None:
                        yield event
            return
        except A2AError:
            pass  # the task has ended, or subscriptions are not supported
        except UpstreamError as error:
            if error.fault is not UpstreamFault.PROVIDER:
                raise
        last: Task | None = None
        position.operation = Operation.GET_TASK
        for delay in _poll_delays():
            task = await self.get_task(position.task_id)
            if task != last:
                last = task
                yield await run_bounded(cost_of_task(task), _synthetic, StreamResponse(task=task))
            await anyio.sleep(delay)

    async def _copies(self, task_id: str) -> list[StreamEvent]:
        task = await self.get_task(task_id)
        context_id = task.context_id or MISSING_ID
        updates = [
            TaskArtifactUpdateEvent(task_id=task.id, context_id=context_id, artifact=artifact)
            for artifact in task.artifacts
        ]
        return await run_bounded(
            cost_of_task(task),
            lambda: [_synthetic(StreamResponse(artifact_update=update)) for update in updates],
        )

    # --- calls --------------------------------------------------------------------------------------------------

    @property
    def _session(self) -> aiohttp.ClientSession:
        if self._http is None:
            raise RuntimeError("an AgentClient is used inside its `async with` block")
        return self._http

    async def _connected(self) -> "HttpCalls | GrpcCalls":
        session, card = self._session, await self.card()
        if self._calls is None and card.binding == "GRPC":
            from tailrace.server.remote.grpc_calls import GrpcCalls  # requires the extra `grpc`

            self._calls = GrpcCalls(card)
        elif self._calls is None:
            self._calls = HttpCalls(session, card, self._unary_timeout)
        return self._calls

    async def _result(self, operation: Operation, params: dict[str, Any]) -> dict[str, Any]:
        calls = await self._connected()
        return await calls.result(operation, params, self._request_headers({}))

    async def _events(
        self, operation: Operation, params: dict[str, Any], headers: Mapping[str, str]
    ) -> AsyncGenerator[StreamEvent]:
        calls = await self._connected()
        async with aclosing(calls.events(operation, params, self._request_headers(headers))) as events:
            async for fields, id_ in events:
                yield StreamEvent(await _read(StreamResponse, fields), id_, fields)

    def _request_headers(self, headers: Mapping[str, str]) -> dict[str, str]:
        return {**REQUEST_HEADERS.get(), **self.headers, **headers}


def _synthetic(response: StreamResponse) -> StreamEvent:
    return StreamEvent(response, "", response.to_dict())


async def _read(model: type[_Model], fields: Mapping[str, Any]) -> _Model:
    return await run_bounded(json_cost(fields), read_model, model, fields)


def _poll_delays() -> Iterator[float]:
    yield from POLL_DELAYS
    while True:
        yield POLL_DELAYS[-1]
