"""Folding a whole response: every choice, the usage, the facts about it, and how it ended."""

from collections.abc import Mapping
from typing import Any

from tailrace.wrappers import (
    Change,
    ChunkWrapper,
    Message,
    MessageAssembly,
    UpstreamError,
    UpstreamFault,
    Usage,
)


class Accumulator:
    """Folds the `ChunkWrapper`s of one response and says what each one changed. Sans-IO, O(1) a chunk.

    Feed it with `add`, then call `close` once, whether the stream ended well or not; the results may be read at
    any time and cost what they are long.

    Args:
        think_tags: The model writes its reasoning into the text, in ``<think>`` tags: part the two (see
            `tailrace.wrappers.thinking`).

    Attributes:
        choices: The answers by their index, in order of appearance; one unless several were asked for.
        usage: Token counts of the request, the last that were reported; None when none were.
        metadata: Facts about the response: ``id`` (the first), ``model``, ``created``, ``service_tier``, ….
        error: Why the response is not whole; None as long as nothing says so. `close` sets it for a stream
            that broke off.
    """

    __slots__ = ("_think_tags", "choices", "error", "metadata", "usage")

    def __init__(self, *, think_tags: bool = False) -> None:
        self._think_tags = think_tags
        self.choices: dict[int, MessageAssembly] = {}
        self.usage: Usage | None = None
        self.metadata: dict[str, Any] = {}
        self.error: UpstreamError | None = None

    def add(self, chunk: ChunkWrapper[Any]) -> list[Change]:
        """Fold one chunk; return what it added, in order. Never raises for what a provider sent."""
        if not chunk.plain:
            self._take_response(chunk)
        assembly = self.choices.get(chunk.choice)
        if assembly is None:
            assembly = self._open_choice(chunk)
            if assembly is None:
                return []
        return assembly.add(chunk)

    def close(self, error: UpstreamError | None = None) -> list[Change]:
        """The response is over; return the text that was still held back, if any.

        Args:
            error: What ended it, where the transport knows. Without one, a response in which some choice was
                never finished counts as broken off: `error` is set to fault ``stream_truncated``.
        """
        changes = [change for assembly in self.choices.values() for change in assembly.close()]
        if self.error is None:
            self.error = error
        if self.error is None and not self.finished:
            self.error = UpstreamError(
                "the stream ended before the answer was complete"
                if self.choices
                else "the stream ended without an answer",
                fault=UpstreamFault.TRUNCATED,
            )
        return changes

    @property
    def finished(self) -> bool:
        """Every answer that began has said why it ended."""
        return bool(self.choices) and all(choice.finish is not None for choice in self.choices.values())

    @property
    def first(self) -> MessageAssembly | None:
        """The answer of the lowest index: the only one, unless several were asked for; None before any began."""
        return self.choices[min(self.choices)] if self.choices else None

    def message(self, choice: int | None = None) -> Message:
        """The answer of one choice as it stands, in the common format; an empty one if it never began.

        Args:
            choice: Its index; None for the first.
        """
        assembly = self.first if choice is None else self.choices.get(choice)
        return (assembly or MessageAssembly()).message()

    def _open_choice(self, chunk: ChunkWrapper[Any]) -> MessageAssembly | None:
        """A choice begins with its first delta that says something; facts, usage and errors begin none."""
        says_nothing = (
            not (chunk.get_text() or chunk.get_reasoning() or chunk.get_tool_calls())
            and chunk.get_finish_message() is None
            and (chunk.details is None or not (chunk.details.refusal or chunk.details.extra))
        )
        if says_nothing:
            return None
        assembly = self.choices[chunk.choice] = MessageAssembly(chunk.choice, think_tags=self._think_tags)
        return assembly

    def _take_response(self, chunk: ChunkWrapper[Any]) -> None:
        """Fold what a chunk says about the response as a whole."""
        usage = chunk.get_usage()
        if usage is not None:
            self._take_usage(usage)
        details = chunk.details
        if details is not None:
            if details.error is not None and self.error is None:
                self.error = details.error
            if details.metadata:
                self._take_metadata(details.metadata)

    def _take_metadata(self, metadata: Mapping[str, Any]) -> None:
        kept = {key: self.metadata[key] for key in ("id", "created") if key in self.metadata}
        self.metadata |= metadata
        self.metadata |= kept

    def _take_usage(self, usage: Usage) -> None:
        # Servers repeat the usage, growing, or send zeros as placeholders: the last real one counts.
        if self.usage is None or usage.input_tokens or usage.output_tokens or usage.total_tokens:
            self.usage = usage
