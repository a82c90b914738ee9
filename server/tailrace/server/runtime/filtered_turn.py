"""Applies stream filters to the updates of a turn: to text, reasoning, tool calls, messages, metadata and errors."""

import logging
import traceback
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any, cast

import msgspec

from tailrace.server.runtime.handlers import Item
from tailrace.server.runtime.stream_filter import BlockedError, FilterChain, StreamFilter
from tailrace.server.runtime.value_filter import ValueFilter
from tailrace.streaming.a2a.lifecycle import TaskState
from tailrace.streaming.a2a.models import Artifact, Message, Part
from tailrace.streaming.a2a.stream_extension import EXTENSION_URI
from tailrace.streaming.task.task_record import agent_message
from tailrace.streaming.task.updates import ArtifactUpdate, MessageAdded, StatusUpdate, TextDelta
from tailrace.wrappers import TailraceError

logger = logging.getLogger("tailrace.server")

_BLOCKED = "a filter of the server stopped the response"
_FILTER_FAILED = "a filter of the server failed; see the log of the server"
_HANDLER_FAILED = "the agent failed; its error contains text that a filter blocks"


async def filtered(
    batches: AsyncGenerator[Sequence[Item]], filters: tuple[StreamFilter, ...]
) -> AsyncGenerator[Sequence[Item]]:
    """Yield the updates of a turn after the filters. Close ``batches`` at the end.

    If a filter blocks the turn or fails, the last update is a `StatusUpdate` with the state FAILED. If ``batches`` raises an
    error, the text that the filters hold back is yielded first. If the turn is cancelled, that text is dropped.
    """
    turn = _FilteredTurn(filters)
    async with aclosing(batches):
        while True:
            try:
                items = await anext(batches)
            except StopAsyncIteration:
                items, error = (), None
            except Exception as raised:
                items, error = (), raised
            else:
                passed, ending = await turn.apply(items)
                yield passed
                if ending is None:
                    continue
                yield (ending,)
                return
            passed, ending = await turn.finish(error)
            yield passed
            if ending is not None:
                yield (ending,)
            elif error is not None:
                raise error
            return


class _FilteredTurn:
    """The filters of the artifacts of one turn."""

    def __init__(self, filters: tuple[StreamFilter, ...]) -> None:
        self._filters = filters
        self._values = ValueFilter(filters)
        self._open: dict[
            str, FilterChain | None
        ] = {}  # by artifact; None for tool calls, which are held until complete

    async def apply(self, items: Sequence[Item]) -> tuple[list[Item], StatusUpdate | None]:
        """Return the filtered updates, and the status that ends the turn if a filter ends it."""
        passed: list[Item] = []
        try:
            for item in items:
                passed += await self._filter(item)
        except Exception as error:
            return passed, _ending(error)
        return passed, None

    async def finish(self, error: Exception | None) -> tuple[list[Item], StatusUpdate | None]:
        """Return the text that is held back, and a status if the text of the error must not be published."""
        passed: list[Item] = []
        try:
            passed += await self._held()
            if error is not None:
                text = "".join(traceback.format_exception(error))
                if await self._values.text(text) != text:
                    blocked = (
                        await self._values.text(str(error))
                        if isinstance(error, TailraceError)
                        else _HANDLER_FAILED
                    )
                    return passed, StatusUpdate(TaskState.FAILED, agent_message(blocked))
        except Exception as raised:
            return passed, _ending(raised)
        return passed, None

    async def _filter(self, item: Item) -> list[Item]:
        if isinstance(item, TextDelta):
            return await self._delta(item)
        if isinstance(item, ArtifactUpdate):
            return [await self._artifact(item)]
        if isinstance(item, MessageAdded):
            return [MessageAdded(await self._values.message(item.message))]
        if isinstance(item, Message):
            return [await self._values.message(item)]
        passed = await self._held() if item.state.terminal or item.state.interrupted else []
        message = None if item.message is None else await self._values.message(item.message)
        metadata = None if item.metadata is None else await self._values.metadata(item.metadata)
        return [
            *passed,
            msgspec.structs.replace(item, message=message, metadata=metadata, encoded=b""),
        ]

    async def _delta(self, item: TextDelta) -> list[Item]:
        if item.artifact_id not in self._open:  # begun before a crash
            self._open[item.artifact_id] = FilterChain(self._filters)
        chain = self._open[item.artifact_id]
        text = ""
        if chain is not None:
            text = await chain.feed(item.text)
            if item.last:
                text += await chain.close()
        if item.last:
            del self._open[item.artifact_id]
        return [TextDelta(item.artifact_id, text, item.last)] if text or item.last else []

    async def _held(self) -> list[Item]:
        """Return the text that the filters of open artifacts hold back, and forget the artifacts."""
        passed: list[Item] = []
        while self._open:
            artifact_id, chain = self._open.popitem()
            text = await chain.close() if chain is not None else ""
            if text:
                passed.append(TextDelta(artifact_id, text))
        return passed

    async def _artifact(self, item: ArtifactUpdate) -> ArtifactUpdate:
        given = item.artifact
        chain = self._open.pop(given.artifact_id, None) if item.append else None
        own = given.metadata.get(EXTENSION_URI)
        is_call = isinstance(own, dict) and cast("dict[str, Any]", own).get("channel") == "tool_call"
        if is_call and not item.last:
            parts = [Part(text="")]
            self._open[given.artifact_id] = None
        else:
            chain = chain or FilterChain(self._filters)
            parts = await self._values.parts(given.parts, chain, closes=item.last)
            if not item.last:
                self._open[given.artifact_id] = chain
        artifact = Artifact(
            artifact_id=given.artifact_id,
            parts=tuple(parts),
            name=await self._values.text(given.name),
            description=await self._values.text(given.description),
            metadata=await self._values.metadata(given.metadata),
            extensions=given.extensions,
        )
        return msgspec.structs.replace(item, artifact=artifact, encoded=b"")


def _ending(error: Exception) -> StatusUpdate:
    """Return the status of a turn that a filter ended. The text of the error is neither published nor logged."""
    if isinstance(error, BlockedError):
        metadata = {EXTENSION_URI: {"finishReason": "content_filter"}}
        return StatusUpdate(TaskState.FAILED, agent_message(_BLOCKED), metadata)
    logger.error("a filter failed with %s", type(error).__name__)
    return StatusUpdate(TaskState.FAILED, agent_message(_FILTER_FAILED))
