"""Handler that forwards turns to a remote A2A agent.

The metadata ``remote`` of the agent's messages relates local and remote tasks::

    {"agent": "https://agent.example", "contextId": "…", "taskId": "…", "task": "…", "begun": 1}

``contextId`` is the conversation at the remote agent. The other members are present while a remote task waits for input:
``taskId`` is its id, ``task`` is the id of the local task, and ``begun`` is the number of the turn that created the remote task.

While a turn runs, the id of the remote task is in the metadata ``remoteTask`` of the local task. After a crash of this server,
the turn subscribes to that remote task. If no id was recorded, the message is sent again if the agent recognizes repeated
messages, or if ``resend`` is True. Otherwise, the turn fails.

The remote agent cannot distinguish between callers. Ids that callers choose are therefore replaced with
`Turn.external_context_id` and `Turn.external_message_id`, which are unique among all callers.
"""

import json
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import Any, cast
from uuid import NAMESPACE_URL, uuid4, uuid5

import anyio
import anyio.lowlevel
import msgspec

from tailrace.server.remote.event_converter import EventConverter
from tailrace.server.remote.remote_agent import CANCEL_TIMEOUT, RemoteAgent
from tailrace.server.remote.response_validation import RemoteEvent
from tailrace.server.runtime.handlers import Handler, Item, Turn
from tailrace.server.runtime.upstream_gate import OWNER, UpstreamGate
from tailrace.streaming.a2a.lifecycle import TaskState
from tailrace.streaming.a2a.models import Artifact, Message, Part
from tailrace.streaming.a2a.stream_extension import (
    EXTENSION_URI,
    extension_metadata,
    with_extension_metadata,
    without_extension_metadata,
)
from tailrace.streaming.agent.caller_options import REQUEST_METADATA_KEYS
from tailrace.streaming.agent.continuation import InterruptedResponse
from tailrace.streaming.task.task_record import agent_message
from tailrace.streaming.task.updates import MessageAdded, StatusUpdate
from tailrace.wrappers import (
    ContentPart,
    ContentPartData,
    ContentPartFile,
    ContentPartText,
    ContentPartToolCall,
    ContentPartToolResult,
    Role,
    UpstreamError,
    UpstreamFault,
)
from tailrace.wrappers import Message as CommonMessage
from tailrace.wrappers.concurrency.worker_thread import run_bounded


class RemoteAgentHandler(Handler):
    """Forwards the message of each turn to a remote agent, and returns the agent's response.

    If the remote agent does not have the conversation, a transcript of the earlier messages precedes the parts. If the turn is
    cancelled, the remote task is cancelled too. The local task ends in the same state and with the same error message as the
    remote task.

    Args:
        agent: The remote agent. Its connections are closed when `running` ends.
        gate: Limits the number of concurrent calls; None for no limit.
        resend: True to send a message again after a crash.
    """

    continues_after_crash = True

    def __init__(self, agent: RemoteAgent, *, gate: UpstreamGate | None = None, resend: bool = False) -> None:
        self._agent = agent
        self._gate = gate or UpstreamGate(0, 0)
        self._resend = resend

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """Close the connections to the agent when the block ends."""
        async with self._agent:
            yield

    async def run(self, turn: Turn) -> AsyncIterator[Item]:
        """Forward the message, and yield the response.

        If a lost connection cannot be resumed, the task fails and keeps the text that arrived.
        """
        yield StatusUpdate(TaskState.WORKING)
        before = _messages_before(turn)
        state = _find_state(before, self._agent.url, turn.context_id)
        followed = turn.interrupted.stored_id if turn.interrupted is not None else ""
        converter, first_turn, failure = EventConverter(), turn.number, None
        try:
            artifacts: tuple[Artifact, ...] = ()
            if state is not None and state.task_id and not followed:
                state, artifacts = await self._waiting_task(state, turn)
            if state is not None and state.task_id and followed in ("", state.task_id):
                first_turn = state.begun
            suffix = f"-turn-{first_turn}" if first_turn > 1 else ""
            converter = EventConverter(
                artifacts,
                published=turn.published,
                suffix=suffix,
                turn=turn.number - first_turn + 1,
                interrupted=turn.interrupted if followed else None,
            )
            response = (
                self._agent.follow_or_cancel(followed) if followed else await self._send(turn, state, before)
            )
            async with self._gate.call(OWNER.get()), response as events:
                async for event in events:
                    updates = converter.feed(event)
                    has_ended = converter.ending is not None and converter.ending.state.terminal
                    if converter.task_id != followed and not has_ended:
                        followed = converter.task_id
                        yield _follows(followed, turn)
                    for at, update in enumerate(updates):
                        if at:  # other tasks run between the artifacts of a large task object
                            await anyio.lowlevel.checkpoint()
                        yield update
        except UpstreamError as error:
            failure = _failure_status(error)
        *updates, ending = converter.close(failure)
        for update in updates:
            yield update
        known = _RemoteState(
            agent=self._agent.url,
            context_id=converter.context_id or (state.context_id if state is not None else ""),
        )
        if isinstance(ending, StatusUpdate) and ending.state.interrupted:
            known = msgspec.structs.replace(
                known, task_id=converter.task_id, task=turn.task_id, begun=first_turn
            )
        # Without an event, the agent may not have the conversation.
        metadata = {EXTENSION_URI: {"remote": msgspec.to_builtins(known)}} if known.context_id else {}
        if metadata or converter.artifacts:
            for message in converter.messages(metadata):
                yield MessageAdded(message)
        yield ending

    async def cancel_interrupted(self, interrupted: InterruptedResponse) -> None:
        """Cancel the remote task."""
        with anyio.move_on_after(CANCEL_TIMEOUT), suppress(UpstreamError):
            await self._agent.cancel_task(interrupted.stored_id)

    async def _send(
        self, turn: Turn, state: "_RemoteState | None", before: Iterable[CommonMessage]
    ) -> AbstractAsyncContextManager[AsyncGenerator[RemoteEvent]]:
        """Send the message of a turn, and return a context manager with the events of the response.

        Raises:
            UpstreamError: A crash interrupted the turn, and the agent may have received the message.
        """
        if turn.interrupted is None:
            await turn.wait_until_persisted()  # before the message is sent
        elif not (self._resend or (await self._agent.card()).numbered):
            raise UpstreamError(
                "the server stopped before the agent confirmed the message, which is not sent again: the agent may have "
                "received it",
                fault=UpstreamFault.CONNECTION,
            )
        message = await run_bounded(turn.cost, _message_for, turn, state, () if state is not None else before)
        metadata = _request_metadata(turn)
        return self._agent.stream_or_cancel(
            message,
            metadata=metadata,
            accepted_output_modes=turn.accepted_output_modes,
            extensions=turn.extensions,
            # The key is the same after a restart, so that the agent continues the existing task.
            key=await run_bounded(turn.cost, _idempotency_key, turn, message, metadata),
        )

    async def _waiting_task(
        self, state: "_RemoteState", turn: Turn
    ) -> tuple["_RemoteState", tuple[Artifact, ...]]:
        """Return the state and the artifacts of the remote task that the message continues.

        If the remote task has ended, the returned state has no task, and there are no artifacts.
        """
        ended = msgspec.structs.replace(state, task_id="")
        if state.task != turn.task_id:
            return ended, ()
        try:
            task = await self._agent.get_task(state.task_id)
        except UpstreamError as error:
            if error.code == "TASK_NOT_FOUND":
                return ended, ()
            raise
        return (ended, ()) if task.status.state.terminal else (state, task.artifacts)


def _follows(task_id: str, turn: Turn) -> StatusUpdate:
    """Return the status update that records the id of the remote task of a turn."""
    return StatusUpdate(
        TaskState.WORKING, metadata={EXTENSION_URI: {"remoteTask": {"id": task_id, "turn": turn.number}}}
    )


class _RemoteState(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """The metadata ``remote`` (see the module's docstring)."""

    agent: str
    context_id: str
    task_id: str = ""
    task: str = ""
    begun: int = 1


def _messages_before(turn: Turn) -> tuple[CommonMessage, ...]:
    messages = turn.history.conversation
    return messages[: len(messages) - 1 - turn.resumed_message_count]


def _find_state(messages: Iterable[CommonMessage], agent: str, context_id: str) -> _RemoteState | None:
    """Return the newest metadata ``remote`` for an agent; None if no message has such metadata."""
    for message in reversed(tuple(messages)):
        if message.role is not Role.MODEL:
            continue
        fact = extension_metadata(message.metadata).get("remote")
        if isinstance(fact, dict) and cast("dict[str, Any]", fact).get("agent") == agent:
            try:
                state = msgspec.convert(fact, _RemoteState)
            except msgspec.ValidationError:
                continue
            if not _is_callers_id(state.context_id, context_id):
                return state
    return None


def _is_callers_id(remote_id: str, context_id: str) -> bool:
    """Return True if the caller chose the id of a remote conversation. Versions before 0.1 sent such ids.

    Other callers may have used the same id. A branch has the id of the original conversation, cut to 200 characters, and a
    suffix.
    """
    return context_id == remote_id or context_id.startswith(f"{remote_id[:200]}~")


# Metadata of a message that concerns only this server. The remote agent does not know the conversation of a branch.
_LOCAL_KEYS = (*REQUEST_METADATA_KEYS, "branch")


def _message_for(turn: Turn, state: _RemoteState | None, unsent: Iterable[CommonMessage]) -> Message:
    """Return the message for the remote agent, with a transcript of the earlier messages that it did not receive.

    The id of the message is replaced, because an agent may treat messages with the same id as one message.
    """
    transcript = _transcript(unsent)
    return turn.message.model_copy(
        update={
            "message_id": turn.external_message_id or str(uuid4()),
            "context_id": state.context_id if state is not None else turn.external_context_id,
            "task_id": state.task_id if state is not None else "",
            "reference_task_ids": (),  # the ids of local tasks are unknown to the remote agent
            "metadata": without_extension_metadata(turn.message.metadata, *_LOCAL_KEYS),
            "parts": (Part(text=transcript), *turn.message.parts) if transcript else turn.message.parts,
        }
    )


def _request_metadata(turn: Turn) -> Mapping[str, Any]:
    """Return the metadata of the request with the caller's options, and without the idempotency key."""
    fields = extension_metadata(turn.caller_options.to_metadata())
    metadata = without_extension_metadata(turn.metadata, "idempotencyKey")
    return with_extension_metadata(metadata, **fields) if fields else metadata


def _idempotency_key(turn: Turn, message: Message, metadata: Mapping[str, Any]) -> str:
    """Return the idempotency key of a request, derived from the whole request."""
    request = [message.to_dict(), metadata, turn.accepted_output_modes]
    return str(uuid5(NAMESPACE_URL, json.dumps(request, sort_keys=True)))


def _failure_status(error: UpstreamError) -> StatusUpdate:
    metadata = {
        "type": str(error.fault),
        "status": error.status,
        "code": error.code,
        "retryAfter": error.retry_after,
    }
    known = {name: fact for name, fact in metadata.items() if fact is not None}
    return StatusUpdate(TaskState.FAILED, agent_message(str(error)), {EXTENSION_URI: {"error": known}})


# --- earlier messages -------------------------------------------------------------------------------------------


def _transcript(messages: Iterable[CommonMessage]) -> str:
    """Return a conversation as one text, in which a role precedes each part; empty if there are no messages."""
    lines = [line for message in messages for part in message.content if (line := _line(message.role, part))]
    if not lines:
        return ""
    transcript = "\n\n".join(lines)
    return f"What was said before, in this conversation:\n\n{transcript}\n\nThe message itself:\n\n"


def _line(role: Role, part: ContentPart) -> str:
    name = "Agent" if role is Role.MODEL else "User"
    if isinstance(part, ContentPartText):
        return f"{name}: {part.text}" if part.text else ""
    if isinstance(part, ContentPartFile):
        return f"{name}: [file {part.filename or part.url or part.media_type}]"
    if isinstance(part, ContentPartData):
        return f"{name}: {_json(part.data)}"
    if isinstance(part, ContentPartToolCall):
        return f"{name} calls the tool {part.name}: {_json(part.arguments)}"
    if isinstance(part, ContentPartToolResult):
        return f"The tool {part.name} answers: {part.output if isinstance(part.output, str) else _json(part.output)}"
    return ""  # reasoning is not sent to the agent


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
