"""Routes for stored chat completions (``store: true``). A stored completion is one turn of a task."""

from collections.abc import Mapping, Sequence
from contextlib import aclosing
from http import HTTPStatus
from typing import Any, Final, cast

from fastapi import Request, Response
from pydantic import ValidationError

from tailrace.server.protocols import ui_events
from tailrace.server.protocols.chat_endpoint import ChatEndpoint, Endpoint, json_response
from tailrace.server.protocols.chat_request import ChatRequest, LenientModel
from tailrace.server.protocols.encoder import Fields
from tailrace.server.protocols.event_translator import EventTranslator
from tailrace.server.protocols.openai.chat_completions_encoder import ChatCompletionEncoder
from tailrace.server.protocols.openai.input_items import received_messages, shown_messages
from tailrace.server.protocols.openai.list_pages import list_of, page_of, read_page_query, unknown_after
from tailrace.server.protocols.openai.request import check_metadata
from tailrace.server.protocols.openai.stored_request import choice_context_ids
from tailrace.server.protocols.openai.stored_response_events import (
    StoredTurn,
    find_turn,
    not_found,
    read_turn,
    read_turn_id,
    turn_cost,
    turn_id,
)
from tailrace.server.protocols.openai_error import OpenAIError
from tailrace.server.protocols.serial_texts import SerialTexts
from tailrace.server.runtime.caller import Caller
from tailrace.server.store.records import CompletionFilter
from tailrace.server.store.store import EventsDropped
from tailrace.streaming.a2a.errors import TaskNotFoundError
from tailrace.streaming.a2a.json_value_counts import cost_of
from tailrace.streaming.a2a.models import Message
from tailrace.streaming.agent.caller_options import NO_CALLER_OPTIONS, stored_caller_options
from tailrace.streaming.conversion.message_conversion import to_common_message
from tailrace.wrappers import History
from tailrace.wrappers.concurrency.worker_thread import json_text_cost, run_bounded
from tailrace.wrappers.openai.converter import OpenAIConverter

_KIND: Final = "chat.completion"

MAX_PAGE_COST = 4096
"""Maximum cost (see `turn_cost`) of a page, about 4 MiB. A page ends with the completion that exceeds it."""


class _Update(LenientModel):
    metadata: dict[str, Any] | None


class StoredCompletions:
    """Lists, retrieves, updates and deletes stored chat completions."""

    def __init__(self, endpoint: ChatEndpoint) -> None:
        self._endpoint = endpoint
        self._operations = endpoint.operations

    def routes(self) -> Mapping[tuple[str, str], Endpoint]:
        """Return the routes."""
        one = "/v1/chat/completions/{completion_id}"
        return {
            ("GET", "/v1/chat/completions"): self._list,
            ("GET", one): self._retrieve,
            ("POST", one): self._update,
            ("DELETE", one): self._delete,
            ("GET", f"{one}/messages"): self._messages,
        }

    async def _list(self, request: Request) -> Response:
        """Return a page of the caller's successful completions in the order of their requests."""
        caller = await self._endpoint.authenticate(request)
        query = read_page_query(request.query_params, order="asc")
        list_filter = _read_filter(request.query_params)
        after = read_turn_id(query.after, _KIND) if query.after else None
        page: list[Fields] = []
        has_more = True
        # The query cannot exclude failed completions. If no completion of a page remains, the next page is read.
        while has_more and not page:
            completions = await self._operations.completions.list(
                caller.owner,
                list_filter,
                after=after,
                is_descending=query.is_descending,
                limit=query.limit + 1,
            )
            if completions is None:
                raise unknown_after(query.after)
            has_more = len(completions) > query.limit
            cost = 0
            for at, after in enumerate(completions[: query.limit], 1):
                try:
                    stored = await find_turn(self._operations, turn_id(*after, _KIND), caller, _KIND)
                    page.append(await self._completion(stored, caller))
                except TaskNotFoundError:  # deleted after `list`
                    continue
                except OpenAIError as error:
                    if error.status != HTTPStatus.NOT_FOUND:
                        raise
                    continue
                cost += turn_cost(stored)
                if cost > MAX_PAGE_COST:
                    has_more = at < len(completions)
                    break
        return await json_response(list_of(page, has_more=has_more))

    async def _retrieve(self, request: Request) -> Response:
        stored, caller = await self._find(request)
        return await json_response(await self._completion(stored, caller))

    async def _update(self, request: Request) -> Response:
        _, metadata = await self._endpoint.read(request, _read_metadata)
        stored, caller = await self._find(request)
        await self._completion(stored, caller)  # raises an error for an incomplete completion
        if not await self._operations.completions.replace_metadata(
            stored.task.id, stored.turn, caller.owner, metadata
        ):
            raise not_found(stored.id, _KIND)
        return await json_response(await self._completion(stored, caller))

    async def _completion(self, stored: StoredTurn, caller: Caller) -> Fields:
        """Return a completion.

        Raises:
            OpenAIError: The completion failed, is incomplete, or was deleted.
        """
        found = await self._operations.completions.load(stored.task.id, stored.turn, caller.owner)
        events = await self._events(stored, caller)
        ended = events[-1] if events else None
        if found is None or not isinstance(ended, ui_events.TurnEnded) or ended.error is not None:
            raise not_found(stored.id, _KIND)
        encoder = ChatCompletionEncoder(EventTranslator(with_approvals=False), _request_of(stored))
        completion = await run_bounded(turn_cost(stored), encoder.complete, events, ended)
        return {**completion, "metadata": found.metadata}

    async def _events(self, stored: StoredTurn, caller: Caller) -> list[ui_events.UiEvent]:
        """Return the chat events of an ended turn. If its events are no longer stored, use a snapshot of the task."""
        translator = _create_translator(stored)
        found: list[ui_events.UiEvent] = []
        if not stored.turn_has_ended:
            return found
        try:
            events = await read_turn(self._operations, stored, caller)
            async with aclosing(events.batches()) as batches:
                async for batch in batches:
                    for event in batch:
                        found += await run_bounded(json_text_cost(event.body), translator.feed, event)
                    if translator.ended:
                        return found
        except EventsDropped:
            pass
        return await run_bounded(
            turn_cost(stored), lambda: _create_translator(stored).feed(stored.snapshot())
        )

    async def _delete(self, request: Request) -> Response:
        """Delete the task of a completion, and the conversations of its other choices."""
        stored, caller = await self._find(request)
        for context_id in await run_bounded(turn_cost(stored), choice_context_ids, stored.task.history):
            await self._operations.delete_conversation(context_id, caller)
        try:
            await self._operations.delete_task(stored.task.id, caller)
        except TaskNotFoundError:
            raise not_found(stored.id, _KIND) from None
        return await json_response({"id": stored.id, "object": "chat.completion.deleted", "deleted": True})

    async def _messages(self, request: Request) -> Response:
        stored, caller = await self._find(request)
        query = read_page_query(request.query_params, order="asc")
        messages = await self._operations.conversation(stored.task.context_id, caller)
        cost = cost_of(messages) + turn_cost(stored)
        listed = await run_bounded(cost, _listed_messages, stored, messages)
        return await json_response(page_of(listed, query))

    async def _find(self, request: Request) -> tuple[StoredTurn, Caller]:
        caller = await self._endpoint.authenticate(request)
        completion_id = request.path_params["completion_id"]
        return await find_turn(self._operations, completion_id, caller, _KIND), caller


def _read_metadata(body: Mapping[str, Any]) -> dict[str, str]:
    try:
        read = _Update.model_validate(body)
    except ValidationError as error:
        raise OpenAIError.from_validation_error(error) from None
    check_metadata(read.metadata)
    return read.metadata or {}


def _read_filter(query: Mapping[str, str]) -> CompletionFilter:
    """Return the filter of a list: ``model``, and one parameter ``metadata[NAME]`` for each pair of metadata.

    Raises:
        OpenAIError: The metadata exceeds a limit.
    """
    metadata = {
        name.removeprefix("metadata[").removesuffix("]"): value
        for name, value in query.items()
        if name.startswith("metadata[") and name.endswith("]")
    }
    check_metadata(metadata)
    return CompletionFilter(query.get("model", ""), metadata)


def _create_translator(stored: StoredTurn) -> EventTranslator:
    request = stored.request
    texts = SerialTexts(live=False, last_round=request.has_format)
    return EventTranslator(tools=request.tools, texts=texts, with_approvals=False)


def _request_of(stored: StoredTurn) -> ChatRequest:
    request = stored.request
    return ChatRequest(
        earlier=(),
        new=to_common_message(stored.message),
        caller_options=NO_CALLER_OPTIONS,
        model=request.model,
        created=request.created,
        warnings=request.warnings,
    )


def _listed_messages(stored: StoredTurn, messages: Sequence[Message]) -> list[Fields]:
    received = shown_messages(received_messages(stored, messages))
    instructions = stored_caller_options([stored.message]).instructions
    history = History(system_message=instructions, conversation=tuple(map(to_common_message, received)))
    listed = OpenAIConverter().from_history(history)
    return [_listed_message(cast("Fields", each), f"{stored.id}-{at}") for at, each in enumerate(listed)]


def _listed_message(message: Fields, message_id: str) -> Fields:
    """Return a message with text as its ``content``. Other or several parts are in ``content_parts``."""
    content: object = message.get("content")
    if not isinstance(content, list):
        return {"id": message_id, **message, "content_parts": None}
    parts = cast("list[Fields]", content)
    texts = [part["text"] for part in parts if part.get("type") == "text"]
    shown = None if len(texts) == len(parts) == 1 else parts
    return {"id": message_id, **message, "content": "".join(texts), "content_parts": shown}
