"""Remote A2A agents as tools of a local agent.

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
from tailrace.server.remote.event_converter import EventConverter
from tailrace.server.remote.remote_agent import RemoteAgent
from tailrace.streaming.a2a.lifecycle import TaskState
from tailrace.streaming.a2a.models import Artifact, Message, Part, Role
from tailrace.streaming.a2a.stream_extension import is_response_text
from tailrace.streaming.task.updates import StatusUpdate
from tailrace.streaming.tools.tools import Tool, ToolContext, ToolError, Toolset
from tailrace.wrappers import ContentPartText, UpstreamError
from tailrace.wrappers.conversion.text_joining import belong_to_one_text, join_texts
from tailrace.wrappers.request_options import ToolDefinition

DEFAULT_TIMEOUT = 600.0
"""Timeout of one call in seconds. A remote agent may run tools itself."""

MAX_CONVERSATIONS = 10_000
"""Maximum number of conversations whose state is kept in memory."""

_PARAMETERS = {
    "type": "object",
    "properties": {
        "message": {
            "type": "string",
            "description": "The message to the agent, in full sentences. The agent does not see this conversation: it "
            "knows only the messages that were sent with this tool.",
        }
    },
    "required": ["message"],
    "additionalProperties": False,
}


class AgentTool(Tool):
    """Tool that sends a message to a remote agent and returns its response.

    All messages of one local conversation belong to the conversation `ToolContext.external_context_id` of the remote agent.
    Without a server, this id is empty, and each message starts a new conversation. If the remote agent requests input, its
    question is the result of the tool, and the next message is the reply. If the call is cancelled, the remote task is cancelled
    too.

    Args:
        agent: The remote agent. The tool does not close it.
        card: The agent card of the remote agent.
        name: Name of the tool; empty for the name on the card.
        description: Description for the model; empty for the description and skills on the card.
        timeout: Timeout of one call in seconds; None for the timeout of the local agent.
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
        self._remote_ids: OrderedDict[str, tuple[str, str]] = OrderedDict()
        self.timeout = timeout
        self.definition = ToolDefinition(
            name=name or _tool_name(card.name),
            description=description or _description(card),
            parameters=_PARAMETERS,
        )

    async def call(self, arguments: dict[str, Any], context: ToolContext) -> object:
        """Send the argument ``message`` to the remote agent; see `Tool.call`.

        Returns:
            A text, or a list of A2A parts as JSON if the response contains files or data. The bytes of a file are replaced with
            their number (``omitted``).

        Raises:
            ToolError: The argument is not valid, or there is no response.
        """
        text = arguments.get("message")
        if not isinstance(text, str) or not text:
            raise ToolError("message: a text that is not empty is required")
        conversation = context.external_context_id
        context_id, task_id = self._remote_ids.get(conversation, (conversation, ""))
        if task_id:
            self._remote_ids[conversation] = (context_id, "")  # only the next message is the reply
        message = Message(
            message_id=str(uuid4()),
            role=Role.USER,
            parts=(Part(text=text),),
            context_id=context_id,
            task_id=task_id,
        )
        converter = EventConverter()
        try:
            async with self._agent.stream_or_cancel(message) as events:
                async for event in events:
                    converter.feed(event)
                    if converter.ending is not None and converter.ending.state is TaskState.AUTH_REQUIRED:
                        # The model cannot wait for the credentials.
                        break
        except UpstreamError as error:
            raise ToolError(str(error)) from None
        ending = converter.close()[-1]
        if not isinstance(ending, StatusUpdate):
            raise TypeError("the events of a task end with a status")
        self._remember(conversation, converter, waits=ending.state.interrupted)
        return self._result(converter, ending)

    def _remember(self, conversation: str, converter: EventConverter, *, waits: bool) -> None:
        if not conversation:
            return
        self._remote_ids.pop(conversation, None)
        self._remote_ids[conversation] = (
            converter.context_id or conversation,
            converter.task_id if waits else "",
        )
        while len(self._remote_ids) > MAX_CONVERSATIONS:
            self._remote_ids.popitem(last=False)

    def _result(self, converter: EventConverter, ending: StatusUpdate) -> object:
        status_message = _join_texts(ending.message.parts) if ending.message is not None else []
        if ending.state is TaskState.INPUT_REQUIRED:
            question = Part(text="The agent requests input. Send the reply as the next message:")
            # Some agents end complete responses with this state, but without a question.
            return _output(
                [*_parts(converter.artifacts), *((question, *status_message) if status_message else ())]
            )
        if ending.state is not TaskState.COMPLETED:
            raise ToolError(_to_text(status_message) or "the agent sent no response")
        parts = _parts(converter.artifacts) or status_message
        if not parts and converter.status_message is not None:
            parts = _join_texts(
                converter.status_message.parts
            )  # some agents send their response as messages in statuses
        return _output(parts)


class _AgentTools(Toolset):
    def __init__(self, urls: Sequence[str], options: dict[str, Any], timeout: float | None) -> None:
        self._urls = urls
        self._options = options
        self._timeout = timeout

    @asynccontextmanager
    async def connected(self) -> AsyncGenerator[Sequence[Tool]]:
        """Fetch the agent cards, and keep the connections open until the block ends."""
        async with AsyncExitStack() as stack:
            tools: list[Tool] = []
            for url in self._urls:
                agent = await stack.enter_async_context(RemoteAgent(url, **self._options))
                tools.append(AgentTool(agent, await agent.card(), timeout=self._timeout))
            yield tools


def agent_tools(*urls: str, timeout: float | None = DEFAULT_TIMEOUT, **options: Any) -> Toolset:
    """Create a toolset of remote agents, with one tool for each agent.

    The name of a tool is the name on the agent card, in which ``_`` replaces characters that providers reject.

    Args:
        urls: URLs of the agents; see `RemoteAgent`.
        timeout: Timeout of one call in seconds; None for the timeout of the local agent.
        options: Options of each `RemoteAgent`: ``token``, ``headers``, ….
    """
    return _AgentTools(urls, options, timeout)


def _tool_name(name: str) -> str:
    """Convert a name to at most 64 letters, digits, ``_`` and ``-``."""
    made = re.sub(r"[^A-Za-z0-9_-]+", "_", name).strip("_")[:64]
    return made if made and not made[0].isdigit() else f"agent_{made}"[:64]


def _description(card: RemoteCard) -> str:
    lines = [card.description or f"The agent {card.name}."]
    if card.skills:
        lines += ["", "What it can do:"]
        lines += [f"- {skill.name}: {skill.description}" for skill in card.skills]
    return "\n".join(lines)


def _parts(artifacts: Sequence[Artifact]) -> list[Part]:
    """Return the parts of the response without reasoning, tool calls and further choices."""
    parts: list[Part] = []
    for artifact in artifacts:
        if not is_response_text(artifact.metadata):
            continue
        parts += _join_texts(artifact.parts)
    return parts


def _join_texts(parts: Iterable[Part]) -> list[Part]:
    """Join consecutive deltas of one text, and remove empty texts; see `tailrace.wrappers.conversion.text_joining`."""
    joined: list[Part] = []
    before: ContentPartText | None = None
    for part in parts:
        if part.text == "":
            continue
        text = ContentPartText(text=part.text, metadata=part.metadata) if part.text is not None else None
        if text is not None and before is not None and belong_to_one_text(before, text):
            joined[-1] = Part(text=(joined[-1].text or "") + text.text)
        else:
            joined.append(part)
        before = text
    return joined


def _output(parts: Sequence[Part]) -> object:
    if all(part.text is not None for part in parts):
        return join_texts(part.text or "" for part in parts)
    return [_to_json(part) for part in parts]


def _to_json(part: Part) -> dict[str, Any]:
    """Return a part as JSON for the model, without the bytes of a file."""
    fields = part.model_copy(update={"metadata": {}}).to_dict()
    if part.raw is not None:
        del fields["raw"]
        fields["omitted"] = f"{len(part.raw)} bytes"
    return fields


def _to_text(parts: Sequence[Part]) -> str:
    """Return the parts as one text. Parts without text are JSON."""
    return " ".join(
        part.text if part.text is not None else json.dumps(_to_json(part), ensure_ascii=False)
        for part in parts
    )
