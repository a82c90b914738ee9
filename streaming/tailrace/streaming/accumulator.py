"""Accumulation of the chunks of one model response: choices, usage, metadata, and the error of an incomplete response."""

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

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
from tailrace.wrappers.continuation import Route

MAX_CHOICES = 1_000
"""Maximum number of choices of one response."""


class Attempt(msgspec.Struct, frozen=True):
    """One request for a response, and its outcome.

    Attributes:
        model: The model, as ``provider:model``.
        route: How this attempt continued the previous attempt; None for the first attempt.
        error: The error that interrupted this attempt; None if there was no error.
        usage: The token counts of this attempt; None if the provider reported none.
    """

    model: str
    route: Route | None = None
    error: UpstreamError | None = None
    usage: Usage | None = None


class Accumulator:
    """Accumulates the `ChunkWrapper`s of one response. Sans-IO.

    Call `add` for each chunk, then call `close` once, even if the stream failed. Adding a chunk takes constant time. The results
    may be read at any time.

    Args:
        think_tags: True to separate reasoning in ``<think>`` tags at the start of the response from its text.
        merge_choices: True to merge all choices into one choice. Use this option for requests with ``n=1`` to servers that
            distribute the response over several choices.

    Attributes:
        choices: The choices by index, in order of appearance.
        usage: The last reported token counts of the current attempt; None if the provider reported none.
        metadata: Metadata of the response: ``model``, ``service_tier``, …. The last value of a
            field is used, but for ``id`` and ``created`` the first non-empty value.
        was_finished_at_error: True if every choice had a finish reason before the provider reported ``error``.
        error: The reason why the current attempt is incomplete; None for no error. `close` sets it if the stream ended before the
            response was complete.
        attempts: The interrupted attempts before the current one, oldest first.
        replaced_calls: The names and ids of calls that an earlier process published (see `MessageAssembly`).
    """

    __slots__ = (
        "_cause",
        "_final_names",
        "_is_empty",
        "_joined_at",
        "_merge_choices",
        "_replaced",
        "_think_tags",
        "attempts",
        "choices",
        "error",
        "metadata",
        "replaced_calls",
        "usage",
        "was_finished_at_error",
    )

    def __init__(self, *, think_tags: bool = True, merge_choices: bool = False) -> None:
        self._think_tags = think_tags
        self._merge_choices = merge_choices
        self._final_names: set[str] = set()  # metadata fields whose value is final
        self.choices: dict[int, MessageAssembly] = {}
        self.usage: Usage | None = None
        self.metadata: dict[str, Any] = {}
        self.error: UpstreamError | None = None
        self.attempts: list[Attempt] = []
        # The choices that the first content of the current attempt replaces; None if there is nothing to replace.
        self._replaced: dict[int, MessageAssembly] | None = None
        self._joined_at: int | None = None  # length of the text that the current attempt continues
        self._is_empty = False  # True if the current attempt ended before content arrived
        self.was_finished_at_error = False
        self.replaced_calls: tuple[tuple[str, str], ...] = ()
        self._cause: UpstreamError | None = None  # error of the last attempt that had content

    def add(self, chunk: ChunkWrapper[Any]) -> list[Change]:
        """Add one chunk. Return the changes in order. The content of a chunk never causes an exception."""
        return self.add_all((chunk,))

    def add_all(self, chunks: Iterable[ChunkWrapper[Any]]) -> list[Change]:
        """Add several chunks. Return all their changes; see `add`."""
        changes: list[Change] = []
        for chunk in chunks:
            if not chunk.plain:
                usage, details = chunk.get_usage(), chunk.details
                if usage is not None:
                    self._apply_usage(usage)
                if details is not None and (
                    details.metadata or details.error is not None or details.restarts
                ):
                    self._apply_response(details)
            index = 0 if self._merge_choices else chunk.choice
            try:
                assembly = self.choices.get(index) or self._open_choice(chunk, index, changes)
                if assembly is not None:
                    changes += assembly.add(chunk)
            except UpstreamError as error:  # the response exceeds a size limit
                self.error = self.error or error.with_traceback(None)
                break
        return changes

    def close(self, error: UpstreamError | None = None) -> list[Change]:
        """End the response. Return the changes from text that was still buffered.

        Args:
            error: The exception that ended the stream, or None. If it is None and the response is incomplete, `error` becomes an
                error with the fault ``stream_truncated``.
        """
        changes = [change for assembly in self.choices.values() for change in assembly.close()]
        if self.error is None:
            self.error = error
        self.error = self.failure
        self.end_attempt()
        return changes

    def end_attempt(self) -> None:
        """End the current attempt. If it had no content, the content that it would have replaced remains."""
        self._is_empty = self.is_attempt_empty
        if self._replaced is not None:
            self.choices, self._replaced = self._replaced, None

    def continue_response(self, attempt: Attempt, route: Route) -> None:
        """Begin another attempt of an interrupted response. Call `end_attempt` first.

        Args:
            attempt: The interrupted attempt.
            route: The method of the next attempt. With `Route.REPLACE`, its first content replaces the received content. With
                other methods, its chunks continue the received content.
        """
        self.attempts.append(attempt)
        if not self._is_empty:
            self._cause = attempt.error
        self.error = self.usage = self._joined_at = None
        self._is_empty = False
        if route is Route.ATTACH:
            return
        if route is Route.REPLACE:
            self._final_names.clear()
            self._replaced, self.choices = self.choices, {}
            return
        self._joined_at = 0
        for choice in self.choices.values():
            choice.resume()
            self._joined_at = len(choice.plain_text)

    @property
    def is_attempt_empty(self) -> bool:
        """True if the current attempt has no content. With `Route.ATTACH`, the content of the previous attempt counts too."""
        if self._joined_at is not None:
            return self.first is None or len(self.first.plain_text) == self._joined_at
        return self._replaced is not None or not self.choices

    @property
    def reported_error(self) -> UpstreamError | None:
        """The error of the last attempt with content, or of the last attempt if no attempt had content. None for no error."""
        return self._cause if self._is_empty and self.error is not None and self._cause else self.error

    @property
    def failure(self) -> UpstreamError | None:
        """The reason why the response so far is incomplete; None for a complete response."""
        if self.error is not None or self.finished:
            return self.error
        return UpstreamError(
            "the stream ended before the response was complete"
            if self.choices
            else "the stream ended without a response",
            fault=UpstreamFault.TRUNCATED,
        )

    @property
    def total_usage(self) -> Usage | None:
        """Token counts of all attempts; None if none were reported. With several attempts, ``raw`` is empty."""
        if not self.attempts:
            return self.usage
        return sum_usages([*(each.usage for each in self.attempts), self.usage])

    @property
    def finished(self) -> bool:
        """True if every choice has a finish reason. A choice that the latest attempt did not repeat does not count."""
        finishes = [choice.finish for choice in self.choices.values() if choice.finish or choice.has_content]
        return bool(finishes) and all(finishes)

    @property
    def first(self) -> MessageAssembly | None:
        """The choice with the lowest index; None before the first choice has content."""
        return self.choices[min(self.choices)] if self.choices else None

    def message(self, choice: int | None = None) -> Message:
        """Return the content of a choice so far as a message; empty if there is no such choice.

        Args:
            choice: The index of the choice; None for the first choice.
        """
        assembly = self.first if choice is None else self.choices.get(choice)
        return (assembly or MessageAssembly()).message()

    def _open_choice(
        self, chunk: ChunkWrapper[Any], index: int, changes: list[Change]
    ) -> MessageAssembly | None:
        """Start a choice with its first delta that has content.

        If the attempt replaces an earlier attempt, this content discards the earlier content.
        """
        is_empty = (
            not (chunk.get_text() or chunk.get_reasoning() or chunk.get_tool_calls())
            and chunk.get_finish_message() is None
            and (chunk.details is None or not chunk.details.has_content)
        )
        if is_empty:
            return None
        if self._replaced is not None:
            self.choices, self._replaced = self._replaced, None
            changes += [choice.restart() for choice in self.choices.values()]
            if index in self.choices:
                return self.choices[index]
        if len(self.choices) >= MAX_CHOICES:
            raise UpstreamError(
                f"the response has more than the allowed {MAX_CHOICES} choices", fault=UpstreamFault.TOO_LARGE
            )
        assembly = self.choices[index] = MessageAssembly(index, think_tags=self._think_tags)
        if index == 0:
            assembly.replaced_calls = self.replaced_calls
        return assembly

    def _apply_response(self, details: ChunkDetails) -> None:
        if self.error is None and details.error is not None:
            self.error = details.error
            self.was_finished_at_error = self.finished  # the finish reason of the same chunk is added later
        if details.restarts and len(self.choices) <= 1:
            # The following metadata belongs to another response. With several choices, only one choice restarts, and the
            # metadata remains valid for the others.
            self._final_names.clear()
        if details.metadata:
            self._apply_metadata(details.metadata)

    def _apply_metadata(self, metadata: Mapping[str, Any]) -> None:
        for name, value in metadata.items():
            if name in ("id", "created"):
                if name in self._final_names:
                    continue
                if value:
                    self._final_names.add(name)
                elif name in self.metadata:
                    continue
            self.metadata[name] = value

    def _apply_usage(self, usage: Usage) -> None:
        # Some servers send growing counts, and some send zeros as placeholders.
        if self.usage is None or usage.input_tokens or usage.output_tokens or usage.total_tokens:
            self.usage = usage


def sum_usages(usages: Iterable[Usage | None]) -> Usage | None:
    """Return the sum of token counts; None if there are none."""
    total: Usage | None = None
    for usage in usages:
        if usage is None:
            continue
        input_tokens, output_tokens, both = (
            (total.input_tokens, total.output_tokens, total.total_tokens) if total else (0, 0, 0)
        )
        total = Usage(
            input_tokens + usage.input_tokens, output_tokens + usage.output_tokens, both + usage.total_tokens
        )
    return total
