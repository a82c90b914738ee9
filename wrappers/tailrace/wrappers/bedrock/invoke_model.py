"""Interpretation of the chunks of InvokeModelWithResponseStream. Their format depends on the model family.

`InvocationEvents` detects the formats of Anthropic's Messages API, Amazon Nova (Converse events), Amazon Titan, Meta's Llama,
Mistral's text models, Cohere's Command, and Chat Completions.
"""

from collections.abc import Mapping
from typing import Any, cast

from tailrace.wrappers.anthropic.events import MessageEvents
from tailrace.wrappers.bedrock.chunk_wrapper import BedrockWrapper, finish_message, read_usage
from tailrace.wrappers.bedrock.content_blocks import KEY, arguments_text
from tailrace.wrappers.bedrock.events import EVENTS, ConverseEvents
from tailrace.wrappers.chunks import (
    BlockDelta,
    ChunkDetails,
    ChunkWrapper,
    FinishMessage,
    FinishReason,
    ToolCallDelta,
)
from tailrace.wrappers.decoding.decoder import merged_usage
from tailrace.wrappers.decoding.error_reports import finish_error, provider_error
from tailrace.wrappers.decoding.framing import MAX_EVENT_BYTES
from tailrace.wrappers.decoding.lenient_json import as_index, as_mapping, as_mappings, as_text
from tailrace.wrappers.openai.decoder import wrap_mapping

_METRICS = "amazon-bedrock-invocationMetrics"  # member of the last chunk of every model
_GUARDRAIL = "amazon-bedrock-guardrailAction"
_BEDROCK_FIELDS = frozenset({_METRICS, _GUARDRAIL, "amazon-bedrock-trace"})
# Prefixes of the types of Anthropic's events.
_ANTHROPIC = ("message", "content_block_", "completion", "ping")
_COUNTS = frozenset(
    {"prompt_token_count", "generation_token_count", "inputTextTokenCount", "totalOutputTextTokenCount"}
)


class InvocationEvents:
    """Sans-IO reader of the chunks of one InvokeModelWithResponseStream body.

    Args:
        provider: The provider's name in errors.
        max_block_bytes: Maximum size of one buffered block in bytes.

    Attributes:
        ended: True after the last chunk.
    """

    __slots__ = (
        "_anthropic",
        "_converse",
        "_counted",
        "_counts",
        "_has_deltas",
        "_provider",
        "_streamed_calls",
        "ended",
    )

    def __init__(self, *, provider: str = "", max_block_bytes: int = MAX_EVENT_BYTES) -> None:
        self._provider = provider
        self._anthropic = MessageEvents(provider=provider)
        self._converse = ConverseEvents(
            provider=provider, blocks_are_tokens=True, max_block_bytes=max_block_bytes
        )
        self._counts: dict[str, Any] = {}
        self._counted = False  # True if a chunk of the model has contained token counts
        self._streamed_calls = False
        self._has_deltas = False  # True if the messages in chunks of a Mistral model are deltas
        self.ended = False

    def wrap(self, chunk: Mapping[str, Any]) -> list[Any]:
        """Return the chunk wrappers of one chunk. Missing, null and invalid fields cause no error."""
        if chunk.__class__ is dict and len(chunk) == 3 and chunk.get("type") == "content_block_delta":
            # Fast path for an event without usage and without fields that Bedrock adds.
            deltas = self._anthropic.wrap_common(cast("dict[str, Any]", chunk))
            if deltas:
                return deltas
        fields, metadata = chunk, None
        if not chunk.keys().isdisjoint(_BEDROCK_FIELDS):
            metadata = {
                name: value for name, value in chunk.items() if name in _BEDROCK_FIELDS and value is not None
            }
            fields = {name: value for name, value in chunk.items() if name not in _BEDROCK_FIELDS}
        wrappers = self._wrap_model(fields)
        if not self._counted:
            self._counted = any(wrapper.get_usage() is not None for wrapper in wrappers)
        return [*wrappers, self._wrap_metadata(metadata)] if metadata else wrappers

    def close(self) -> list[ChunkWrapper[Any]]:
        """End the stream. Return the chunk wrappers of unfinished blocks."""
        return [*self._anthropic.close(), *self._converse.close()]

    def _wrap_metadata(self, metadata: dict[str, Any]) -> BedrockWrapper:
        wrapper = BedrockWrapper(metadata, details=ChunkDetails(metadata=metadata))
        metrics = as_mapping(metadata.get(_METRICS))
        if metrics is not None:
            self.ended = True
            if not self._counted:
                wrapper.usage = read_usage(metrics)
        if metadata.get(_GUARDRAIL) == "INTERVENED":
            wrapper.finish = FinishMessage(FinishReason.CONTENT_FILTER, "guardrail_intervened")
        return wrapper

    def _wrap_model(self, fields: Mapping[str, Any]) -> list[Any]:
        kind = as_text(fields.get("type"))
        if kind.startswith(_ANTHROPIC):
            return self._anthropic.wrap(fields if isinstance(fields, dict) else dict(fields))
        if not fields.keys().isdisjoint(EVENTS):
            return self._converse.wrap(fields)
        if as_mapping(fields.get("output")) is not None:
            return self._converse.wrap_response(fields)
        if "choices" in fields:
            return wrap_mapping(self._chat_completion(fields), provider=self._provider)
        for name, reader in (
            ("generation", self._llama),
            ("outputText", self._titan),
            ("results", self._titan_response),
            ("outputs", self._mistral),
            ("generations", self._cohere_response),
            ("event_type", self._cohere),
            ("is_finished", self._cohere),
        ):
            if name in fields:
                return [reader(fields)]
        if "completion" in fields:
            return self._anthropic.wrap({**fields, "type": "completion"})
        if kind == "error" or fields.get("error") or isinstance(fields.get("message"), str):
            error = provider_error(fields.get("error") or fields, self._provider)
            return [BedrockWrapper(fields, details=ChunkDetails(error=error))]
        return []

    def _chat_completion(self, fields: Mapping[str, Any]) -> Mapping[str, Any]:
        """Rename the fields of a chunk of a Mistral model to the names of Chat Completions.

        If the first message has a stop reason, it is a complete message. Otherwise, all messages are deltas.
        """
        choices = as_mappings(fields.get("choices") or [])
        if not any("stop_reason" in choice for choice in choices):
            return fields
        renamed: list[dict[str, Any]] = []
        for choice in choices:
            reason = choice.get("finish_reason") or choice.get("stop_reason")
            self._has_deltas = self._has_deltas or not reason
            names = {"message": "delta"} if self._has_deltas and "delta" not in choice else {}
            renamed.append(
                {names.get(name, name): value for name, value in choice.items() if name != "stop_reason"}
                | {"finish_reason": reason}
            )
        return {**fields, "choices": renamed}

    def _llama(self, fields: Mapping[str, Any]) -> BedrockWrapper:
        return self._text(fields, fields.get("generation"), fields.get("stop_reason"))

    def _titan(self, fields: Mapping[str, Any]) -> BedrockWrapper:
        return self._text(fields, fields.get("outputText"), fields.get("completionReason"))

    def _titan_response(self, fields: Mapping[str, Any]) -> BedrockWrapper:
        first = _first(fields.get("results"))
        counts = {**fields, "totalOutputTextTokenCount": first.get("tokenCount")}
        wrapper = self._text(counts, first.get("outputText"), first.get("completionReason"))
        wrapper.raw = fields
        return wrapper

    def _mistral(self, fields: Mapping[str, Any]) -> BedrockWrapper:
        first = _first(fields.get("outputs"))
        return self._text(fields, first.get("text"), first.get("stop_reason"))

    def _text(self, fields: Mapping[str, Any], text: object, reason: object) -> BedrockWrapper:
        counts = {name: value for name, value in fields.items() if name in _COUNTS and value is not None}
        if counts:
            self._counts = merged_usage(self._counts, counts)
        usage = read_usage(self._counts) if counts else None
        finish = finish_message(reason)
        plain = not counts and finish is None
        return BedrockWrapper(fields, plain=plain, text=as_text(text), finish=finish, usage=usage)

    def _cohere_response(self, fields: Mapping[str, Any]) -> BedrockWrapper:
        first = _first(fields.get("generations"))
        return self._text(fields, first.get("text"), first.get("finish_reason"))

    def _cohere(self, fields: Mapping[str, Any]) -> BedrockWrapper:
        kind = as_text(fields.get("event_type"))
        reason = fields.get("finish_reason")
        # The last event repeats the complete text.
        text = "" if kind in ("stream-end", "tool-calls-generation") else fields.get("text")
        wrapper = self._text(fields, text, reason)
        details = ChunkDetails(error=finish_error(as_text(reason).lower(), self._provider))
        fragment = as_mapping(fields.get("tool_call_delta"))
        if fragment is not None:
            self._streamed_calls = True
            wrapper.calls = (_cohere_call(fragment, as_index(fragment.get("index"))),)
        elif kind == "tool-calls-generation" and not self._streamed_calls:
            calls = as_mappings(fields.get("tool_calls") or [])
            wrapper.calls = tuple(_cohere_call(call, index) for index, call in enumerate(calls))
        citations = as_mappings(fields.get("citations") or [])
        if citations:
            cited = [dict(citation) for citation in citations]
            details.extra = {"annotations": cited}
            details.block = BlockDelta("text", metadata={KEY: {"citations": cited}})
        if fields.get("generation_id"):
            details.metadata = {"id": fields["generation_id"]}
        if details != ChunkDetails() or wrapper.calls:
            wrapper.details, wrapper.plain = details, False
        return wrapper


def _cohere_call(call: Mapping[str, Any], index: int | None) -> ToolCallDelta:
    arguments = arguments_text(call.get("parameters"))
    return ToolCallDelta(index, name=as_text(call.get("name")), arguments=arguments, type="function")


def _first(value: object) -> Mapping[str, Any]:
    items = as_mappings(value or [])
    return items[0] if items else {}
