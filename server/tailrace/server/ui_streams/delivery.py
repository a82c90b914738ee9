"""What the addresses of both protocols have in common: who asks, what is asked, and the stream that answers.

Whoever leaves in the middle leaves the task running, as with every other binding. The response names the conversation
(``X-Conversation-Id``) and the task (``X-Task-Id``), by which any client of A2A finds them.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from hashlib import sha256
from typing import Any, Protocol, cast

import msgspec
from fastapi import Request, Response
from starlette.requests import ClientDisconnect

from tailrace.server.auth import Authenticator
from tailrace.server.bindings.http import asked_extensions, credentials_of, read_body
from tailrace.server.facade.asked import Asked
from tailrace.server.facade.conversations import branches_of
from tailrace.server.facade.endpoints import answer_headers
from tailrace.server.facade.errors import OpenAIError, server_stops
from tailrace.server.facade.sending import Sender
from tailrace.server.operations import Caller, EventStream, Operations
from tailrace.server.settings import Settings
from tailrace.server.sse import sse_response
from tailrace.server.ui_streams.framing import frame_payloads
from tailrace.server.ui_streams.happenings import Happening
from tailrace.server.ui_streams.turns import TurnReader
from tailrace.streaming.a2a.dialect import Operation
from tailrace.streaming.a2a.models import Task
from tailrace.streaming.a2a.requests import ListTasksRequest, ListTasksResponse, SubscribeToTaskRequest
from tailrace.streaming.task import Event

_NEWEST_TASKS = 20
"""How many tasks of a conversation are looked at for one that is worked on: they take their turns one after the other."""


class Encoder(Protocol):
    """Writes what happens in a turn in a protocol's form."""

    def write(self, happenings: Iterable[Happening]) -> list[bytes]:
        """What happened, as payloads of frames."""
        ...

    def fail(self, error: OpenAIError) -> list[bytes]:
        """The last payloads of a stream whose end is not known."""
        ...


class Delivery:
    """Takes requests, and gives streams.

    Args:
        operations: What carries out what they ask.
        settings: Limits and intervals.
        authenticator: Says who asks.
    """

    def __init__(self, operations: Operations, settings: Settings, authenticator: Authenticator) -> None:
        self.operations = operations
        self._settings = settings
        self._authenticator = authenticator
        self._sender = Sender(operations)

    async def caller_of(self, request: Request, fingerprint: str = "") -> Caller:
        """Who asks.

        Raises:
            AuthError: Somebody who is not let in.
        """
        identity = await self._authenticator.authenticate(credentials_of(request))
        extensions = self.operations.offer.activated(asked_extensions(request))
        send_key = request.headers.get("idempotency-key", "") if fingerprint else ""
        return Caller(identity.user, extensions=extensions, send_key=send_key, fingerprint=fingerprint)

    async def read(self, request: Request) -> tuple[Caller, dict[str, Any]]:
        """Who asks, and what: the JSON of the request.

        Raises:
            AuthError: Somebody who is not let in; before anything is read.
            RequestTooLargeError: The body is too large.
            OpenAIError: It is no JSON object.
            ClientDisconnect: The client left before it was complete.
        """
        await self.caller_of(request)
        body = await read_body(request, self._settings.max_request_bytes)
        try:
            value = msgspec.json.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise OpenAIError(400, f"The body is not JSON: {error}") from None
        if not isinstance(value, dict):
            raise OpenAIError(400, "The body must be a JSON object")
        caller = await self.caller_of(request, sha256(body).hexdigest())
        return caller, cast("dict[str, Any]", value)

    async def send(self, asked: Asked, caller: Caller) -> tuple[EventStream, TurnReader]:
        """Send what a request says, and read the answer.

        Raises:
            OpenAIError: As `Sender.send`.
            A2AError: As `Sender.send`.
            StoreError: As `Sender.send`.
        """
        sent = await self._sender.send(asked, caller)
        return sent.stream, TurnReader(tools=asked.tool_names, known_ids=sent.call_ids)

    async def newest_task(self, key: str, caller: Caller, *, running: bool = False) -> Task | None:
        """The newest task of a conversation or of one of its branches; None where there is none.

        Args:
            key: The conversation's key.
            caller: Whose it is.
            running: Only one that is worked on.
        """
        found: Task | None = None
        for context_id in branches_of(key):
            wanted = ListTasksRequest(context_id=context_id, page_size=_NEWEST_TASKS, history_length=0)
            listed = await self.operations.answer(Operation.LIST_TASKS, wanted, caller)
            tasks = cast("ListTasksResponse", listed).tasks
            if not tasks:
                break
            for task in tasks:
                if running and (task.status.state.terminal or task.status.state.interrupted):
                    continue
                if found is None or _since(task) > _since(found):
                    found = task
        return found

    async def follow(self, task_id: str, caller: Caller) -> tuple[EventStream, TurnReader]:
        """Read the answer that a task is giving, from its beginning.

        Raises:
            A2AError: As `Operations.stream`.
            StoreError: As `Operations.stream`.
        """
        stream = await self.operations.stream(
            Operation.SUBSCRIBE_TO_TASK, SubscribeToTaskRequest(id=task_id), caller, repeat_finished=True
        )
        return stream, TurnReader(whole_answer=True)

    def tell(self, payloads: Sequence[bytes], headers: Mapping[str, str]) -> Response:
        """The response that streams what is known already."""

        async def frames() -> AsyncGenerator[bytes]:
            yield frame_payloads(payloads)

        streams = self.operations.streams
        return sse_response(frames(), settings=self._settings, headers=dict(headers), streams=streams)

    async def answer(
        self,
        stream: EventStream,
        reader: TurnReader,
        encoder: Encoder,
        *,
        headers: Mapping[str, str] | None = None,
    ) -> Response:
        """The response that streams an answer. Its first events are waited for: they name the task.

        Args:
            stream: The events.
            reader: Reads them.
            encoder: Writes them.
            headers: Of the response, beside those that name the conversation and the task.
        """
        events = stream.batches()
        try:
            batch = await anext(events, ())
            frames = _frames(batch, reader, encoder)
        except BaseException:
            await events.aclose()
            raise
        return sse_response(
            self._rest(events, frames, reader, encoder),
            settings=self._settings,
            headers={**(headers or {}), **answer_headers(reader.context_id, reader.task_id)},
            streams=self.operations.streams,
        )

    async def _rest(
        self, events: AsyncGenerator[Sequence[Event]], frames: bytes, reader: TurnReader, encoder: Encoder
    ) -> AsyncGenerator[bytes]:
        async with aclosing(events):
            yield frames
            try:
                while not reader.over:
                    batch = await anext(events, None)
                    if batch is None:
                        break
                    if frames := _frames(batch, reader, encoder):
                        yield frames
            except Exception as error:
                yield frame_payloads(encoder.fail(OpenAIError.of(error)))
                return
        if not reader.over:
            yield frame_payloads(encoder.fail(server_stops()))


def _frames(events: Sequence[Event], reader: TurnReader, encoder: Encoder) -> bytes:
    frames: list[bytes] = []
    for event in events:
        happened = reader.take(event)
        if happened:
            payloads = encoder.write(happened)
            frames.append(frame_payloads(payloads, event.number))
    return frames[0] if len(frames) == 1 else b"".join(frames)


async def respond(
    answer: Callable[[], Awaitable[Response]], refuse: Callable[[OpenAIError], Response]
) -> Response:
    """What a request is answered with, whatever comes of it.

    Args:
        answer: Answers it.
        refuse: Says in the protocol's form what went wrong.
    """
    try:
        return await answer()
    except ClientDisconnect:
        return Response(status_code=400)  # nobody reads it
    except Exception as error:
        return refuse(OpenAIError.of(error))


def _since(task: Task) -> float:
    return task.status.timestamp.timestamp() if task.status.timestamp is not None else 0.0
