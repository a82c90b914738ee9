"""Decoder of streams of the OpenAI Responses API and of compatible servers.

A response is a list of items, and an item is a list of parts. The API sends all content several times: in deltas, in the events
that end a part or an item, and in the complete response at the end. Some servers omit some of these events. The decoder therefore
reads all events, and returns only content that it has not returned before. Items and parts are identified by their position,
because some servers change the ids with every event. The items of the complete response are matched with the streamed items by
type and order.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from tailrace.wrappers.chunks import BlockDelta, ChunkDetails, ReadWrapper, ToolCallDelta
from tailrace.wrappers.decoding.decoder import EventDecoder
from tailrace.wrappers.decoding.extra_fields import json_text
from tailrace.wrappers.decoding.framing import MAX_EVENT_BYTES
from tailrace.wrappers.decoding.lenient_json import as_mapping, as_mappings, as_text
from tailrace.wrappers.errors import UpstreamError
from tailrace.wrappers.openai_responses.response_outcome import (
    ResponseMetadata,
    is_end,
    is_final,
    read_usage,
    reported_error,
    response_error,
    response_finish,
    response_outcome,
)
from tailrace.wrappers.openai_responses.response_progress import (
    ARGUMENTS,
    CODE,
    DELTAS,
    DONE_EVENTS,
    INPUT,
    REFUSAL,
    SUMMARY,
    TEXT,
    THOUGHT,
    Item,
    Part,
    ResponseProgress,
)
from tailrace.wrappers.openai_responses.tool_items import (
    FUNCTION_CALLS,
    KEY,
    call_id,
    call_kind,
    call_name,
    call_result,
    data_part,
    image_file,
    is_call,
    is_client_call,
    is_output,
    json_object,
    output_result,
    output_tool_name,
    own_fields,
    remaining_arguments,
    stored_item,
    text_or_json,
)

if TYPE_CHECKING:
    from openai.types.responses import ResponseStreamEvent

_AUDIO = {
    "response.audio.delta": "data",
    "response.output_audio.delta": "data",
    "response.audio.transcript.delta": "transcript",
    "response.output_audio_transcript.delta": "transcript",
}
_BEGINNINGS = frozenset({"response.created", "response.queued", "response.in_progress"})

Fields = Mapping[str, Any]

_decode_object = msgspec.json.Decoder(dict[str, Any]).decode


class ResponsesEventWrapper(ReadWrapper[Mapping[str, Any]], gc=False):
    """Chunk wrapper for one delta of an event, which may have several deltas.

    Attributes:
        reasoning: The text or the summary of a reasoning item.
        calls: Fragments of tool calls. The index of a call is the position of its item in the response.
    """


class ResponsesDecoder(EventDecoder[ResponsesEventWrapper]):
    """Sans-IO decoder of the response body of the Responses API.

    The decoder also reads complete responses that were not streamed. Its memory does not grow with the length of the text.

    Args:
        provider: The provider's name in errors.
        max_event_bytes: Maximum size of an event in bytes.

    Attributes:
        done: True after the end of the response, until the body begins another response.
    """

    __slots__ = ("_latest_calls", "_metadata", "_progress")

    def __init__(self, *, provider: str = "", max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        super().__init__(provider=provider, max_event_bytes=max_event_bytes)
        self._progress = ResponseProgress()
        self._metadata = ResponseMetadata()
        # The id of the latest call by tool name, for results without a call id.
        self._latest_calls: dict[str, str] = {}

    def wrap(self, fields: dict[str, Any], *, error_event: bool = False) -> list[ResponsesEventWrapper]:
        """Return the chunk wrappers of one event; one empty chunk wrapper for an event of this API without content."""
        kind = fields.get("type")
        if type(kind) is str:
            spec = DELTAS.get(kind)
            if spec is not None:
                return [self._delta(fields, spec[0], spec[1])]
        if is_end(fields):
            return self._end(fields)
        if as_text(kind).startswith("response."):
            return self._read_other(fields, as_text(kind)) or [ResponsesEventWrapper(fields)]
        if error_event or fields.get("error") or "error" in (kind, fields.get("object")):
            error = reported_error(fields, self._provider)
            return [ResponsesEventWrapper(fields, details=ChunkDetails(error=error))]
        return []  # a ping, or an event of another API

    def wrap_common(self, payload: bytes) -> list[ResponsesEventWrapper]:
        """Return the chunk wrappers of an event; an empty list if it has none, or is not a strictly valid JSON object."""
        try:
            return self.wrap(_decode_object(payload))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return []

    def wrap_error(self, error: UpstreamError) -> ResponsesEventWrapper:
        """Return a chunk wrapper that contains only this error."""
        return ResponsesEventWrapper({}, details=ChunkDetails(error=error))

    def _read_other(self, event: Fields, kind: str) -> list[ResponsesEventWrapper]:
        """Return the chunk wrappers of any event except text deltas and the last event; an empty list if it has no content."""
        spec = DONE_EVENTS.get(kind)
        if spec is not None:
            return self._end_part(self._progress.part(event, *spec[:2]), event, event.get(spec[2]), event)
        if kind in _BEGINNINGS:
            return self._begin(event, kind)
        if kind == "response.output_item.added":
            return self._begin_item(event, as_mapping(event.get("item")) or {})
        if kind == "response.output_item.done":
            content = as_mapping(event.get("item")) or {}
            return self._end_item(self._progress.item(event, as_text(content.get("type"))), content, event)
        if kind.endswith(("_part.added", "_part.done")):
            content = as_mapping(event.get("part")) or {}
            part_kind = as_text(content.get("type"))
            if part_kind not in (TEXT, REFUSAL, THOUGHT, SUMMARY):
                return []
            if kind.endswith("added"):
                return self._begin_part(event, part_kind)
            part = self._progress.part(
                event, part_kind, "summary_index" if part_kind == SUMMARY else "content_index"
            )
            return self._end_part(part, content, content.get("text") or content.get("refusal"), event)
        if kind == "response.output_text.annotation.added":
            part = self._progress.part(event, TEXT, "content_index")
            return self._annotate(part, as_mappings(event.get("annotation")), event)
        if kind in _AUDIO:
            audio = {"audio": {_AUDIO[kind]: as_text(event.get("delta"))}}
            return [ResponsesEventWrapper(event, details=ChunkDetails(extra=audio))]
        return []

    # --- deltas -------------------------------------------------------------------------------------------------

    def _delta(self, event: Fields, kind: str, index_field: str) -> ResponsesEventWrapper:
        part = self._progress.part(event, kind, index_field)
        text = event.get("delta")
        if type(text) is not str:
            text = text_or_json(text)
        if part.frozen:
            return ResponsesEventWrapper(event)
        if part is self._progress.open_text and not event.get("logprobs"):
            part.add(text)
            return ResponsesEventWrapper(event, 0, None, True, text)
        return self._add(part, text, event, as_mappings(event.get("logprobs") or []))

    def _add(
        self, part: Part, text: str, event: Fields, logprobs: Sequence[Fields] = ()
    ) -> ResponsesEventWrapper:
        is_first = not part.length
        part.add(text)
        kind, item = part.kind, part.item
        if kind == TEXT:
            details = self._text_details(part, logprobs, starts_part=bool(text))
            return ResponsesEventWrapper(event, 0, details, details is None, text)
        if kind in (THOUGHT, SUMMARY):
            if part is self._progress.open_reasoning or not text:
                return ResponsesEventWrapper(event, 0, None, True, "", text)
            self._progress.open_reasoning = part
            block = BlockDelta("reasoning", starts_block=True, metadata={KEY: {"type": kind}})
            return ResponsesEventWrapper(event, 0, ChunkDetails(block=block), False, "", text)
        if kind == REFUSAL:
            return ResponsesEventWrapper(event, details=ChunkDetails(refusal=text) if text else None)
        if not text:
            return ResponsesEventWrapper(event)
        if kind == CODE:
            # The server sends only the code. In the arguments {"code": "…"}, the code is the text of a JSON string.
            text = ('{"code": "' if is_first else "") + json_text(text)[1:-1]
        call = ToolCallDelta(
            item.position, arguments=text, type="" if item.announced else call_kind(item.kind)
        )
        item.announced = True
        return ResponsesEventWrapper(event, calls=(call,))

    def _text_details(
        self, part: Part, logprobs: Sequence[Fields], *, starts_part: bool
    ) -> ChunkDetails | None:
        block = extra = None
        if starts_part and part is not self._progress.open_text:
            self._progress.open_text = part
            metadata = part.item.metadata
            block = BlockDelta("text", starts_block=True, metadata={KEY: metadata} if metadata else None)
        if logprobs:
            part.logprobs += len(logprobs)
            extra = {"logprobs": {"content": logprobs}}
        return ChunkDetails(block=block, extra=extra) if block or extra else None

    def _annotate(
        self, part: Part, annotations: Sequence[Fields], event: Fields
    ) -> list[ResponsesEventWrapper]:
        if not annotations:
            return []
        part.annotations += len(annotations)
        own = BlockDelta("text", metadata={KEY: {"annotations": annotations}})
        details = ChunkDetails(
            extra={"annotations": annotations}, block=own if part is self._progress.open_text else None
        )
        return [ResponsesEventWrapper(event, details=details)]

    # --- parts --------------------------------------------------------------------------------------------------

    def _begin_part(self, event: Fields, kind: str) -> list[ResponsesEventWrapper]:
        if not self._progress.single or kind == REFUSAL:
            return []  # the first text of the part will start the block
        if kind == TEXT:
            block = BlockDelta("text", starts_block=True)
        else:
            block = BlockDelta("reasoning", starts_block=True, metadata={KEY: {"type": kind}})
        return [ResponsesEventWrapper(event, details=ChunkDetails(block=block))]

    def _end_part(
        self, part: Part, content: Fields, text: object, event: Fields
    ) -> list[ResponsesEventWrapper]:
        """Return chunk wrappers with the content of a complete part that the deltas did not contain."""
        if part.frozen and not part.length:
            return []  # `_end_item` will return the content of this part
        remaining = part.remaining(text_or_json(text))
        logprobs = as_mappings(content.get("logprobs") or [])[part.logprobs :]
        added = [self._add(part, remaining, event, logprobs)] if remaining or logprobs else []
        annotations = as_mappings(content.get("annotations") or [])[part.annotations :]
        return added + self._annotate(part, annotations, event)

    def _end_parts(
        self, item: Item, kind: str, contents: Sequence[Fields], event: Fields
    ) -> list[ResponsesEventWrapper]:
        """Call `_end_part` for all parts of one type. Streamed and complete parts are matched by order."""
        parts = item.parts_by_kind(kind)
        wrappers: list[ResponsesEventWrapper] = []
        for count, content in enumerate(contents):
            part = parts[count] if count < len(parts) else self._progress.new_part(item, kind, -1 - count)
            wrappers += self._end_part(part, content, content.get("text") or content.get("refusal"), event)
        return wrappers

    # --- items --------------------------------------------------------------------------------------------------

    def _begin_item(self, event: Fields, content: Fields) -> list[ResponsesEventWrapper]:
        kind = as_text(content.get("type"))
        item = self._progress.added_item(event, kind)
        if kind == "message":
            item.metadata = own_fields(content)
            return []
        if kind not in FUNCTION_CALLS and not is_call(kind):
            return []
        item.announced = True
        is_function = kind in FUNCTION_CALLS
        call = ToolCallDelta(
            item.position,
            # `_end_call` adds the ids of other calls, because some servers change the id until the call ends.
            id=as_text(content.get("call_id")) if is_function else "",
            name=as_text(content.get("name")) if is_function else call_name(content),
            type=call_kind(kind, content),
        )
        wrappers = [ResponsesEventWrapper(event, calls=(call,))]
        if is_function:
            part = self._arguments_part(item)
            arguments = text_or_json(content.get(part.kind))
            if arguments:
                # Some servers repeat these arguments in later deltas.
                wrappers.append(self._add(part, arguments, event))
                part.frozen = True
        return wrappers

    def _end_item(self, item: Item, content: Fields, event: Fields) -> list[ResponsesEventWrapper]:
        """Return chunk wrappers with the content of a complete item that was not returned before."""
        kind = as_text(content.get("type")) or item.kind
        if item.done:
            return []
        item.done = True
        if kind == "message":
            return self._end_message(item, content, event)
        if kind == "reasoning":
            return self._end_reasoning(item, content, event)
        if kind in FUNCTION_CALLS:
            return self._end_function_call(item, content, event)
        if is_call(kind):
            return self._end_call(item, content, event)
        if is_output(kind):
            part = output_result(content, self._latest_calls.pop(output_tool_name(kind), ""))
            return [ResponsesEventWrapper(event, details=ChunkDetails(parts=(part,)))]
        if not kind:
            return []
        return [ResponsesEventWrapper(event, details=ChunkDetails(parts=(data_part(content),)))]

    def _end_message(self, item: Item, content: Fields, event: Fields) -> list[ResponsesEventWrapper]:
        metadata = own_fields(content)
        new = {
            name: value
            for name, value in metadata.items()
            if item.metadata.get(name) != value and not (name == "id" and name in item.metadata)
        }
        item.metadata = {**item.metadata, **new}  # for text that only the complete item contains
        open_before = self._progress.open_text
        by_kind: dict[str, list[Fields]] = {}
        for each in as_mappings(content.get("content") or []):
            kind = as_text(each.get("type"))
            by_kind.setdefault(TEXT if kind == "text" else kind, []).append(each)
        wrappers: list[ResponsesEventWrapper] = []
        for kind in (THOUGHT, TEXT, REFUSAL):
            wrappers += self._end_parts(item, kind, by_kind.pop(kind, []), event)
        other_parts = [each for contents in by_kind.values() for each in contents]
        if other_parts:
            wrappers.append(
                ResponsesEventWrapper(event, details=ChunkDetails(extra={"content_parts": other_parts}))
            )
        last = self._progress.open_text
        if new and last is not None and last.item is item and (last is open_before or self._progress.single):
            block = BlockDelta("text", metadata={KEY: new})
            wrappers.append(ResponsesEventWrapper(event, details=ChunkDetails(block=block)))
        return wrappers

    def _end_reasoning(self, item: Item, content: Fields, event: Fields) -> list[ResponsesEventWrapper]:
        progress = self._progress
        wrappers = self._end_parts(item, SUMMARY, as_mappings(content.get("summary") or []), event)
        wrappers += self._end_parts(item, THOUGHT, as_mappings(content.get("content") or []), event)
        metadata = own_fields(content)
        is_open = progress.open_reasoning is not None and progress.open_reasoning.item is item
        if not is_open:
            if not metadata.get("encrypted_content"):
                return wrappers  # an id alone is useless, because the provider does not store the response
            progress.open_reasoning = Part(item, SUMMARY)
        if not metadata:
            return wrappers
        block = BlockDelta("reasoning", starts_block=not is_open, metadata={KEY: metadata})
        return [*wrappers, ResponsesEventWrapper(event, details=ChunkDetails(block=block))]

    def _arguments_part(self, item: Item) -> Part:
        """Return the part with the arguments of a function call, or with the input of a custom tool."""
        kind = INPUT if item.kind == "custom_tool_call" else ARGUMENTS
        return item.parts.get((kind, 0)) or self._progress.new_part(item, kind, 0)

    def _end_function_call(self, item: Item, content: Fields, event: Fields) -> list[ResponsesEventWrapper]:
        part = self._arguments_part(item)
        wrappers = self._end_part(part, {}, content.get(part.kind), event)
        metadata = own_fields(content)
        call = ToolCallDelta(
            item.position,
            id=call_id(content),
            name=as_text(content.get("name")),
            type="" if item.announced else call_kind(item.kind),
            extra={KEY: metadata} if metadata else None,
        )
        item.announced = True
        return [*wrappers, ResponsesEventWrapper(event, calls=(call,))]

    def _end_call(self, item: Item, content: Fields, event: Fields) -> list[ResponsesEventWrapper]:
        file = image_file(content)
        if not isinstance(content.get("call_id"), str):
            self._latest_calls[call_name(content)] = call_id(content)
        call = ToolCallDelta(
            item.position,
            id=call_id(content),
            name=call_name(content),
            arguments=remaining_arguments(item, content),
            type="function" if is_client_call(content) else "server",
            extra=stored_item(content, file=file),
        )
        result = None if is_client_call(content) else call_result(content)
        parts = tuple(part for part in (file, result) if part is not None)
        details = ChunkDetails(parts=parts) if parts else None
        if details is None or item.announced or self._progress.single:
            return [ResponsesEventWrapper(event, details=details, calls=(call,))]
        # In the same wrapper, the parts would precede the call.
        return [
            ResponsesEventWrapper(event, calls=(call,)),
            ResponsesEventWrapper(event, details=details),
        ]

    # --- the response as a whole --------------------------------------------------------------------------------

    def _begin(self, event: Fields, kind: str) -> list[ResponsesEventWrapper]:
        # If a response begins before the previous one has ended, a gateway has sent the request to another server, and the previous
        # output is invalid. After the end, another response may follow, for example in a recording of several requests.
        restarts = kind == "response.created" and self._progress.has_started and not self.done
        if restarts or self.done:
            self._progress.restart()
            self._metadata = ResponseMetadata()
            self._latest_calls.clear()
            self.done = False
        wrappers = self._describe(event, as_mapping(event.get("response")) or {})
        if restarts:
            wrappers.insert(0, ResponsesEventWrapper(event, details=ChunkDetails(restarts=True)))
        return wrappers

    def _end(self, event: Fields) -> list[ResponsesEventWrapper]:
        """Return the chunk wrappers of the last event or of a complete response: content not returned before, and the outcome."""
        complete = event if event.get("object") == "response" else None
        response: Fields = as_mapping(event.get("response")) or complete or {}
        wrappers = [] if self._progress.single else self._end_items(response, event)
        outcome = response_outcome(event, response)
        self.done = self.done or is_final(outcome)
        last = self._describe(event, response) or [ResponsesEventWrapper(event)]
        last[0].finish = response_finish(outcome, response)
        error = response_error(outcome, response, self._provider)
        if error is not None:
            last[0].details = last[0].details or ChunkDetails()
            last[0].details.error = error
        return wrappers + last

    def _end_items(self, response: Fields, event: Fields) -> list[ResponsesEventWrapper]:
        """Return chunk wrappers with the content of a complete response that was not streamed."""
        streamed = self._progress.items_by_kind()
        wrappers: list[ResponsesEventWrapper] = []
        for content in as_mappings(response.get("output") or []):
            kind = as_text(content.get("type"))
            item = next(streamed.get(kind, iter(())), None) or self._progress.new_item(kind)
            wrappers += self._end_item(item, content, event)
        return wrappers

    def _describe(self, event: Fields, response: Fields) -> list[ResponsesEventWrapper]:
        """Return one chunk wrapper with the new fields and usage of the response; an empty list if there are none."""
        metadata = self._metadata.update(event, response)
        usage = read_usage(self._metadata.usage) if as_mapping(response.get("usage")) else None
        if not metadata and not usage:
            return []
        return [
            ResponsesEventWrapper(
                event, details=ChunkDetails(metadata=metadata) if metadata else None, usage=usage
            )
        ]


class _SingleEventDecoder(ResponsesDecoder):
    """Decoder of single events. It ignores events that repeat the content of deltas."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__()
        self._progress = ResponseProgress(single=True)


def wrap_chunk(event: "ResponseStreamEvent | Mapping[str, Any]") -> list[ResponsesEventWrapper]:
    """Return the chunk wrappers of a single event, which is an object of the ``openai`` package or a JSON object.

    Events that usually repeat the content of deltas are ignored, even if a server sends some content only in such an event. Use
    `ResponsesDecoder.wrap` for complete streams.

    Returns:
        The chunk wrappers; an empty list for an event of another API.
    """
    return _SingleEventDecoder().wrap(json_object(event))
