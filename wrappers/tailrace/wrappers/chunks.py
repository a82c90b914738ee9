"""The common interface of all providers' streaming chunks.

The decoder of a provider converts each payload of a stream to `ChunkWrapper`s. The consumers of chunks
(`MessageAssembly` and `tailrace.streaming.Accumulator`) therefore do not depend on the provider.
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
    """Finish reasons that are common to all providers."""

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
        raw: The finish reason as the provider sent it, for example ``"end_turn"`` or ``"MAX_TOKENS"``.
        message: The provider's explanation; empty if there is none.
    """

    reason: FinishReason
    raw: str
    message: str | None = None


class Usage(msgspec.Struct, frozen=True, gc=False):
    """Token counts of one request, as reported by the provider. tailrace never estimates counts.

    Attributes:
        input_tokens: Number of tokens of the prompt.
        output_tokens: Number of tokens of the output, including reasoning.
        total_tokens: The total that the provider reported; without a reported total, the sum of both counts.
        raw: The unchanged usage object of the provider (cached tokens, reasoning tokens, cost, …).
    """

    input_tokens: int
    output_tokens: int
    total_tokens: int
    raw: Mapping[str, Any] = {}


class ToolCallDelta(msgspec.Struct, frozen=True, gc=False):
    """An unchanged fragment of one tool call. `MessageAssembly` determines the call that the fragment belongs to.

    Attributes:
        index: The provider's index of the call; None if the fragment has no index.
        id: The id of the call; empty if the fragment has no id.
        name: The name of the tool, or a fragment of the name; may be empty.
        arguments: A fragment of the argument text, which is JSON, or free text for a custom tool. Consumers
            concatenate the fragments.
        type: ``"function"``, ``"custom"``, or ``"server"`` for a tool that the provider runs itself; empty if the
            fragment has no type.
        extra: Further fields of the call (thought signatures, …) under the provider's metadata key, for example
            ``"gemini"``. These fields become metadata of the call, and later requests to the provider contain them.
    """

    index: int | None = None
    id: str = ""
    name: str = ""
    arguments: str = ""
    type: str = ""
    extra: Mapping[str, Any] | None = None


class BlockDelta(msgspec.Struct, frozen=True):
    """The block of text or reasoning that a delta belongs to.

    Anthropic, Gemini and the Responses API divide a response into content blocks. These APIs sign or annotate single
    blocks, and later requests must contain each block unchanged. A delta without a `BlockDelta` continues the latest
    block of its channel.

    Attributes:
        channel: ``"text"`` or ``"reasoning"``.
        opens: True if the delta starts a new block, whose text is not joined with earlier text of the channel. A block
            without text is preserved if it has a signature or metadata. False if the delta belongs to the latest block
            of the channel.
        signature: A fragment of the signature of a reasoning block. Consumers concatenate the fragments.
        metadata: Further fields of the block under the provider's metadata key. The fields are merged into the
            metadata of the part, by the rules of `ChunkDetails.extra`. Later requests to the provider contain them.
    """

    channel: Literal["text", "reasoning"]
    opens: bool = False
    signature: str = ""
    metadata: Mapping[str, Any] | None = None


class ChunkDetails(msgspec.Struct):
    """Content that most chunks do not have. It is a separate object, so that the common chunks stay small and fast.

    Attributes:
        role: The role that the provider sent; empty if it sent no role.
        refusal: A fragment of the text of a refusal.
        metadata: New or changed fields of the response (``id``, ``model``, ``created``, ``service_tier``, …). The last
            value of a field is used, but the first value of ``id``.
        extra: Fields of the message without an accessor (annotations, audio, images, logprobs, unknown fields). The
            values of several chunks are merged by type: lists are concatenated, objects are merged, other values are
            replaced.
        error: The error that the provider reported; None for no error. The other content of the chunk is valid even if
            there is an error.
        snapshot: True if the chunk has the complete message instead of a delta. The chunk is used only if the stream
            had no other content.
        block: The block of text or reasoning that the delta belongs to, or None.
        parts: Complete parts that follow the delta's text: files, data, and results of server tools, but no tool
            calls.
        restarts: True if the provider restarted its response. The previous content of the choice must be discarded.
        restates: True if the delta's reasoning comes from a secondary field, in which some servers repeat the
            reasoning of the usual field. The secondary field is used only if the usual field has no reasoning.
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
        """True if the chunk has content of the message here. Metadata of the response and errors do not count."""
        return bool(self.refusal or self.extra or self.block or self.parts)

    @property
    def says_something(self) -> bool:
        """Deprecated name of `has_content`; to be removed in 0.3."""
        return self.has_content


class _ChunkMeta(StructMeta, ABCMeta):
    """Metaclass of abstract msgspec structs.

    One chunk wrapper is created for each token. Creating a struct takes only 60 ns.
    """


class ChunkWrapper(msgspec.Struct, Generic[T], metaclass=_ChunkMeta, gc=False):
    """One delta of one choice of a provider's stream.

    The accessors of an empty delta return empty values and never raise an exception.

    Attributes:
        raw: The provider's object with all its fields.
        choice: Index of the choice; 0 unless the request asked for several choices.
        details: Content that most chunks do not have; None if there is none.
        plain: True if the decoder guarantees that the delta has only text or reasoning, so that consumers can skip the
            other accessors. False if the delta may have any content.
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
        """Return the reasoning and the text of this delta with one call, which is faster than two calls."""
        return self.get_reasoning(), self.get_text()

    @property
    def reasoning_origin(self) -> Mapping[str, Any] | None:
        """The name of the field that contained this delta's reasoning, under the provider's metadata key.

        None if the field does not matter.

        `MessageAssembly` reads this property at the start of a reasoning block, and adds the value to the metadata of
        the block. Later requests then contain the reasoning in the same field.
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
    """Chunk wrapper whose values are attributes. It is the base class of the chunk wrappers of most providers.

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
