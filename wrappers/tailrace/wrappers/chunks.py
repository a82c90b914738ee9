"""Chunks of a streamed response, with the same interface for all providers.

The decoder of a provider converts the events of a stream to `ChunkWrapper`s, which `MessageAssembly` and
`tailrace.streaming.Accumulator` read.
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
    """Finish reasons in the common format, to which decoders convert those of the providers."""

    STOP = "stop"
    LENGTH = "length"
    TOOL_CALLS = "tool_calls"
    CONTENT_FILTER = "content_filter"
    RECITATION = "recitation"
    UNSPECIFIED = "unspecified"


class FinishMessage(msgspec.Struct, frozen=True):
    """The end of a response, with its reason.

    Attributes:
        reason: The finish reason in the common format.
        raw: The finish reason in the provider's words, for example ``"end_turn"`` or ``"MAX_TOKENS"``.
        message: The provider's explanation; None or empty if there is none.
    """

    reason: FinishReason
    raw: str
    message: str | None = None


class Usage(msgspec.Struct, frozen=True, gc=False):
    """Token counts of one request, as the provider reported them.

    Attributes:
        input_tokens: Number of tokens of the prompt.
        output_tokens: Number of tokens of the output, including reasoning.
        total_tokens: The reported total; the sum of the other two counts if none was reported.
        raw: The unchanged usage object of the provider (cached tokens, reasoning tokens, cost, …).
    """

    input_tokens: int
    output_tokens: int
    total_tokens: int
    raw: Mapping[str, Any] = {}


class ToolCallDelta(msgspec.Struct, frozen=True, gc=False):
    """One fragment of a tool call, as the provider sent it. `MessageAssembly` finds the call to which the fragment belongs.

    Attributes:
        index: The index of the call; None if the provider sent none.
        id: The id of the call; empty if the provider sent none with this fragment.
        name: The name of the tool, or a fragment of the name; may be empty.
        arguments: A fragment of the argument text: JSON, or free text for a custom tool.
        type: ``"function"``, ``"custom"``, or ``"server"`` for a server tool; empty if the provider sent no type with this
            fragment.
        extra: Further fields, such as thought signatures, under the provider's metadata key, for example ``{"gemini": {…}}``;
            None for none. They become metadata of the call, which later requests contain.
    """

    index: int | None = None
    id: str = ""
    name: str = ""
    arguments: str = ""
    type: str = ""
    extra: Mapping[str, Any] | None = None


class BlockDelta(msgspec.Struct, frozen=True):
    """The block of text or reasoning to which a delta belongs.

    Anthropic, Gemini and the Responses API divide a response into content blocks. Later requests must contain each block
    unchanged. A delta without a `BlockDelta` continues the latest block of text or reasoning.

    Attributes:
        channel: ``"text"`` or ``"reasoning"``.
        starts_block: True if the delta starts a new block, whose text is not joined with earlier text. False if it belongs to the
            latest block with the same channel. A block without text is preserved if it has a signature or metadata.
        signature: A fragment of the signature of a reasoning block.
        metadata: Further fields of the block, under the provider's metadata key; None for none. They become metadata of the
            content part, which later requests contain.
    """

    channel: Literal["text", "reasoning"]
    starts_block: bool = False
    signature: str = ""
    metadata: Mapping[str, Any] | None = None


class ChunkDetails(msgspec.Struct):
    """Content that most chunks do not have. It is a separate object, so that the other chunks stay small.

    Attributes:
        role: The role of the message; empty for the usual role ``assistant``.
        refusal: A fragment of the text with which the model refuses to answer.
        metadata: New or changed fields of the response (``id``, ``model``, ``created``, ``service_tier``, …); None for none. The
            last value of a field is used, but for ``id`` and ``created`` the first.
        extra: Other fields of the message (annotations, audio, images, logprobs, unknown fields); None for none. The values of a
            field in several chunks are merged (see `tailrace.wrappers.decoding.extra_fields.FieldFold`).
        error: The error that the provider reported, or None. The other content of the chunk is valid even if there is an error.
        snapshot: True if the chunk contains the complete message. It is used only if no earlier chunk had content.
        block: The block of text or reasoning that the delta belongs to, or None.
        parts: Complete content parts that follow the text of the delta: files, data, and results of server tools. Tool calls are
            not allowed here.
        restarts: True if the provider began its response again. The previous content of the choice must be discarded.
        is_second_field: True if the reasoning of the delta comes from a second field, for example ``reasoning_details``. It is
            ignored if the usual field has had reasoning, because some servers send the same reasoning in both fields.
        restates: Deprecated name of ``is_second_field``; to be removed in 0.3.
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
    is_second_field: bool = False
    restates: bool = False

    def __post_init__(self) -> None:
        """Apply the deprecated argument."""
        self.is_second_field = self.restates = self.is_second_field or self.restates

    @property
    def has_content(self) -> bool:
        """True if these details contain content of the message. Metadata of the response and errors are not content."""
        return bool(self.refusal or self.extra or self.block or self.parts)

    @property
    def says_something(self) -> bool:
        """Deprecated name of `has_content`; to be removed in 0.3."""
        return self.has_content


class _ChunkMeta(StructMeta, ABCMeta):
    """Metaclass of abstract msgspec structs.

    A struct takes only 60 ns to create, and a chunk wrapper is created for each token.
    """


class ChunkWrapper(msgspec.Struct, Generic[T], metaclass=_ChunkMeta, gc=False):
    """One delta of one choice of a response.

    If the delta has no value for a method, the method returns an empty value or None. The methods raise no exceptions.

    Attributes:
        raw: The provider's object, with all its fields.
        choice: The index of the choice; 0 unless the request asked for several choices.
        details: Content that most chunks do not have, or None.
        plain: True if the delta has only text or reasoning, so that consumers need to call only `get_texts`. False if it may have
            other content.
    """

    raw: T
    choice: int = 0
    details: ChunkDetails | None = None
    plain: bool = False

    @abstractmethod
    def get_text(self) -> str:
        """Return the visible text of this delta."""

    @abstractmethod
    def get_reasoning(self) -> str:
        """Return the reasoning text of this delta."""

    def get_texts(self) -> tuple[str, str]:
        """Return the reasoning text and the visible text of this delta. One call is faster than two."""
        return self.get_reasoning(), self.get_text()

    @property
    def reasoning_origin(self) -> Mapping[str, Any] | None:
        """The field of this delta's reasoning, for example ``{"openai": {"field": "reasoning"}}``.

        `MessageAssembly` adds the value to the metadata of a new reasoning block, so that later requests contain the reasoning in
        the same field. None if later requests do not depend on the field.
        """
        return None

    @abstractmethod
    def get_tool_calls(self) -> list[ToolCallDelta]:
        """Return the fragments of tool calls in this delta, in order."""

    @abstractmethod
    def get_finish_message(self) -> FinishMessage | None:
        """Return the finish reason; None while the response continues."""

    @abstractmethod
    def get_usage(self) -> Usage | None:
        """Return the cumulative token counts of the request; None if the delta has none."""


class ReadWrapper(ChunkWrapper[T], Generic[T], gc=False):
    """Chunk wrapper that stores its values as attributes: the base class of the chunk wrappers of most providers."""

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
        """Return ``reasoning`` and ``text``."""
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
