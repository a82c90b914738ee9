"""What is said in a task: what a caller may say, and what a handler has said without saying so."""

from collections.abc import Iterable, Sequence
from uuid import uuid4

from tailrace.streaming.a2a.errors import InvalidParamsError
from tailrace.streaming.a2a.models import Artifact, Message, Part, Role
from tailrace.streaming.conversation import to_common_message
from tailrace.streaming.extension import extension_facts, with_extension_facts
from tailrace.streaming.task import TaskRecord
from tailrace.wrappers import Message as CommonMessage
from tailrace.wrappers import Role as SpeakerRole

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


def said_in_artifacts(artifacts: Sequence[Artifact], record: TaskRecord) -> Message | None:
    """What a handler that does not say it itself has said: the parts of the artifacts that its turn made."""
    parts: list[Part] = []
    for artifact in artifacts:
        facts = extension_facts(artifact.metadata)
        if facts.get("choice"):
            continue  # of several choices, the conversation goes on from the first
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
