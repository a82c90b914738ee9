"""The common interface of all providers' streaming chunks.

A provider's decoder converts payloads to `ChunkWrapper`s, so that their consumers (see
`tailrace.wrappers.assembly.assembly` and `tailrace.streaming.Accumulator`) are independent of the provider.
"""

from abc import ABCMeta, abstractmethod
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, Generic, Literal, TypeVar

import msgspec
from msgspec import StructMeta

from tailrace.wrappers.errors import UpstreamError
from tailrace.wrappers.messages import ContentPart

T = TypeVar("T")


class FinishReason(StrEnum):
    """Common finish reasons of all providers."""

    STOP = "stop"
    LENGTH = "length"
    TOOL_CALLS = "tool_calls"
    CONTENT_FILTER = "content_filter"
    RECITATION = "recitation"
    UNSPECIFIED = "unspecified"


class FinishMessage(msgspec.Struct, frozen=True):
    """The end of a response and its reason.

    Attributes:
        reason: The common finish reason.
        raw: The provider's reason, unchanged (``"end_turn"``, ``"MAX_TOKENS"``).
        message: The provider's explanation, if any.
    """

    reason: FinishReason
    raw: str
    message: str | None = None


class Usage(msgspec.Struct, frozen=True, gc=False):
    """Token counts of one request, as reported by the provider; never estimated.

    Attributes:
        input_tokens: Tokens of the prompt.
        output_tokens: Tokens of the output, including reasoning.
        total_tokens: The reported total, or the sum if the provider reports none.
        raw: The provider's usage object, unchanged (cached tokens, reasoning tokens, cost, …).
    """

    input_tokens: int
    output_tokens: int
    total_tokens: int
    raw: Mapping[str, Any] = {}


class ToolCallDelta(msgspec.Struct, frozen=True, gc=False):
    """A fragment of one tool call, unchanged; the message assembly assigns it to a call.

    Attributes:
        index: The provider's index of the call; None if it sent none.
        id: The call's id; empty if the fragment has none.
        name: The tool's name, or a fragment of it; empty if the fragment has none.
        arguments: A fragment of the arguments' text (JSON, or free text for a custom tool); joined verbatim.
        type: ``"function"``, ``"custom"``, or ``"server"`` for a tool that the provider runs itself; empty if the
            fragment does not state it.
        extra: Further fields of the call (thought signatures, …) under the provider's key. They become the call's
            metadata and are returned to the provider.
    """

    index: int | None = None
    id: str = ""
    name: str = ""
    arguments: str = ""
    type: str = ""
    extra: Mapping[str, Any] | None = None


class BlockDelta(msgspec.Struct, frozen=True):
    """A delta's information about its block of text or reasoning, beyond the text.

    Providers with content blocks (Anthropic, Gemini, Responses) sign and annotate single blocks, and require them back
    unchanged. A delta without this information continues the open block of its channel.

    Attributes:
        channel: ``"text"`` or ``"reasoning"``.
        opens: Start a new block: its text is not joined with previous text of the channel, and it is kept without text
            if it has a signature or metadata. False refers to the channel's latest block.
        signature: A fragment of the reasoning block's signature; fragments are joined.
        metadata: Further fields of the block under the provider's key. They become the metadata of its part, folded by
            type, and are returned to the provider.
    """

    channel: Literal["text", "reasoning"]
    opens: bool = False
    signature: str = ""
    metadata: Mapping[str, Any] | None = None


class ChunkDetails(msgspec.Struct):
    """Content of uncommon chunks, in a separate object so that common chunks have no cost for it.

    Attributes:
        role: The provider's role; empty if it sent none.
        refusal: A fragment of a refusal's text.
        metadata: New or changed response-level fields (``id``, ``model``, ``created``, ``service_tier``, …); the first
            ``id`` is kept, otherwise the last value.
        extra: Message fields without an accessor (annotations, audio, images, logprobs, unknown fields), folded by
            type: lists append, objects merge, other values replace.
        error: The error that the provider reported; the chunk's other content remains valid.
        snapshot: The chunk repeats the complete message instead of adding to it; it is used only if nothing was
            streamed.
        block: Information about the delta's block of text or reasoning, if any.
        parts: Complete parts after the delta's text (files, data, results of server tools); tool calls are deltas.
        restarts: The provider restarted its response: the choice's previous content is void.
        restates: The delta's reasoning is in a form that servers send in addition to another one: it is used only if
            the response has reasoning in no other form.
    """

    role: str = ""
    refusal: str = ""
    metadata: Mapping[str, Any] | None = None
    extra: Mapping[str, Any] | None = None
    error: UpstreamError | None = None
    snapshot: bool = False
    block: BlockDelta | None = None
    parts: Sequence[ContentPart] = ()
    restarts: bool = False
    restates: bool = False

    @property
    def has_content(self) -> bool:
        """True if it has message content, as opposed to response-level fields and errors."""
        return bool(self.refusal or self.extra or self.block or self.parts)

    @property
    def says_something(self) -> bool:
        """Deprecated: the former name of `has_content`, until 0.3."""
        return self.has_content


class _ChunkMeta(StructMeta, ABCMeta):
    """Metaclass of abstract msgspec structs; a struct is created for every token, in 60 ns."""


class ChunkWrapper(msgspec.Struct, Generic[T], metaclass=_ChunkMeta, gc=False):
    """One delta of one choice of a provider's stream.

    Accessors of an empty delta return empty values and never raise.

    Attributes:
        raw: The provider's object with all its fields.
        choice: Index of the choice (0 unless several were requested).
        details: Uncommon content; None for common chunks.
        plain: True if the decoder guarantees that the delta has only text or reasoning, so that consumers need not
            call other accessors. False guarantees nothing.
    """

    raw: T
    choice: int = 0
    details: ChunkDetails | None = None
    plain: bool = False

    @abstractmethod
    def get_text(self) -> str:
        """Return the visible text of this delta; ``""`` if there is none."""

    @abstractmethod
    def get_reasoning(self) -> str:
        """Return the reasoning text of this delta; ``""`` if there is none."""

    def get_texts(self) -> tuple[str, str]:
        """Return `get_reasoning` and `get_text`; a wrapper that has both at hand returns them by one call."""
        return self.get_reasoning(), self.get_text()

    @property
    def reasoning_origin(self) -> Mapping[str, Any] | None:
        """The origin of this delta's reasoning, under the provider's key, if it must be returned in the same form.

        Read at the start of a reasoning block, whose metadata it becomes; None if it is not relevant.
        """
        return None

    @abstractmethod
    def get_tool_calls(self) -> list[ToolCallDelta]:
        """Return the fragments of tool calls in this delta, in order; ``[]`` if there are none."""

    @abstractmethod
    def get_finish_message(self) -> FinishMessage | None:
        """Return the finish reason; None while the response continues."""

    @abstractmethod
    def get_usage(self) -> Usage | None:
        """Return the cumulative token counts of the request; None if the delta has none."""


class ReadWrapper(ChunkWrapper[T], Generic[T], gc=False):
    """Wrapper with precomputed values, the base class of most providers' wrappers.

    Attributes:
        text: The visible text.
        reasoning: The reasoning text.
        calls: The fragments of tool calls.
        finish: The finish reason.
        usage: The token counts of the request.
    """

    text: str = ""
    reasoning: str = ""
    calls: tuple[ToolCallDelta, ...] = ()
    finish: FinishMessage | None = None
    usage: Usage | None = None

    def get_text(self) -> str:
        """Return ``text``."""
        return self.text

    def get_reasoning(self) -> str:
        """Return ``reasoning``."""
        return self.reasoning

    def get_texts(self) -> tuple[str, str]:
        """``reasoning`` and ``text``."""
        return self.reasoning, self.text

    def get_tool_calls(self) -> list[ToolCallDelta]:
        """Return ``calls``."""
        return list(self.calls)

    def get_finish_message(self) -> FinishMessage | None:
        """Return ``finish``."""
        return self.finish

    def get_usage(self) -> Usage | None:
        """Return ``usage``."""
        return self.usage
