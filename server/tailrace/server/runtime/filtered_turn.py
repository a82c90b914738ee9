"""Applies stream filters to the updates of a turn."""

import logging
import traceback
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, aclosing

import msgspec
from anyio.abc import TaskGroup

from tailrace.server.runtime.background_reader import BackgroundReader
from tailrace.server.runtime.handlers import Item
from tailrace.server.runtime.stream_filter import (
    BackgroundFilter,
    BlockedError,
    FilterChain,
    FilterError,
    StreamFilter,
)
from tailrace.server.runtime.value_filter import ValueFilter
from tailrace.streaming.a2a.lifecycle import TaskState
from tailrace.streaming.a2a.models import Artifact, Message, Part
from tailrace.streaming.a2a.stream_extension import EXTENSION_URI, extension_metadata
from tailrace.streaming.task.task_record import TaskRecord, agent_message
from tailrace.streaming.task.updates import ArtifactUpdate, MessageAdded, StatusUpdate, TextDelta
from tailrace.wrappers import TailraceError

logger = logging.getLogger("tailrace.server")

_BLOCKED = "a filter of the server stopped the response"
_FILTER_FAILED = "a filter of the server failed; see the log of the server"
_HANDLER_FAILED = "the agent failed; its error contains text that a filter blocks"


async def filtered(
    batches: AsyncGenerator[Sequence[Item]],
    filters: tuple[StreamFilter, ...],
    group: TaskGroup,
    record: TaskRecord,
) -> AsyncGenerator[Sequence[Item]]:
    """Yield the filtered updates of a turn, and close ``batches`` at the end.

    Filters that work in the background run in asyncio tasks of ``group``, which end before the generator. An update may extend an
    artifact of ``record`` that began in an earlier turn or before a restart. Before such an update, the filters receive the
    published text of the artifact.

    If a filter blocks the turn or fails, the last update is a `StatusUpdate` with the state FAILED.

    If ``batches`` raises an error, the text that the filters hold back is yielded, and then the error is raised. If the filters
    change or block the text of the error, a `StatusUpdate` with the state FAILED is yielded instead. If the turn is cancelled,
    the text that is held back is discarded.
    """
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(aclosing(batches))
        reader = None
        if any(isinstance(each, BackgroundFilter) for each in filters):
            reader = BackgroundReader(batches)
            await stack.enter_async_context(reader.running(group))
            batches = await stack.enter_async_context(aclosing(reader.batches()))
        turn = _FilteredTurn(filters, reader, record)
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
    def __init__(
        self, filters: tuple[StreamFilter, ...], reader: BackgroundReader | None, record: TaskRecord
    ) -> None:
        self._filters = filters
        self._record = record
        self._reader = reader
        self._values = ValueFilter(filters)
        self._keeps_texts = any(each.scope == "content" for each in filters)
        self._output_error: BlockedError | None = None
        # Unfiltered texts by artifact, for `ValueFilter.checked`.
        self._texts: dict[str, list[str]] = {}
        self._open: dict[
            str, FilterChain | None
        ] = {}  # by artifact id; None for a tool call, which is held back until it is complete

    async def apply(self, items: Sequence[Item]) -> tuple[list[Item], StatusUpdate | None]:
        """Filter updates. If a filter ends the turn, also return the status that ends it."""
        passed: list[Item] = []
        try:
            if self._reader is not None:
                passed += await self._released(self._reader)
            for item in items:
                passed += await self._filter(item)
        except Exception as error:
            return passed, _ending(error)
        return passed, None

    async def _released(self, reader: BackgroundReader) -> list[Item]:
        if reader.failure is not None:
            raise reader.failure
        passed: list[Item] = []
        for artifact_id, chain in self._open.items():
            text = await chain.feed("") if chain is not None and chain.background else ""
            if text:
                passed.append(TextDelta(artifact_id, text))
        return passed

    def _chain(self, artifact: Artifact | None = None) -> FilterChain:
        is_output = artifact is not None and _channel_of(artifact) in ("", "text")
        filters = self._filters
        if not is_output:
            filters = tuple(each for each in filters if each.scope != "output")
        chain = FilterChain(filters)
        if self._reader is not None:
            for stream in chain.background:
                self._reader.start(stream)
        return chain

    async def _continue(self, artifact_id: str) -> FilterChain | None:
        """Create the filters of an artifact that has published text; None for a tool call."""
        found = (each for each in self._record.artifacts if each.artifact_id == artifact_id)
        artifact = next(found, None)
        if artifact is None:
            return self._chain()
        if _channel_of(artifact) == "tool_call":
            return None
        chain = self._chain(artifact)
        text = "".join(part.text or "" for part in artifact.parts)
        await chain.resume(text)
        self._keep(artifact_id, text, last=False)
        return chain

    def _keep(self, artifact_id: str, text: str, *, last: bool) -> None:
        if self._keeps_texts:
            texts = self._texts.setdefault(artifact_id, [])
            texts.append(text)
            if last:
                self._values.checked.add("".join(self._texts.pop(artifact_id)))

    async def finish(self, error: Exception | None) -> tuple[list[Item], StatusUpdate | None]:
        """Return the text that is held back, and the status that ends the turn.

        The status is None unless a filter ends the turn, or changes or blocks the text of the error.
        """
        passed: list[Item] = []
        try:
            passed += await self._flush_filters()
            if error is None:
                self._check_outputs()
            else:
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
        passed: list[Item] = []
        if item.state.terminal or item.state.interrupted:
            passed = await self._flush_filters()
            if item.state is TaskState.COMPLETED or _is_complete_response(item):
                self._check_outputs()
        message = None if item.message is None else await self._values.message(item.message)
        metadata = None if item.metadata is None else await self._values.metadata(item.metadata)
        return [
            *passed,
            msgspec.structs.replace(item, message=message, metadata=metadata, encoded=b""),
        ]

    async def _delta(self, item: TextDelta) -> list[Item]:
        if item.artifact_id not in self._open:  # the artifact began in an earlier turn or before a restart
            self._open[item.artifact_id] = await self._continue(item.artifact_id)
        chain = self._open[item.artifact_id]
        text = ""
        if chain is not None:
            text = await chain.feed(item.text)
            if item.last:
                text += await self._close(chain)
            self._keep(item.artifact_id, item.text, last=item.last)
        if item.last:
            del self._open[item.artifact_id]
        return [TextDelta(item.artifact_id, text, item.last)] if text or item.last else []

    async def _close(self, chain: FilterChain) -> str:
        text = await chain.close()
        self._output_error = self._output_error or chain.output_error
        return text

    def _check_outputs(self) -> None:
        """Raise the error of a filter with the scope ``output``, if there is one. Only called if the response is complete."""
        if self._output_error is not None:
            raise self._output_error

    async def _flush_filters(self) -> list[Item]:
        """Return the text that the filters of open artifacts hold back, and remove these filters."""
        passed: list[Item] = []
        while self._open:
            artifact_id, chain = self._open.popitem()
            text = await self._close(chain) if chain is not None else ""
            if text:
                passed.append(TextDelta(artifact_id, text))
        return passed

    async def _artifact(self, item: ArtifactUpdate) -> ArtifactUpdate:
        original = item.artifact
        if _channel_of(original) == "tool_result":
            self._output_error = (
                None  # the text before belongs to a response that called the tool, and is not the output
            )
        if item.append and original.artifact_id not in self._open:
            self._open[original.artifact_id] = await self._continue(original.artifact_id)
        chain = self._open.pop(original.artifact_id, None)
        if not item.append:
            chain = None
            self._texts.pop(original.artifact_id, None)
        if _channel_of(original) == "tool_call" and not item.last:
            parts = [Part(text="")]
            self._open[original.artifact_id] = None
        else:
            if chain is None:
                chain = self._chain(original)
            parts = await self._values.parts(original.parts, chain, closes=item.last)
            self._output_error = self._output_error or chain.output_error
            for part in original.parts:
                if part.text is not None:
                    self._keep(original.artifact_id, part.text, last=item.last)
            if not item.last:
                self._open[original.artifact_id] = chain
        artifact = Artifact(
            artifact_id=original.artifact_id,
            parts=tuple(parts),
            name=await self._values.text(original.name),
            description=await self._values.text(original.description),
            metadata=await self._values.metadata(original.metadata),
            extensions=original.extensions,
        )
        return msgspec.structs.replace(item, artifact=artifact, encoded=b"")


def _channel_of(artifact: Artifact) -> str:
    channel = extension_metadata(artifact.metadata).get("channel", "")
    return channel if isinstance(channel, str) else ""


def _is_complete_response(ending: StatusUpdate) -> bool:
    """Return whether a turn failed although its response is complete, for example because it does not match its schema."""
    fields = extension_metadata(ending.metadata or {})
    return ending.state is TaskState.FAILED and fields.get("finishReason") == "stop"


def _ending(error: Exception) -> StatusUpdate:
    """Return the last status of a turn that a filter ended. The text of an unexpected error is neither published nor logged."""
    if isinstance(error, BlockedError):
        metadata = {EXTENSION_URI: {"finishReason": "content_filter"}}
        return StatusUpdate(TaskState.FAILED, agent_message(error.reason or _BLOCKED), metadata)
    if isinstance(error, FilterError):
        logger.error("a filter failed: %s", error)
        return StatusUpdate(TaskState.FAILED, agent_message(str(error)))
    logger.error("a filter failed with %s", type(error).__name__)
    return StatusUpdate(TaskState.FAILED, agent_message(_FILTER_FAILED))
