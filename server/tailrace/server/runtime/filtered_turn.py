"""Applies stream filters to the updates of a turn: to text, reasoning, tool calls, messages, metadata and errors."""

import logging
import traceback
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any, cast

import msgspec

from tailrace.server.runtime.handlers import Item
from tailrace.server.runtime.stream_filter import BlockedError, FilterChain, StreamFilter
from tailrace.streaming.a2a.lifecycle import TaskState
from tailrace.streaming.a2a.models import Artifact, Message, Part
from tailrace.streaming.a2a.stream_extension import EXTENSION_URI
from tailrace.streaming.task.task_record import agent_message
from tailrace.streaming.task.updates import ArtifactUpdate, MessageAdded, StatusUpdate, TextDelta
from tailrace.wrappers import TailraceError

logger = logging.getLogger("tailrace.server")

_CONSTANTS = frozenset(("channel", "finishReason", "finishReasons"))
"""Members of the extension's metadata whose values are defined by the extension."""

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
                if await self._text(text) != text:
                    blocked = (
                        await self._text(str(error)) if isinstance(error, TailraceError) else _HANDLER_FAILED
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
            return [MessageAdded(await self._message(item.message))]
        if isinstance(item, Message):
            return [await self._message(item)]
        passed = await self._held() if item.state.terminal or item.state.interrupted else []
        message = None if item.message is None else await self._message(item.message)
        metadata = None if item.metadata is None else await self._metadata(item.metadata)
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
            parts = await self._parts(given.parts, chain, closes=item.last)
            if not item.last:
                self._open[given.artifact_id] = chain
        artifact = Artifact(
            artifact_id=given.artifact_id,
            parts=tuple(parts),
            name=await self._text(given.name),
            description=await self._text(given.description),
            metadata=await self._metadata(given.metadata),
            extensions=given.extensions,
        )
        return msgspec.structs.replace(item, artifact=artifact, encoded=b"")

    async def _message(self, message: Message) -> Message:
        parts = await self._parts(message.parts, FilterChain(self._filters), closes=True)
        return message.model_copy(
            update={"parts": tuple(parts), "metadata": await self._metadata(message.metadata)}
        )

    async def _parts(self, parts: Sequence[Part], chain: FilterChain, *, closes: bool) -> list[Part]:
        """Return filtered parts. Text parts that follow each other with the same metadata are one text."""
        passed: list[Part] = []
        for position, part in enumerate(parts):
            following = parts[position + 1] if position + 1 < len(parts) else None
            if part.text is None:
                passed.append(await self._content(part))
                continue
            text = await chain.feed(part.text)
            is_end = following is None or following.text is None or following.metadata != part.metadata
            if is_end and (closes or following is not None):
                text += await chain.close()
                chain = FilterChain(self._filters)
            metadata = await self._metadata(part.metadata)
            passed.append(part.model_copy(update={"text": text, "metadata": metadata}))
        return passed

    async def _content(self, part: Part) -> Part:
        """Return a filtered part that is not text. The bytes of files are not filtered."""
        changed: dict[str, Any] = {
            "metadata": await self._metadata(part.metadata),
            "filename": await self._text(part.filename),
        }
        if part.url is not None:
            changed["url"] = await self._text(part.url)
        if part.kind == "data":
            changed["data"] = await self._data(part.data)
        return part.model_copy(update=changed)

    async def _data(self, data: Any) -> Any:
        if not isinstance(data, dict):
            return await self._value(data)
        members = cast("dict[str, Any]", data)
        for name in ("tool_calls", "tool_results"):
            entries = members.get(name)
            if isinstance(entries, list):
                return {**members, name: [await self._entry(each) for each in cast("list[Any]", entries)]}
        return await self._value(members)

    async def _entry(self, entry: Any) -> Any:
        """Return a filtered call or result. The model's text of the arguments is dropped if a filter changes them."""
        if not isinstance(entry, dict):
            return await self._value(entry)
        members = cast("dict[str, Any]", entry)
        passed = {name: await self._value(value) for name, value in members.items()}
        if passed != members:
            passed.pop("arguments_json", None)
        return passed

    async def _metadata(self, metadata: dict[str, Any]) -> dict[str, Any]:
        passed: dict[str, Any] = {}
        for name, value in metadata.items():
            if name == EXTENSION_URI and isinstance(value, dict):
                own = cast("dict[str, Any]", value)
                passed[name] = {
                    key: each if key in _CONSTANTS else await self._value(each) for key, each in own.items()
                }
            else:
                passed[name] = await self._value(value)
        return passed

    async def _value(self, value: Any) -> Any:
        """Return a JSON value whose texts, names and numbers are filtered."""
        if isinstance(value, str):
            return await self._text(value)
        if isinstance(value, dict):
            members = cast("dict[str, Any]", value)
            return {await self._text(name): await self._value(each) for name, each in members.items()}
        if isinstance(value, list | tuple):
            return [await self._value(each) for each in cast("Sequence[Any]", value)]
        if isinstance(value, int | float) and not isinstance(value, bool):
            text = str(value)
            passed = await self._text(text)
            return value if passed == text else passed
        return value

    async def _text(self, text: str) -> str:
        if not text:
            return text
        chain = FilterChain(self._filters)
        passed = await chain.feed(text)
        return passed + await chain.close()


def _ending(error: Exception) -> StatusUpdate:
    """Return the status of a turn that a filter ended. The text of the error is neither published nor logged."""
    if isinstance(error, BlockedError):
        metadata = {EXTENSION_URI: {"finishReason": "content_filter"}}
        return StatusUpdate(TaskState.FAILED, agent_message(_BLOCKED), metadata)
    logger.error("a filter failed with %s", type(error).__name__)
    return StatusUpdate(TaskState.FAILED, agent_message(_FILTER_FAILED))
