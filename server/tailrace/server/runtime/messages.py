"""Checks of callers' messages, and the messages of a turn."""

from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from hashlib import sha256
from typing import Any, cast
from uuid import uuid4

from tailrace.server.runtime.identifiers import check_id
from tailrace.streaming.a2a.errors import InvalidParamsError
from tailrace.streaming.a2a.extension import (
    EXTENSION_URI,
    extension_facts,
    with_extension_facts,
    without_extension_facts,
)
from tailrace.streaming.a2a.models import Artifact, Message, Part, Role, Task
from tailrace.streaming.a2a.requests import SendMessageRequest
from tailrace.streaming.agent.request_facts import RequestFacts, read_request_facts
from tailrace.streaming.conversion.conversation import is_callers, results_message, to_common_message
from tailrace.streaming.schemas.output import OutputReader
from tailrace.streaming.task.task import TaskRecord
from tailrace.wrappers import ContentPartToolCall, History
from tailrace.wrappers import Message as CommonMessage
from tailrace.wrappers import Role as SpeakerRole
from tailrace.wrappers.conversion.tool_ids import unanswered_calls
from tailrace.wrappers.messages import shortened

MAX_PARTS = 2_000
"""Maximum number of parts of a caller's message."""

_MAX_NAMED = 20  # calls in an error message


def check_message(message: Message) -> None:
    """Refuse a message that no model would accept later: it would make its conversation unusable.

    Raises:
        InvalidParamsError: The message is not a user's, has an id that is too long, or invalid tool calls or results.
    """
    if message.role is not Role.USER:
        raise InvalidParamsError(
            "message.role must be ROLE_USER: only the agent creates messages of the agent"
        )
    if len(message.parts) > MAX_PARTS:
        raise InvalidParamsError(
            f"message.parts: {len(message.parts)} parts; a message has {MAX_PARTS} at most"
        )
    check_id("message.messageId", message.message_id)
    check_id("message.contextId", message.context_id)
    check_id("message.taskId", message.task_id)
    try:
        common = to_common_message(message)
    except ValueError as error:
        raise InvalidParamsError(f"message: {error}") from None
    if common.tool_calls:
        raise InvalidParamsError("message: only the agent sends tool_calls; send tool_results")


def copied_message(message: Message, context_id: str) -> Message:
    """Return a message of one conversation for another, without its reference to a conversation of a remote agent.

    A remote conversation belongs to one of ours: in another one it would disclose the messages of the first.

    Args:
        message: A message from a caller, or from the stored conversation.
        context_id: The new conversation.
    """
    metadata = without_extension_facts(message.metadata, "remote")
    return message.model_copy(update={"context_id": context_id, "metadata": metadata})


def check_request(request: SendMessageRequest) -> RequestFacts:
    """Return the options of a request beside its message.

    Raises:
        InvalidParamsError: An option is not valid.
    """
    try:
        facts = read_request_facts(request.metadata)
        if facts.output is not None:
            OutputReader.of_format(facts.output)
    except ValueError as error:
        raise InvalidParamsError(f"metadata: {EXTENSION_URI}: {error}") from None
    return facts


def ends_in_round(last: Message) -> bool:
    """Return whether the last message of a turn leaves the turn open: calls, or results of calls."""
    return last.role is Role.USER or any(call.kind != "server" for call in to_common_message(last).tool_calls)


def rounds_since_caller(messages: Sequence[Message]) -> int:
    """Return the number of responses after the caller's last message."""
    start = next((at for at in reversed(range(len(messages))) if is_callers(messages[at])), -1)
    return sum(message.role is Role.AGENT for message in messages[start + 1 :])


def answered_ids(message: Message) -> Sequence[str]:
    """Return the ids of the calls whose results a message has, in order."""
    return [result.id for result in to_common_message(message).tool_results]


def with_tools_named_in(message: Message, preceding: Sequence[Message]) -> Message:
    """Return a message as `with_tools_named`, for a new task: the calls are in the messages before it."""
    answered = answered_ids(message)
    if not answered:
        return message
    calls = unanswered_calls(History(conversation=tuple(map(to_common_message, preceding))))
    return with_tools_named(message, answered, calls)


def with_tools_named(
    message: Message, answered: Sequence[str], calls: Sequence[ContentPartToolCall]
) -> Message:
    """Return a caller's message with the name of the tool in every result, where the caller left it out.

    Args:
        message: A message that may have results.
        answered: As `answered_ids`.
        calls: The calls that wait for a result.

    Raises:
        InvalidParamsError: A result belongs to no waiting call, or two results to the same call.
    """
    if not answered:
        return message
    waiting = Counter(call.id for call in calls)
    for call_id in answered:
        if call_id not in waiting:
            shown = [repr(call.id) for call in calls[:_MAX_NAMED]] + ["…"] * (len(calls) > _MAX_NAMED)
            raise InvalidParamsError(
                f"message: no call {shortened(call_id)} waits for a result (taskId names the task that asked for "
                f"it); calls that wait here: {', '.join(shown) or 'none'}"
            )
        waiting[call_id] -= 1
        if waiting[call_id] < 0:
            raise InvalidParamsError(f"message: two tool_results have the call_id {shortened(call_id)}")
    names = {call.id: call.name for call in calls}
    return message.model_copy(update={"parts": tuple(_with_names(part, names) for part in message.parts)})


def _with_names(part: Part, names: Mapping[str, str]) -> Part:
    value: object = part.data
    if not isinstance(value, dict):
        return part
    data = cast("dict[str, Any]", value)
    results = data.get("tool_results")
    if not isinstance(results, list):
        return part
    entries = cast("list[dict[str, Any]]", results)
    named = [{"name": names[entry["call_id"]], **entry} for entry in entries]
    return part.model_copy(update={"data": {**data, "tool_results": named}})


def pending_calls(task: Task) -> Sequence[ContentPartToolCall]:
    """Return the calls of a task that the caller runs, and that have no result yet."""
    if task.status.state.interrupted:
        question = task.status.message
        return to_common_message(question).tool_calls if question is not None else ()
    answered: set[str] = set()
    for past in reversed(task.history):
        common = to_common_message(past)
        if past.role is Role.AGENT and common.tool_calls:
            return [call for call in common.tool_calls if call.id not in answered]
        answered.update(result.id for result in common.tool_results)
    return ()


def results_in_artifacts(artifacts: Iterable[Artifact], call_ids: Container[str]) -> Message | None:
    """Return the results of the agent's tools in a round that was interrupted: they were published.

    Args:
        artifacts: The artifacts of the task.
        call_ids: The calls of that round.
    """
    results = [
        result
        for artifact in artifacts
        if extension_facts(artifact.metadata).get("channel") == "tool_result"
        for result in to_common_message({"role": "agent", "parts": artifact.parts}).tool_results
        if result.id in call_ids
    ]
    return results_message(CommonMessage(role=SpeakerRole.TOOL, content=tuple(results))) if results else None


def open_call_ids(messages: Sequence[Message]) -> frozenset[str]:
    """Return the calls of the last message of an interrupted turn: they have no results."""
    if not messages or messages[-1].role is not Role.AGENT:
        return frozenset()
    return frozenset(call.id for call in to_common_message(messages[-1]).tool_calls)


def messages_from_artifacts(
    artifacts: Sequence[Artifact], record: TaskRecord, after_round: int = 0
) -> Message | None:
    """Return the message that the artifacts of a turn amount to, if the handler yielded none.

    Args:
        artifacts: The artifacts that were created or changed since the last message.
        record: Their task.
        after_round: The rounds of the turn before them are in the history.
    """
    parts: list[Part] = []
    for artifact in artifacts:
        facts = extension_facts(artifact.metadata)
        if facts.get("choice"):
            continue  # of several choices, the conversation continues with the first
        if facts.get("channel") == "output":
            continue  # data that repeats the text
        if facts.get("channel") in ("tool_call", "tool_result"):
            continue  # of an interrupted round, which is not resumed
        if after_round and facts.get("round", 1) <= after_round:
            continue
        for part in artifact.parts:
            if facts.get("channel") == "reasoning":
                part = part.model_copy(
                    update={"metadata": with_extension_facts(part.metadata, channel="reasoning")}
                )
            if part.text != "":
                parts.append(part)
    if not parts:
        return None
    return Message(
        message_id=str(uuid4()),
        role=Role.AGENT,
        parts=tuple(parts),
        context_id=record.context_id,
        task_id=record.id,
    )


def history_of(
    messages: Sequence[Message], running: Container[str], task_id: str, *, is_resumed: bool = False
) -> list[Message]:
    """Return the messages of a conversation that a turn receives.

    Messages of turns that run in parallel are mixed. They are returned turn by turn, in the order in which the turns began;
    those of other tasks without a turn that has not ended.

    Args:
        messages: The messages of the conversation, in the order in which they were added.
        running: The tasks that run a turn.
        task_id: The task of the turn.
        is_resumed: The turn's own messages are among them, and are returned last.
    """
    turns = _turns_of(messages)
    newest = {turn[0].task_id: at for at, turn in enumerate(turns)}
    last = newest.pop(task_id, None) if is_resumed else None
    newest.pop(task_id, None)
    left_out = {at for name, at in newest.items() if name in running and ends_in_round(turns[at][-1])}
    order = [at for at in range(len(turns)) if at not in left_out and at != last]
    if last is not None:
        order.append(last)
    return [message for at in order for message in turns[at]]


def in_turns(messages: Sequence[Message]) -> list[Message]:
    """Return the messages of a conversation turn by turn, in the order in which the turns began."""
    return [message for turn in _turns_of(messages) for message in turn]


def _turns_of(messages: Sequence[Message]) -> list[list[Message]]:
    """Return the turns of a conversation. A message with results of the caller's tools belongs to the turn before it."""
    turns: list[list[Message]] = []
    newest: dict[str, list[Message]] = {}
    for message in messages:
        turn = newest.get(message.task_id)
        begins = is_callers(message) and not to_common_message(message).tool_results
        if turn is None or begins:
            turn = newest[message.task_id] = []
            turns.append(turn)
        turn.append(message)
    return turns


def whole_rounds(conversation: Iterable[CommonMessage]) -> tuple[CommonMessage, ...]:
    """Return a conversation that may be cut at its beginning, from the first message with which one can begin.

    Providers refuse a model's message or tool results without the message before them: a result must follow its call.
    The newest message is always kept.
    """
    messages = tuple(conversation)
    begins = (at for at, message in enumerate(messages) if message.role is SpeakerRole.USER)
    return messages[next(begins, len(messages) - 1) :]


def fingerprint_of(request: SendMessageRequest) -> str:
    """Return the fingerprint of a request: the same for one that is sent again."""
    # Clients that send a message again create a new id for it, as do protocols without message ids.
    message = request.message.model_copy(update={"message_id": ""})
    # The request is the same, however the key was given.
    metadata = without_extension_facts(request.metadata, "idempotencyKey")
    same = request.model_copy(update={"message": message, "metadata": metadata})
    return sha256(same.to_json()).hexdigest()
