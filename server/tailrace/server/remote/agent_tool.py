"""A remote A2A agent as a tool of an agent of ours.

::

    agent = Agent("openai:gpt-5-mini", tools=[agent_tools("https://travel.example")])
"""

import json
import re
from collections import OrderedDict
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any
from uuid import uuid4

from tailrace.server.remote.agent_card import RemoteCard
from tailrace.server.remote.relay import Relay
from tailrace.server.remote.remote_agent import RemoteAgent
from tailrace.streaming.a2a.extension import is_answer
from tailrace.streaming.a2a.lifecycle import TaskState
from tailrace.streaming.a2a.models import Artifact, Message, Part, Role
from tailrace.streaming.task.updates import StatusUpdate
from tailrace.streaming.tools.tools import Tool, ToolContext, ToolError, Toolset
from tailrace.wrappers import ContentPartText, UpstreamError
from tailrace.wrappers.conversion.options import ToolDefinition
from tailrace.wrappers.conversion.texts import is_same_text, join_texts

DEFAULT_TIMEOUT = 600.0
"""Seconds that a remote agent may take for one answer; it may be at work with tools of its own."""

MAX_CONVERSATIONS = 10_000
"""Conversations of which is remembered what the remote waits for; those left alone the longest are forgotten."""

_PARAMETERS = {
    "type": "object",
    "properties": {
        "message": {
            "type": "string",
            "description": "What to say to the agent, in full sentences. It knows nothing of this conversation but what "
            "it was told by this tool.",
        }
    },
    "required": ["message"],
    "additionalProperties": False,
}


class AgentTool(Tool):
    """Says a message to a remote agent, and gives its answer.

    The messages of one conversation of ours (`ToolContext.external_context_id`) are one conversation for the remote;
    without that id each is a conversation of its own, as it is without a server. The remote knows one caller: the id is
    unique to the conversation and its caller, and none that the caller chose is sent. An agent that asks something in return has its question given as the result, and the
    next message answers it. When the call is cancelled, the remote's task is, too.

    Args:
        agent: The remote agent; to be closed by whoever opened it.
        card: Its card.
        name: What the model calls it by; made of the card's name when empty.
        description: What the model is told; the card's description and skills when empty.
        timeout: Seconds that an answer may take.
    """

    def __init__(
        self,
        agent: RemoteAgent,
        card: RemoteCard,
        *,
        name: str = "",
        description: str = "",
        timeout: float | None = DEFAULT_TIMEOUT,
    ) -> None:
        self._agent = agent
        self._places: OrderedDict[str, tuple[str, str]] = OrderedDict()
        self.timeout = timeout
        self.definition = ToolDefinition(
            name=name or _tool_name(card.name),
            description=description or _description(card),
            parameters=_PARAMETERS,
        )

    async def call(self, arguments: dict[str, Any], context: ToolContext) -> object:
        """Ask the agent; see `Tool.call`.

        Returns:
            Text; a list of parts, as A2A has them in JSON, where files or data are among them. Of a file that came with its
            bytes their number is told in their place (``omitted``): as text they would fill the model's window.

        Raises:
            ToolError: The agent failed, refused, or cannot be reached.
        """
        text = arguments.get("message")
        if not isinstance(text, str) or not text:
            raise ToolError("the arguments do not fit: message: a text is required")
        conversation = context.external_context_id
        context_id, task_id = self._places.get(conversation, (conversation, ""))
        if task_id:
            self._places[conversation] = (context_id, "")  # what it asks for is answered once
        message = Message(
            message_id=str(uuid4()),
            role=Role.USER,
            parts=(Part(text=text),),
            context_id=context_id,
            task_id=task_id,
        )
        relay = Relay()
        try:
            async with self._agent.answer(message) as events:
                async for event in events:
                    relay.feed(event)
                    if relay.ending is not None and relay.ending.state is TaskState.AUTH_REQUIRED:
                        break  # the model can report the request; it cannot wait for the user
        except UpstreamError as error:
            raise ToolError(str(error)) from None
        ending = relay.close()[-1]
        if not isinstance(ending, StatusUpdate):
            raise TypeError("an answer ends with a status")
        self._remember(conversation, relay, waits=ending.state.interrupted)
        return self._result(relay, ending)

    def _remember(self, conversation: str, relay: Relay, *, waits: bool) -> None:
        if not conversation:
            return
        self._places.pop(conversation, None)
        self._places[conversation] = (relay.context_id or conversation, relay.task_id if waits else "")
        while len(self._places) > MAX_CONVERSATIONS:
            self._places.popitem(last=False)

    def _result(self, relay: Relay, ending: StatusUpdate) -> object:
        words = _joined(ending.message.parts) if ending.message is not None else []
        if ending.state is TaskState.INPUT_REQUIRED:
            question = Part(text="The agent asks in return, and waits for the answer as the next message:")
            # Without words, its response is complete: some agents never complete a task.
            return _output([*_parts(relay.artifacts), *((question, *words) if words else ())])
        if ending.state is not TaskState.COMPLETED:
            raise ToolError(_words(words) or "the agent did not answer")
        parts = _parts(relay.artifacts) or words
        if not parts and relay.words is not None:
            parts = _joined(relay.words.parts)  # an agent that says all it has to say as its progress
        return _output(parts)


class _AgentTools(Toolset):
    def __init__(self, urls: Sequence[str], options: dict[str, Any], timeout: float | None) -> None:
        self._urls = urls
        self._options = options
        self._timeout = timeout

    @asynccontextmanager
    async def connected(self) -> AsyncGenerator[Sequence[Tool]]:
        """Fetch the cards; keep connections as long as the block lasts."""
        async with AsyncExitStack() as stack:
            tools: list[Tool] = []
            for url in self._urls:
                agent = await stack.enter_async_context(RemoteAgent(url, **self._options))
                tools.append(AgentTool(agent, await agent.card(), timeout=self._timeout))
            yield tools


def agent_tools(*urls: str, timeout: float | None = DEFAULT_TIMEOUT, **options: Any) -> Toolset:
    """Remote agents as tools, each under the name of its card, which is fetched when the tools are needed.

    Args:
        urls: Where the agents are; see `RemoteAgent`.
        timeout: Seconds that an answer may take.
        options: For each `RemoteAgent`: ``token``, ``headers``, ….
    """
    return _AgentTools(urls, options, timeout)


def _tool_name(name: str) -> str:
    """A name that every provider takes: letters, digits, ``_`` and ``-``, at most 64."""
    made = re.sub(r"[^A-Za-z0-9_-]+", "_", name).strip("_")[:64]
    return made if made and not made[0].isdigit() else f"agent_{made}"[:64]


def _description(card: RemoteCard) -> str:
    lines = [card.description or f"The agent {card.name}."]
    if card.skills:
        lines += ["", "What it can do:"]
        lines += [f"- {skill.name}: {skill.description}" for skill in card.skills]
    return "\n".join(lines)


def _parts(artifacts: Sequence[Artifact]) -> list[Part]:
    """The parts of an answer; what its model thought, further choices and the tools it used are not the answer."""
    parts: list[Part] = []
    for artifact in artifacts:
        if not is_answer(artifact.metadata):
            continue
        parts += _joined(artifact.parts)
    return parts


def _joined(parts: Iterable[Part]) -> list[Part]:
    """The parts without empty texts, and with pieces of one text as one; see `tailrace.wrappers.texts`."""
    joined: list[Part] = []
    before: ContentPartText | None = None
    for part in parts:
        if part.text == "":
            continue
        text = ContentPartText(text=part.text, metadata=part.metadata) if part.text is not None else None
        if text is not None and before is not None and is_same_text(before, text):
            joined[-1] = Part(text=(joined[-1].text or "") + text.text)
        else:
            joined.append(part)
        before = text
    return joined


def _output(parts: Sequence[Part]) -> object:
    if all(part.text is not None for part in parts):
        return join_texts(part.text or "" for part in parts)
    return [_shown(part) for part in parts]


def _shown(part: Part) -> dict[str, Any]:
    """A part as a model is to see it, without a file's bytes."""
    shown = part.model_copy(update={"metadata": {}}).to_dict()
    if part.raw is not None:
        del shown["raw"]
        shown["omitted"] = f"{len(part.raw)} bytes"
    return shown


def _words(parts: Sequence[Part]) -> str:
    """The parts as one text."""
    return " ".join(
        part.text if part.text is not None else json.dumps(_shown(part), ensure_ascii=False) for part in parts
    )
