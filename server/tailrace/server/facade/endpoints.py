"""OpenAI's addresses over this server's agent: Chat Completions, Responses, and the list of models.

A request becomes one message to a task; what the task says becomes the answer. Whoever leaves in the middle leaves the
task running, as with every other binding. The response names the conversation (``X-Conversation-Id``) and the task
(``X-Task-Id``), by which any client of A2A finds them.
"""

import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any, Protocol, cast

import msgspec
from fastapi import APIRouter, Request, Response
from starlette.requests import ClientDisconnect

from tailrace.server.auth import Authenticator, Credentials
from tailrace.server.bindings.http import asked_extensions, credentials_of, read_body
from tailrace.server.facade.answers import AnswerReader
from tailrace.server.facade.asked import Asked
from tailrace.server.facade.chat_completions import ChatStream, chat_completion
from tailrace.server.facade.chat_requests import read_chat_request
from tailrace.server.facade.conversations import response_id
from tailrace.server.facade.errors import OpenAIError, server_stops
from tailrace.server.facade.pieces import Piece
from tailrace.server.facade.responses import ResponseWriter, whole_response
from tailrace.server.facade.responses_requests import read_responses_request
from tailrace.server.facade.sending import Sender
from tailrace.server.operations import Caller, Operations
from tailrace.server.settings import Settings
from tailrace.server.sse import sse_response
from tailrace.streaming.task import Event

CONVERSATION_HEADER = "X-Conversation-Id"
"""Names the conversation: of a request, and of its response."""

TASK_HEADER = "X-Task-Id"
"""Names the task that an answer comes from."""

_KEY_HEADER = "x-api-key"

Fields = dict[str, Any]


class _StreamWriter(Protocol):
    """Writes an answer piece by piece."""

    def begin(self) -> bytes: ...

    def write(self, pieces: Sequence[Piece]) -> bytes: ...

    def fail(self, error: OpenAIError) -> bytes: ...


class _ReadRequest(Protocol):
    def __call__(self, body: Mapping[str, Any], *, header: str, user_is_key: bool) -> Asked: ...


class OpenAIFacade:
    """Answers OpenAI's clients.

    Args:
        operations: What carries out what they ask.
        settings: Limits and intervals.
        authenticator: Says who asks; an API key may stand in ``Authorization``, where these clients put theirs.
        names: What the agent may be called, its own name first.
    """

    def __init__(
        self,
        operations: Operations,
        settings: Settings,
        authenticator: Authenticator,
        names: Sequence[str],
    ) -> None:
        self._operations = operations
        self._settings = settings
        self._authenticator = authenticator
        self._names = names
        self._sender = Sender(operations)
        self._started = int(time.time())

    def add_to(self, router: APIRouter) -> None:
        """Put all addresses into a router."""
        for path, endpoint, method in (
            ("/v1/chat/completions", self._chat_completions, "POST"),
            ("/v1/responses", self._responses, "POST"),
            ("/v1/models", self._models, "GET"),
            ("/v1/models/{model:path}", self._model, "GET"),
        ):
            router.add_api_route(
                path, endpoint, methods=[method], include_in_schema=False, response_model=None
            )

    # --- the addresses ------------------------------------------------------------------------------------------

    async def _chat_completions(self, request: Request) -> Response:
        def stream(asked: Asked, reader: AnswerReader) -> _StreamWriter:
            return ChatStream(
                completion_id=_completion_id(reader),
                created=int(time.time()),
                model=asked.model,
                include_usage=asked.include_usage,
            )

        def whole(asked: Asked, reader: AnswerReader, pieces: Sequence[Piece]) -> Fields:
            return chat_completion(
                pieces, completion_id=_completion_id(reader), created=int(time.time()), model=asked.model
            )

        return await self._answered(request, read_chat_request, stream, whole)

    async def _responses(self, request: Request) -> Response:
        def stream(asked: Asked, reader: AnswerReader) -> ResponseWriter:
            return ResponseWriter(
                response_id=response_id(reader.task_id, reader.turn),
                created=int(time.time()),
                model=asked.model,
                echo=asked.echo,
                conversation=reader.context_id,
            )

        def whole(asked: Asked, reader: AnswerReader, pieces: Sequence[Piece]) -> Fields:
            return whole_response(stream(asked, reader), pieces)

        return await self._answered(request, read_responses_request, stream, whole)

    async def _models(self, request: Request) -> Response:
        try:
            await self._authenticator.authenticate(_credentials(request))
        except Exception as error:
            return OpenAIError.of(error).response()
        listed = [self._model_fields(name) for name in self._names]
        return _json_response({"object": "list", "data": listed})

    async def _model(self, request: Request) -> Response:
        try:
            await self._authenticator.authenticate(_credentials(request))
            name = self._known_name(request.path_params["model"])
        except Exception as error:
            return OpenAIError.of(error).response()
        return _json_response(self._model_fields(name))

    def _model_fields(self, name: str) -> Fields:
        return {"id": name, "object": "model", "created": self._started, "owned_by": "tailrace"}

    def _known_name(self, name: str) -> str:
        """The model that a request names: as it is listed, or as it was configured; the agent where it names none.

        Raises:
            OpenAIError: It is not served here.
        """
        if not name:
            return self._names[0]
        if name not in self._names and name != self._settings.model:
            message = f"The model '{name}' does not exist or you do not have access to it."
            raise OpenAIError(404, message, code="model_not_found", param="model")
        return name

    # --- answering ----------------------------------------------------------------------------------------------

    async def _answered(
        self,
        request: Request,
        read: _ReadRequest,
        stream: Callable[[Asked, AnswerReader], _StreamWriter],
        whole: Callable[[Asked, AnswerReader, Sequence[Piece]], Fields],
    ) -> Response:
        headers: dict[str, str] = {}
        try:
            identity = await self._authenticator.authenticate(_credentials(request))
            asked = await self._read(request, read)
            extensions = self._operations.offer.activated(asked_extensions(request))
            caller = Caller(identity.user, extensions=extensions)
            events, reader, first = await self._begin(asked, caller)
            headers = answer_headers(reader.context_id, reader.task_id)
            answer = _Answer(events, reader, first)
            if asked.stream:
                return sse_response(
                    self._frames(answer, stream(asked, reader)),
                    settings=self._settings,
                    headers=headers,
                    streams=self._operations.streams,
                )
            pieces = [piece async for batch in answer.batches() for piece in batch]
            if not reader.over:
                raise server_stops()
            return _json_response(whole(asked, reader, pieces), headers)
        except ClientDisconnect:
            return Response(status_code=400)  # nobody reads it
        except Exception as error:
            return OpenAIError.of(error).response(headers)

    async def _read(self, request: Request, read: _ReadRequest) -> Asked:
        body = await read_body(request, self._settings.max_request_bytes)
        try:
            value = msgspec.json.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise OpenAIError(400, f"The body is not JSON: {error}") from None
        if not isinstance(value, dict):
            raise OpenAIError(400, "The body must be a JSON object")
        asked = read(
            cast("Fields", value),
            header=request.headers.get(CONVERSATION_HEADER, ""),
            user_is_key=self._settings.openai_user_is_key,
        )
        return replace(asked, model=self._known_name(asked.model))

    async def _begin(
        self, asked: Asked, caller: Caller
    ) -> tuple[AsyncGenerator[Sequence[Event]], AnswerReader, list[Piece]]:
        """Send the message, and wait for the first that is to be read of the answer: it names the task."""
        sent = await self._sender.send(asked, caller)
        reader = AnswerReader(
            tools=asked.tool_names,
            known_ids=sent.call_ids,
            live=asked.stream,
            last_round=asked.facts.output is not None,
        )
        events = sent.stream.batches()
        try:
            batch = await anext(events, ())
            first = reader.take(batch)
        except BaseException:
            await events.aclose()
            raise
        return events, reader, first

    async def _frames(self, answer: "_Answer", writer: _StreamWriter) -> AsyncGenerator[bytes]:
        yield writer.begin()
        try:
            async for pieces in answer.batches():
                if pieces:
                    yield writer.write(pieces)
        except Exception as error:
            yield writer.fail(OpenAIError.of(error))
            return
        if not answer.reader.over:
            yield writer.fail(server_stops())


class _Answer:
    """The pieces of one answer, of which the first were read."""

    def __init__(
        self, events: AsyncGenerator[Sequence[Event]], reader: AnswerReader, first: list[Piece]
    ) -> None:
        self.reader = reader
        self._events = events
        self._first = first

    async def batches(self) -> AsyncIterator[list[Piece]]:
        """The pieces in batches of what is there."""
        async with aclosing(self._events) as events:
            yield self._first
            while not self.reader.over:
                batch = await anext(events, None)
                if batch is None:
                    return
                yield self.reader.take(batch)


def _credentials(request: Request) -> Credentials:
    """What the request carries to say who asks: OpenAI's clients send a key as a bearer token."""
    given = credentials_of(request)
    if given.bearer and not given.headers.get(_KEY_HEADER):
        headers = {**given.headers, _KEY_HEADER: given.bearer}
        return Credentials(headers, given.query, reads=given.reads)
    return given


def _completion_id(reader: AnswerReader) -> str:
    return f"chatcmpl-{reader.task_id}-{reader.turn}"


def answer_headers(context_id: str, task_id: str) -> dict[str, str]:
    """The headers of a response that name its conversation and its task, as far as they have a name."""
    named = {CONVERSATION_HEADER: context_id, TASK_HEADER: task_id}
    return {name: value for name, value in named.items() if value and value.isascii() and value.isprintable()}


def _json_response(value: object, headers: Mapping[str, str] | None = None) -> Response:
    return Response(msgspec.json.encode(value), headers=dict(headers or {}), media_type="application/json")
