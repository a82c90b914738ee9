"""A client of A2A 1.0 agents over JSON-RPC: it sends a message and follows the task, across dropped connections too.

::

    async with AgentClient("http://127.0.0.1:8000") as client:
        async with aclosing(client.stream("Why is the sky blue?")) as events:
            async for event in events:
                ...
"""

import json
from collections.abc import AsyncGenerator, Callable, Generator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self, TypeVar, cast
from uuid import uuid4

import aiohttp
import anyio
from pydantic import ValidationError

from tailrace.server.remote_card import CARD_PATH, RemoteAgent, read_card
from tailrace.streaming.a2a.errors import (
    A2AError,
    ContentTypeNotSupportedError,
    ExtendedAgentCardNotConfiguredError,
    ExtensionSupportRequiredError,
    InternalError,
    InvalidAgentResponseError,
    InvalidParamsError,
    InvalidRequestError,
    MethodNotFoundError,
    ParseError,
    PushNotificationNotSupportedError,
    TaskNotCancelableError,
    TaskNotFoundError,
    UnsupportedOperationError,
    VersionNotSupportedError,
)
from tailrace.streaming.a2a.models import A2AModel, Message, Part, Role, StreamResponse, Task
from tailrace.streaming.a2a.requests import Conversation, SendMessageResponse
from tailrace.streaming.extension import EXTENSION_URI
from tailrace.streaming.lifecycle import TaskState
from tailrace.wrappers import ConfigurationError, TailraceError, UpstreamError, UpstreamFault
from tailrace.wrappers.wire import MAX_EVENT_BYTES, SSEDecoder

RETRY_DELAYS = (0.1, 0.5, 1.0, 2.0, 4.0)
"""Seconds before each try to go on with a stream that was lost; when all have failed in a row, it is given up."""

Model = TypeVar("Model", bound=A2AModel)

_ERRORS: Mapping[object, type[A2AError]] = {
    error.code: error
    for error in (
        TaskNotFoundError,
        TaskNotCancelableError,
        PushNotificationNotSupportedError,
        UnsupportedOperationError,
        ContentTypeNotSupportedError,
        InvalidAgentResponseError,
        ExtendedAgentCardNotConfiguredError,
        ExtensionSupportRequiredError,
        VersionNotSupportedError,
        InvalidRequestError,
        MethodNotFoundError,
        InvalidParamsError,
        InternalError,
        ParseError,
    )
}

# What may be better at the next try: nobody was there, or somebody between us and the agent gave up.
_PASSING_FAULTS = frozenset({UpstreamFault.CONNECTION, UpstreamFault.TIMEOUT})
_PASSING_STATUSES = frozenset({408, 429, 500, 502, 503, 504})


@dataclass(frozen=True, slots=True)
class StreamEvent:
    """One event of a stream.

    Attributes:
        response: The event. A ``task`` is the whole task as it stands: it replaces what came before.
        id: The event's SSE id, with which a stream can be gone on with; empty when the agent gives none.
        raw: The event's JSON as it came, with every member that the agent sent.
    """

    response: StreamResponse
    id: str
    raw: Any


class AgentClient:
    """Speaks to one agent; an async context manager, in which all its methods are used.

    Args:
        url: Where the agent is: the address under which its card is found at the well-known path, or the
            address of the card itself (ends in ``.json``). ``http://`` is assumed when no scheme is given.
        connect_timeout: Seconds for opening a connection.
        read_timeout: Seconds of silence after which a connection counts as lost. Agents that keep streams alive
            by comments do so every 15 seconds or so; an agent that does not stream has this long to answer.
        retry_delays: As `RETRY_DELAYS`; empty to give up at the first loss.
        on_reconnect: Called before each try to go on with a stream, with what went wrong and the number of
            the try, from 1.
        token: Lets the caller in: a bearer token, or the API key that the agent's card asks for; empty for none. The card
            is read without it.
    """

    def __init__(
        self,
        url: str,
        *,
        token: str = "",
        connect_timeout: float = 10.0,
        read_timeout: float = 60.0,
        retry_delays: Sequence[float] = RETRY_DELAYS,
        on_reconnect: Callable[[TailraceError, int], None] | None = None,
    ) -> None:
        url = url if "://" in url else f"http://{url}"
        self._card_url = url if url.endswith(".json") else url.rstrip("/") + CARD_PATH
        self._timeout = aiohttp.ClientTimeout(
            total=None, sock_connect=connect_timeout, sock_read=read_timeout
        )
        self._retry_delays = retry_delays
        self._on_reconnect = on_reconnect
        self._token = token
        self._http: aiohttp.ClientSession | None = None
        self._agent: RemoteAgent | None = None
        self._requests = 0

    async def __aenter__(self) -> Self:
        self._http = aiohttp.ClientSession(timeout=self._timeout)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._http is not None:
            with anyio.CancelScope(shield=True):
                await self._http.close()
            self._http = None

    # --- what an agent is asked -------------------------------------------------------------------------------------

    async def agent(self) -> RemoteAgent:
        """The agent, as its card says; fetched once.

        Raises:
            UpstreamError: There is no card, it cannot be read, or it names no JSON-RPC interface of A2A 1.0.
            ConfigurationError: The URL is none.
        """
        if self._agent is None:
            with _network_errors(self._card_url):
                async with self._session.get(self._card_url) as response:
                    if response.status != 200:
                        raise UpstreamError(
                            f"there is no agent card at {self._card_url}",
                            fault=UpstreamFault.STATUS,
                            status=response.status,
                        )
                    body = await _read(response)
            self._agent = read_card(body, self._card_url)
        return self._agent

    def stream(
        self, prompt: str | Message, *, context_id: str = "", task_id: str = ""
    ) -> AsyncGenerator[StreamEvent]:
        """Send a message and follow the task until it is over or waits for its caller.

        When the connection is lost, the stream goes on after the last event that was received
        (``SubscribeToTask`` with ``Last-Event-ID``). An agent that numbers no events gives the whole task
        instead, as an event that replaces what came before; one that does not stream gives its answer in one
        event. Cancelling, or closing the generator, closes the connection and leaves the task running.

        Args:
            prompt: What to say: text, or a message as it is.
            context_id: The conversation to go on with; a new one when empty.
            task_id: The task to go on with, which waits for its caller; a new one when empty.

        Raises:
            A2AError: The agent refuses, with the error of the protocol that it gave.
            UpstreamError: The agent cannot be reached, breaks the protocol, or a stream that was lost could not
                be gone on with in any of the tries.
            ConfigurationError: As `agent`.
        """
        message = _as_message(prompt, context_id, task_id)
        return self._follow("SendStreamingMessage", {"message": message.to_dict()}, _Position())

    def follow(self, task_id: str, *, after: str = "") -> AsyncGenerator[StreamEvent]:
        """Follow a task that was begun before, as `stream` does; one that is over is given as it stands.

        Args:
            task_id: The task.
            after: The id of the last event that was received, to go on behind it; empty for the task as it stands, and
                what follows.

        Raises:
            A2AError: The agent refuses; `TaskNotFoundError` when it has no such task.
            UpstreamError: As `stream`.
            ConfigurationError: As `agent`.
        """
        position = _Position()
        position.task_id, position.last_id = task_id, after
        return self._follow("SubscribeToTask", {"id": task_id}, position)

    async def conversation(self, context_id: str) -> tuple[Message, ...]:
        """What was said in a conversation, oldest first: an operation of our extension.

        Raises:
            MethodNotFoundError: The agent does not know the extension.
            A2AError: The agent refuses.
            UpstreamError: As `stream`.
            ConfigurationError: As `agent`.
        """
        return _model(Conversation, await self._call("GetConversation", {"contextId": context_id})).messages

    async def _follow(
        self, method: str, params: dict[str, Any], position: "_Position"
    ) -> AsyncGenerator[StreamEvent]:
        tries = 0
        while True:
            try:
                async with aclosing(self._events(method, params, position.last_id)) as events:
                    async for event in events:
                        if event.response.task is None:
                            tries = 0  # a snapshot is no progress: an agent may give one and break off, again and again
                        position.take(event, subscribed=method == "SubscribeToTask")
                        yield event
                        if position.ended:
                            return
                if position.settled or method == "SendMessage":
                    return
                trouble = UpstreamError(
                    "the agent ended the stream before the task was over", fault=UpstreamFault.TRUNCATED
                )
            except (UnsupportedOperationError, MethodNotFoundError) as error:
                if method == "SendMessage" or (method == "SendStreamingMessage" and position.task_id):
                    raise
                if method == "SendStreamingMessage":
                    # An agent that does not stream has refused it; any other reason it will give again.
                    method = "SendMessage"
                    continue
                # The task is over, or the agent has nothing to subscribe to: how the task stands is all there is.
                task = await self.get_task(position.task_id)
                event = StreamEvent(StreamResponse(task=task), "", {"task": task.to_dict()})
                position.take(event, subscribed=True)
                yield event
                if position.ended:
                    return
                trouble = error
            except UpstreamError as error:
                if not _passing(error):
                    raise
                trouble = error
            # Without the task's id nobody knows whether the message arrived: it is not sent twice.
            if not position.task_id or tries >= len(self._retry_delays):
                raise trouble
            tries += 1
            if self._on_reconnect is not None:
                self._on_reconnect(trouble, tries)
            await anyio.sleep(self._retry_delays[tries - 1])
            method, params = "SubscribeToTask", {"id": position.task_id}

    async def get_task(self, task_id: str) -> Task:
        """The task as it stands.

        Raises:
            A2AError: The agent refuses; `TaskNotFoundError` when it has no such task.
            UpstreamError: As `stream`.
            ConfigurationError: As `agent`.
        """
        return _model(Task, await self._call("GetTask", {"id": task_id}))

    async def cancel_task(self, task_id: str) -> Task:
        """Stop the work on a task.

        Returns:
            The task as it stands then.

        Raises:
            A2AError: The agent refuses; `TaskNotCancelableError` when the task is over already.
            UpstreamError: As `stream`.
            ConfigurationError: As `agent`.
        """
        return _model(Task, await self._call("CancelTask", {"id": task_id}))

    # --- requests -----------------------------------------------------------------------------------------------

    @property
    def _session(self) -> aiohttp.ClientSession:
        if self._http is None:
            raise RuntimeError("an AgentClient is used inside its `async with` block")
        return self._http

    async def _call(self, method: str, params: Mapping[str, Any]) -> Any:
        async with self._post(method, params, {"Accept": "application/json"}) as response:
            return _result(await _read(response))

    async def _events(
        self, method: str, params: Mapping[str, Any], after: str = ""
    ) -> AsyncGenerator[StreamEvent]:
        """The events of one response, whether it is a stream or a single result."""
        headers = {"Accept": "text/event-stream, application/json"}
        if after:
            headers["Last-Event-ID"] = after
        async with self._post(method, params, headers) as response:
            if response.content_type != "text/event-stream":
                result = _result(await _read(response))
                yield StreamEvent(_as_event(result), "", result)
                return
            decoder = SSEDecoder()
            async for data in response.content.iter_any():
                for frame in decoder.feed(data):
                    if frame.data:
                        result = _result(frame.data)
                        yield StreamEvent(_model(StreamResponse, result), frame.id, result)

    def _credentials(self, agent: RemoteAgent) -> dict[str, str]:
        if not self._token:
            return {}
        return (
            {agent.key_header: self._token}
            if agent.key_header
            else {"Authorization": f"Bearer {self._token}"}
        )

    @asynccontextmanager
    async def _post(
        self, method: str, params: Mapping[str, Any], headers: Mapping[str, str]
    ) -> AsyncGenerator[aiohttp.ClientResponse]:
        """One JSON-RPC request; gives the response with its body unread, once its status is a good one."""
        agent = await self.agent()
        self._requests += 1
        tenant = {"tenant": agent.tenant} if agent.tenant else {}
        body = {"jsonrpc": "2.0", "id": self._requests, "method": method, "params": {**params, **tenant}}
        headers = {
            "Content-Type": "application/json",
            "A2A-Version": "1.0",
            "A2A-Extensions": EXTENSION_URI,
            **self._credentials(agent),
            **headers,
        }
        data = json.dumps(body).encode("ascii")
        with _network_errors(agent.endpoint):
            async with self._session.post(agent.endpoint, data=data, headers=headers) as response:
                if response.status != 200:
                    raise await _refusal(response)
                yield response


class _Position:
    """How far a stream has been read."""

    def __init__(self) -> None:
        self.task_id = ""
        self.last_id = ""
        self.settled = False  # a stream that ends here has ended well
        self.ended = False  # nothing is to be waited for

    def take(self, event: StreamEvent, *, subscribed: bool) -> None:
        response = event.response
        self.last_id = event.id or self.last_id
        if response.message is not None:
            self.settled = self.ended = True
        elif response.artifact_update is not None:
            self.task_id = response.artifact_update.task_id
        elif response.status_update is not None:
            self.task_id = response.status_update.task_id
            self._take_state(response.status_update.status.state, waits_now=True)
        elif response.task is not None:
            self.task_id = response.task.id
            # The task with which an agent begins its answer may still be the one that waited for it.
            self._take_state(response.task.status.state, waits_now=subscribed)

    def _take_state(self, state: TaskState, *, waits_now: bool) -> None:
        self.settled = state.terminal or state.interrupted
        self.ended = state.terminal or (state.interrupted and waits_now)


# --- reading what an agent says -------------------------------------------------------------------------------------


def _as_message(prompt: str | Message, context_id: str, task_id: str) -> Message:
    if isinstance(prompt, str):
        prompt = Message(message_id=str(uuid4()), role=Role.USER, parts=(Part(text=prompt),))
    return prompt.model_copy(
        update={"context_id": context_id or prompt.context_id, "task_id": task_id or prompt.task_id}
    )


def _as_event(result: object) -> StreamResponse:
    """The result of SendMessage as the one event that it amounts to."""
    answer = _model(SendMessageResponse, result)
    return StreamResponse(task=answer.task, message=answer.message)


def _result(body: bytes) -> Any:
    """The result of a JSON-RPC response.

    Raises:
        A2AError: It is an error of the protocol.
        UpstreamError: It is another error, or no JSON-RPC response.
    """
    try:
        envelope: Any = json.loads(body)
    except (ValueError, RecursionError):
        envelope = None
    if isinstance(envelope, dict):
        fields = cast("dict[str, Any]", envelope)
        if isinstance(fields.get("error"), dict):
            raise _as_error(fields["error"])
        if "result" in fields:
            return fields["result"]
    raise UpstreamError("the agent's answer is no JSON-RPC response", fault=UpstreamFault.INVALID)


def _as_error(error: Mapping[str, Any]) -> A2AError | UpstreamError:
    code, text = error.get("code"), str(error.get("message") or "")
    kind = _ERRORS.get(code)
    if kind is not None:
        return kind(text.removeprefix(kind.message).removeprefix(": "))
    return UpstreamError(
        f"the agent reports an error: {text}", fault=UpstreamFault.PROVIDER, code=str(code), details=error
    )


def _model(model: type[Model], value: object) -> Model:
    try:
        return model.model_validate(value)
    except ValidationError as error:
        # Which field, and why, in the words that are used for a request.
        reason = InvalidParamsError.from_validation(error).detail
        raise UpstreamError(
            f"the agent sent a {model.__name__} that is not one of A2A 1.0: {reason}",
            fault=UpstreamFault.INVALID,
        ) from None


# --- HTTP -----------------------------------------------------------------------------------------------------------


async def _read(response: aiohttp.ClientResponse) -> bytes:
    """The whole body, up to the bound that holds for one event of a stream."""
    body = bytearray()
    async for data in response.content.iter_any():
        body += data
        if len(body) > MAX_EVENT_BYTES:
            raise UpstreamError(
                f"the agent's answer is larger than the allowed {MAX_EVENT_BYTES} bytes",
                fault=UpstreamFault.TOO_LARGE,
            )
    return bytes(body)


async def _refusal(response: aiohttp.ClientResponse) -> TailraceError:
    """Why an HTTP status is not 200: the JSON-RPC error in the body, where there is one."""
    try:
        _result(await _read(response))
    except A2AError as error:
        return error
    except UpstreamError as error:
        if error.fault is UpstreamFault.PROVIDER:
            return error
    return UpstreamError(
        f"the agent at {response.url} answered with an HTTP error",
        fault=UpstreamFault.STATUS,
        status=response.status,
    )


def _passing(error: UpstreamError) -> bool:
    return error.fault in _PASSING_FAULTS or error.status in _PASSING_STATUSES


@contextmanager
def _network_errors(url: str) -> Generator[None]:
    """Say in our own words what went wrong on the network."""
    try:
        yield
    except (aiohttp.InvalidURL, aiohttp.NonHttpUrlClientError):
        raise ConfigurationError(f"{url!r} is not the URL of an agent") from None
    except TimeoutError:
        raise UpstreamError(f"the agent at {url} does not answer", fault=UpstreamFault.TIMEOUT) from None
    except aiohttp.ClientConnectorError as error:
        raise UpstreamError(
            f"the agent at {url} cannot be reached: {error.strerror or error}", fault=UpstreamFault.CONNECTION
        ) from None
    except (aiohttp.ClientError, OSError) as error:
        raise UpstreamError(
            f"the connection to the agent at {url} broke off ({type(error).__name__})",
            fault=UpstreamFault.CONNECTION,
        ) from None
