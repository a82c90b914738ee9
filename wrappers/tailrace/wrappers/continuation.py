"""Types for the continuation of interrupted responses: methods, request options, and the joined chunks.

`Model.continuation` continues a text. `Model.attachment` reads the rest of a response that the provider stores. The conditions
are in `tailrace.streaming.agent.continuation`.
"""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from enum import StrEnum
from typing import Any

import msgspec

from tailrace.wrappers.assembly.continuation_join import TextJoin
from tailrace.wrappers.chunks import ChunkWrapper, FinishMessage, ReadWrapper, ToolCallDelta, Usage
from tailrace.wrappers.errors import UpstreamError, UpstreamFault


class Route(StrEnum):
    """The method of a continuation."""

    ATTACH = "attach"
    """The provider stores the response, and sends the events that have not arrived."""
    PREFILL = "prefill"
    """The request ends with the received text as a message of the model, which the provider continues."""
    REPLACE = "replace"
    """A new response replaces the received text."""


class Prefill(msgspec.Struct, frozen=True):
    """Options of a request that ends with the interrupted text, so that the provider continues this text.

    Attributes:
        members: Further members of the request.
        metadata: Metadata of the last message. Its members under the provider's key are added to the message in the request.
        root: The root path of the API that supports continuations; empty for the default.
        is_exact: True if the response never repeats the end of the interrupted text.
        has_prefix: True if the response begins with the complete interrupted text.
    """

    members: Mapping[str, Any] = {}
    metadata: Mapping[str, Any] = {}
    root: str = ""
    is_exact: bool = False
    has_prefix: bool = False


class JoinedChunks(AsyncIterator[Sequence[ChunkWrapper[Any]]]):
    """The chunks of a continuation, without the characters that repeat the interrupted text.

    If the continuation contains reasoning, an `UpstreamError` is raised: the model has begun a new response.

    Args:
        batches: The chunks as the provider sent them.
        join: Removes the repetition.
        refused: Called if the provider rejects the request before any text, or if the continuation contains reasoning.
    """

    __slots__ = ("_batches", "_has_begun", "_join", "_refused")

    def __init__(
        self,
        batches: AsyncIterator[Sequence[ChunkWrapper[Any]]],
        join: TextJoin,
        refused: Callable[[], None] = lambda: None,
    ) -> None:
        self._batches = batches
        self._join = join
        self._refused = refused
        self._has_begun = False

    async def __anext__(self) -> Sequence[ChunkWrapper[Any]]:
        # Buffered text of an interrupted stream is discarded, because it may be the beginning of a repetition.
        while True:
            try:
                chunks = await anext(self._batches)
            except UpstreamError as error:
                self._check(error)
                raise
            joined = [each for chunk in chunks for each in self._joined(chunk)]
            if joined:
                return joined

    def _check(self, error: UpstreamError) -> None:
        """Call ``refused`` if an error before any text is caused by the request, and not by the provider."""
        if not self._has_begun and not error.concerns_provider:
            self._refused()

    def _joined(self, chunk: ChunkWrapper[Any]) -> Sequence[ChunkWrapper[Any]]:
        join = self._join
        if join.passes_all and not chunk.get_reasoning():
            return (chunk,)
        new_text = chunk.get_text()
        self._has_begun = self._has_begun or bool(new_text)
        text = join.feed(new_text) if new_text else ""
        if chunk.get_reasoning() or join.has_reasoning:
            self._refused()
            raise UpstreamError("the continuation of the text has reasoning", fault=UpstreamFault.INVALID)
        if chunk.details is not None and chunk.details.error is not None:
            self._check(chunk.details.error)
        elif chunk.get_tool_calls() or chunk.get_finish_message() is not None:
            text += join.close()
        if text == new_text:
            return (chunk,)
        if chunk.plain and not chunk.get_reasoning():
            return (ReadWrapper[Any](chunk.raw, chunk.choice, text=text),) if text else ()
        return (_JoinedChunk(chunk.raw, chunk.choice, chunk.details, original=chunk, text=text),)


class _JoinedChunk(ChunkWrapper[Any], gc=False):
    original: Any = None
    text: str = ""

    def get_text(self) -> str:
        return self.text

    def get_reasoning(self) -> str:
        return self.original.get_reasoning()

    @property
    def reasoning_origin(self) -> Mapping[str, Any] | None:
        return self.original.reasoning_origin

    def get_tool_calls(self) -> list[ToolCallDelta]:
        return self.original.get_tool_calls()

    def get_finish_message(self) -> FinishMessage | None:
        return self.original.get_finish_message()

    def get_usage(self) -> Usage | None:
        return self.original.get_usage()
