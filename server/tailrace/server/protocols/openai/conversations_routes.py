"""Routes of OpenAI's Conversations API. A conversation is an A2A context, and its items are the messages of the context.

The metadata of a conversation, and items that a client adds, are stored as ended tasks without a turn.
"""

import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from hashlib import sha256
from itertools import count, groupby
from typing import Any, NamedTuple, cast
from uuid import uuid4

import msgspec
from fastapi import Request, Response
from pydantic import ValidationError

from tailrace.server.protocols.chat_endpoint import ChatEndpoint, Endpoint, json_response
from tailrace.server.protocols.chat_request import MAX_MESSAGES, Items, LenientModel, read_history
from tailrace.server.protocols.encoder import Fields
from tailrace.server.protocols.openai.approval_items import pending_items
from tailrace.server.protocols.openai.input_items import decisions_of, items_of
from tailrace.server.protocols.openai.list_pages import page_of, read_page_query
from tailrace.server.protocols.openai.request import check_metadata
from tailrace.server.protocols.openai.stored_request import choice_context_ids
from tailrace.server.protocols.openai_error import OpenAIError
from tailrace.server.runtime.caller import Caller
from tailrace.server.runtime.operations import Operations
from tailrace.streaming.a2a.errors import TaskNotFoundError
from tailrace.streaming.a2a.json_value_counts import cost_of, cost_of_task
from tailrace.streaming.a2a.lifecycle import TaskState
from tailrace.streaming.a2a.models import Message, Task, TaskStatus
from tailrace.streaming.a2a.requests import ListTasksRequest, ListTasksResponse
from tailrace.streaming.a2a.stream_extension import extension_metadata, with_extension_metadata
from tailrace.streaming.a2a.version_codec import Operation
from tailrace.streaming.conversion.message_conversion import to_a2a_message, to_common_message
from tailrace.wrappers.concurrency.worker_thread import run_bounded
from tailrace.wrappers.messages import ContentPartToolResult, Role
from tailrace.wrappers.openai_responses.converter import ResponsesConverter

MAX_ITEMS = 20
"""Maximum number of items that one request adds."""

MAX_WAITING = 100
"""Maximum number of tasks of a conversation whose approval requests are listed as items, newest first."""

_FACT = "apiConversation"
_DELETED = "deletedItems"  # metadata of a message: the deleted items of the message


class _Record(msgspec.Struct, frozen=True):
    created: int
    metadata: dict[str, str] = {}


class _Body(LenientModel):
    items: Items[dict[str, Any]] | None = None
    metadata: dict[str, Any] | None = None


class _Item(NamedTuple):
    """An item of a message.

    Attributes:
        message: The message that contains the item.
        position: The index of the item among the current items of the message. Approval requests and decisions are not parts of
            the message, and have the index -1.
        original_position: As ``position``, but the deleted items also count.
        has_calls: True if the message contains tool calls.
        has_results: True if the message contains tool results.
    """

    fields: Fields
    message: Message
    position: int = -1
    original_position: int = -1
    has_calls: bool = False
    has_results: bool = False


class ConversationsRoutes:
    """Creates, retrieves, updates and deletes conversations and their items."""

    def __init__(self, endpoint: ChatEndpoint) -> None:
        self._endpoint = endpoint
        self._operations = endpoint.operations

    def routes(self) -> Mapping[tuple[str, str], Endpoint]:
        """Return the routes."""
        one = "/v1/conversations/{conversation_id}"
        return {
            ("POST", "/v1/conversations"): self._create,
            ("GET", one): self._retrieve,
            ("POST", one): self._update,
            ("DELETE", one): self._delete,
            ("POST", f"{one}/items"): self._add_items,
            ("GET", f"{one}/items"): self._list_items,
            ("GET", f"{one}/items/{{item_id}}"): self._retrieve_item,
            ("DELETE", f"{one}/items/{{item_id}}"): self._delete_item,
        }

    async def _create(self, request: Request) -> Response:
        caller, body = await self._endpoint.read(request, _read_body)
        name = f"conv_{uuid4().hex}"
        messages = await run_bounded(caller.cost, _read_items, body.items or ())
        record = _Record(int(time.time()), body.metadata or {})
        await self._operations.put_unlisted_task(_task(name, record), caller, _record_name(name))
        await self._add(name, messages, caller)
        return await json_response(_conversation(name, record))

    async def _retrieve(self, request: Request) -> Response:
        name, record, _ = await self._find(request)
        return await json_response(_conversation(name, record))

    async def _update(self, request: Request) -> Response:
        _, body = await self._endpoint.read(request, _read_body)
        name, record, caller = await self._find(request)
        record = _Record(record.created, body.metadata or {})
        # The context was not created with this API.
        may_create = not record.created
        if not await self._operations.put_unlisted_task(
            _task(name, record), caller, _record_name(name), may_create=may_create
        ):
            raise _not_found(name, "id")  # deleted after `_find`
        if may_create and not await self._operations.conversation(name, caller, 1):
            # The messages were deleted after `_find`, so that only the new record remains.
            await self._operations.delete_conversation(name, caller)
            raise _not_found(name, "id")
        return await json_response(_conversation(name, record))

    async def _delete(self, request: Request) -> Response:
        name, _, caller = await self._find(request)
        accepted = await self._operations.accepted_messages(name, caller, MAX_MESSAGES)
        messages = [*accepted.begun, *accepted.waiting]
        for context_id in await run_bounded(cost_of(messages), choice_context_ids, messages):
            await self._operations.delete_conversation(context_id, caller)
        await self._operations.delete_conversation(name, caller)
        return await json_response({"id": name, "object": "conversation.deleted", "deleted": True})

    async def _add_items(self, request: Request) -> Response:
        reading, body = await self._endpoint.read(request, _read_body)
        name, _, caller = await self._find(request)
        messages = await run_bounded(reading.cost, _read_items, body.items or ())
        await self._add(name, messages, caller)
        items = await run_bounded(reading.cost, _items, messages)
        query = read_page_query({"limit": "100"}, order="asc")
        return await json_response(page_of([item.fields for item in items], query))

    async def _list_items(self, request: Request) -> Response:
        items, _, _ = await self._items(request)
        query = read_page_query(request.query_params)
        return await json_response(page_of([item.fields for item in items], query))

    async def _retrieve_item(self, request: Request) -> Response:
        items, _, _ = await self._items(request)
        return await json_response(_find_item(items, request.path_params["item_id"]).fields)

    async def _delete_item(self, request: Request) -> Response:
        """Delete an item from the conversation. The response that created it still returns it."""
        while True:
            items, name, caller = await self._items(request)
            item = _find_item(items, request.path_params["item_id"])
            if item.position < 0:
                raise _not_deletable("the items of an approval cannot be deleted; delete the conversation")
            # Without the result, the task would request or execute the call again.
            if _is_of_handled_calls(item, items) and not await self._has_ended(item.message.task_id, caller):
                raise _not_deletable(
                    "tool calls and their results cannot be deleted before their task has ended; "
                    "send the results or decisions that it waits for, or delete the conversation"
                )
            rest = await run_bounded(cost_of([item.message]), _without_item, item)
            if await self._operations.replace_message(name, item.message, rest, caller):
                break  # the message has not changed since it was read
        _, record, _ = await self._find(request)
        return await json_response(_conversation(name, record))

    async def _has_ended(self, task_id: str | None, caller: Caller) -> bool:
        """Return whether the task of a message has ended or was deleted."""
        try:
            task = await self._operations.snapshot(task_id or "", caller)
        except TaskNotFoundError:
            return True
        return task.status.state.terminal

    async def _add(self, name: str, messages: Sequence[Message], caller: Caller) -> None:
        if messages:
            await self._operations.add_messages(_task(name), messages, caller)

    async def _items(self, request: Request) -> tuple[Sequence[_Item], str, Caller]:
        name, _, caller = await self._find(request)
        waiting = ListTasksRequest(context_id=name, status=TaskState.INPUT_REQUIRED, page_size=MAX_WAITING)
        page = await self._operations.execute(Operation.LIST_TASKS, waiting, caller)
        tasks = cast("ListTasksResponse", page).tasks
        messages = await self._operations.conversation(name, caller)
        cost = cost_of(messages) + sum(map(cost_of_task, tasks))
        return await run_bounded(cost, _items, messages, tasks), name, caller

    async def _find(self, request: Request) -> tuple[str, _Record, Caller]:
        caller = await self._endpoint.authenticate(request)
        name = request.path_params["conversation_id"]
        return name, await find_conversation(self._operations, name, caller, param="id"), caller


async def find_conversation(operations: Operations, name: str, caller: Caller, *, param: str) -> _Record:
    """Return the record of a conversation of the caller. A context that has messages is also a conversation.

    Args:
        operations: Reads the store.
        name: Id of the conversation.
        caller: The caller.
        param: The request member with the id, for errors.

    Returns:
        The record. If the context was not created with this API, the creation time is 0.

    Raises:
        OpenAIError: The conversation does not exist or belongs to another caller.
        StoreError: The store cannot be read.
    """
    try:
        task = await operations.snapshot(_record_name(name), caller)
        text = extension_metadata(task.metadata).get(_FACT)
        if isinstance(text, str) and task.context_id == name:
            return msgspec.json.decode(text, type=_Record)
    except (TaskNotFoundError, msgspec.DecodeError):
        pass
    if not await operations.conversation(name, caller, 1):
        raise _not_found(name, param)
    return _Record(0)


def _not_found(name: str, param: str) -> OpenAIError:
    return OpenAIError(404, f"Conversation with id '{name}' not found.", param=param)


def _record_name(name: str) -> str:
    return f"conversation:{name}"


def _task(context_id: str, record: _Record | None = None) -> Task:
    """Return an ended task. `Operations.put_unlisted_task` assigns another id to it."""
    fields = {_FACT: msgspec.json.encode(record).decode()} if record is not None else {}
    status = TaskStatus(state=TaskState.COMPLETED, timestamp=datetime.now(UTC))
    return Task(
        id=str(uuid4()), context_id=context_id, status=status, metadata=with_extension_metadata({}, **fields)
    )


def _conversation(name: str, record: _Record) -> Fields:
    return {
        "id": name,
        "object": "conversation",
        "created_at": record.created,
        "metadata": record.metadata,
    }


def _read_body(body: Mapping[str, Any]) -> _Body:
    try:
        read = _Body.model_validate(body)
    except ValidationError as error:
        raise OpenAIError.from_validation_error(error) from None
    check_metadata(read.metadata)
    if read.items is not None and len(read.items) > MAX_ITEMS:
        raise OpenAIError(
            400,
            f"'items' has {len(read.items)} items; a request may add {MAX_ITEMS}",
            param="items",
            code="invalid_value",
        )
    return read


def _read_items(items: Sequence[Mapping[str, Any]]) -> list[Message]:
    """Convert items to messages. Each user item becomes a separate message."""
    messages: list[Message] = []
    for _, group in groupby(enumerate(items), lambda each: each[0] if each[1].get("role") == "user" else -1):
        history = read_history(ResponsesConverter(), [item for _, item in group], param="items")
        if history.system_message:
            raise OpenAIError(
                400,
                "'items' has a system or developer message; send instructions with each request",
                param="items",
                code="invalid_value",
            )
        messages += [to_a2a_message(message, message_id=str(uuid4())) for message in history.conversation]
    return messages


def _items(messages: Sequence[Message], waiting: Iterable[Task] = ()) -> list[_Item]:
    """Convert messages to items in chronological order. Approval requests follow the last message of their task."""
    items: list[_Item] = []
    pending = {task.id: pending_items(task) for task in waiting}
    last = {message.task_id: message.message_id for message in messages}
    # The last message with calls. A message of results is converted together with it.
    calling: list[Message] = []
    for message, decided in zip(messages, decisions_of(messages), strict=True):
        items += [_Item(fields, message) for _, pair in decided for fields in pair]
        common = to_common_message(message)
        before = calling if common.tool_results else []
        suffix = sha256(message.message_id.encode("utf-8", "surrogatepass")).hexdigest()[:32]
        own = items_of([*before, message], suffix)[len(items_of(before, "")) :]
        deleted = _deleted_items(message)
        numbers = (number for number in count() if number not in deleted)
        for at, (fields, number) in enumerate(zip(own, numbers, strict=False)):
            item_id = f"{fields['id'].rpartition('_')[0]}_{number}"
            calls, results = bool(common.tool_calls), bool(common.tool_results)
            items.append(_Item({**fields, "id": item_id}, message, at, number, calls, results))
        if common.tool_calls:
            calling = [message]
        if last[message.task_id] == message.message_id:
            items += [_Item(fields, message) for fields in pending.get(message.task_id, ())]
    return items


def _deleted_items(message: Message) -> Sequence[object]:
    deleted: object = extension_metadata(message.metadata).get(_DELETED)
    return cast("list[object]", deleted) if isinstance(deleted, list) else ()


def _find_item(items: Sequence[_Item], item_id: str) -> _Item:
    for item in items:
        if item.fields["id"] == item_id:
            return item
    raise OpenAIError(404, f"Item with id '{item_id}' not found.", param="item_id")


def _is_of_handled_calls(item: _Item, items: Iterable[_Item]) -> bool:
    """Return whether the message of an item has results, or has calls of a task that also has results or approval items."""
    if not item.has_calls:
        return item.has_results
    of_task = (each for each in items if each.message.task_id == item.message.task_id)
    return any(each.has_results or each.position < 0 for each in of_task)


def _not_deletable(problem: str) -> OpenAIError:
    return OpenAIError(400, problem, param="item_id", code="invalid_value")


def _without_item(item: _Item) -> Message | None:
    """Return the message of an item without the item; None if nothing remains."""
    common = to_common_message(item.message)
    parts = common.content

    def items_before(end: int) -> int:
        prefix = to_a2a_message(common.model_copy(update={"content": parts[:end]}), message_id="m")
        return len(items_of([prefix], "")) if end else 0

    if common.tool_results and common.role is not Role.MODEL:
        # The items are the results, then one message with the other parts.
        results = [at for at, part in enumerate(parts) if isinstance(part, ContentPartToolResult)]
        others = set(range(len(parts))).difference(results)
        deleted_parts = {results[item.position]} if item.position < len(results) else others
        remaining = tuple(part for at, part in enumerate(parts) if at not in deleted_parts)
    else:
        remaining = tuple(part for end, part in enumerate(parts, 1) if items_before(end) != item.position + 1)
    if not remaining or len(remaining) == len(parts):
        return None
    rest = to_a2a_message(common.model_copy(update={"content": remaining}), message_id="m")
    deleted = [*_deleted_items(item.message), item.original_position]
    metadata = with_extension_metadata(item.message.metadata, **{_DELETED: deleted})
    return item.message.model_copy(update={"parts": rest.parts, "metadata": metadata})
