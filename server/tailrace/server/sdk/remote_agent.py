"""Somebody else's A2A agent, spoken to through the official SDK's client: 1.0 and 0.3, over every binding it knows.

::

    async with RemoteAgent("https://agent.example") as agent:
        async with aclosing(agent.stream(message)) as events:
            async for event in events:
                ...

The agent's card says how it is reached. A stream that is lost is gone on with: after the last event where the agent speaks
our extension, else by full copies of the task, which replace what came before.
"""

from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self
from uuid import uuid4

import anyio
import httpx
from a2a.types import a2a_pb2

from tailrace.server.sdk.agent_cards import BINDINGS, CARD_PATHS, RemoteCard, credentials, read_card
from tailrace.server.sdk.relay import UNSAID, RemoteEvent
from tailrace.server.sdk.remote_calls import RemoteCalls, named_errors, new_transport
from tailrace.server.sdk.types import to_sdk
from tailrace.streaming.a2a.models import Message, Task, TaskArtifactUpdateEvent, TaskStatusUpdateEvent
from tailrace.streaming.extension import EXTENSION_URI
from tailrace.streaming.lifecycle import TaskState
from tailrace.wrappers import ConfigurationError, UpstreamError, UpstreamFault
from tailrace.wrappers.wire import MAX_EVENT_BYTES

RETRY_DELAYS = (0.1, 0.5, 1.0, 2.0, 4.0)
"""Seconds before each try to go on with a stream that was lost; when all have failed in a row, it is given up."""

POLL_DELAYS = (0.2, 0.5, 1.0, 2.0, 5.0)
"""Seconds between looks at a task whose stream cannot be gone on with; the last is repeated."""

READ_TIMEOUT = 120.0
"""Seconds of silence after which a stream counts as lost."""

CANCEL_TIMEOUT = 3.0
"""Seconds that a remote agent has to take note that its work is not wanted any more."""

COPY_INTERVAL = 1.0
"""Seconds between full copies of a task that is followed by them."""

_PASSING_FAULTS = frozenset({UpstreamFault.CONNECTION, UpstreamFault.TIMEOUT, UpstreamFault.TRUNCATED})
_PASSING_STATUSES = frozenset({408, 429, 500, 502, 503, 504})


class RemoteAgent:
    """A remote agent; to be closed (`aclose`, or ``async with``) in the event loop that it was used in.

    Args:
        url: Where the agent is: the address under which its card is found at a well-known path, or the address of the
            card itself (ends in ``.json``). ``http://`` is assumed when no scheme is given.
        token: Lets us in: sent as a bearer token, or as the API key that the card asks for.
        headers: Further headers of every request (metadata, over gRPC).
        card: The agent's card, where it was fetched before.
        bindings: Bindings that may be used, the preferred one first.
        connect_timeout: Seconds for opening a connection.
        read_timeout: Seconds of silence after which a stream counts as lost. Most agents keep streams alive by
            comments; one that is lost for silence is gone on with as any other.
        answer_timeout: Seconds that an agent which does not stream has for its answer.
        retry_delays: As `RETRY_DELAYS`; empty to give up at the first loss.

    Raises:
        ConfigurationError: The URL is none.
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
        answer_timeout: float = 600.0,
        retry_delays: Sequence[float] = RETRY_DELAYS,
    ) -> None:
        self.url = url if "://" in url else f"http://{url}"
        try:
            host = httpx.URL(self.url).host
        except httpx.InvalidURL:
            host = ""
        if not host or not self.url.startswith(("http://", "https://")):
            raise ConfigurationError(f"{url!r} is not the URL of an agent")
        self._token = token
        self._headers = {name.lower(): value for name, value in (headers or {}).items()}
        self._card = card
        self._bindings = bindings
        self._connect_timeout = connect_timeout
        self._read_timeout = read_timeout
        self._answer_timeout = answer_timeout
        self._retry_delays = retry_delays
        self._calls: RemoteCalls | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connections; the card is kept."""
        calls, self._calls = self._calls, None
        if calls is not None:
            await calls.aclose()

    # --- what an agent is asked ---------------------------------------------------------------------------------

    async def card(self) -> RemoteCard:
        """What the agent says about itself; fetched once.

        Raises:
            UpstreamError: There is no card, it cannot be read, or it names no address that can be spoken to.
        """
        if self._card is None:
            body, url = await self._fetch_card()
            self._card = read_card(body, url, self._bindings)
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

        The events are those that the agent sends. After a loss, a `Task`, or an artifact that is not to be appended,
        is a full copy: it replaces what came before. An agent that does not stream gives its answer in one event.
        Cancelling, or closing the generator, closes the connection and leaves the task running (see `answer`).

        Args:
            message: What to say; its ids say which conversation and task it goes on with.
            metadata: Of the request.
            accepted_output_modes: Media types that can be taken.
            extensions: URIs of extensions that the request uses; our own is asked for where the agent speaks it.
            key: A name for the message, by which an agent that speaks our extension takes it only once; made here when
                empty.

        Raises:
            UpstreamError: The agent cannot be reached, refuses (``code`` is the reason, in the protocol's words:
                ``TASK_NOT_FOUND``), breaks the protocol, or a stream that was lost could not be gone on with in any of
                the tries.
        """
        sent = _Sent(message, dict(metadata or {}), tuple(accepted_output_modes), tuple(extensions), key)
        events = self._follow(_Position(), sent)
        async with aclosing(events):
            async for event in events:
                yield event

    @asynccontextmanager
    async def answer(
        self,
        message: Message,
        *,
        metadata: Mapping[str, Any] | None = None,
        accepted_output_modes: Iterable[str] = (),
        extensions: Iterable[str] = (),
        key: str = "",
    ) -> AsyncGenerator[AsyncGenerator[RemoteEvent]]:
        """As `stream`, for a caller that alone wants the answer: when it leaves before the end, the task is cancelled.

        Leaving the block, by cancellation too, then takes up to `CANCEL_TIMEOUT` seconds, and as many before that for the
        first event, if it has not come yet: it says which task it is.
        """
        position = _Position()
        sent = _Sent(message, dict(metadata or {}), tuple(accepted_output_modes), tuple(extensions), key)
        try:
            async with aclosing(self._follow(position, sent)) as events, aclosing(_wanted(events)) as wanted:
                yield wanted
        finally:
            if position.task_id and not position.settled:
                with anyio.move_on_after(CANCEL_TIMEOUT, shield=True):
                    try:
                        await self.cancel_task(position.task_id)
                    except UpstreamError:
                        pass  # it is over by now, or nobody can be told

    async def get_task(self, task_id: str) -> Task:
        """The task as it stands.

        Raises:
            UpstreamError: As `stream`.
        """
        return await (await self._connected()).get_task(task_id)

    async def cancel_task(self, task_id: str) -> Task:
        """Have the work on a task stopped.

        Returns:
            The task as it stands then.

        Raises:
            UpstreamError: As `stream`; ``TASK_NOT_CANCELABLE`` when the task is over already.
        """
        return await (await self._connected()).cancel_task(task_id)

    # --- the way of an answer -----------------------------------------------------------------------------------

    async def _follow(self, position: "_Position", sent: "_Sent") -> AsyncGenerator[RemoteEvent]:
        card = await self.card()
        reading, tries = self._send(card, sent, position), 0
        while True:
            trouble: UpstreamError | None = None
            try:
                async with aclosing(reading):
                    async for event in reading:
                        if position.take(event):
                            tries = 0
                        yield event
                        if position.ended:
                            return
                if position.settled:
                    return
                if card.streaming or not position.task_id:
                    trouble = UpstreamError(
                        "the agent ended the stream before the task was over", fault=UpstreamFault.TRUNCATED
                    )
            except UpstreamError as error:
                if not _passing(error):
                    raise
                trouble = error
            if trouble is not None:
                # Without the task's id nobody knows whether the message arrived. It is sent twice only to an agent that
                # knows it by its name.
                if tries >= len(self._retry_delays) or not (position.task_id or card.numbered):
                    raise trouble
                await anyio.sleep(self._retry_delays[tries])
                tries += 1
            if not position.task_id:
                reading = self._send(card, sent, position)
            elif card.numbered and card.streaming and position.last_id:
                reading = self._resume(position)
            else:
                reading = self._follow_copies(card, position)

    def _send(self, card: RemoteCard, sent: "_Sent", position: "_Position") -> AsyncGenerator[RemoteEvent]:
        position.waits_now = not card.streaming
        request = a2a_pb2.SendMessageRequest(message=to_sdk(sent.message, a2a_pb2.Message))
        if sent.metadata:
            request.metadata.update(sent.metadata)
        request.configuration.accepted_output_modes.extend(sent.modes)
        extensions = [EXTENSION_URI] if card.numbered else []
        extensions += [uri for uri in sent.extensions if uri != EXTENSION_URI]
        headers = {"a2a-extensions": ", ".join(extensions)} if extensions else {}
        if card.numbered:
            headers["idempotency-key"] = sent.key
        return self._events(request, headers, position)

    def _resume(self, position: "_Position") -> AsyncGenerator[RemoteEvent]:
        """What came after the last event that was received, which the agent numbers."""
        position.waits_now = False
        request = a2a_pb2.SubscribeToTaskRequest(id=position.task_id)
        return self._events(request, {"last-event-id": position.last_id}, position)

    async def _follow_copies(self, card: RemoteCard, position: "_Position") -> AsyncGenerator[RemoteEvent]:
        """The task by full copies of it.

        A subscription says when there is something new. What it holds is not passed on: nobody can say whether a piece
        of text in it is one that a copy holds already.
        """
        position.waits_now = True
        if card.streaming:
            try:
                async with aclosing(self._subscribed_copies(position)) as events:
                    async for event in events:
                        yield event
                return
            except UpstreamError as error:
                if error.fault is not UpstreamFault.PROVIDER:
                    raise
                # There is nothing to subscribe to: the task is over, or the agent cannot do it.
        last: Task | None = None
        for delay in _delays():
            task = await self.get_task(position.task_id)
            if task != last:
                last = task
                yield task
            await anyio.sleep(delay)

    async def _subscribed_copies(self, position: "_Position") -> AsyncGenerator[RemoteEvent]:
        request = a2a_pb2.SubscribeToTaskRequest(id=position.task_id)
        next_copy = 0.0
        async with aclosing(self._events(request, {}, position)) as events:
            async for event in events:
                if isinstance(event, TaskArtifactUpdateEvent):
                    if anyio.current_time() >= next_copy:
                        for copy in await self._copies(position):
                            yield copy
                        next_copy = anyio.current_time() + COPY_INTERVAL
                    continue
                if isinstance(event, TaskStatusUpdateEvent) and _ends(event.status.state):
                    for copy in await self._copies(position):
                        yield copy
                yield event

    async def _copies(self, position: "_Position") -> list[TaskArtifactUpdateEvent]:
        task = await self.get_task(position.task_id)
        context_id = task.context_id or UNSAID
        return [
            TaskArtifactUpdateEvent(task_id=task.id, context_id=context_id, artifact=artifact)
            for artifact in task.artifacts
        ]

    async def _events(
        self,
        request: a2a_pb2.SendMessageRequest | a2a_pb2.SubscribeToTaskRequest,
        headers: Mapping[str, str],
        position: "_Position",
    ) -> AsyncGenerator[RemoteEvent]:
        calls = await self._connected()
        async with aclosing(calls.events(request, headers)) as events:
            async for event, last_id in events:
                position.last_id = last_id or position.last_id
                yield event

    # --- connections --------------------------------------------------------------------------------------------

    async def _connected(self) -> RemoteCalls:
        card = await self.card()
        if self._calls is None:
            self._calls = RemoteCalls(
                card,
                {**credentials(card, self._token), **self._headers},
                connect_timeout=self._connect_timeout,
                read_timeout=self._read_timeout,
                answer_timeout=self._answer_timeout,
            )
        return self._calls

    async def _fetch_card(self) -> tuple[bytes, str]:
        """The card and its address."""
        headers = {"accept": "application/json", **self._headers}
        if self._token:
            headers.setdefault("authorization", f"Bearer {self._token}")
        timeout = httpx.Timeout(self._connect_timeout, read=min(self._read_timeout, 30.0))
        root = self.url.rstrip("/")
        urls = [self.url] if self.url.endswith(".json") else [root + path for path in CARD_PATHS]
        refusal = UpstreamError(f"there is no agent card at {self.url}", fault=UpstreamFault.STATUS)
        async with httpx.AsyncClient(
            transport=new_transport(), timeout=timeout, follow_redirects=True
        ) as http:
            for url in urls:
                with named_errors(url):
                    async with http.stream("GET", url, headers=headers) as response:
                        if response.status_code == 200:
                            return await _read(response), str(response.url)
                        if refusal.status is None:
                            refusal = UpstreamError(
                                f"there is no agent card at {url}",
                                fault=UpstreamFault.STATUS,
                                status=response.status_code,
                            )
        raise refusal


@dataclass(frozen=True, slots=True)
class _Sent:
    """A message as it is sent, once or again; the members are those of `RemoteAgent.stream`."""

    message: Message
    metadata: dict[str, Any]
    modes: tuple[str, ...]
    extensions: tuple[str, ...]
    given_key: str
    made_key: str = field(default_factory=lambda: str(uuid4()))

    @property
    def key(self) -> str:
        return self.given_key or self.made_key


class _Position:
    """How far an answer has been read.

    Attributes:
        task_id: The task, once it is known.
        last_id: The id of the last event, where events have ids.
        waits_now: A task in a response that waits for its caller waits for the next message, and is not the task as it
            stood before this one.
        settled: An answer that stops here has come to its end.
        ended: Nothing is to be waited for.
    """

    def __init__(self) -> None:
        self.task_id = ""
        self.last_id = ""
        self.waits_now = False
        self.settled = False
        self.ended = False
        self._last_task: Task | None = None

    def take(self, event: RemoteEvent) -> bool:
        """Take in an event; says whether there is something new in it."""
        if isinstance(event, Message):
            self.settled = self.ended = True
        elif isinstance(event, Task):
            self.task_id = event.id
            self._take_state(event.status.state, waits_now=self.waits_now)
            # An agent may give a copy and break off, again and again.
            known, self._last_task = self._last_task, event
            return event != known
        else:
            if event.task_id != UNSAID:
                self.task_id = event.task_id
            if isinstance(event, TaskStatusUpdateEvent):
                self._take_state(event.status.state, waits_now=True)
        return True

    def _take_state(self, state: TaskState, *, waits_now: bool) -> None:
        self.settled = state.terminal or state.interrupted
        self.ended = state.terminal or (state.interrupted and waits_now)


async def _wanted(events: AsyncGenerator[RemoteEvent]) -> AsyncGenerator[RemoteEvent]:
    """The same events; for the first one is waited a while longer when nobody wants them any more."""
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
                failure = error  # told as it is, and not in a group
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


def _ends(state: TaskState) -> bool:
    return state.terminal or state.interrupted


def _delays() -> Iterable[float]:
    yield from POLL_DELAYS
    while True:
        yield POLL_DELAYS[-1]


def _passing(error: UpstreamError) -> bool:
    """What may be better at the next try: nobody was there, or somebody between us and the agent gave up."""
    return error.fault in _PASSING_FAULTS or error.status in _PASSING_STATUSES


async def _read(response: httpx.Response) -> bytes:
    body = bytearray()
    async for data in response.aiter_bytes():
        body += data
        if len(body) > MAX_EVENT_BYTES:
            raise UpstreamError(
                f"the agent card is larger than the allowed {MAX_EVENT_BYTES} bytes",
                fault=UpstreamFault.TOO_LARGE,
            )
    return bytes(body)
