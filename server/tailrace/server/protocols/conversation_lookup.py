"""Finds the stored conversation and task that a request continues.

Clients of OpenAI's APIs send the whole conversation with every request, usually without an id. `Conversations` therefore compares
the earlier messages of a request with the stored messages. If they are equal, only the new message is added to the stored
conversation.
"""

from collections.abc import AsyncIterator, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast
from uuid import uuid4

from tailrace.server.protocols.chat_request import MAX_MESSAGES, ChatRequest
from tailrace.server.protocols.conversation_comparison import (
    calls_run_here,
    is_same_conversation,
    without_calls,
)
from tailrace.server.protocols.markdown import markdown_of
from tailrace.server.protocols.openai_error import OpenAIError
from tailrace.server.runtime.active_task import TurnReference
from tailrace.server.runtime.approvals import waiting_requests
from tailrace.server.runtime.caller import Caller
from tailrace.server.runtime.operations import Operations
from tailrace.server.runtime.served_agents import agent_name_of
from tailrace.server.runtime.waiting_turns import branch_id, copies_of
from tailrace.streaming.a2a.errors import TaskNotFoundError
from tailrace.streaming.a2a.json_value_counts import cost_of, cost_of_task
from tailrace.streaming.a2a.lifecycle import TaskState
from tailrace.streaming.a2a.models import Message, Part, Role, Task
from tailrace.streaming.a2a.requests import GetTaskRequest, ListTasksRequest, ListTasksResponse
from tailrace.streaming.a2a.version_codec import Operation
from tailrace.streaming.conversion.approval_parts import without_requests
from tailrace.streaming.conversion.message_conversion import is_callers, to_a2a_message, to_common_message
from tailrace.wrappers import Message as CommonMessage
from tailrace.wrappers.concurrency.worker_thread import run_bounded

MAX_BRANCHES = 20
"""Maximum number of contexts to search for one key (the client's id of the conversation): the conversation and its branches."""

_FAILURES = (TaskState.FAILED, TaskState.REJECTED, TaskState.CANCELED)

_UNNAMED = "unknown"  # placeholder for the name of a result's tool if the request does not contain the call

# Maximum number of input-required tasks to search, newest first.
_MAX_PENDING = 320
_FIRST_PAGE = 20  # number of input-required tasks on the first page
_NEXT_PAGES = 100  # on each following page


@dataclass(frozen=True)
class AssignedMessage:
    """A message that is assigned to a context and a task.

    Attributes:
        message: The message.
        preceding: The messages with which a new conversation or branch begins; otherwise empty.
        call_ids: The ids of all calls of the conversation.
        follows: The turn after which a new branch begins, if this turn has not ended; otherwise None.
    """

    message: Message
    preceding: tuple[Message, ...] = ()
    call_ids: frozenset[str] = frozenset()
    follows: TurnReference | None = None


class Conversations:
    """Finds the conversation and task that the message of a request continues."""

    def __init__(self, operations: Operations) -> None:
        self._operations = operations

    async def context_of(self, request: ChatRequest, caller: Caller) -> str:
        """Return the id of the conversation to which a request refers; empty if there is none.

        The request belongs to this conversation or one of its branches.

        Raises:
            StoreError: The store cannot be read.
        """
        if request.choice:
            return ""
        if not request.previous:
            return request.key
        task_id, _ = read_response_id(request.previous)
        try:
            return (await self._operations.snapshot(task_id, caller)).context_id if task_id else ""
        except TaskNotFoundError:
            return ""

    async def assign(
        self, request: ChatRequest, caller: Caller, skipped: Collection[str] = ()
    ) -> AssignedMessage:
        """Assign the message of a request to a context and a task.

        Args:
            request: The request.
            caller: The caller.
            skipped: The ids of tasks to ignore, because `still_waits` returned False for them.

        Raises:
            OpenAIError: The request continues an unknown response, or the message contains only results of calls that the client
                does not run.
            A2AError: See `Operations.execute`.
            StoreError: The store cannot be read.
        """
        assignment = _Search(self._operations, request, caller)
        if request.choice:
            key = request.choice_context_prefix
            return await assignment.start(choice_context(key, request.choice) if key else "")
        if request.decided:
            assigned = await assignment.continue_decided_task(await self.context_of(request, caller))
            if assigned is not None:
                return assigned
        if request.previous:
            return await assignment.continue_after_response()
        if request.continues:
            return await assignment.continue_context(request.key, await assignment.stored(request.key))
        if request.key:
            return await assignment.continue_by_key()
        found = await assignment.continue_pending_task(skipped) if request.new.tool_results else None
        return found or await assignment.start("")

    async def still_waits(self, message: Message, caller: Caller) -> bool:
        """Return whether the task of a message still waits for it. Another request may have continued the task."""
        task = await _find_task(self._operations, message.task_id, caller)

        def waits() -> bool:
            return _waits_for(task, {result.id for result in to_common_message(message).tool_results})

        cost = cost_of_task(task) if task is not None else 0
        return await run_bounded(cost + cost_of([message]), waits)


@dataclass(frozen=True)
class _Search:
    operations: Operations
    request: ChatRequest
    caller: Caller

    async def continue_by_key(self) -> AssignedMessage:
        """Continue the first context of the key whose messages equal the request's earlier messages, or start a new context."""
        for context_id in branch_context_ids(self.request.key):
            stored = await self.stored(context_id)
            if not stored:
                return await self.start(context_id)
            task = await self._last_task(stored)
            same = await self._find_equal_conversation(stored, task)
            if same is None:
                continue
            assigned = await same._continue(context_id, stored, task)
            if assigned.message.task_id or not same.request.new.tool_results:
                return assigned
        return await self.start(f"{self.request.key}~{uuid4().hex}")

    async def _find_equal_conversation(
        self, stored: Sequence[Message], task: Task | None
    ) -> "_Search | None":
        """Return a search whose request has the stored conversation as earlier messages; None if the messages differ.

        After a failed response, some clients repeat the unanswered message before their new message. The repeated message then
        counts as an earlier message.
        """
        if await self._is_same(stored, task):
            return self
        request = self.request.with_unanswered_as_earlier()
        other = replace(self, request=request) if request is not None else None
        return other if other is not None and await other._is_same(stored, task) else None

    async def continue_pending_task(self, skipped: Collection[str]) -> AssignedMessage | None:
        """Continue the newest task that waits for exactly the results in the message, or return None.

        The earlier messages of the request must equal the conversation of the task.
        """
        results = {result.id for result in self.request.new.tool_results}
        async for task in self._pending_tasks():
            if task.id in skipped or await run_bounded(cost_of_task(task), _open_calls, task) != results:
                continue
            stored = await self.stored(task.context_id)
            is_last = bool(stored) and stored[-1].task_id == task.id
            if is_last and self._is_receivers(stored, task) and await self._is_same(stored, task):
                return await self._continue(task.context_id, stored, task)
        return None

    async def continue_decided_task(self, context_id: str) -> AssignedMessage | None:
        """Continue the task whose calls the message approves or rejects; None if the task is not in this conversation."""
        task_id, _ = read_response_id(self.request.decided)
        task = await _find_task(self.operations, task_id, self.caller) if task_id else None
        if task is None or task.context_id != context_id:
            return None
        return await self._continue(context_id, await self.stored(context_id), task)

    async def _pending_tasks(self) -> AsyncIterator[Task]:
        list_request = ListTasksRequest(
            status=TaskState.INPUT_REQUIRED, page_size=_FIRST_PAGE, history_length=0
        )
        remaining = _MAX_PENDING
        while remaining > 0:
            listed = await self.operations.execute(Operation.LIST_TASKS, list_request, self.caller)
            page = cast("ListTasksResponse", listed)
            for task in page.tasks:
                yield task
            if not page.next_page_token:
                return
            remaining -= len(page.tasks)
            token = page.next_page_token
            list_request = list_request.model_copy(update={"page_size": _NEXT_PAGES, "page_token": token})

    async def continue_after_response(self) -> AssignedMessage:
        """Continue the conversation of a response. If the conversation has other messages after the response, start a branch.

        Raises:
            OpenAIError: See `Conversations.assign`.
        """
        task_id, turn = read_response_id(self.request.previous)
        task = await _find_task(self.operations, task_id, self.caller) if task_id else None
        stored = await self.stored(task.context_id) if task is not None else []
        callers = [at for at, message in enumerate(stored) if is_callers(message)]
        starts = [at for at in callers if task is not None and stored[at].task_id == task.id]
        if task is None or not 0 < turn <= sum(map(is_callers, task.history)):
            raise OpenAIError(
                400,
                f"Previous response with id '{self.request.previous}' not found.",
                param="previous_response_id",
                code="previous_response_not_found",
            )
        if turn > len(starts) and task.status.state in _FAILURES:
            raise OpenAIError(
                400,
                f"Previous response with id '{self.request.previous}' ended before it began: it has no place in the "
                "conversation. Continue the response before it.",
                param="previous_response_id",
                code="previous_response_not_found",
            )
        if turn > len(starts):  # the caller's message of this turn was deleted from the conversation
            return await self._continue(task.context_id, stored, task)
        message = stored[starts[turn - 1]]
        end = next((at for at in callers if at > starts[turn - 1]), len(stored))
        if end == len(stored):
            assigned = await self._continue(task.context_id, stored, task)
            if assigned.message.task_id or not self.request.new.tool_results:
                return assigned
        state = task.status.state
        has_ended = state.terminal or state.interrupted or turn < len(starts)

        def branch() -> AssignedMessage:
            new = _message(self.request.new, branch_id(task.context_id))
            if not has_ended:
                followed = TurnReference(task.context_id, task.id, message.message_id)
                return AssignedMessage(new, (), _call_ids(stored), followed)
            return AssignedMessage(new, tuple(copies_of(stored[:end], "")), _call_ids(stored))

        return await run_bounded(self._cost(stored), branch)

    async def start(self, context_id: str) -> AssignedMessage:

        def assigned() -> AssignedMessage:
            earlier = self.request.earlier
            preceding = tuple(to_a2a_message(message, message_id=str(uuid4())) for message in earlier)
            return AssignedMessage(_message(self.request.new, context_id), preceding, self.request.call_ids)

        return await run_bounded(self.caller.cost, assigned)

    async def continue_context(self, context_id: str, stored: Sequence[Message]) -> AssignedMessage:
        task = await self._last_task(stored)
        if self.request.new.tool_results:
            task = await self._task_of_results(stored, task) or task
        return await self._continue(context_id, stored, task)

    async def _task_of_results(self, stored: Sequence[Message], last: Task | None) -> Task | None:
        """Return the newest task of a context that waits for the results in the message, or None.

        The task must belong to the agent that receives the message.
        """
        results = {result.id for result in self.request.new.tool_results}
        task_ids = dict.fromkeys(message.task_id for message in reversed(stored) if message.task_id)
        for task_id in list(task_ids)[:MAX_BRANCHES]:
            is_last = last is not None and last.id == task_id
            task = last if is_last else await _find_task(self.operations, task_id, self.caller)
            if task is None or not self._is_receivers(stored, task):
                continue
            if await run_bounded(cost_of_task(task), _open_calls, task) >= results:
                return task
        return None

    async def _continue(
        self, context_id: str, stored: Sequence[Message], task: Task | None
    ) -> AssignedMessage:
        """Continue a context with the task that waits for the message, or with a new task.

        A waiting task of another agent is not continued, with two exceptions: a decision about a call, and a tool result in a
        request that contains only the new message. In both cases, the message is then rejected, because the task belongs to
        another agent.

        Raises:
            OpenAIError: The message contains only results of calls that the client does not run (see `calls_run_here`).
        """

        def assigned() -> AssignedMessage:
            new = without_calls(self.request.new, calls_run_here(stored))
            if self.request.new.content and not new.content:
                raise OpenAIError(400, "there is nothing to answer: these calls were the agent's own")
            waits = _waits_for(task, {result.id for result in new.tool_results})
            if task is not None and waits and not self._is_receivers(stored, task):
                waits = bool(self.request.decided or (self.request.continues and new.tool_results))
            message = _message(new, context_id, task.id if task is not None and waits else "")
            return AssignedMessage(message, (), _call_ids(stored))

        return await run_bounded(self._cost(stored, task), assigned)

    def _is_receivers(self, stored: Sequence[Message], task: Task) -> bool:
        """Return whether a task belongs to the agent that receives the message."""
        agents = {agent_name_of(each) for each in stored if each.task_id == task.id and is_callers(each)}
        return agents <= {self.caller.receiver}

    async def _is_same(self, stored: Sequence[Message], task: Task | None) -> bool:
        """Return whether the earlier messages of the request equal the stored conversation.

        Earlier tasks are loaded for their status texts only if the comparison fails without them.
        """
        tasks = [task] if task is not None else []

        def is_same() -> bool:
            waiting = [each.call_id for task in tasks for each in waiting_requests(task)]
            earlier, texts = self.request.earlier, _status_texts(tasks, stored)
            if is_same_conversation(earlier, stored, texts, waiting):
                return True
            # Protocols with their own format for approval requests do not send an approval request as text.
            fewer = _status_texts(tasks, stored, with_requests=False)
            return fewer != texts and is_same_conversation(earlier, stored, fewer, waiting)

        if await run_bounded(self._cost(stored, task), is_same):
            return True
        other_task_ids = {message.task_id for message in stored} - {"", *(task.id for task in tasks)}
        for other in list(other_task_ids)[:MAX_BRANCHES]:
            found = await _find_task(self.operations, other, self.caller)
            tasks += [found] if found is not None else []
        return bool(other_task_ids) and await run_bounded(self._cost(stored, *tasks), is_same)

    async def stored(self, context_id: str) -> list[Message]:
        """Return the messages of a context, including waiting messages."""
        accepted = await self.operations.accepted_messages(context_id, self.caller, MAX_MESSAGES)
        return [*accepted.begun, *accepted.waiting]

    async def _last_task(self, stored: Sequence[Message]) -> Task | None:
        task_id = stored[-1].task_id if stored else ""
        return await _find_task(self.operations, task_id, self.caller) if task_id else None

    def _cost(self, stored: Sequence[Message], *tasks: Task | None) -> int:
        known = sum(cost_of_task(task) for task in tasks if task is not None)
        return self.caller.cost + cost_of(stored) + known


async def _find_task(operations: Operations, task_id: str, caller: Caller) -> Task | None:
    try:
        return cast("Task", await operations.execute(Operation.GET_TASK, GetTaskRequest(id=task_id), caller))
    except TaskNotFoundError:
        return None


def branch_context_ids(key: str) -> Iterator[str]:
    """Yield `MAX_BRANCHES` context ids: the conversation with a key, and its first branches."""
    yield key
    for number in range(2, MAX_BRANCHES + 1):
        yield f"{key}~{number}"


def choice_context(key: str, choice: int) -> str:
    """Return the context id for a choice other than choice 0."""
    return f"{key}~{choice}"


def response_id(task_id: str, turn: int) -> str:
    """Return the id of a response. It contains the task id and the number of the turn."""
    return f"resp_{task_id}_{turn}"


def response_id_of_item(item_id: str) -> str:
    """Return the response id in the id of an output item; empty if this server did not create the id."""
    response = f"resp_{item_id.partition('_')[2].rpartition('_')[0]}"
    return response if all(read_response_id(response)) else ""


def read_response_id(value: str) -> tuple[str, int]:
    """Return the task id and the turn in a response id. The task id is empty if this server did not create the id."""
    task_id, _, turn = value.removeprefix("resp_").rpartition("_")
    is_number = turn.isascii() and turn.isdigit() and len(turn) < 10 and turn[0] != "0"
    if not value.startswith("resp_") or not is_number:
        return "", 0
    return task_id, int(turn)


def _message(new: CommonMessage, context_id: str, task_id: str = "") -> Message:
    message = to_a2a_message(new, message_id=str(uuid4()), context_id=context_id, task_id=task_id)
    return message.model_copy(update={"parts": tuple(map(_without_unknown_names, message.parts))})


def _without_unknown_names(part: Part) -> Part:
    """Remove placeholder names of tools from a part. The stored call has the real name."""
    data: object = part.data
    fields = cast("dict[str, Any]", data if isinstance(data, dict) else {})
    entries = fields.get("tool_results")
    if not isinstance(entries, list):
        return part
    results = [
        {name: value for name, value in entry.items() if (name, value) != ("name", _UNNAMED)}
        for entry in cast("list[dict[str, Any]]", entries)
    ]
    return part.model_copy(update={"data": {**fields, "tool_results": results}})


def _waits_for(task: Task | None, results: Collection[str]) -> bool:
    """Return whether a task waits for these results. A task that waits for input also accepts a message without results."""
    return task is not None and task.status.state.interrupted and _open_calls(task).issuperset(results)


def _open_calls(task: Task | None) -> set[str]:
    if task is None or task.status.message is None or not task.status.state.interrupted:
        return set()
    return {call.id for call in to_common_message(task.status.message).tool_calls}


def _call_ids(stored: Iterable[Message]) -> frozenset[str]:
    calls = (call for message in stored for call in to_common_message(message).tool_calls)
    return frozenset(call.id for call in calls)


def _status_texts(
    tasks: Iterable[Task], stored: Sequence[Message], *, with_requests: bool = True
) -> dict[str, str]:
    """Return the status texts that a client received, by the id of the stored message that precedes them."""
    texts: dict[str, str] = {}
    positions = {message.message_id: at for at, message in enumerate(stored)}
    for task in tasks:
        at: int | None = None
        # Clients receive the message of a failure as an error, not as text.
        latest = task.status.message if task.status.state not in _FAILURES else None
        for message in (*task.history, *filter(None, [latest])):
            if message.role is Role.USER:
                at = positions.get(message.message_id)
                continue
            visible = message if with_requests else without_requests(message)
            text = markdown_of(to_common_message(visible).content)
            if not text or at is None:
                continue
            # The text follows the agent's messages that respond to the caller's message.
            while at + 1 < len(stored) and not is_callers(stored[at + 1]):
                at += 1
            texts[stored[at].message_id] = texts.get(stored[at].message_id, "") + text
    return texts
