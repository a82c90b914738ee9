"""The chunks of InvokeModelWithResponseStream: each model's own format, told apart by the fields of the object.

Anthropic's Messages events, Amazon Nova's (those of Converse) and Titan's, Meta's Llama, Mistral's text models, Cohere's
Command, and the Chat Completions chunks of everybody else.
"""

from collections.abc import Mapping
from typing import Any, cast

from tailrace.wrappers.anthropic.events import MessageEvents
from tailrace.wrappers.bedrock.blocks import KEY, arguments_text
from tailrace.wrappers.bedrock.events import EVENTS, ConverseEvents
from tailrace.wrappers.bedrock.wrapper import BedrockWrapper, finish_message, read_usage
from tailrace.wrappers.chunks import (
    BlockDelta,
    ChunkDetails,
    ChunkWrapper,
    FinishMessage,
    FinishReason,
    ToolCallDelta,
)
from tailrace.wrappers.decoding import merged_usage
from tailrace.wrappers.error_reports import finish_error, provider_error
from tailrace.wrappers.loose_json import as_index, as_mapping, as_mappings, as_text
from tailrace.wrappers.openai.chunks import wrap_mapping
from tailrace.wrappers.wire import MAX_EVENT_BYTES

_METRICS = "amazon-bedrock-invocationMetrics"  # in the last chunk, whatever the model
_GUARDRAIL = "amazon-bedrock-guardrailAction"
_OF_BEDROCK = frozenset({_METRICS, _GUARDRAIL, "amazon-bedrock-trace"})
_ANTHROPIC = ("message", "content_block_", "completion", "ping")  # how the types of its events begin
_COUNTS = frozenset(
    {"prompt_token_count", "generation_token_count", "inputTextTokenCount", "totalOutputTextTokenCount"}
)


class InvocationEvents:
    """Makes wrappers of the chunks of one InvokeModelWithResponseStream body, in their order. Sans-IO.

    Args:
        provider: Named in errors.
        max_block_bytes: Bound on one block that is handed over whole.

    Attributes:
        ended: The last chunk was seen.
    """

    __slots__ = (
        "_anthropic",
        "_converse",
        "_counted",
        "_counts",
        "_in_pieces",
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
        self._counted = False  # the model has reported usage itself
        self._streamed_calls = False
        self._in_pieces = False  # messages of Mistral's are pieces of one
        self.ended = False

    def wrap(self, chunk: Mapping[str, Any]) -> list[Any]:
        """The deltas of one chunk's object, whatever of its fields are missing, null or misshapen."""
        if chunk.__class__ is dict and len(chunk) == 3 and chunk.get("type") == "content_block_delta":
            # Nothing in it is Bedrock's own, and nothing is counted.
            usual = self._anthropic.wrap_usual(cast("dict[str, Any]", chunk))
            if usual:
                return usual
        fields, facts = chunk, None
        if not chunk.keys().isdisjoint(_OF_BEDROCK):
            facts = {name: chunk[name] for name in _OF_BEDROCK if chunk.get(name) is not None}
            fields = {name: value for name, value in chunk.items() if name not in _OF_BEDROCK}
        wrappers = self._wrap_model(fields)
        if not self._counted:
            self._counted = any(wrapper.get_usage() is not None for wrapper in wrappers)
        return [*wrappers, self._wrap_facts(facts)] if facts else wrappers

    def close(self) -> list[ChunkWrapper[Any]]:
        """The stream is over: what a block held that was not ended."""
        return [*self._anthropic.close(), *self._converse.close()]

    def _wrap_facts(self, facts: dict[str, Any]) -> BedrockWrapper:
        """What Bedrock itself adds to a model's chunk."""
        wrapper = BedrockWrapper(facts, details=ChunkDetails(metadata=facts))
        metrics = as_mapping(facts.get(_METRICS))
        if metrics is not None:
            self.ended = True
            if not self._counted:
                wrapper.usage = read_usage(metrics)
        if facts.get(_GUARDRAIL) == "INTERVENED":
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
        for name, read in (
            ("generation", self._llama),
            ("outputText", self._titan),
            ("results", self._titan_response),
            ("outputs", self._mistral),
            ("generations", self._cohere_response),
            ("event_type", self._cohere),
            ("is_finished", self._cohere),
        ):
            if name in fields:
                return [read(fields)]
        if "completion" in fields:
            return self._anthropic.wrap({**fields, "type": "completion"})
        if kind == "error" or fields.get("error") or isinstance(fields.get("message"), str):
            error = provider_error(fields.get("error") or fields, self._provider)
            return [BedrockWrapper(fields, details=ChunkDetails(error=error))]
        return []

    def _chat_completion(self, fields: Mapping[str, Any]) -> Mapping[str, Any]:
        """The chunk with Chat Completions' own names where Mistral's models on Bedrock have others.

        Their chunks have ``message`` and ``stop_reason`` in the places of ``delta`` and ``finish_reason``; whether
        that message is a piece or the whole shows in that a whole one has a reason.
        """
        choices = as_mappings(fields.get("choices") or [])
        if not any("stop_reason" in choice for choice in choices):
            return fields
        renamed: list[dict[str, Any]] = []
        for choice in choices:
            reason = choice.get("finish_reason") or choice.get("stop_reason")
            self._in_pieces = self._in_pieces or not reason
            names = {"message": "delta"} if self._in_pieces and "delta" not in choice else {}
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
        """The delta of a format that is text, a reason, and counts that grow."""
        counts = {name: fields[name] for name in fields.keys() & _COUNTS if fields[name] is not None}
        if counts:
            self._counts = merged_usage(self._counts, counts)
        usage = read_usage(self._counts) if counts else None
        said = as_text(text)
        finish = finish_message(reason)
        plain = not counts and finish is None
        return BedrockWrapper(fields, plain=plain, text=said, finish=finish, usage=usage)

    def _cohere_response(self, fields: Mapping[str, Any]) -> BedrockWrapper:
        first = _first(fields.get("generations"))
        return self._text(fields, first.get("text"), first.get("finish_reason"))

    def _cohere(self, fields: Mapping[str, Any]) -> BedrockWrapper:
        kind = as_text(fields.get("event_type"))
        reason = fields.get("finish_reason")
        # The last event repeats the whole answer; only the reason is new.
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
