"""Client of a remote agent for use in a server.

Error messages contain no credentials or internal addresses.

::

    async with RemoteAgent("https://agent.example") as agent:
        async with aclosing(agent.stream(message)) as events:
            async for event in events:
                ...
"""

from collections.abc import AsyncGenerator, Generator, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager, contextmanager, suppress
from types import TracebackType
from typing import Any, Self, TypeVar
from uuid import uuid4

import anyio

from tailrace.server.remote.agent_card import BINDINGS, RemoteCard
from tailrace.server.remote.agent_origins import origin_of
from tailrace.server.remote.client import RESPONSE_TIMEOUT, RETRY_DELAYS, AgentClient
from tailrace.server.remote.response_validation import MISSING_ID, RemoteEvent, event_of
from tailrace.streaming.a2a.errors import A2AError
from tailrace.streaming.a2a.lifecycle import TaskState
from tailrace.streaming.a2a.models import Message, Task, TaskArtifactUpdateEvent, TaskStatusUpdateEvent
from tailrace.wrappers import ConfigurationError, UpstreamError, UpstreamFault
from tailrace.wrappers.model import MAY_CANCEL
from tailrace.wrappers.redaction.redactor import Redactor

READ_TIMEOUT = 120.0
"""Time in seconds after which a stream that delivers no data is considered lost."""

CANCEL_TIMEOUT = 3.0
"""Timeout in seconds for the cancellation of a remote task."""

_Event = TypeVar("_Event", bound=RemoteEvent)

_MAX_REASON = 4000  # maximum characters of each part of a failure message
_MAX_REASON_PARTS = 20  # maximum parts of a failure message; further parts are removed


class RemoteAgent:
    """Client of one remote agent. Close it in the event loop in which it was used.

    Args:
        url: URL of the agent or of its card; see `AgentClient`.
        token: Bearer token, or the API key that the card requires; empty for none.
        headers: Further headers of every request, or with gRPC, further metadata; None for none.
        card: The agent card; None to fetch it.
        bindings: Allowed bindings in order of preference.
        connect_timeout: Timeout for opening a connection in seconds.
        read_timeout: See `READ_TIMEOUT`.
        response_timeout: Timeout in seconds for the response of an agent that does not stream.
        retry_delays: Delay in seconds before each attempt to resume a lost stream; empty for no attempt.
        retry_deadline: See `AgentClient`.
        allowed_origins: Origins (``https://HOST:PORT``) that are permitted in addition to the origin of ``url``.
        answer_timeout: Deprecated name of ``response_timeout``; to be removed in 0.3.

    Raises:
        ConfigurationError: The URL or an origin is not valid.
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
        read_timeout: float = READ_TIMEOUT,
        response_timeout: float = RESPONSE_TIMEOUT,
        retry_delays: Sequence[float] = RETRY_DELAYS,
        retry_deadline: float | None = None,
        allowed_origins: Sequence[str] = (),
        answer_timeout: float | None = None,
    ) -> None:
        self._client = AgentClient(
            url,
            token=token,
            headers=headers,
            card=card,
            bindings=bindings,
            connect_timeout=connect_timeout,
            read_timeout=read_timeout,
            response_timeout=response_timeout if answer_timeout is None else answer_timeout,
            retry_delays=retry_delays,
            retry_deadline=retry_deadline,
            allowed_origins=allowed_origins,
        )
        self.url = self._client.url
        self._card = card
        if not origin_of(self.url):
            raise ConfigurationError(f"{url!r} is not the URL of an agent")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connections. The agent card remains cached."""
        await self._client.aclose()

    async def card(self) -> RemoteCard:
        """Return the agent card. The first call fetches it.

        Raises:
            UpstreamError: The card does not exist, is not valid, or has no supported interface.
        """
        self._client.open()
        with self._errors():
            self._card = await self._client.card()
        return self._card

    async def stream(
        self,
        message: Message,
        *,
        metadata: Mapping[str, Any] | None = None,
        accepted_output_modes: Iterable[str] = (),
        extensions: Iterable[str] = (),
        key: str = "",
    ) -> AsyncGenerator[RemoteEvent]:
        """Send a message, and yield the events until the task ends or waits for input.

        Like `AgentClient.stream`. If the generator is closed or cancelled, the task is not cancelled (see `stream_or_cancel`).

        Args:
            message: The message, with the ids of the conversation and of the task that it continues.
            metadata: Metadata of the request; None for none.
            accepted_output_modes: Media types that the caller accepts; empty for any.
            extensions: URIs of extensions that the request uses.
            key: Idempotency key; empty to create one.

        Raises:
            UpstreamError: The agent cannot be reached or violates the protocol, all attempts to resume a lost stream failed, or
                the agent returns an error. For an error of the protocol, ``code`` is its reason, such as ``TASK_NOT_FOUND``.
        """
        await self.card()
        with self._errors():
            events = self._client.stream(
                message,
                metadata=metadata,
                accepted_output_modes=accepted_output_modes,
                extensions=extensions,
                key=key or str(uuid4()),
            )
            async with aclosing(events):
                async for event in events:
                    yield self._redacted(event_of(event.response))

    @asynccontextmanager
    async def stream_or_cancel(
        self, message: Message, **options: Any
    ) -> AsyncGenerator[AsyncGenerator[RemoteEvent]]:
        """Send a message as `stream` does, and cancel the remote task if the block ends before the task ends.

        The task is not cancelled if another process may continue it (`tailrace.wrappers.model.MAY_CANCEL`). A task in
        AUTH_REQUIRED is not cancelled if the block ends without an exception, because the next message continues it.

        The cancellation may delay the end of the block by `CANCEL_TIMEOUT`, and by twice this time before the first event, which
        has the id of the task.
        """
        async with (
            self._or_cancel(self.stream(message, **options)) as events,
            aclosing(_shield_first(events)) as shielded,
        ):
            yield shielded

    def follow_or_cancel(self, task_id: str) -> AbstractAsyncContextManager[AsyncGenerator[RemoteEvent]]:
        """Subscribe to an existing task as `AgentClient.follow` does, and cancel the task as `stream_or_cancel` does.

        Raises:
            UpstreamError: See `stream`. The code is ``TASK_NOT_FOUND`` if the task does not exist.
        """
        return self._or_cancel(self._follow(task_id), task_id)

    async def _follow(self, task_id: str) -> AsyncGenerator[RemoteEvent]:
        await self.card()
        with self._errors():
            async with aclosing(self._client.follow(task_id)) as events:
                async for event in events:
                    yield self._redacted(event_of(event.response))

    @asynccontextmanager
    async def _or_cancel(
        self, stream: AsyncGenerator[RemoteEvent], active: str = ""
    ) -> AsyncGenerator[AsyncGenerator[RemoteEvent]]:
        """Return the events of a task, and cancel it if the block ends first.

        Args:
            stream: The events.
            active: Id of the task; empty if it is known only after the first event.
        """
        awaits_credentials = False

        async def tracked() -> AsyncGenerator[RemoteEvent]:
            nonlocal active, awaits_credentials
            async with aclosing(stream) as events:
                async for event in events:
                    active = _active_task(event, active)
                    if isinstance(event, Task | TaskStatusUpdateEvent):
                        awaits_credentials = event.status.state is TaskState.AUTH_REQUIRED
                    yield event
            active = ""

        failed = True
        try:
            async with aclosing(tracked()) as events:
                yield events
            failed = False
        finally:
            if active and (failed or not awaits_credentials):
                with anyio.move_on_after(CANCEL_TIMEOUT, shield=True), suppress(UpstreamError):
                    if await MAY_CANCEL.get()():
                        # An error means that the task has ended, or that the agent cannot be reached.
                        await self.cancel_task(active)

    def answer(
        self, message: Message, **options: Any
    ) -> AbstractAsyncContextManager[AsyncGenerator[RemoteEvent]]:
        """Deprecated name of `stream_or_cancel`; to be removed in 0.3."""
        return self.stream_or_cancel(message, **options)

    async def get_task(self, task_id: str) -> Task:
        """Return the current state of a task.

        Raises:
            UpstreamError: See `stream`.
        """
        await self.card()
        with self._errors():
            return self._redacted(await self._client.get_task(task_id))

    async def cancel_task(self, task_id: str) -> Task:
        """Cancel a task.

        Returns:
            The task after the cancellation.

        Raises:
            UpstreamError: See `stream`. The code is ``TASK_NOT_CANCELABLE`` if the task has already ended.
        """
        await self.card()
        with self._errors():
            return self._redacted(await self._client.cancel_task(task_id))

    @contextmanager
    def _errors(self) -> Generator[None]:
        """Convert errors of the protocol to `UpstreamError`, and remove credentials and internal addresses from errors.

        Only the ``diagnosis`` of an error, which is for the operator, has the addresses.
        """
        try:
            try:
                yield
            except A2AError as error:
                raise UpstreamError(
                    f"the agent rejected the request: {error}",
                    fault=UpstreamFault.PROVIDER,
                    code=error.reason,
                ) from None
        except UpstreamError as error:
            status = error.status or int(error.code if error.code in ("401", "403") else 0)
            if status in (401, 403):
                error.fault, error.status, error.code = UpstreamFault.STATUS, status, None
                error.message = "the agent rejected the server's credentials; the operator has to check TAILRACE_AGENT_TOKEN"
            # The message was written by this client, not by the agent.
            if error.fault is not UpstreamFault.PROVIDER:
                error.diagnosis = error.diagnosis or error.message
            self._redactor.redact(error)
            raise

    @property
    def _redactor(self) -> Redactor:
        return Redactor.of_request(self._card.url if self._card else self.url, self._client.headers)

    def _redacted(self, event: _Event) -> _Event:
        """Remove credentials and internal addresses from the message of a failure."""
        if not isinstance(event, Task | TaskStatusUpdateEvent) or event.status.message is None:
            return event
        if event.status.state not in (TaskState.FAILED, TaskState.REJECTED):
            return event
        redactor, message = self._redactor, event.status.message
        parts = tuple(
            part.model_copy(update={"text": part.text and redactor.for_callers(part.text, _MAX_REASON)})
            for part in message.parts[:_MAX_REASON_PARTS]
        )
        message = message.model_copy(update={"parts": parts})
        return event.model_copy(update={"status": event.status.model_copy(update={"message": message})})


def _active_task(event: RemoteEvent, known: str) -> str:
    """Return the id of the task if it is still active after an event; empty otherwise."""
    if isinstance(event, Message):
        return ""
    if not isinstance(event, TaskArtifactUpdateEvent):
        state = event.status.state
        if state.terminal or state is TaskState.INPUT_REQUIRED:
            return ""
    task_id = event.id if isinstance(event, Task) else event.task_id
    return known if task_id == MISSING_ID else task_id


async def _shield_first(events: AsyncGenerator[RemoteEvent]) -> AsyncGenerator[RemoteEvent]:
    """Yield the events. A cancellation before the first event waits for this event, up to `CANCEL_TIMEOUT` seconds."""
    first: list[RemoteEvent] = []
    failure: Exception | None = None
    over = anyio.Event()
    shield = anyio.CancelScope(shield=True)

    async def read() -> None:
        nonlocal failure
        with shield:
            try:
                first.append(await anext(events))
            except StopAsyncIteration:
                pass
            except Exception as error:
                failure = error  # raised without an exception group
        over.set()

    async with anyio.create_task_group() as group:
        group.start_soon(read)
        try:
            await over.wait()
        except anyio.get_cancelled_exc_class():
            shield.deadline = anyio.current_time() + CANCEL_TIMEOUT
            raise
    if failure is not None:
        raise failure
    for event in first:
        yield event
    async for event in events:
        yield event
