"""A remote A2A agent as the handler of our server: its answers are kept, numbered and shown as any other.

What our task and the remote's have to do with one another is remembered in the conversation itself, as the fact
``remote`` of what the agent said::

    {"agent": "https://agent.example", "contextId": "…", "taskId": "…", "task": "…", "begun": 1}

``taskId`` is there while the remote's task waits for its caller, with the task of ours that it belongs to (``task``) and
the turn that began it (``begun``). So a conversation goes on after a restart, on any worker.
"""

import json
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Any, cast
from uuid import NAMESPACE_URL, uuid5

import msgspec

from tailrace.server.handlers import Handler, Item, Turn
from tailrace.server.limits import UpstreamGate
from tailrace.server.sdk.relay import Relay
from tailrace.server.sdk.remote_agent import RemoteAgent
from tailrace.streaming.a2a.models import Artifact, Message, Part
from tailrace.streaming.extension import EXTENSION_URI, extension_facts, with_extension_facts
from tailrace.streaming.extension import without_extension_facts as without_facts
from tailrace.streaming.lifecycle import TaskState
from tailrace.streaming.task import agent_message
from tailrace.streaming.updates import Said, StatusUpdate
from tailrace.wrappers import (
    ContentPart,
    ContentPartData,
    ContentPartFile,
    ContentPartText,
    ContentPartToolCall,
    ContentPartToolResult,
    Role,
    UpstreamError,
)
from tailrace.wrappers import Message as CommonMessage


class RemoteAgentHandler(Handler):
    """Answers each turn by what a remote agent answers to the same message.

    The message goes on as it is, into a conversation that has our context's id unless the remote gives it another. When
    the turn is cancelled, the remote's task is, too. What ends the remote's task ends ours in the same way: what it failed
    at is said in its own words.

    Args:
        agent: The remote agent; closed with the handler.
        gate: Says when a call may begin; None for at once.
    """

    def __init__(self, agent: RemoteAgent, *, gate: UpstreamGate | None = None) -> None:
        self._agent = agent
        self._gate = gate or UpstreamGate(0, 0)

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """Keep connections to the agent as long as the block lasts."""
        async with self._agent:
            yield

    async def run(self, turn: Turn) -> AsyncIterator[Item]:
        """Relay the remote's answer; one that cannot be reached ends the task FAILED, with what arrived kept."""
        yield StatusUpdate(TaskState.WORKING)
        before = _messages_before(turn)
        place = _place_of(before, self._agent.url)
        relay, begun, failure = Relay(), turn.number, None
        try:
            artifacts: tuple[Artifact, ...] = ()
            if place is not None and place.task_id:
                place, artifacts = await self._waiting_task(place, turn)
            if place is not None and place.task_id:
                begun = place.begun
            relay = Relay(artifacts, suffix=f"-turn-{begun}" if begun > 1 else "")
            message = _to_send(turn, place, () if place is not None else before)
            metadata = _request_metadata(turn)
            answer = self._agent.answer(
                message,
                metadata=metadata,
                accepted_output_modes=turn.accepted_output_modes,
                extensions=turn.extensions,
                # The same after a restart: an agent that knows it by its name goes on with the task that it began.
                key=_name_of(turn, message, metadata),
            )
            async with self._gate.call(), answer as events:
                async for event in events:
                    for update in relay.feed(event):
                        yield update
        except UpstreamError as error:
            failure = _failed_for(error)
        *updates, ending = relay.close(failure)
        for update in updates:
            yield update
        known = _Place(
            agent=self._agent.url,
            context_id=relay.context_id or (place.context_id if place is not None else ""),
        )
        if isinstance(ending, StatusUpdate) and ending.state.interrupted:
            known = msgspec.structs.replace(known, task_id=relay.task_id, task=turn.task_id, begun=begun)
        # An agent that nothing was heard of knows nothing of the conversation either.
        facts = {EXTENSION_URI: {"remote": msgspec.to_builtins(known)}} if known.context_id else {}
        if facts or relay.artifacts:
            for message in relay.said(facts):
                yield Said(message)
        yield ending

    async def _waiting_task(self, place: "_Place", turn: Turn) -> tuple["_Place", tuple[Artifact, ...]]:
        """The remote's task that the message goes on with, and what it has made so far; none when it is over."""
        over = msgspec.structs.replace(place, task_id="")
        if place.task != turn.task_id:
            return over, ()
        try:
            task = await self._agent.get_task(place.task_id)
        except UpstreamError as error:
            if error.code == "TASK_NOT_FOUND":
                return over, ()
            raise
        return (over, ()) if task.status.state.terminal else (place, task.artifacts)


class _Place(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """Where a conversation is at the remote; see the module."""

    agent: str
    context_id: str
    task_id: str = ""
    task: str = ""
    begun: int = 1


def _messages_before(turn: Turn) -> tuple[CommonMessage, ...]:
    said = turn.history.conversation
    return said[: len(said) - 1 - turn.resumed]


def _place_of(said: Iterable[CommonMessage], agent: str) -> _Place | None:
    """Where the conversation is at an agent, by the newest message that says so."""
    for message in reversed(tuple(said)):
        if message.role is not Role.MODEL:
            continue
        fact = extension_facts(message.metadata).get("remote")
        if isinstance(fact, dict) and cast("dict[str, Any]", fact).get("agent") == agent:
            try:
                return msgspec.convert(fact, _Place)
            except msgspec.ValidationError:
                continue
    return None


def _to_send(turn: Turn, place: _Place | None, untold: Iterable[CommonMessage]) -> Message:
    """The message for the remote, with what was said before it and the remote was not told."""
    told = _transcript(untold)
    return turn.message.model_copy(
        update={
            "context_id": place.context_id if place is not None else turn.context_id,
            "task_id": place.task_id if place is not None else "",
            "reference_task_ids": (),  # the remote knows none of our tasks
            "metadata": without_facts(turn.message.metadata, "request"),
            "parts": (Part(text=told), *turn.message.parts) if told else turn.message.parts,
        }
    )


def _request_metadata(turn: Turn) -> Mapping[str, Any]:
    """The request's metadata with what it asks for; the name that it has for us would be another message's there."""
    asked = extension_facts(turn.facts.to_metadata())
    metadata = without_facts(turn.metadata, "idempotencyKey")
    return with_extension_facts(metadata, **asked) if asked else metadata


def _name_of(turn: Turn, message: Message, metadata: Mapping[str, Any]) -> str:
    """The name of a request, the same for one that is the same."""
    request = [turn.task_id, turn.number, message.to_dict(), metadata, turn.accepted_output_modes]
    return str(uuid5(NAMESPACE_URL, json.dumps(request, sort_keys=True)))


def _failed_for(error: UpstreamError) -> StatusUpdate:
    facts = {
        "type": str(error.fault),
        "status": error.status,
        "code": error.code,
        "retryAfter": error.retry_after,
    }
    known = {name: fact for name, fact in facts.items() if fact is not None}
    return StatusUpdate(TaskState.FAILED, agent_message(str(error)), {EXTENSION_URI: {"error": known}})


# --- what was said before -------------------------------------------------------------------------------------------


def _transcript(said: Iterable[CommonMessage]) -> str:
    """A conversation as one text that says who said what; empty when nothing was said."""
    lines = [line for message in said for part in message.content if (line := _line(message.role, part))]
    if not lines:
        return ""
    told = "\n\n".join(lines)
    return f"What was said before, in this conversation:\n\n{told}\n\nThe message itself:\n\n"


def _line(role: Role, part: ContentPart) -> str:
    who = "Agent" if role is Role.MODEL else "User"
    if isinstance(part, ContentPartText):
        return f"{who}: {part.text}" if part.text else ""
    if isinstance(part, ContentPartFile):
        return f"{who}: [file {part.filename or part.url or part.media_type}]"
    if isinstance(part, ContentPartData):
        return f"{who}: {_json(part.data)}"
    if isinstance(part, ContentPartToolCall):
        return f"{who} calls the tool {part.name}: {_json(part.arguments)}"
    if isinstance(part, ContentPartToolResult):
        return f"The tool {part.name} answers: {part.output if isinstance(part.output, str) else _json(part.output)}"
    return ""  # what a model thought is its own


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
