"""Calls to a remote agent through the official SDK's client: what it sends as our objects, what goes wrong as our errors.

Beside what that client gives, the bytes are watched as they come: for the ids of SSE events, which it drops and a stream
is gone on with, and for how many they are, which it does not bound.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Generator, Mapping
from contextlib import aclosing, contextmanager
from typing import Any, cast
from uuid import uuid4

import anyio
import httpx
from a2a.client.client import Client, ClientCallContext, ClientConfig
from a2a.client.client_factory import ClientFactory
from a2a.client.errors import A2AClientTimeoutError
from a2a.types import a2a_pb2
from a2a.utils.errors import A2A_ERROR_REASONS
from a2a.utils.errors import A2AError as SdkError
from google.protobuf.json_format import ParseError
from pydantic import ValidationError

from tailrace.server.sdk.agent_cards import RemoteCard
from tailrace.server.sdk.relay import UNSAID, RemoteEvent
from tailrace.server.sdk.types import from_sdk, to_json
from tailrace.streaming.a2a.errors import InvalidParamsError
from tailrace.streaming.a2a.models import (
    Artifact,
    Message,
    Part,
    Task,
    TaskArtifactUpdateEvent,
    TaskStatusUpdateEvent,
)
from tailrace.streaming.extension import extension_facts
from tailrace.wrappers import UpstreamError, UpstreamFault
from tailrace.wrappers.model import REQUEST_HEADERS
from tailrace.wrappers.wire import MAX_EVENT_BYTES, SSEDecoder

_KINDS: Mapping[str, type[RemoteEvent]] = {
    "task": Task,
    "message": Message,
    "status_update": TaskStatusUpdateEvent,
    "artifact_update": TaskArtifactUpdateEvent,
}
_CONTENT = frozenset({"text", "raw", "url", "data"})


class RemoteCalls:
    """Connections to one agent.

    Args:
        card: How the agent is reached.
        headers: Sent with every call.
        connect_timeout: Seconds for opening a connection.
        read_timeout: Seconds of silence after which a stream, or a short call, counts as lost.
        answer_timeout: Seconds that an agent which does not stream has for its answer.
    """

    def __init__(
        self,
        card: RemoteCard,
        headers: Mapping[str, str],
        *,
        connect_timeout: float,
        read_timeout: float,
        answer_timeout: float,
    ) -> None:
        self._card = card
        self._headers = {**headers, "accept-encoding": "identity"}
        self._timeout = httpx.Timeout(connect_timeout, read=read_timeout, pool=None)
        self._patient = httpx.Timeout(connect_timeout, read=answer_timeout, pool=None)
        self._transport = new_transport()
        self._channels: dict[str, Any] = {}

    async def aclose(self) -> None:
        """Close the connections."""
        with anyio.CancelScope(shield=True):
            await self._transport.aclose()
            for channel in self._channels.values():
                await channel.close()
            self._channels.clear()

    async def events(
        self, request: a2a_pb2.SendMessageRequest | a2a_pb2.SubscribeToTaskRequest, headers: Mapping[str, str]
    ) -> AsyncGenerator[tuple[RemoteEvent, str]]:
        """The events of one response, each with the id after which the stream can be gone on with.

        Raises:
            UpstreamError: As `RemoteAgent.stream`.
        """
        watch = _Watch()
        client = self._client(watch, self._timeout if self._card.streaming else self._patient)
        context = self._context(headers)
        responses = cast(
            "AsyncGenerator[a2a_pb2.StreamResponse]",
            client.subscribe(request, context=context)
            if isinstance(request, a2a_pb2.SubscribeToTaskRequest)
            else client.send_message(request, context=context),
        )
        try:
            async with aclosing(responses):
                while True:
                    with named_errors(self._card.url):
                        response = await anext(responses, None)
                        if response is None:
                            return
                        event, number = _read_event(response)
                    yield event, watch.last_id or number
        finally:
            # The client's generators leave the response to the garbage collector when they are closed.
            with anyio.CancelScope(shield=True):
                await watch.aclose()

    async def get_task(self, task_id: str) -> Task:
        """The task as it stands.

        Raises:
            UpstreamError: As `RemoteAgent.get_task`.
        """
        with named_errors(self._card.url):
            client = self._client(_Watch(), self._timeout)
            task = await client.get_task(a2a_pb2.GetTaskRequest(id=task_id), context=self._context({}))
            return cast("Task", _as_model("task", task))

    async def cancel_task(self, task_id: str) -> Task:
        """Have the work on a task stopped.

        Raises:
            UpstreamError: As `RemoteAgent.cancel_task`.
        """
        with named_errors(self._card.url):
            client = self._client(_Watch(), self._timeout)
            task = await client.cancel_task(a2a_pb2.CancelTaskRequest(id=task_id), context=self._context({}))
            return cast("Task", _as_model("task", task))

    def _context(self, headers: Mapping[str, str]) -> ClientCallContext:
        return ClientCallContext(service_parameters={**REQUEST_HEADERS.get(), **self._headers, **headers})

    def _client(self, watch: "_Watch", timeout: httpx.Timeout) -> Client:
        """A client for one call: the connections are those of all of them, the watch is its own."""
        config = ClientConfig(
            httpx_client=httpx.AsyncClient(transport=_Watched(self._transport, watch), timeout=timeout),
            supported_protocol_bindings=[self._card.binding],
            grpc_channel_factory=self._channel,
        )
        return ClientFactory(config).create(self._card.raw)

    def _channel(self, url: str) -> Any:
        """The gRPC channel to ``host:port``, or to a URL as cards of 0.3 have it; with TLS where that is meant."""
        if url not in self._channels:
            from grpc import ssl_channel_credentials  # an extra
            from grpc.aio import insecure_channel, secure_channel

            scheme, _, target = url.rpartition("://")
            target = target.rstrip("/")
            secure = scheme == "https" or (not scheme and target.endswith(":443"))
            self._channels[url] = (
                secure_channel(target, ssl_channel_credentials()) if secure else insecure_channel(target)
            )
        return self._channels[url]


def new_transport() -> httpx.AsyncHTTPTransport:
    """Connections without a bound on how many are open: each is a turn under way, and those are bounded."""
    return httpx.AsyncHTTPTransport(
        limits=httpx.Limits(max_connections=None, max_keepalive_connections=20, keepalive_expiry=30)
    )


# --- watching the bytes ---------------------------------------------------------------------------------------------


class _Watch:
    """What was seen of one response."""

    def __init__(self) -> None:
        self.last_id = ""
        self.stream: httpx.AsyncByteStream | None = None

    async def aclose(self) -> None:
        if self.stream is not None:
            await self.stream.aclose()


class _Watched(httpx.AsyncBaseTransport):
    def __init__(self, transport: httpx.AsyncBaseTransport, watch: _Watch) -> None:
        self._transport = transport
        self._watch = watch

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        response = await self._transport.handle_async_request(request)
        stream = cast("httpx.AsyncByteStream", response.stream)
        is_events = "text/event-stream" in response.headers.get("content-type", "")
        self._watch.stream = response.stream = _WatchedStream(stream, self._watch, is_events=is_events)
        return response


class _WatchedStream(httpx.AsyncByteStream):
    def __init__(self, stream: httpx.AsyncByteStream, watch: _Watch, *, is_events: bool) -> None:
        self._stream = stream
        self._watch = watch
        self._is_events = is_events

    async def __aiter__(self) -> AsyncIterator[bytes]:
        decoder, received = SSEDecoder(), 0
        async for data in self._stream:
            if self._is_events:
                for frame in decoder.feed(data):
                    self._watch.last_id = frame.id or self._watch.last_id
            else:
                received += len(data)
                if received > MAX_EVENT_BYTES:
                    raise UpstreamError(
                        f"the agent's answer is larger than the allowed {MAX_EVENT_BYTES} bytes",
                        fault=UpstreamFault.TOO_LARGE,
                    )
            yield data

    async def aclose(self) -> None:
        await self._stream.aclose()


# --- reading what an agent says -------------------------------------------------------------------------------------


def _read_event(response: a2a_pb2.StreamResponse) -> tuple[RemoteEvent, str]:
    kind = response.WhichOneof("payload") or ""
    if kind not in _KINDS:
        raise UpstreamError("the agent sent an empty event", fault=UpstreamFault.INVALID)
    more = _more_text(response) if kind == "artifact_update" else None
    if more is not None:
        return more, ""
    event = _as_model(kind, getattr(response, kind))
    number = extension_facts(event.metadata).get("number")
    return event, str(number) if isinstance(number, int) else ""


def _more_text(response: a2a_pb2.StreamResponse) -> TaskArtifactUpdateEvent | None:
    """A piece of plain text for an artifact, without a detour: almost everything that a stream holds."""
    update = response.artifact_update
    artifact = update.artifact
    if not (update.append and update.context_id and update.task_id and artifact.artifact_id):
        return None
    if len(artifact.parts) != 1 or update.HasField("metadata") or artifact.HasField("metadata"):
        return None
    part = artifact.parts[0]
    if part.WhichOneof("content") != "text" or part.HasField("metadata") or part.filename or part.media_type:
        return None
    return TaskArtifactUpdateEvent(
        task_id=update.task_id,
        context_id=update.context_id,
        artifact=Artifact(artifact_id=artifact.artifact_id, parts=(Part(text=part.text),)),
        append=True,
        last_chunk=update.last_chunk,
    )


def _as_model(kind: str, message: Any) -> RemoteEvent:
    """Our object of one of the SDK's; what a remote left out, and nothing depends on, is made up for it."""
    model = _KINDS[kind]
    try:
        return from_sdk(message, model)
    except InvalidParamsError as error:
        try:
            return model.model_validate(_mended(kind, to_json(message)))
        except (ValidationError, InvalidParamsError):
            raise UpstreamError(
                f"the agent sent a {model.__name__} that is none: {error.detail}", fault=UpstreamFault.INVALID
            ) from None


def _mended(kind: str, fields: dict[str, Any]) -> dict[str, Any]:
    if kind == "message":
        _mend_message(fields)
        return fields
    if kind == "artifact_update":
        _mend_artifact(fields.setdefault("artifact", {}))
    else:
        status = fields.setdefault("status", {})
        status.setdefault("state", "TASK_STATE_WORKING")  # 0.3 has a state "unknown"
        if "message" in status:
            _mend_message(status["message"])
    for message in fields.get("history", ()):
        _mend_message(message)
    for artifact in fields.get("artifacts", ()):
        _mend_artifact(artifact)
    if kind != "task":
        # An event of 0.3 may say only one of the two; what is not said is not used either.
        fields.setdefault("taskId", UNSAID)
        fields.setdefault("contextId", UNSAID)
    return fields


def _mend_message(message: dict[str, Any]) -> None:
    message.setdefault("messageId", str(uuid4()))
    message.setdefault("role", "ROLE_AGENT")
    _mend_parts(message)


def _mend_artifact(artifact: dict[str, Any]) -> None:
    artifact.setdefault("artifactId", "artifact")
    _mend_parts(artifact)


def _mend_parts(owner: dict[str, Any]) -> None:
    """Parts that hold nothing are left out; where none is left there is an empty text: "the last chunk" is often so."""
    parts = [part for part in owner.get("parts", ()) if not _CONTENT.isdisjoint(part)]
    owner["parts"] = parts or [{"text": ""}]


# --- errors ---------------------------------------------------------------------------------------------------------


@contextmanager
def named_errors(url: str) -> Generator[None]:
    """Say in our own words what went wrong between us and an agent."""
    try:
        yield
    except (SdkError, httpx.HTTPError, httpx.InvalidURL) as error:
        raise _as_upstream_error(error, url) from None
    except (ParseError, ValueError, TypeError, LookupError, AttributeError) as error:
        # The client reads what comes as it should be, and stumbles over what is not.
        detail = (str(error).splitlines() or [""])[0]
        raise UpstreamError(
            f"the agent at {url} sent what is not A2A ({type(error).__name__}: {detail[:200]})",
            fault=UpstreamFault.INVALID,
        ) from None


def _as_upstream_error(error: Exception, url: str) -> UpstreamError:
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, httpx.HTTPStatusError):
            break
        if isinstance(cause, httpx.TransportError | httpx.InvalidURL):
            return _network_error(cause, url)
        code = getattr(cause, "code", None)
        if callable(code) and hasattr(cause, "trailing_metadata") and type(error) not in A2A_ERROR_REASONS:
            return _grpc_error(str(getattr(code(), "name", "")), cause, url)
        cause = cause.__cause__
    if type(error) in A2A_ERROR_REASONS:
        return UpstreamError(
            f"the agent refuses: {error}",
            fault=UpstreamFault.PROVIDER,
            code=A2A_ERROR_REASONS[cast("type[SdkError]", type(error))],
            details=getattr(error, "data", None),
        )
    if isinstance(cause, httpx.HTTPStatusError):
        status = cause.response.status_code
        what = "does not let us in" if status in (401, 403) else "answered with an HTTP error"
        after = cause.response.headers.get("retry-after", "")
        return UpstreamError(
            f"the agent at {url} {what}",
            fault=UpstreamFault.STATUS,
            status=status,
            retry_after=float(after) if after.isdigit() else None,
        )
    if isinstance(error, A2AClientTimeoutError):
        return UpstreamError(f"the agent at {url} does not answer", fault=UpstreamFault.TIMEOUT)
    words = str(error)
    if words.startswith(("JSON Decode Error", "Invalid JSON-RPC response")):
        return UpstreamError(f"the agent at {url} sent what is not A2A: {words}", fault=UpstreamFault.INVALID)
    return UpstreamError(f"the agent reports an error: {words}", fault=UpstreamFault.PROVIDER)


def _network_error(error: Exception, url: str) -> UpstreamError:
    if isinstance(error, httpx.TimeoutException):
        return UpstreamError(f"the agent at {url} does not answer", fault=UpstreamFault.TIMEOUT)
    if isinstance(error, httpx.ConnectError | httpx.InvalidURL | httpx.UnsupportedProtocol):
        return UpstreamError(f"the agent at {url} cannot be reached: {error}", fault=UpstreamFault.CONNECTION)
    return UpstreamError(
        f"the connection to the agent at {url} broke off ({type(error).__name__})",
        fault=UpstreamFault.CONNECTION,
    )


def _grpc_error(code: str, error: BaseException, url: str) -> UpstreamError:
    if code == "UNAVAILABLE":
        return UpstreamError(
            f"the agent at {url} cannot be reached", fault=UpstreamFault.CONNECTION, code=code
        )
    details = getattr(error, "details", None)
    words = details() if callable(details) else ""
    return UpstreamError(f"the agent reports an error: {words}", fault=UpstreamFault.PROVIDER, code=code)
