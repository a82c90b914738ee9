"""Folding a whole response: every choice, the usage, the facts about it, and how it ended."""

from collections.abc import Mapping
from typing import Any

from tailrace.wrappers import (
    Change,
    ChunkDetails,
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
        think_tags: Part the reasoning that an answer begins with, in ``<think>`` tags, from its text (see
            `tailrace.wrappers.thinking`).
        merge_choices: All choices are one answer. For a request of one answer (``n=1``) to a server that spreads it
            over several choices, or counts its tokens in their index.

    Attributes:
        choices: The answers by their index, in order of appearance; one unless several were asked for.
        usage: Token counts of the request, the last that were reported; None when none were.
        metadata: Facts about the response: ``model``, ``service_tier``, …, and ``id`` and ``created`` of the response
            whose answer is kept (the first that are not empty, since it began or was begun anew).
        error: Why the response is not whole; None as long as nothing says so. `close` sets it for a stream
            that broke off.
    """

    __slots__ = ("_merge_choices", "_settled", "_think_tags", "choices", "error", "metadata", "usage")

    def __init__(self, *, think_tags: bool = True, merge_choices: bool = False) -> None:
        self._think_tags = think_tags
        self._merge_choices = merge_choices
        self._settled: set[str] = set()  # the facts that stay as they are
        self.choices: dict[int, MessageAssembly] = {}
        self.usage: Usage | None = None
        self.metadata: dict[str, Any] = {}
        self.error: UpstreamError | None = None

    def add(self, chunk: ChunkWrapper[Any]) -> list[Change]:
        """Fold one chunk; return what it added, in order. Never raises for what a provider sent."""
        if not chunk.plain:
            usage, details = chunk.get_usage(), chunk.details
            if usage is not None:
                self._take_usage(usage)
            if details is not None and (details.metadata or details.error is not None or details.restarts):
                self._take_response(details)
        index = 0 if self._merge_choices else chunk.choice
        assembly = self.choices.get(index)
        if assembly is None:
            assembly = self._open_choice(chunk, index)
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

    def _open_choice(self, chunk: ChunkWrapper[Any], index: int) -> MessageAssembly | None:
        """A choice begins with its first delta that says something; facts, usage and errors begin none."""
        says_nothing = (
            not (chunk.get_text() or chunk.get_reasoning() or chunk.get_tool_calls())
            and chunk.get_finish_message() is None
            and (chunk.details is None or not chunk.details.says_something)
        )
        if says_nothing:
            return None
        assembly = self.choices[index] = MessageAssembly(index, think_tags=self._think_tags)
        return assembly

    def _take_response(self, details: ChunkDetails) -> None:
        """Fold what a chunk says about the response as a whole."""
        if self.error is None:
            self.error = details.error
        if details.restarts and len(self.choices) <= 1:
            # What comes now is another response's; where others go on beside it, theirs count.
            self._settled.clear()
        if details.metadata:
            self._take_metadata(details.metadata)

    def _take_metadata(self, metadata: Mapping[str, Any]) -> None:
        for name, value in metadata.items():
            if name in ("id", "created"):
                if name in self._settled:
                    continue
                if value:
                    self._settled.add(name)
                elif name in self.metadata:
                    continue
            self.metadata[name] = value

    def _take_usage(self, usage: Usage) -> None:
        # Servers repeat the usage, growing, or send zeros as placeholders: the last real one counts.
        if self.usage is None or usage.input_tokens or usage.output_tokens or usage.total_tokens:
            self.usage = usage
