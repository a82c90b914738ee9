"""What is said in a task: what a caller may say, and what a handler has said without saying so."""

from collections.abc import Container, Iterable, Mapping, Sequence
from hashlib import sha256
from typing import Any, cast
from uuid import uuid4

from tailrace.streaming.a2a.errors import InvalidParamsError
from tailrace.streaming.a2a.models import Artifact, Message, Part, Role
from tailrace.streaming.a2a.requests import SendMessageRequest
from tailrace.streaming.conversation import is_callers, results_message, to_common_message
from tailrace.streaming.extension import (
    EXTENSION_URI,
    extension_facts,
    with_extension_facts,
    without_extension_facts,
)
from tailrace.streaming.output import OutputReader
from tailrace.streaming.request_facts import RequestFacts, read_request_facts
from tailrace.streaming.task import TaskRecord
from tailrace.wrappers import ContentPartToolCall, History
from tailrace.wrappers import Message as CommonMessage
from tailrace.wrappers import Role as SpeakerRole
from tailrace.wrappers.tool_ids import unanswered_calls

MAX_CONTEXT_ID_LENGTH = 256
"""Characters of a context id that a caller makes; every event of its tasks repeats it."""


def check_message(message: Message) -> None:
    """Refuse now what could not be handed to a model later, and would spoil its conversation for good.

    Raises:
        InvalidParamsError: The message is no message of a user, or holds tool calls or results of a wrong form.
    """
    if message.role is not Role.USER:
        raise InvalidParamsError(
            "message.role must be ROLE_USER: the agent's messages are the agent's to make"
        )
    if len(message.context_id) > MAX_CONTEXT_ID_LENGTH:
        raise InvalidParamsError(f"message.contextId is longer than {MAX_CONTEXT_ID_LENGTH} characters")
    try:
        common = to_common_message(message)
    except ValueError as error:
        raise InvalidParamsError(f"message: {error}") from None
    if common.tool_calls:
        raise InvalidParamsError("message: tool_calls are the agent's; a user answers with tool_results")


def check_request(request: SendMessageRequest) -> RequestFacts:
    """What a caller asks for beyond its message.

    Raises:
        InvalidParamsError: A fact is not what it has to be.
    """
    try:
        facts = read_request_facts(request.metadata)
        if facts.output is not None:
            OutputReader.of_format(facts.output)
    except ValueError as error:
        raise InvalidParamsError(f"metadata: {EXTENSION_URI}: {error}") from None
    return facts


def ends_in_round(last: Message) -> bool:
    """Whether the last message that was said in a turn is none that ends it."""
    return last.role is Role.USER or any(call.kind != "server" for call in to_common_message(last).tool_calls)


def rounds_behind(said: Sequence[Message]) -> int:
    """How many answers stand behind the caller's last message."""
    begun = next((at for at in reversed(range(len(said))) if is_callers(said[at])), -1)
    return sum(message.role is Role.AGENT for message in said[begun + 1 :])


def with_tools_named(
    message: Message, record: TaskRecord | None, preceding: Sequence[Message] = ()
) -> Message:
    """The message of a caller with the name of its tool in every result, which may leave it out.

    Args:
        message: May hold results.
        record: The task that it goes on with; None where it begins one.
        preceding: What was said before it, where it begins a task in a conversation that the caller tells.

    Raises:
        InvalidParamsError: A result is for no call that the task waits for, or for one that another answers too.
    """
    answered = [result.id for result in to_common_message(message).tool_results]
    if not answered:
        return message
    calls = (
        unanswered_calls(History(conversation=tuple(map(to_common_message, preceding))))
        if record is None
        else _calls_that_wait(record)
    )
    open_ids = [call.id for call in calls]
    for call_id in answered:
        if call_id in open_ids:
            open_ids.remove(call_id)
        elif call_id in {call.id for call in calls}:
            raise InvalidParamsError(f"message: two tool_results have the call_id {call_id!r}")
        else:
            waited = ", ".join(repr(call.id) for call in calls) or "none"
            raise InvalidParamsError(
                f"message: no call {call_id!r} waits for a result (taskId names the task that asked for it); "
                f"calls that wait here: {waited}"
            )
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


def _calls_that_wait(record: TaskRecord) -> Sequence[ContentPartToolCall]:
    """The calls that a task has asked its caller to run, and that no message of it has answered, begun with or not."""
    if record.state.interrupted:
        asked = record.status.message
        return to_common_message(asked).tool_calls if asked is not None else ()
    answered: set[str] = set()
    for said in reversed(record.history):
        common = to_common_message(said)
        if said.role is Role.AGENT and common.tool_calls:
            return [call for call in common.tool_calls if call.id not in answered]
        answered.update(result.id for result in common.tool_results)
    return ()


def results_in_artifacts(artifacts: Iterable[Artifact], call_ids: Container[str]) -> Message | None:
    """What tools at the agent have answered in a round that did not come to its end: it was shown, so it was said.

    Args:
        artifacts: Of the task.
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


def open_call_ids(said: Sequence[Message]) -> frozenset[str]:
    """The calls of the last message of a turn that ends in a round: nobody has said what came of them."""
    if not said or said[-1].role is not Role.AGENT:
        return frozenset()
    return frozenset(call.id for call in to_common_message(said[-1]).tool_calls)


def said_in_artifacts(
    artifacts: Sequence[Artifact], record: TaskRecord, after_round: int = 0
) -> Message | None:
    """What was said without saying so: the parts of the artifacts that a turn made.

    Args:
        artifacts: Made or changed since something was said last.
        record: Their task.
        after_round: The rounds of the turn up to this one were said.
    """
    parts: list[Part] = []
    for artifact in artifacts:
        facts = extension_facts(artifact.metadata)
        if facts.get("choice"):
            continue  # of several choices, the conversation goes on from the first
        if facts.get("channel") == "output":
            continue  # what the text says already, as data
        if facts.get("channel") in ("tool_call", "tool_result"):
            continue  # of a round that did not come to its end; nobody will go on with it
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


def whole_rounds(conversation: Iterable[CommonMessage]) -> tuple[CommonMessage, ...]:
    """A conversation that may have been cut at its beginning, from the first message that can begin one.

    What a model said, or what tools answered, without the message before it is refused by providers: a result must
    follow its call. The newest message is always kept.
    """
    messages = tuple(conversation)
    begins = (at for at, message in enumerate(messages) if message.role is SpeakerRole.USER)
    return messages[next(begins, len(messages) - 1) :]


def fingerprint_of(request: SendMessageRequest) -> str:
    """What tells a request from others: the same for one that is sent again."""
    # The id of a message is made anew by who sends it again, or by the reader of a protocol that has none.
    message = request.message.model_copy(update={"message_id": ""})
    # However the key was given, the request is the same.
    metadata = without_extension_facts(request.metadata, "idempotencyKey")
    same = request.model_copy(update={"message": message, "metadata": metadata})
    return sha256(same.to_json()).hexdigest()
