"""Validates callers' messages, and selects and orders the messages of a conversation for a turn, without IO."""

from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from hashlib import sha256
from typing import Any, cast
from uuid import uuid4

from tailrace.server.runtime.approvals import decided_ids
from tailrace.server.runtime.identifier_bounds import check_id
from tailrace.streaming.a2a.errors import InvalidParamsError
from tailrace.streaming.a2a.models import Artifact, Message, Part, Role, Task
from tailrace.streaming.a2a.requests import SendMessageRequest
from tailrace.streaming.a2a.stream_extension import (
    EXTENSION_URI,
    extension_metadata,
    with_extension_metadata,
    without_extension_metadata,
)
from tailrace.streaming.agent.caller_options import CallerOptions, read_caller_options
from tailrace.streaming.conversion.message_conversion import is_callers, results_message, to_common_message
from tailrace.streaming.schemas.structured_output import OutputReader
from tailrace.streaming.task.task_record import TaskRecord
from tailrace.streaming.task.updates import ArtifactUpdate
from tailrace.wrappers import ContentPartToolCall, History
from tailrace.wrappers import Message as CommonMessage
from tailrace.wrappers import Role as SpeakerRole
from tailrace.wrappers.concurrency.worker_thread import MAX_INLINE_COST
from tailrace.wrappers.conversion.tool_matching import calls_without_result
from tailrace.wrappers.messages import shortened

MAX_PARTS = 2_000
"""Maximum number of parts of a caller's message."""

_MAX_NAMED = 20  # maximum number of call ids in an error message


def check_message(message: Message) -> Sequence[str]:
    """Validate a caller's message. An invalid message would make its conversation unusable for models.

    Returns:
        The call ids of the tool results in the message.

    Raises:
        InvalidParamsError: The role is not ROLE_USER, an id is too long, the message has too many parts, the message has tool
            calls, or a part is invalid.
    """
    if message.role is not Role.USER:
        raise InvalidParamsError(
            "message.role must be ROLE_USER; only the agent can send messages of the agent"
        )
    if len(message.parts) > MAX_PARTS:
        raise InvalidParamsError(f"message.parts has {len(message.parts)} parts; the maximum is {MAX_PARTS}")
    check_id("message.messageId", message.message_id)
    check_id("message.contextId", message.context_id)
    check_id("message.taskId", message.task_id)
    if not message.metadata and all(part.text is not None and not part.metadata for part in message.parts):
        return ()  # texts without metadata are always valid
    try:
        common = to_common_message(message)
    except ValueError as error:
        raise InvalidParamsError(f"message: {error}") from None
    if common.tool_calls:
        raise InvalidParamsError("message: only the agent can send tool_calls; send tool_results")
    return [result.id for result in common.tool_results]


def copied_message(message: Message, context_id: str) -> Message:
    """Copy a message to another conversation, without the reference to a conversation of a remote agent.

    With this reference, the new conversation would continue the remote conversation, and could disclose its messages.
    """
    metadata = without_extension_metadata(message.metadata, "remote")
    return message.model_copy(update={"context_id": context_id, "metadata": metadata})


def cost_of_checks(request: SendMessageRequest, cost: int) -> int:
    """Return the cost of `check_request`, for `run_bounded`.

    A schema for the output has a high cost: each reference to a part of the schema repeats the check of this part.

    Args:
        request: The request.
        cost: The cost of processing the request.
    """
    return MAX_INLINE_COST + 1 if "output" in extension_metadata(request.metadata) else cost


def check_request(request: SendMessageRequest) -> CallerOptions:
    """Validate and return the options of a request.

    Raises:
        InvalidParamsError: An option is not valid.
    """
    try:
        options = read_caller_options(request.metadata)
        if options.output is not None:
            OutputReader.of_format(options.output)
    except ValueError as error:
        raise InvalidParamsError(f"metadata: {EXTENSION_URI}: {error}") from None
    return options


def is_incomplete_turn(last: Message) -> bool:
    """Return whether the last message of a turn is from the caller, has tool results, or calls a client tool."""
    return last.role is Role.USER or any(call.kind != "server" for call in to_common_message(last).tool_calls)


def rounds_since_caller(messages: Sequence[Message]) -> int:
    """Return the number of model responses after the caller's last message."""
    start = next((at for at in reversed(range(len(messages))) if is_callers(messages[at])), -1)
    return sum(message.role is Role.AGENT for message in messages[start + 1 :])


def with_tools_named_in(message: Message, answered: Sequence[str], preceding: Sequence[Message]) -> Message:
    """Call `with_tools_named` for the first message of a task, with the tool calls of the preceding messages."""
    if not answered:
        return message
    calls = calls_without_result(History(conversation=tuple(map(to_common_message, preceding))))
    return with_tools_named(message, answered, calls)


def with_tools_named(
    message: Message, answered: Sequence[str], calls: Sequence[ContentPartToolCall]
) -> Message:
    """Add the missing names of tools to the tool results in a caller's message.

    Args:
        message: A message that may have tool results.
        answered: The call ids of these results (see `check_message`).
        calls: The tool calls that wait for a result.

    Raises:
        InvalidParamsError: A result belongs to no waiting call, or two results belong to the same call.
    """
    if not answered:
        return message
    waiting = Counter(call.id for call in calls)
    for call_id in answered:
        if call_id not in waiting:
            listed = [repr(call.id) for call in calls[:_MAX_NAMED]] + ["…"] * (len(calls) > _MAX_NAMED)
            raise InvalidParamsError(
                f"message: no call {shortened(call_id)} waits for a result (taskId must name the task of the call); "
                f"waiting calls: {', '.join(listed) or 'none'}"
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
    """Return the tool calls that wait for results from the caller."""
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
    """Return a message with the tool results that artifacts contain for these calls; None if there are none."""
    results = [
        result
        for artifact in artifacts
        if _has_results(artifact)
        for result in to_common_message({"role": "agent", "parts": artifact.parts}).tool_results
        if result.id in call_ids
    ]
    return results_message(CommonMessage(role=SpeakerRole.TOOL, content=tuple(results))) if results else None


def tool_results(items: Iterable[object]) -> list[ArtifactUpdate]:
    """Return the updates of a handler with results of the agent's tools."""
    return [item for item in items if isinstance(item, ArtifactUpdate) and _has_results(item.artifact)]


def _has_results(artifact: Artifact) -> bool:
    return extension_metadata(artifact.metadata).get("channel") == "tool_result"


def open_call_ids(messages: Sequence[Message]) -> frozenset[str]:
    """Return the ids of the calls in the last message: the calls of the agent, or the calls that the caller decides."""
    if not messages or messages[-1].role is not Role.AGENT:
        return decided_ids(messages[-1]) if messages else frozenset()
    return frozenset(call.id for call in to_common_message(messages[-1]).tool_calls)


def messages_from_artifacts(
    artifacts: Sequence[Artifact], record: TaskRecord, after_round: int = 0
) -> Message | None:
    """Create a message of the agent from artifacts for which the handler yielded no message.

    Return None if the message would have no parts.

    Args:
        artifacts: The artifacts that were created or changed since the last message.
        record: The task.
        after_round: The number of rounds of this turn that are already in the history.
    """
    parts: list[Part] = []
    for artifact in artifacts:
        fields = extension_metadata(artifact.metadata)
        if fields.get("choice"):
            continue  # only the first choice belongs to the conversation
        if fields.get("channel") == "output":
            continue  # this artifact repeats the text
        if fields.get("channel") in ("tool_call", "tool_result"):
            continue  # belongs to an interrupted round, which is not resumed
        if after_round and fields.get("round", 1) <= after_round:
            continue
        for part in artifact.parts:
            if fields.get("channel") == "reasoning":
                part = part.model_copy(
                    update={"metadata": with_extension_metadata(part.metadata, channel="reasoning")}
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
    """Return the messages of a conversation for a turn.

    In the store, the messages of parallel turns are interleaved. This function returns them turn by turn, and omits unfinished
    turns of other tasks.

    Args:
        messages: The messages in the order in which they were stored.
        running: The ids of the tasks with a running turn.
        task_id: The id of the task of the turn.
        is_resumed: True if ``messages`` already contains messages of this turn. These are returned last.
    """
    turns = _turns_of(messages)
    newest = {turn[0].task_id: at for at, turn in enumerate(turns)}
    last = newest.pop(task_id, None) if is_resumed else None
    newest.pop(task_id, None)
    left_out = {at for name, at in newest.items() if name in running and is_incomplete_turn(turns[at][-1])}
    order = [at for at in range(len(turns)) if at not in left_out and at != last]
    if last is not None:
        order.append(last)
    return [message for at in order for message in turns[at]]


def continues_turn(message: Message) -> bool:
    """Return whether a caller's message has tool results or decisions. Such a message belongs to the preceding turn."""
    return bool(to_common_message(message).tool_results or decided_ids(message))


def in_turns(messages: Sequence[Message]) -> list[Message]:
    """Return the messages of a conversation turn by turn, in the order in which the turns began."""
    return [message for turn in _turns_of(messages) for message in turn]


def _turns_of(messages: Sequence[Message]) -> list[list[Message]]:
    """Split a conversation into turns (see `continues_turn`)."""
    turns: list[list[Message]] = []
    newest: dict[str, list[Message]] = {}
    for message in messages:
        turn = newest.get(message.task_id)
        if turn is None or (is_callers(message) and not continues_turn(message)):
            turn = newest[message.task_id] = []
            turns.append(turn)
        turn.append(message)
    return turns


def complete_rounds(conversation: Iterable[CommonMessage]) -> tuple[CommonMessage, ...]:
    """Shorten a conversation so that it begins with a message of the user.

    Providers reject a conversation that begins with a message of the model, or with tool results without their calls. The newest
    message always remains.
    """
    messages = tuple(conversation)
    begins = (at for at, message in enumerate(messages) if message.role is SpeakerRole.USER)
    return messages[next(begins, len(messages) - 1) :]


def fingerprint_of(request: SendMessageRequest) -> str:
    """Return a hash of a request that is the same for a repeated request."""
    # Clients may create a new message id for a repeated message, and some protocols have no ids.
    message = request.message.model_copy(update={"message_id": ""})
    # Clients may send the idempotency key in a header or in the metadata.
    metadata = without_extension_metadata(request.metadata, "idempotencyKey")
    same = request.model_copy(update={"message": message, "metadata": metadata})
    return sha256(same.to_json()).hexdigest()
