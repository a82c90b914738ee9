"""OpenAI Responses streams, of OpenAI itself and of the many servers that speak the same.

Two ways in, one wrapper out: the bytes of a response body through `ResponsesDecoder`, or the openai package's own
events through `wrap_chunk(event)`.

An answer is a list of items, and an item a list of parts. Everything is said at least twice: in deltas, in the events
that end a part and an item, and in the whole response at the end. Servers leave out any of these, so each repetition
adds what was not said before, and nothing else. Items are told apart by their position, parts by theirs; ids are of
no use for that, since some servers change them with every event. What is repeated is matched by order: the second
message of the response at the end is the second message that was streamed.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from tailrace.wrappers.chunks import BlockDelta, ChunkDetails, ToolCallDelta
from tailrace.wrappers.decoding import EventDecoder
from tailrace.wrappers.errors import UpstreamError
from tailrace.wrappers.fields import json_text
from tailrace.wrappers.loose_json import as_mapping, as_mappings, as_text
from tailrace.wrappers.openai_responses.items import (
    FUNCTION_CALLS,
    KEY,
    call_id,
    call_kind,
    call_name,
    call_result,
    data_part,
    image_file,
    is_call,
    is_output,
    json_object,
    output_result,
    own_fields,
    rest_of_arguments,
    run_by_caller,
    said_text,
    stored_item,
    tool_of_output,
)
from tailrace.wrappers.openai_responses.outcome import (
    ResponseFacts,
    ends,
    failure_of,
    finish_of,
    is_end,
    outcome_of,
    reported_error,
)
from tailrace.wrappers.openai_responses.progress import (
    ARGUMENTS,
    CODE,
    DELTAS,
    DONES,
    INPUT,
    REFUSAL,
    SUMMARY,
    TEXT,
    THOUGHT,
    Item,
    Part,
    Progress,
)
from tailrace.wrappers.openai_responses.wrapper import ResponsesEventWrapper
from tailrace.wrappers.wire import MAX_EVENT_BYTES

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


class ResponsesDecoder(EventDecoder[ResponsesEventWrapper]):
    """Decodes the body of a streamed response of the Responses API. Sans-IO.

    A complete response that was not streamed is understood too. What is kept between two events is small and does
    not grow with the text.

    Args:
        provider: Named in errors.
        max_event_bytes: Bound on one event.

    Attributes:
        done: The response has ended, one way or another; ``[DONE]``, which some servers send after it, adds nothing.
    """

    __slots__ = ("_facts", "_progress", "_unpaired")

    def __init__(self, *, provider: str = "", max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        super().__init__(provider=provider, max_event_bytes=max_event_bytes)
        self._progress = Progress()
        self._facts = ResponseFacts()
        self._unpaired: dict[str, str] = {}  # tool: id of its latest call, for outputs that do not name it

    def wrap(self, fields: dict[str, Any], *, error_event: bool = False) -> list[ResponsesEventWrapper]:
        """The deltas of one event; an empty one for an event of this API that says nothing."""
        kind = fields.get("type")
        if type(kind) is str:
            place = DELTAS.get(kind)
            if place is not None:
                return [self._delta(fields, place[0], place[1])]
        if is_end(fields):
            return self._end(fields)
        if as_text(kind).startswith("response."):
            return self._say_rest(fields, as_text(kind)) or [ResponsesEventWrapper(fields)]
        if error_event or fields.get("error") or "error" in (kind, fields.get("object")):
            error = reported_error(fields, self._provider)
            return [ResponsesEventWrapper(fields, details=ChunkDetails(error=error))]
        return []  # a ping, or of somebody else's vocabulary

    def wrap_usual(self, payload: bytes) -> list[ResponsesEventWrapper]:
        """The deltas of an event that is plain JSON."""
        try:
            return self.wrap(_decode_object(payload))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return []

    def wrap_error(self, error: UpstreamError) -> ResponsesEventWrapper:
        """An empty delta with this error."""
        return ResponsesEventWrapper({}, details=ChunkDetails(error=error))

    def _say_rest(self, event: Fields, kind: str) -> list[ResponsesEventWrapper]:
        """The deltas of an event that is no delta: of the beginning or the end of something, or of a whole thing."""
        place = DONES.get(kind)
        if place is not None:
            return self._end_part(self._progress.part(event, *place[:2]), event, event.get(place[2]), event)
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

    def _delta(self, event: Fields, kind: str, numbered: str) -> ResponsesEventWrapper:
        part = self._progress.part(event, kind, numbered)
        text = event.get("delta")
        if type(text) is not str:
            text = said_text(text)
        if part.frozen:
            return ResponsesEventWrapper(event)
        if part is self._progress.open_text and not event.get("logprobs"):
            part.take(text)
            return ResponsesEventWrapper(event, 0, None, True, text)
        return self._add(part, text, event, as_mappings(event.get("logprobs") or []))

    def _add(
        self, part: Part, text: str, event: Fields, logprobs: Sequence[Fields] = ()
    ) -> ResponsesEventWrapper:
        """A delta with the next text of a part, of whatever kind."""
        first = not part.length
        part.take(text)
        kind, item = part.kind, part.item
        if kind == TEXT:
            details = self._text_details(part, logprobs, opens=bool(text))
            return ResponsesEventWrapper(event, 0, details, details is None, text)
        if kind in (THOUGHT, SUMMARY):
            if part is self._progress.open_reasoning or not text:
                return ResponsesEventWrapper(event, 0, None, True, "", text)
            self._progress.open_reasoning = part
            block = BlockDelta("reasoning", opens=True, metadata={KEY: {"type": kind}})
            return ResponsesEventWrapper(event, 0, ChunkDetails(block=block), False, "", text)
        if kind == REFUSAL:
            return ResponsesEventWrapper(event, details=ChunkDetails(refusal=text) if text else None)
        if not text:
            return ResponsesEventWrapper(event)
        if kind == CODE:
            # The arguments of a call are JSON, and code is one of its strings.
            text = ('{"code": "' if first else "") + json_text(text)[1:-1]
        call = ToolCallDelta(
            item.position, arguments=text, type="" if item.announced else call_kind(item.kind)
        )
        item.announced = True
        return ResponsesEventWrapper(event, tool_calls=(call,))

    def _text_details(self, part: Part, logprobs: Sequence[Fields], *, opens: bool) -> ChunkDetails | None:
        block = extra = None
        if opens and part is not self._progress.open_text:
            self._progress.open_text = part
            facts = part.item.facts
            block = BlockDelta("text", opens=True, metadata={KEY: facts} if facts else None)
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
        if not self._progress.alone or kind == REFUSAL:
            return []  # its first text opens it
        if kind == TEXT:
            block = BlockDelta("text", opens=True)
        else:
            block = BlockDelta("reasoning", opens=True, metadata={KEY: {"type": kind}})
        return [ResponsesEventWrapper(event, details=ChunkDetails(block=block))]

    def _end_part(
        self, part: Part, content: Fields, whole: object, event: Fields
    ) -> list[ResponsesEventWrapper]:
        """The deltas for what the whole of a part says beyond its deltas."""
        if part.frozen and not part.length:
            return []  # its item says it
        rest = part.rest(said_text(whole))
        logprobs = as_mappings(content.get("logprobs") or [])[part.logprobs :]
        added = [self._add(part, rest, event, logprobs)] if rest or logprobs else []
        annotations = as_mappings(content.get("annotations") or [])[part.annotations :]
        return added + self._annotate(part, annotations, event)

    def _end_parts(
        self, item: Item, kind: str, contents: Sequence[Fields], event: Fields
    ) -> list[ResponsesEventWrapper]:
        """The same for all parts of a kind, as the item has them: the first is the one that was streamed first."""
        parts = item.parts_of(kind)
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
            item.facts = own_fields(content)
            return []
        if kind not in FUNCTION_CALLS and not is_call(kind):
            return []
        item.announced = True
        known = kind in FUNCTION_CALLS
        call = ToolCallDelta(
            item.position,
            # That of any other call is told at its end: some servers change it until then.
            id=as_text(content.get("call_id")) if known else "",
            name=as_text(content.get("name")) if known else call_name(content),
            type=call_kind(kind, content),
        )
        wrappers = [ResponsesEventWrapper(event, tool_calls=(call,))]
        if known:
            part = self._whole_arguments(item)
            arguments = said_text(content.get(part.kind))
            if arguments:
                # Deltas could only repeat what the call begins with.
                wrappers.append(self._add(part, arguments, event))
                part.frozen = True
        return wrappers

    def _end_item(self, item: Item, content: Fields, event: Fields) -> list[ResponsesEventWrapper]:
        """The deltas for what a whole item says beyond what was said of it before."""
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
            part = output_result(content, self._unpaired.pop(tool_of_output(kind), ""))
            return [ResponsesEventWrapper(event, details=ChunkDetails(parts=(part,)))]
        if not kind:
            return []
        return [ResponsesEventWrapper(event, details=ChunkDetails(parts=(data_part(content),)))]

    def _end_message(self, item: Item, content: Fields, event: Fields) -> list[ResponsesEventWrapper]:
        facts = own_fields(content)
        new = {
            name: value
            for name, value in facts.items()
            if item.facts.get(name) != value and not (name == "id" and name in item.facts)
        }
        item.facts = {**item.facts, **new}  # for text that comes only now
        open_before = self._progress.open_text
        by_kind: dict[str, list[Fields]] = {}
        for each in as_mappings(content.get("content") or []):
            kind = as_text(each.get("type"))
            by_kind.setdefault(TEXT if kind == "text" else kind, []).append(each)
        wrappers: list[ResponsesEventWrapper] = []
        for kind in (THOUGHT, TEXT, REFUSAL):
            wrappers += self._end_parts(item, kind, by_kind.pop(kind, []), event)
        others = [each for contents in by_kind.values() for each in contents]
        if others:
            wrappers.append(
                ResponsesEventWrapper(event, details=ChunkDetails(extra={"content_parts": others}))
            )
        last = self._progress.open_text
        if new and last is not None and last.item is item and (last is open_before or self._progress.alone):
            block = BlockDelta("text", metadata={KEY: new})
            wrappers.append(ResponsesEventWrapper(event, details=ChunkDetails(block=block)))
        return wrappers

    def _end_reasoning(self, item: Item, content: Fields, event: Fields) -> list[ResponsesEventWrapper]:
        progress = self._progress
        wrappers = self._end_parts(item, SUMMARY, as_mappings(content.get("summary") or []), event)
        wrappers += self._end_parts(item, THOUGHT, as_mappings(content.get("content") or []), event)
        facts = own_fields(content)
        begun = progress.open_reasoning is not None and progress.open_reasoning.item is item
        if not begun:
            if not facts.get("encrypted_content"):
                return wrappers  # an id alone is good for nothing where the response is not stored
            progress.open_reasoning = Part(item, SUMMARY)
        if not facts:
            return wrappers
        block = BlockDelta("reasoning", opens=not begun, metadata={KEY: facts})
        return [*wrappers, ResponsesEventWrapper(event, details=ChunkDetails(block=block))]

    def _whole_arguments(self, item: Item) -> Part:
        """The arguments of a function call, or what stands for them."""
        kind = INPUT if item.kind == "custom_tool_call" else ARGUMENTS
        return item.parts.get((kind, 0)) or self._progress.new_part(item, kind, 0)

    def _end_function_call(self, item: Item, content: Fields, event: Fields) -> list[ResponsesEventWrapper]:
        part = self._whole_arguments(item)
        wrappers = self._end_part(part, {}, content.get(part.kind), event)
        facts = own_fields(content)
        call = ToolCallDelta(
            item.position,
            id=call_id(content),
            name=as_text(content.get("name")),
            type="" if item.announced else call_kind(item.kind),
            extra={KEY: facts} if facts else None,
        )
        item.announced = True
        return [*wrappers, ResponsesEventWrapper(event, tool_calls=(call,))]

    def _end_call(self, item: Item, content: Fields, event: Fields) -> list[ResponsesEventWrapper]:
        file = image_file(content)
        if not isinstance(content.get("call_id"), str):
            self._unpaired[call_name(content)] = call_id(content)
        call = ToolCallDelta(
            item.position,
            id=call_id(content),
            name=call_name(content),
            arguments=rest_of_arguments(item, content),
            type="function" if run_by_caller(content) else "server",
            extra=stored_item(content, file=file),
        )
        result = None if run_by_caller(content) else call_result(content)
        parts = tuple(part for part in (file, result) if part is not None)
        details = ChunkDetails(parts=parts) if parts else None
        if details is None or item.announced or self._progress.alone:
            return [ResponsesEventWrapper(event, details=details, tool_calls=(call,))]
        # Parts stand before a call that begins in the same delta.
        return [
            ResponsesEventWrapper(event, tool_calls=(call,)),
            ResponsesEventWrapper(event, details=details),
        ]

    # --- the response as a whole --------------------------------------------------------------------------------

    def _begin(self, event: Fields, kind: str) -> list[ResponsesEventWrapper]:
        # A gateway may ask again, elsewhere, when its first server breaks off: what that one had said is void. After
        # the end of a response another one goes on, as in recordings of several requests.
        restarts = kind == "response.created" and self._progress.begun and not self.done
        if restarts or self.done:
            self._progress.begin()
            self._facts = ResponseFacts()
            self._unpaired.clear()
            self.done = False
        wrappers = self._describe(event, as_mapping(event.get("response")) or {})
        if restarts:
            wrappers.insert(0, ResponsesEventWrapper(event, details=ChunkDetails(restarts=True)))
        return wrappers

    def _end(self, event: Fields) -> list[ResponsesEventWrapper]:
        """The deltas of the last event, or of a whole response: what was not said yet, and how it ended."""
        whole = event if event.get("object") == "response" else None
        response: Fields = as_mapping(event.get("response")) or whole or {}
        wrappers = [] if self._progress.alone else self._end_items(response, event)
        outcome = outcome_of(event, response)
        self.done = self.done or ends(outcome)
        last = self._describe(event, response) or [ResponsesEventWrapper(event)]
        last[0].finish = finish_of(outcome, response)
        error = failure_of(outcome, response, self._provider)
        if error is not None:
            last[0].details = last[0].details or ChunkDetails()
            last[0].details.error = error
        return wrappers + last

    def _end_items(self, response: Fields, event: Fields) -> list[ResponsesEventWrapper]:
        """The deltas for what the items of a whole response say beyond what was streamed."""
        streamed = self._progress.streamed()
        wrappers: list[ResponsesEventWrapper] = []
        for content in as_mappings(response.get("output") or []):
            kind = as_text(content.get("type"))
            item = next(streamed.get(kind, iter(())), None) or self._progress.new_item(kind)
            wrappers += self._end_item(item, content, event)
        return wrappers

    def _describe(self, event: Fields, response: Fields) -> list[ResponsesEventWrapper]:
        """A delta with the facts about the response that are new, and its usage, if there are any."""
        facts = self._facts.new(event, response)
        usage = self._facts.usage if as_mapping(response.get("usage")) else None
        if not facts and not usage:
            return []
        return [
            ResponsesEventWrapper(event, details=ChunkDetails(metadata=facts) if facts else None, usage=usage)
        ]


class _LoneEvents(ResponsesDecoder):
    """Reads single events: what repeats deltas adds nothing, since they are taken to have been said."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__()
        self._progress = Progress(alone=True)


def wrap_chunk(event: "ResponseStreamEvent | Mapping[str, Any]") -> list[ResponsesEventWrapper]:
    """The deltas of one event by itself: the openai package's object, or its JSON object.

    What was said before is not known here, so events that repeat what deltas said (OpenAI sends them all) add nothing.
    Of servers that leave deltas out, something is lost; `ResponsesDecoder.wrap` reads events in a row and loses nothing.

    Returns:
        One wrapper for each thing that the event says; none for an event that is not one of this API's.
    """
    return _LoneEvents().wrap(json_object(event))
