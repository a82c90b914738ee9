"""Turns whose responses break off, as subscribers see them."""

from contextlib import aclosing
from typing import Any

from tailrace.streaming import Agent, TaskRecord
from tailrace.streaming.a2a.models import Message as A2AMessage
from tailrace.streaming.a2a.models import Part, Role, StreamResponse
from tailrace.streaming.a2a.stream_extension import EXTENSION_URI
from tailrace.streaming.agent.continuation import InterruptedResponse
from tailrace.streaming.conversion.turn_translator import TurnTranslator
from tailrace.streaming.task.updates import MessageAdded
from tailrace.streaming.tools.tools import ToolFunction
from tailrace.wrappers import ContentPartText, History, Message
from tailrace.wrappers import Role as SpeakerRole

QUESTION = History(
    conversation=(Message(role=SpeakerRole.USER, content=(ContentPartText(text="Where does water go?"),)),)
)


def counted_weather() -> tuple[list[tuple[str, int]], ToolFunction]:
    """A tool, and the arguments of its calls."""
    ran: list[tuple[str, int]] = []

    async def weather(city: str, days: int) -> str:
        """The weather of a city."""
        ran.append((city, days))
        return "sunny"

    return ran, weather


class Run:
    """One turn at a subscriber.

    Attributes:
        record: The task.
        texts: The artifacts by id.
        replaced: The number of events that replaced an artifact, without complete tool calls, which always replace the streamed
            arguments.
        routes: The routes of the continuations.
        texts_before: The artifacts at each continuation.
    """

    def __init__(self) -> None:
        message = A2AMessage(message_id="m", role=Role.USER, parts=(Part(text="Where?"),))
        self.record = TaskRecord.create(message)
        self.record.submitted()
        self.texts: dict[str, str] = {}
        self.replaced = 0
        self.routes: list[str] = []
        self.texts_before: list[dict[str, str]] = []
        self.facts: dict[str, Any] = {}
        self.calls: list[dict[str, Any]] = []

    async def drive(self, agent: Agent[Any], interrupted: InterruptedResponse | None = None) -> None:
        fold = agent.create_accumulator(QUESTION, collect_output=False)
        turn = agent.drive(fold, TurnTranslator(fold), interrupted=interrupted)
        async with agent, aclosing(turn) as batches:
            async for items in batches:
                for item in items:
                    if isinstance(item, MessageAdded):
                        continue
                    self._fold(StreamResponse.from_json(self.record.apply(item).body))

    def _fold(self, event: StreamResponse) -> None:
        if event.status_update is not None:
            facts = (event.status_update.metadata or {}).get(EXTENSION_URI, {})
            if "continuation" in facts:
                self.routes.append(facts["continuation"]["route"])
                self.texts_before.append(dict(self.texts))
            else:
                self.facts = facts
            return
        update = event.artifact_update
        assert update is not None
        artifact = update.artifact
        for part in artifact.parts:
            if part.data is not None:
                self.calls += part.data.get("tool_calls", [])
        text = "".join(part.text or "" for part in artifact.parts)
        known = self.texts.get(artifact.artifact_id)
        if update.append:
            assert known is not None
            text = known + text
        elif known is not None:
            self.replaced += not any(part.data is not None for part in artifact.parts)
        self.texts[artifact.artifact_id] = text
