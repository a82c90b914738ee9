"""Folds a complete response: every choice, the usage, metadata, and its end."""

from collections.abc import Iterable, Mapping
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

MAX_CHOICES = 1_000
"""Maximum number of choices of one response."""


class Accumulator:
    """Folds the `ChunkWrapper`s of one response and returns the changes. Sans-IO, O(1) a chunk.

    Feed it with `add`, then call `close` once, whether the stream succeeded or not. The results may be read at any time;
    reading costs time proportional to their length.

    Args:
        think_tags: Split reasoning at the start of the response, in ``<think>`` tags, from its text (see
            `tailrace.wrappers.decoding.thinking`).
        merge_choices: Treat all choices as one response. For a request with ``n=1`` to a server that spreads the response
            over several choices, or counts its tokens in their index.

    Attributes:
        choices: The choices by index, in order of appearance; one unless several were requested.
        usage: Token counts of the request, the last that were reported; None without any.
        metadata: Metadata of the response: ``model``, ``service_tier``, …, and ``id`` and ``created`` (the first that
            are not empty, since it began or restarted).
        error: The reason why the response is incomplete; None for a complete one. `close` sets it for a stream that
            broke off.
    """

    __slots__ = ("_merge_choices", "_settled", "_think_tags", "choices", "error", "metadata", "usage")

    def __init__(self, *, think_tags: bool = True, merge_choices: bool = False) -> None:
        self._think_tags = think_tags
        self._merge_choices = merge_choices
        self._settled: set[str] = set()  # metadata that does not change any more
        self.choices: dict[int, MessageAssembly] = {}
        self.usage: Usage | None = None
        self.metadata: dict[str, Any] = {}
        self.error: UpstreamError | None = None

    def add(self, chunk: ChunkWrapper[Any]) -> list[Change]:
        """Fold one chunk; return its changes in order. Never raises for a provider's data."""
        return self.add_all((chunk,))

    def add_all(self, chunks: Iterable[ChunkWrapper[Any]]) -> list[Change]:
        """Fold chunks that arrived together; return their changes, as `add`."""
        changes: list[Change] = []
        for chunk in chunks:
            if not chunk.plain:
                usage, details = chunk.get_usage(), chunk.details
                if usage is not None:
                    self._take_usage(usage)
                if details is not None and (
                    details.metadata or details.error is not None or details.restarts
                ):
                    self._take_response(details)
            index = 0 if self._merge_choices else chunk.choice
            try:
                assembly = self.choices.get(index) or self._open_choice(chunk, index)
                if assembly is not None:
                    changes += assembly.add(chunk)
            except UpstreamError as error:  # the response exceeds a bound
                self.error = self.error or error.with_traceback(None)
                break
        return changes

    def close(self, error: UpstreamError | None = None) -> list[Change]:
        """End the response; return text that was held back, if any.

        Args:
            error: The reason of the end, if the transport knows it. Without one, a response with an unfinished choice
                counts as broken off: `error` is set to fault ``stream_truncated``.
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
        """Return whether every choice that began has a finish reason."""
        return bool(self.choices) and all(choice.finish is not None for choice in self.choices.values())

    @property
    def first(self) -> MessageAssembly | None:
        """The choice with the lowest index: the only one, unless several were requested; None before any began."""
        return self.choices[min(self.choices)] if self.choices else None

    def message(self, choice: int | None = None) -> Message:
        """Return the message of one choice so far, in the common format; an empty one if it never began.

        Args:
            choice: Its index; None for the first.
        """
        assembly = self.first if choice is None else self.choices.get(choice)
        return (assembly or MessageAssembly()).message()

    def _open_choice(self, chunk: ChunkWrapper[Any], index: int) -> MessageAssembly | None:
        """Begin a choice with its first delta that has content; metadata, usage and errors begin none."""
        is_empty = (
            not (chunk.get_text() or chunk.get_reasoning() or chunk.get_tool_calls())
            and chunk.get_finish_message() is None
            and (chunk.details is None or not chunk.details.has_content)
        )
        if is_empty:
            return None
        if len(self.choices) >= MAX_CHOICES:
            raise UpstreamError(
                f"the response has more than the allowed {MAX_CHOICES} choices", fault=UpstreamFault.TOO_LARGE
            )
        assembly = self.choices[index] = MessageAssembly(index, think_tags=self._think_tags)
        return assembly

    def _take_response(self, details: ChunkDetails) -> None:
        """Fold a chunk's data about the response as a whole."""
        if self.error is None:
            self.error = details.error
        if details.restarts and len(self.choices) <= 1:
            # The following data is another response's; if others continue beside it, theirs is used.
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
        # Servers repeat the usage, growing, or send zeros as placeholders: the last real one is used.
        if self.usage is None or usage.input_tokens or usage.output_tokens or usage.total_tokens:
            self.usage = usage
