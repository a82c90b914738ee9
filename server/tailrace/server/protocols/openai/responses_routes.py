"""Routes of the Responses API. A response is one turn of a task."""

from collections.abc import Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import replace

from fastapi import Request, Response

from tailrace.server.protocols.chat_endpoint import (
    ChatEndpoint,
    Endpoint,
    conversation_headers,
    json_response,
)
from tailrace.server.protocols.chat_request import ChatRequest
from tailrace.server.protocols.conversation_lookup import response_id
from tailrace.server.protocols.encoder import Fields
from tailrace.server.protocols.openai.conversations_routes import find_conversation
from tailrace.server.protocols.openai.input_items import list_input_items
from tailrace.server.protocols.openai.list_pages import page_of, read_page_query
from tailrace.server.protocols.openai.responses_encoder import NO_EVENTS, ResponsesEncoder
from tailrace.server.protocols.openai.stored_request import StoredRequest
from tailrace.server.protocols.openai.stored_response_events import (
    StoredTurn,
    find_turn,
    not_found,
    read_turn,
    turn_cost,
)
from tailrace.server.protocols.openai.webhook_events import FORMAT_NAME
from tailrace.server.protocols.openai_error import OpenAIError, server_stopping_error
from tailrace.server.protocols.parallel_texts import DivergedError
from tailrace.server.protocols.turn_events import RepeatedTurn, TurnEvents, subscribe_to_turn
from tailrace.server.runtime.caller import Caller
from tailrace.server.store.store import EventsDropped
from tailrace.streaming.a2a.errors import TaskNotCancelableError, TaskNotFoundError
from tailrace.streaming.a2a.event import Event
from tailrace.streaming.a2a.json_value_counts import cost_of
from tailrace.streaming.a2a.requests import CancelTaskRequest
from tailrace.streaming.a2a.version_codec import Operation
from tailrace.wrappers.concurrency.worker_thread import run_bounded


class StoredResponses:
    """Creates, retrieves, streams, cancels and deletes responses.

    Args:
        notifies: True if the operator's webhook is notified of ended background responses.
    """

    def __init__(self, endpoint: ChatEndpoint, *, notifies: bool = False) -> None:
        self._notifies = notifies
        self._endpoint = endpoint
        self._operations = endpoint.operations

    def routes(self) -> Mapping[tuple[str, str], Endpoint]:
        """Return the routes for existing responses."""
        one = "/v1/responses/{response_id}"
        return {
            ("GET", one): self._retrieve,
            ("DELETE", one): self._delete,
            ("POST", f"{one}/cancel"): self._cancel,
            ("GET", f"{one}/input_items"): self._input_items,
        }

    async def create(self, chat: ChatRequest, caller: Caller) -> Response:
        """Send the message of a request, and return the response or its stream.

        A background response without ``stream`` is returned as soon as its task is stored. Other responses without ``stream`` are
        returned when they are complete.

        Raises:
            OpenAIError: The turn failed, the conversation does not exist or is not the caller's, or the server is stopping.
            A2AError: See `ChatEndpoint.send`.
            StoreError: See `ChatEndpoint.send`.
        """
        request = StoredRequest.from_chat_request(chat, "response")
        if chat.existing:
            await find_conversation(self._operations, chat.existing, caller, param="conversation")
        if self._notifies and chat.background:
            caller = replace(caller, operator_form=FORMAT_NAME)
        record = await run_bounded(caller.cost, request.to_json)
        stream, _ = await self._endpoint.send(replace(chat, record=record), caller)
        if isinstance(stream, RepeatedTurn):
            return await self._repeat(stream, chat, caller)
        events = TurnEvents(stream)
        if chat.stream:
            canceled = None if chat.background else ((stream.task_id,), caller)
            encoder = ResponsesEncoder(request)
            return await self._endpoint.stream_batches(events.batches(), encoder, canceled=canceled)
        return await self._complete(events, request, caller)

    async def _repeat(self, known: RepeatedTurn, chat: ChatRequest, caller: Caller) -> Response:
        known.close()
        stored = await find_turn(self._operations, response_id(known.task_id, known.turn), caller, "response")
        if chat.stream:
            return await self._stream(stored, caller, -1)
        if chat.background and stored.turn_has_ended:
            return await json_response(await self._response(stored, caller))
        events = await subscribe_to_turn(self._operations, stored.task.id, stored.turn, caller)
        return await self._complete(events, stored.request, caller)

    async def _complete(self, events: TurnEvents, request: StoredRequest, caller: Caller) -> Response:
        encoder = ResponsesEncoder(request, after=NO_EVENTS)
        await _feed(encoder, events, first_only=request.background)
        headers = conversation_headers(encoder.translator)
        if not (encoder.translator.ended or (request.background and encoder.response)):
            is_stored = request.is_stored and bool(encoder.response)
            path = f"/v1/responses/{encoder.response['id']}" if is_stored else ""
            error = server_stopping_error(path, has_key=bool(caller.send_key))
        elif isinstance(encoder.error, DivergedError) and encoder.translator.task_id:
            turn = await find_turn(self._operations, encoder.response["id"], caller, "response")
            return await json_response(await self._response(turn, caller), headers)
        elif encoder.error is not None and not request.background:
            error = encoder.error
        else:
            return await json_response(encoder.partial_response(is_running=False), headers)
        error.headers = {**headers, **error.headers}
        raise error

    async def _retrieve(self, request: Request) -> Response:
        stored, caller = await self._find(request)
        is_streamed, after = _read_stream_parameter(request), _starting_after(request)
        if not is_streamed:
            return await json_response(await self._response(stored, caller))
        return await self._stream(stored, caller, after)

    async def _stream(self, stored: StoredTurn, caller: Caller, after: int) -> Response:
        """Stream a stored response.

        If the events are no longer stored, they are created from a snapshot of the task, and have other numbers.

        Raises:
            OpenAIError: The events are no longer stored, and the client has already received some of them.
        """
        encoder = ResponsesEncoder(stored.request, after=after)
        try:
            events = await subscribe_to_turn(self._operations, stored.task.id, stored.turn, caller)
            return await self._endpoint.stream_batches(events.batches(), encoder)
        except EventsDropped:
            if after >= 0:
                raise OpenAIError(
                    410,
                    "the events of the response are no longer stored (TAILRACE_RETENTION: events); get the response",
                    code="stream_expired",
                    param="starting_after",
                ) from None
        encoder = ResponsesEncoder(stored.request)
        return await self._endpoint.stream_batches(stored.batches(), encoder)

    async def _response(self, stored: StoredTurn, caller: Caller) -> Fields:
        """Return the current state of a response.

        If the agent replaced text that was already streamed, the stream ends with an error, but this method returns the new text.
        """
        if stored.turn_has_ended:
            encoder = ResponsesEncoder(stored.request, after=NO_EVENTS)
            with suppress(EventsDropped):
                await _feed(encoder, await read_turn(self._operations, stored, caller))
            if encoder.translator.ended and not isinstance(encoder.error, DivergedError):
                return encoder.response

        def encode() -> Fields:
            for live in (True, False):
                encoder = ResponsesEncoder(stored.request, after=NO_EVENTS, live=live)
                encoder.feed(stored.snapshot())
                if not isinstance(encoder.error, DivergedError):
                    break
            return encoder.partial_response(is_running=stored.has_started)

        return await run_bounded(turn_cost(stored), encode)

    async def _cancel(self, request: Request) -> Response:
        """Cancel a response. If the response has ended, return it unchanged."""
        stored, caller = await self._find(request)
        if not stored.turn_has_ended:
            try:
                cancel_request = CancelTaskRequest(id=stored.task.id)
                await self._operations.execute(Operation.CANCEL_TASK, cancel_request, caller)
            except TaskNotCancelableError:
                pass  # the task ended after `_find`
            stored = await find_turn(self._operations, stored.id, caller, "response")
        return await json_response(await self._response(stored, caller))

    async def _delete(self, request: Request) -> Response:
        stored, caller = await self._find(request)
        try:
            await self._operations.delete_task(stored.task.id, caller)
        except TaskNotFoundError:
            raise not_found(stored.id, "response") from None
        return await json_response({"id": stored.id, "object": "response", "deleted": True})

    async def _input_items(self, request: Request) -> Response:
        stored, caller = await self._find(request)
        query = read_page_query(request.query_params)
        messages = await self._operations.conversation(stored.task.context_id, caller)
        cost = cost_of(messages) + turn_cost(stored)
        items = await run_bounded(cost, list_input_items, stored, messages)
        return await json_response(page_of(items, query))

    async def _find(self, request: Request) -> tuple[StoredTurn, Caller]:
        caller = await self._endpoint.authenticate(request)
        value = request.path_params["response_id"]
        stored = await find_turn(self._operations, value, caller, "response")
        if not stored.request.is_stored:
            raise not_found(value, "response")
        return stored, caller


async def _feed(encoder: ResponsesEncoder, events: TurnEvents, *, first_only: bool = False) -> None:

    def feed(batch: Sequence[Event]) -> None:
        for event in batch:
            encoder.feed(event)

    async with aclosing(events.batches()) as batches:
        async for batch in batches:
            await run_bounded(encoder.cost(batch), feed, batch)
            if encoder.translator.ended or first_only:
                return


def _read_stream_parameter(request: Request) -> bool:
    value = request.query_params.get("stream", "false")
    if value not in ("true", "false"):
        raise OpenAIError(400, "'stream' must be 'true' or 'false'", param="stream", code="invalid_value")
    return value == "true"


def _starting_after(request: Request) -> int:
    value = request.query_params.get("starting_after")
    if value is None:
        return -1
    if not (value.isascii() and value.isdigit() and len(value) < 16):
        raise OpenAIError(
            400,
            "'starting_after' must be the sequence_number of an event",
            param="starting_after",
            code="invalid_value",
        )
    return int(value)
