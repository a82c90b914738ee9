"""A remote agent as a server uses it: errors are safe for callers, and abandoned tasks are cancelled.

::

    async with RemoteAgent("https://agent.example") as agent:
        async with aclosing(agent.stream(message)) as events:
            async for event in events:
                ...
"""

from collections.abc import AsyncGenerator, Generator, Iterable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, contextmanager, suppress
from types import TracebackType
from typing import Any, Self, TypeVar
from uuid import uuid4

import anyio

from tailrace.server.remote.agent_card import BINDINGS, RemoteCard
from tailrace.server.remote.agent_events import MISSING_ID, RemoteEvent, event_of
from tailrace.server.remote.agent_origins import origin_of
from tailrace.server.remote.client import ANSWER_TIMEOUT, RETRY_DELAYS, AgentClient
from tailrace.streaming.a2a.errors import A2AError
from tailrace.streaming.a2a.lifecycle import TaskState
from tailrace.streaming.a2a.models import Message, Task, TaskArtifactUpdateEvent, TaskStatusUpdateEvent
from tailrace.wrappers import ConfigurationError, UpstreamError, UpstreamFault
from tailrace.wrappers.redaction.redaction import Redactor

READ_TIMEOUT = 120.0
"""Seconds of silence after which a stream counts as lost."""

CANCEL_TIMEOUT = 3.0
"""Seconds that a remote agent has to confirm a cancellation."""

_Event = TypeVar("_Event", bound=RemoteEvent)

_MAX_REASON = 4000  # characters of a part of an agent's message about a failure
_MAX_REASON_PARTS = 20  # of such a message; the rest is left out


class RemoteAgent:
    """A remote agent; to be closed (`aclose`, or ``async with``) in the event loop that it was used in.

    Args:
        url: The address of the agent, or of its card; see `AgentClient`.
        token: A bearer token, or the API key that the card asks for; empty for none.
        headers: Further headers of every request (metadata, over gRPC).
        card: The agent's card, where it was fetched before.
        bindings: Bindings that may be used, the preferred one first.
        connect_timeout: Seconds for opening a connection.
        read_timeout: Seconds of silence after which a stream counts as lost, and is resumed.
        answer_timeout: Seconds that an agent which does not stream has for its answer.
        retry_delays: Seconds before each attempt to resume a lost stream; empty to fail at the first loss.
        allowed_origins: Origins (``https://HOST:PORT``) besides that of ``url`` at which the agent's card may place it.

    Raises:
        ConfigurationError: The URL, or an origin, is invalid.
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
        answer_timeout: float = ANSWER_TIMEOUT,
        retry_delays: Sequence[float] = RETRY_DELAYS,
        allowed_origins: Sequence[str] = (),
    ) -> None:
        self._client = AgentClient(
            url,
            token=token,
            headers=headers,
            card=card,
            bindings=bindings,
            connect_timeout=connect_timeout,
            read_timeout=read_timeout,
            answer_timeout=answer_timeout,
            retry_delays=retry_delays,
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
        """Close the connections; the card is kept."""
        await self._client.aclose()

    async def card(self) -> RemoteCard:
        """The agent's card; fetched once.

        Raises:
            UpstreamError: There is none, it cannot be read, or it has no supported interface.
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
        """Send a message and follow the answer until it is over, or waits for its caller.

        The events are those of `AgentClient.stream`, without what is around them. Cancelling, or closing the generator,
        closes the connection and leaves the task running (see `answer`).

        Args:
            message: Its ids name the conversation and the task that it continues.
            metadata: Of the request.
            accepted_output_modes: Media types that the caller accepts.
            extensions: URIs of extensions that the request uses.
            key: An idempotency key, by which an agent that supports our extension accepts the message only once; made
                here when empty.

        Raises:
            UpstreamError: The agent cannot be reached, refuses (``code`` is the protocol's reason: ``TASK_NOT_FOUND``),
                breaks the protocol, or a lost stream could not be resumed in any of the attempts.
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
    async def answer(self, message: Message, **options: Any) -> AsyncGenerator[AsyncGenerator[RemoteEvent]]:
        """As `stream`, for a caller that alone wants the answer: when it leaves before the end, the task is cancelled.

        A caller that leaves a task in AUTH_REQUIRED without an exception continues it with its next message.

        Leaving the block, by cancellation too, then takes up to `CANCEL_TIMEOUT` seconds, and as many before that for the
        first event, if it has not come yet: it names the task.

        Args:
            message: As for `stream`.
            options: As for `stream`.
        """
        active = ""
        authorizing = False

        async def tracked() -> AsyncGenerator[RemoteEvent]:
            nonlocal active, authorizing
            async with aclosing(self.stream(message, **options)) as events:
                async for event in events:
                    active = _active_task(event, active)
                    if isinstance(event, Task | TaskStatusUpdateEvent):
                        authorizing = event.status.state is TaskState.AUTH_REQUIRED
                    yield event
            active = ""

        failed = True
        try:
            async with aclosing(tracked()) as events, aclosing(_shield_first(events)) as shielded:
                yield shielded
            failed = False
        finally:
            if active and (failed or not authorizing):
                with anyio.move_on_after(CANCEL_TIMEOUT, shield=True), suppress(UpstreamError):
                    await self.cancel_task(active)  # an error: it is over by now, or the agent is away

    async def get_task(self, task_id: str) -> Task:
        """The task as it stands.

        Raises:
            UpstreamError: As `stream`.
        """
        await self.card()
        with self._errors():
            return self._redacted(await self._client.get_task(task_id))

    async def cancel_task(self, task_id: str) -> Task:
        """Cancel a task.

        Returns:
            The task as it then stands.

        Raises:
            UpstreamError: As `stream`; ``TASK_NOT_CANCELABLE`` when the task is over already.
        """
        await self.card()
        with self._errors():
            return self._redacted(await self._client.cancel_task(task_id))

    @contextmanager
    def _errors(self) -> Generator[None]:
        """Turn refusals into errors of an upstream; remove from errors what callers must not see.

        The operator finds addresses in their ``diagnosis``.
        """
        try:
            try:
                yield
            except A2AError as error:
                raise UpstreamError(
                    f"the agent refuses: {error}", fault=UpstreamFault.PROVIDER, code=error.reason
                ) from None
        except UpstreamError as error:
            status = error.status or int(error.code if error.code in ("401", "403") else 0)
            if status in (401, 403):
                error.fault, error.status, error.code = UpstreamFault.STATUS, status, None
                error.message = "the agent does not let us in; the operator has to check TAILRACE_AGENT_TOKEN"
            if error.fault is not UpstreamFault.PROVIDER:  # the words are ours
                error.diagnosis = error.diagnosis or error.message
            self._redactor.redact(error)
            raise

    @property
    def _redactor(self) -> Redactor:
        return Redactor.of_request(self._card.url if self._card else self.url, self._client.headers)

    def _redacted(self, event: _Event) -> _Event:
        """An event; where it has the reason of a failure, without our credentials and internal addresses."""
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
    """The id of the task that works after an event; empty where none is known to."""
    if isinstance(event, Message):
        return ""
    if not isinstance(event, TaskArtifactUpdateEvent):
        state = event.status.state
        if state.terminal or state is TaskState.INPUT_REQUIRED:
            return ""
    task_id = event.id if isinstance(event, Task) else event.task_id
    return known if task_id == MISSING_ID else task_id


async def _shield_first(events: AsyncGenerator[RemoteEvent]) -> AsyncGenerator[RemoteEvent]:
    """The same events; a cancellation before the first one waits a while for it."""
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
                failure = error  # raised as it is, and not in a group
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
