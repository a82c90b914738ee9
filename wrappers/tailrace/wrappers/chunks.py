"""One face over every provider's streaming chunk: what a delta holds, in the same words everywhere.

A provider's decoder turns the payloads of its wire into `ChunkWrapper`s. Whoever folds them (see
`tailrace.wrappers.assembly` and `tailrace.streaming.Accumulator`) never meets a provider's own shape.
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
    """Why a model stopped, in the six words that all providers can be mapped to."""

    STOP = "stop"
    LENGTH = "length"
    TOOL_CALLS = "tool_calls"
    CONTENT_FILTER = "content_filter"
    RECITATION = "recitation"
    UNSPECIFIED = "unspecified"


class FinishMessage(msgspec.Struct, frozen=True):
    """That, and why, the answer is complete.

    Attributes:
        reason: The common word.
        raw: The provider's own word, unchanged (``"end_turn"``, ``"MAX_TOKENS"``).
        message: What the provider says about it, where it says more than a word.
    """

    reason: FinishReason
    raw: str
    message: str | None = None


class Usage(msgspec.Struct, frozen=True, gc=False):
    """Tokens of one request, as the provider counted them; never an estimate.

    Attributes:
        input_tokens: Tokens of the prompt.
        output_tokens: Tokens of the answer, reasoning included.
        total_tokens: Both together, as reported (the sum where the provider reports none).
        raw: The provider's usage object, unchanged (cached tokens, reasoning tokens, cost, …).
    """

    input_tokens: int
    output_tokens: int
    total_tokens: int
    raw: Mapping[str, Any] = {}


class ToolCallDelta(msgspec.Struct, frozen=True, gc=False):
    """A fragment of one tool call, as it came; which call it belongs to is decided by who folds it.

    Attributes:
        index: The provider's position of the call; None when it sent none.
        id: The call's id; empty when this fragment carries none.
        name: The tool's name, or a piece of it; empty when this fragment carries none.
        arguments: A piece of the arguments' text (JSON, or free text for a custom tool); joined verbatim.
        type: ``"function"``, ``"custom"``, or ``"server"`` for a tool that the provider runs by itself; empty when
            this fragment does not say.
        extra: Fields of the call that have no place above (thought signatures, …), under the provider's name, as
            they are to be sent back: they become the call's metadata.
    """

    index: int | None = None
    id: str = ""
    name: str = ""
    arguments: str = ""
    type: str = ""
    extra: Mapping[str, Any] | None = None


class BlockDelta(msgspec.Struct, frozen=True):
    """What a delta says about the block of text or reasoning that it stands in, beyond the text itself.

    Providers that answer in blocks (Anthropic, Gemini, Responses) seal and annotate single blocks, and want them back
    as they were. A delta without this adds to whatever block of its channel is open.

    Attributes:
        channel: ``"text"`` or ``"reasoning"``.
        opens: A new block begins here: its text is not joined with what stood before, even of the same channel, and
            it is kept though no text may follow, if it is sealed or has metadata. False: this concerns the latest
            block of the channel.
        signature: A piece of the provider's seal over a reasoning block; pieces are joined.
        metadata: Further facts about the block, under the provider's name, as they are to be sent back: they become
            the metadata of its part, folded by the rule of their type.
    """

    channel: Literal["text", "reasoning"]
    opens: bool = False
    signature: str = ""
    metadata: Mapping[str, Any] | None = None


class ChunkDetails(msgspec.Struct):
    """What few chunks carry, kept apart so that the usual chunk costs nothing for it.

    Attributes:
        role: The role the provider names; empty when it names none.
        refusal: A piece of a refusal's text.
        metadata: Facts about the response (``id``, ``model``, ``created``, ``service_tier``, …) that are new
            or have changed; the first ``id`` stays, of all others the last value counts.
        extra: Fields of the message beyond the interface (annotations, audio, images, logprobs, unknown
            ones), to be folded by the rule of their type: lists append, objects merge, the rest replaces.
        error: The provider reported an error; what the chunk holds besides counts all the same.
        snapshot: The chunk repeats the whole message so far instead of adding to it: it counts only where
            nothing was streamed.
        block: What the delta says about its block of text or reasoning; None when nothing.
        parts: Whole parts that stand behind the delta's text (files, data, results of tools that the provider
            ran); tool calls never, they are deltas.
        restarts: The provider began its answer anew: what this choice held before is void.
        restates: The delta's reasoning is in a form in which servers repeat what they say in another: it counts only
            where the answer's reasoning comes in no other.
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
    def says_something(self) -> bool:
        """Whether any of it belongs to an answer; facts about the response, and errors, do not."""
        return bool(self.refusal or self.extra or self.block or self.parts)


class _ChunkMeta(StructMeta, ABCMeta):
    """An abstract class whose instances are msgspec structs: one is made a token, and made in 60 ns."""


class ChunkWrapper(msgspec.Struct, Generic[T], metaclass=_ChunkMeta, gc=False):
    """One delta of one choice of a provider's stream.

    An empty delta gives empty values, never an exception.

    Attributes:
        raw: The provider's own object, with every field it sent.
        choice: Which of several parallel answers the delta belongs to (0 unless more were asked for).
        details: What few chunks carry; None for the usual chunk.
        plain: A decoder's promise that the delta holds text or reasoning and nothing else, so that whoever
            folds it need not ask for the rest. False promises nothing.
    """

    raw: T
    choice: int = 0
    details: ChunkDetails | None = None
    plain: bool = False

    @abstractmethod
    def get_text(self) -> str:
        """The visible text this delta adds; ``""`` when it adds none."""

    @abstractmethod
    def get_reasoning(self) -> str:
        """The reasoning text this delta adds; ``""`` when it adds none."""

    @property
    def reasoning_origin(self) -> Mapping[str, Any] | None:
        """How this delta's reasoning came, under the provider's name, where it may have to go back the same way.

        Asked for where a block of reasoning begins, of which it becomes metadata; None where there is nothing to say.
        """
        return None

    @abstractmethod
    def get_tool_calls(self) -> list[ToolCallDelta]:
        """The fragments of tool calls in this delta, in the order sent; ``[]`` when there are none."""

    @abstractmethod
    def get_finish_message(self) -> FinishMessage | None:
        """Why the answer ended; None while it goes on."""

    @abstractmethod
    def get_usage(self) -> Usage | None:
        """Token counts, cumulative for the request; None when the delta carries none."""


class ReadWrapper(ChunkWrapper[T], Generic[T], gc=False):
    """A delta that its decoder has read already: what is asked for stands ready. The class of most providers.

    Attributes:
        text: The visible text that it adds.
        reasoning: The reasoning text that it adds.
        calls: The fragments of tool calls.
        finish: Why the answer ended.
        usage: The token counts of the request.
    """

    text: str = ""
    reasoning: str = ""
    calls: tuple[ToolCallDelta, ...] = ()
    finish: FinishMessage | None = None
    usage: Usage | None = None

    def get_text(self) -> str:
        """``text``."""
        return self.text

    def get_reasoning(self) -> str:
        """``reasoning``."""
        return self.reasoning

    def get_tool_calls(self) -> list[ToolCallDelta]:
        """``calls``."""
        return list(self.calls)

    def get_finish_message(self) -> FinishMessage | None:
        """``finish``."""
        return self.finish

    def get_usage(self) -> Usage | None:
        """``usage``."""
        return self.usage
