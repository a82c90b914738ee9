"""A remote A2A agent as the handler of our server: its responses are persisted, numbered and published like all others.

The relation between our task and the remote's is stored in the conversation itself, as the metadata ``remote`` of the agent's
message::

    {"agent": "https://agent.example", "contextId": "…", "taskId": "…", "task": "…", "begun": 1}

``taskId`` is present while the remote's task is input-required, with our task (``task``) and the turn that created it
(``begun``). So a conversation continues after a restart, on any worker.

While a turn runs, our task has the id of the remote's task as metadata ``remoteTask``. After a crash of this server, the turn
subscribes to that task. A message whose task is unknown is not sent again, unless the agent recognizes the repetition.

The remote knows one caller: this server. Its conversation and messages therefore have the identifiers
`Turn.external_context_id` and `Turn.external_message_id`, unique among our callers, in place of the caller's own.
"""

import json
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, cast
from uuid import NAMESPACE_URL, uuid4, uuid5

import anyio.lowlevel
import msgspec

from tailrace.server.remote.event_converter import EventConverter
from tailrace.server.remote.response_validation import RemoteEvent
from tailrace.server.remote.upstream_client import RemoteAgent
from tailrace.server.runtime.handlers import Handler, Item, Turn
from tailrace.server.runtime.upstream_gate import OWNER, UpstreamGate
from tailrace.streaming.a2a.lifecycle import TaskState
from tailrace.streaming.a2a.models import Artifact, Message, Part
from tailrace.streaming.a2a.stream_extension import EXTENSION_URI, extension_metadata, with_extension_metadata
from tailrace.streaming.a2a.stream_extension import without_extension_metadata as without_facts
from tailrace.streaming.agent.caller_options import REQUEST_FACTS
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
from tailrace.wrappers.concurrency.worker_thread import history_cost, json_cost, run_bounded


class RemoteAgentHandler(Handler):
    """Forwards the message of each turn to a remote agent, and returns the agent's response.

    The parts and metadata of the message are forwarded unchanged, and its identifiers are replaced. If the remote returns
    another id of the conversation, later messages use that id. Cancelling the turn cancels the remote's task. Our task ends
    in the same state as the remote's, with the remote's error message.

    Args:
        agent: The remote agent; closed with the handler.
        gate: Bounds concurrent calls; None for no bound.
        resend: After a crash, send a message again whose task at the remote is unknown.
    """

    continues = True

    def __init__(self, agent: RemoteAgent, *, gate: UpstreamGate | None = None, resend: bool = False) -> None:
        self._agent = agent
        self._gate = gate or UpstreamGate(0, 0)
        self._resend = resend

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """Keep connections to the agent open during the block."""
        async with self._agent:
            yield

    async def run(self, turn: Turn) -> AsyncIterator[Item]:
        """Relay the remote's response; if the agent cannot be reached, the task fails with the text that arrived."""
        yield StatusUpdate(TaskState.WORKING)
        before = _messages_before(turn)
        state = _find_state(before, self._agent.url, turn.context_id)
        followed = turn.interrupted.stored_id if turn.interrupted is not None else ""
        relay, begun, failure = EventConverter(), turn.number, None
        try:
            artifacts: tuple[Artifact, ...] = ()
            if state is not None and state.task_id and not followed:
                state, artifacts = await self._waiting_task(state, turn)
            if state is not None and state.task_id and followed in ("", state.task_id):
                begun = state.begun
            suffix = f"-turn-{begun}" if begun > 1 else ""
            relay = EventConverter(
                artifacts, published=turn.published, suffix=suffix, turn=turn.number - begun + 1
            )
            response = (
                self._agent.follow_or_cancel(followed) if followed else await self._send(turn, state, before)
            )
            async with self._gate.call(OWNER.get()), response as events:
                async for event in events:
                    updates = relay.feed(event)
                    is_over = relay.ending is not None and relay.ending.state.terminal
                    if relay.task_id != followed and not is_over:
                        followed = relay.task_id
                        yield _follows(followed, turn)
                    for at, update in enumerate(updates):
                        if at:  # a copy of a task may have many artifacts
                            await anyio.lowlevel.checkpoint()
                        yield update
        except UpstreamError as error:
            failure = _failure_status(error)
        *updates, ending = relay.close(failure)
        for update in updates:
            yield update
        known = _RemoteState(
            agent=self._agent.url,
            context_id=relay.context_id or (state.context_id if state is not None else ""),
        )
        if isinstance(ending, StatusUpdate) and ending.state.interrupted:
            known = msgspec.structs.replace(known, task_id=relay.task_id, task=turn.task_id, begun=begun)
        # An agent that sent no event does not know the conversation.
        facts = {EXTENSION_URI: {"remote": msgspec.to_builtins(known)}} if known.context_id else {}
        if facts or relay.artifacts:
            for message in relay.messages(facts):
                yield MessageAdded(message)
        yield ending

    async def _send(
        self, turn: Turn, state: "_RemoteState | None", before: Iterable[CommonMessage]
    ) -> AbstractAsyncContextManager[AsyncGenerator[RemoteEvent]]:
        """Send the message of a turn, and return the events of the response.

        Raises:
            UpstreamError: A crash interrupted the turn, and the remote may have received the message.
        """
        if turn.interrupted is None:
            await turn.persisted()  # so that the message is not sent again after a crash
        elif not (self._resend or (await self._agent.card()).numbered):
            raise UpstreamError(
                "the server stopped before the agent confirmed the message, which is not sent again: the agent may have "
                "received it",
                fault=UpstreamFault.CONNECTION,
            )
        cost = history_cost(turn.history) + json_cost(turn.metadata)
        message = await run_bounded(cost, _message_for, turn, state, () if state is not None else before)
        metadata = _request_metadata(turn)
        return self._agent.stream_or_cancel(
            message,
            metadata=metadata,
            accepted_output_modes=turn.accepted_output_modes,
            extensions=turn.extensions,
            # The key is the same after a restart, so that an agent that supports it continues its task.
            key=await run_bounded(cost, _idempotency_key, turn, message, metadata),
        )

    async def _waiting_task(
        self, state: "_RemoteState", turn: Turn
    ) -> tuple["_RemoteState", tuple[Artifact, ...]]:
        """Return the remote's task that the message continues, and its artifacts; none if it has ended."""
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
    """Return the status that records the remote's task of a turn."""
    return StatusUpdate(
        TaskState.WORKING, metadata={EXTENSION_URI: {"remoteTask": {"id": task_id, "turn": turn.number}}}
    )


class _RemoteState(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """The state of a conversation at the remote; see the module."""

    agent: str
    context_id: str
    task_id: str = ""
    task: str = ""
    begun: int = 1


def _messages_before(turn: Turn) -> tuple[CommonMessage, ...]:
    messages = turn.history.conversation
    return messages[: len(messages) - 1 - turn.resumed]


def _find_state(messages: Iterable[CommonMessage], agent: str, context_id: str) -> _RemoteState | None:
    """Return the state of a conversation at an agent, from the newest message that has it.

    Args:
        messages: The messages of one conversation of one owner.
        agent: The agent's URL.
        context_id: The caller's id of the conversation.
    """
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
    """Return whether a conversation of the remote has the id that the caller chose, as versions before 0.1 sent it.

    Other callers may have used the same id, so that conversation is not continued: the remote receives the transcript in
    a new one. Branches of a conversation have the id of the first one, cut to 200 characters, with a suffix.
    """
    return context_id == remote_id or context_id.startswith(f"{remote_id[:200]}~")


def _message_for(turn: Turn, state: _RemoteState | None, unsent: Iterable[CommonMessage]) -> Message:
    """Return the message for the remote, with the earlier messages that the remote did not receive.

    A remote may treat a message whose id it has seen as the same message, so its id is not the caller's either.
    """
    transcript = _transcript(unsent)
    return turn.message.model_copy(
        update={
            "message_id": turn.external_message_id or str(uuid4()),
            "context_id": state.context_id if state is not None else turn.external_context_id,
            "task_id": state.task_id if state is not None else "",
            "reference_task_ids": (),  # the remote knows none of our tasks
            "metadata": without_facts(turn.message.metadata, *REQUEST_FACTS),
            "parts": (Part(text=transcript), *turn.message.parts) if transcript else turn.message.parts,
        }
    )


def _request_metadata(turn: Turn) -> Mapping[str, Any]:
    """Return the metadata of the request without its idempotency key, which belongs to our server."""
    facts = extension_metadata(turn.facts.to_metadata())
    metadata = without_facts(turn.metadata, "idempotencyKey")
    return with_extension_metadata(metadata, **facts) if facts else metadata


def _idempotency_key(turn: Turn, message: Message, metadata: Mapping[str, Any]) -> str:
    """Return the idempotency key of a request; it depends on the message's id, which is unique to the owner."""
    request = [message.to_dict(), metadata, turn.accepted_output_modes]
    return str(uuid5(NAMESPACE_URL, json.dumps(request, sort_keys=True)))


def _failure_status(error: UpstreamError) -> StatusUpdate:
    facts = {
        "type": str(error.fault),
        "status": error.status,
        "code": error.code,
        "retryAfter": error.retry_after,
    }
    known = {name: fact for name, fact in facts.items() if fact is not None}
    return StatusUpdate(TaskState.FAILED, agent_message(str(error)), {EXTENSION_URI: {"error": known}})


# --- earlier messages -------------------------------------------------------------------------------------------


def _transcript(messages: Iterable[CommonMessage]) -> str:
    """Return a conversation as one text with the roles; empty without messages."""
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
    return ""  # reasoning is not shared


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
