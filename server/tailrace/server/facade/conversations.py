"""Which task and which conversation of the store a request goes on with.

A client of OpenAI sends the whole conversation with every request, and mostly no name for it; A2A's clients send what is
new, and name the context. So what the client tells is compared with what is stored: where it is the same, only what is new
is sent. Nothing else is remembered here.
"""

from collections.abc import AsyncIterator, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast
from uuid import uuid4

from tailrace.server.facade.asked import Asked
from tailrace.server.facade.comparison import calls_run_here, is_same_conversation, without_calls
from tailrace.server.facade.errors import OpenAIError
from tailrace.server.facade.markdown import markdown_of
from tailrace.server.operations import Caller, Operations
from tailrace.streaming.a2a.dialect import Operation
from tailrace.streaming.a2a.errors import TaskNotFoundError
from tailrace.streaming.a2a.models import Message, Part, Role, Task
from tailrace.streaming.a2a.requests import GetTaskRequest, ListTasksRequest, ListTasksResponse
from tailrace.streaming.conversation import is_callers, to_a2a_message, to_common_message
from tailrace.streaming.lifecycle import TaskState

MAX_MESSAGES = 10_000
"""Messages of a stored conversation that are compared at most."""

MAX_BRANCHES = 20
"""Contexts of one key that are looked through, each of them the conversation in another form."""

_UNNAMED = "unknown"  # the tool of a result that does not name it, and whose call is not told

_PAGES = (20, 100, 100, 100)  # of tasks that wait, the newest first


@dataclass(frozen=True)
class Placed:
    """A message in its place.

    Attributes:
        message: What is sent.
        preceding: What was said before, where the conversation is a new one.
        call_ids: The ids of all calls that the conversation has.
    """

    message: Message
    preceding: tuple[Message, ...] = ()
    call_ids: frozenset[str] = frozenset()


class Conversations:
    """Finds the place of a request's message.

    Args:
        operations: What the store is asked through, as the caller.
    """

    def __init__(self, operations: Operations) -> None:
        self._operations = operations

    async def place(self, asked: Asked, caller: Caller, passed: Collection[str] = ()) -> Placed:
        """The message that a request amounts to, with its context and task.

        Args:
            asked: The request.
            caller: Who asks.
            passed: Tasks that waited for the message, and did not any more when it was sent.

        Raises:
            OpenAIError: It goes on after a response that the caller has none of.
            A2AError: As `Operations.answer`.
            StoreError: Nothing can be read at present.
        """
        if asked.previous:
            return await self._behind(asked, caller)
        if asked.continues:
            stored = await self._stored(asked.key, caller)
            task = await self._last_task(stored, caller)
            return self._going_on(asked, asked.key, stored, task)
        if asked.key:
            return await self._under_key(asked, caller)
        if asked.new.tool_results:
            found = await self._waiting_for(asked, caller, passed)
            if found is not None:
                return found
        return _begun(asked, "")

    async def still_waits(self, message: Message, caller: Caller) -> bool:
        """Whether a message's task waits for it: somebody else may have been quicker to answer."""
        task = await self._task(message.task_id, caller)
        return _waits_for(task, {result.id for result in to_common_message(message).tool_results})

    async def _under_key(self, asked: Asked, caller: Caller) -> Placed:
        """In the first of the key's contexts that holds what the request tells, or in a new one."""
        for context_id in branches_of(asked.key):
            stored = await self._stored(context_id, caller)
            if not stored:
                return _begun(asked, context_id)
            task = await self._last_task(stored, caller)
            if not await self._is_told(asked, stored, task, caller):
                continue
            placed = self._going_on(asked, context_id, stored, task)
            if placed.message.task_id or not asked.new.tool_results:
                return placed
        return _begun(asked, f"{asked.key}~{uuid4().hex}")

    async def _waiting_for(self, asked: Asked, caller: Caller, passed: Collection[str]) -> Placed | None:
        """Behind the task that waits for exactly these results, in the same conversation."""
        answered = {result.id for result in asked.new.tool_results}
        async for task in self._waiting(caller):
            if task.id in passed or _open_calls(task) != answered:
                continue
            stored = await self._stored(task.context_id, caller)
            if stored and stored[-1].task_id == task.id and await self._is_told(asked, stored, task, caller):
                return self._going_on(asked, task.context_id, stored, task)
        return None

    async def _waiting(self, caller: Caller) -> AsyncIterator[Task]:
        token = ""
        for size in _PAGES:
            wanted = ListTasksRequest(
                status=TaskState.INPUT_REQUIRED, page_size=size, page_token=token, history_length=0
            )
            page = cast(
                "ListTasksResponse", await self._operations.answer(Operation.LIST_TASKS, wanted, caller)
            )
            for task in page.tasks:
                yield task
            token = page.next_page_token
            if not token:
                return

    async def _behind(self, asked: Asked, caller: Caller) -> Placed:
        """Behind a response: in its conversation, or in a new one where that has gone on since."""
        task_id, turn = read_response_id(asked.previous)
        task = await self._task(task_id, caller) if task_id else None
        if task is None:
            raise _unknown_response(asked.previous)
        stored = await self._stored(task.context_id, caller)
        said = [at for at, message in enumerate(stored) if is_callers(message)]
        begins = [at for at in said if stored[at].task_id == task.id]
        if not 0 < turn <= len(begins):
            raise _unknown_response(asked.previous)
        end = next((at for at in said if at > begins[turn - 1]), len(stored))
        if end == len(stored):
            placed = self._going_on(asked, task.context_id, stored, task)
            if placed.message.task_id or not asked.new.tool_results:
                return placed
        before = tuple(
            message.model_copy(update={"message_id": str(uuid4()), "context_id": "", "task_id": ""})
            for message in stored[:end]
        )
        message = _message(asked, f"{task.context_id[:200]}~{uuid4().hex}")
        return Placed(message, before, _call_ids(stored))

    def _going_on(
        self, asked: Asked, context_id: str, stored: Sequence[Message], task: Task | None
    ) -> Placed:
        """In a context as it stands: with the task that waits for what is said now, or with a new one.

        Raises:
            OpenAIError: Nothing is said that is the caller's to say.
        """
        new = without_calls(asked.new, calls_run_here(stored))
        if asked.new.content and not new.content:
            raise OpenAIError(400, "there is nothing to answer: these calls were the agent's own")
        asked = replace(asked, new=new)
        waits = _waits_for(task, {result.id for result in asked.new.tool_results})
        message = _message(asked, context_id, task.id if task is not None and waits else "")
        return Placed(message, (), _call_ids(stored))

    async def _is_told(
        self, asked: Asked, stored: Sequence[Message], task: Task | None, caller: Caller
    ) -> bool:
        """Whether the request tells what is stored; what agents said with a status is looked up where it counts."""
        tasks = [task] if task is not None else []
        if is_same_conversation(asked.earlier, stored, _words(tasks, stored)):
            return True
        others = {message.task_id for message in stored} - {"", *(task.id for task in tasks)}
        for other in list(others)[:MAX_BRANCHES]:
            found = await self._task(other, caller)
            tasks += [found] if found is not None else []
        return bool(others) and is_same_conversation(asked.earlier, stored, _words(tasks, stored))

    async def _stored(self, context_id: str, caller: Caller) -> list[Message]:
        return await self._operations.conversation(context_id, caller, MAX_MESSAGES)

    async def _last_task(self, stored: Sequence[Message], caller: Caller) -> Task | None:
        return await self._task(stored[-1].task_id, caller) if stored and stored[-1].task_id else None

    async def _task(self, task_id: str, caller: Caller) -> Task | None:
        try:
            task = await self._operations.answer(Operation.GET_TASK, GetTaskRequest(id=task_id), caller)
        except TaskNotFoundError:
            return None
        return cast("Task", task)


def branches_of(key: str) -> Iterator[str]:
    """The contexts of a key, in the order in which they are made."""
    yield key
    for number in range(2, MAX_BRANCHES + 1):
        yield f"{key}~{number}"


def response_id(task_id: str, turn: int) -> str:
    """The id of a response, which names its task and which of the task's turns it is."""
    return f"resp_{task_id}_{turn}"


def read_response_id(given: str) -> tuple[str, int]:
    """The task and the turn that a response's id names; an empty task where it is none of ours."""
    task_id, _, turn = given.removeprefix("resp_").rpartition("_")
    if not given.startswith("resp_") or not (turn.isascii() and turn.isdigit() and len(turn) < 10):
        return "", 0
    return task_id, int(turn)


def _unknown_response(given: str) -> OpenAIError:
    return OpenAIError(
        400,
        f"Previous response with id '{given}' not found.",
        param="previous_response_id",
        code="previous_response_not_found",
    )


def _begun(asked: Asked, context_id: str) -> Placed:
    """In a conversation that is new here, though something may have been said before."""
    before = tuple(to_a2a_message(message, message_id=str(uuid4())) for message in asked.earlier)
    return Placed(_message(asked, context_id), before, asked.call_ids)


def _message(asked: Asked, context_id: str, task_id: str = "") -> Message:
    message = to_a2a_message(asked.new, message_id=str(uuid4()), context_id=context_id, task_id=task_id)
    return message.model_copy(update={"parts": tuple(map(_without_unknown_names, message.parts))})


def _without_unknown_names(part: Part) -> Part:
    """A part whose results leave out the name of a tool that the request does not tell: it is that of the call."""
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
    """Whether a task waits for what is said now, which are results of these calls, or none."""
    return task is not None and task.status.state.interrupted and _open_calls(task).issuperset(results)


def _open_calls(task: Task | None) -> set[str]:
    """The ids of the calls that a task waits for."""
    if task is None or task.status.message is None or not task.status.state.interrupted:
        return set()
    return {call.id for call in to_common_message(task.status.message).tool_calls}


def _call_ids(stored: Iterable[Message]) -> frozenset[str]:
    calls = (call for message in stored for call in to_common_message(message).tool_calls)
    return frozenset(call.id for call in calls)


def _words(tasks: Iterable[Task], stored: Sequence[Message]) -> dict[str, str]:
    """What agents said with a status that a client was shown, by the id of the stored message that it stands behind."""
    words: dict[str, str] = {}
    positions = {message.message_id: at for at, message in enumerate(stored)}
    for task in tasks:
        said = [*task.history, *([task.status.message] if task.status.message is not None else [])]
        behind = ""
        for message in said:
            if message.role is Role.USER:
                behind = message.message_id
                continue
            text = markdown_of(to_common_message(message).content)
            at = positions.get(behind)
            if not text or at is None:
                continue
            # Behind the answer to what the caller said then, where there is one.
            while at + 1 < len(stored) and not is_callers(stored[at + 1]):
                at += 1
            words[stored[at].message_id] = words.get(stored[at].message_id, "") + text
    return words
