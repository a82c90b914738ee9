"""Clients of user-interface streams that implement only the protocols' rules."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ag_ui.core import Event as AgUiEvent
from pydantic import TypeAdapter

from tailrace.wrappers import SSEDecoder

Fields = dict[str, Any]

_AG_UI_EVENT: TypeAdapter[Any] = TypeAdapter(AgUiEvent)


@dataclass
class Told:
    """The content of a response at a client.

    Attributes:
        texts: The visible texts, in the order of their start.
        reasoning: The reasoning texts, in the order of their start.
        calls: Name and input, by id.
        results: The results, by the call's id.
        failed: The ids of error results.
        files: URLs.
        data: Names and values.
        end: The last chunk or event about the end.
        waiting: The calls that the client must answer.
    """

    texts: list[str] = field(default_factory=list[str])
    reasoning: list[str] = field(default_factory=list[str])
    calls: dict[str, tuple[str, Any]] = field(default_factory=dict[str, tuple[str, Any]])
    results: dict[str, Any] = field(default_factory=dict[str, Any])
    failed: set[str] = field(default_factory=set[str])
    files: list[str] = field(default_factory=list[str])
    data: list[tuple[str, Any]] = field(default_factory=list[tuple[str, Any]])
    end: Fields = field(default_factory=dict[str, Any])
    waiting: set[str] = field(default_factory=set[str])

    @property
    def text(self) -> str:
        """All visible text."""
        return "".join(self.texts)


def payloads(body: bytes) -> list[bytes]:
    """The data of the events of a stream."""
    return [event.data for event in SSEDecoder().feed(body)]


def read_ui_messages(said: Sequence[bytes]) -> Told:
    """Fold the chunks of an AI SDK message as its client does; assert that no chunk is one that the client rejects."""
    told, open_texts, inputs, by_agent = Told(), dict[str, list[str]](), dict[str, str](), set[str]()
    *chunks, done = said
    assert done == b"[DONE]"
    assert json.loads(chunks[0])["type"] == "start"
    in_step = False
    for chunk in map(json.loads, chunks):
        kind: str = chunk["type"]
        assert not told.end, f"{kind} after the end"
        match kind.rpartition("-"):
            case (("text" | "reasoning"), _, "start"):
                assert in_step
                assert chunk["id"] not in open_texts
                open_texts[chunk["id"]] = []
            case (("text" | "reasoning"), _, "delta"):
                open_texts[chunk["id"]].append(chunk["delta"])
            case (("text" | "reasoning") as channel, _, "end"):
                texts = told.texts if channel == "text" else told.reasoning
                texts.append("".join(open_texts.pop(chunk["id"])))
            case ("tool-input", _, "start"):
                assert chunk["toolCallId"] not in inputs
                inputs[chunk["toolCallId"]] = ""
            case ("tool-input", _, "delta"):
                inputs[chunk["toolCallId"]] += chunk["inputTextDelta"]
            case ("tool-input", _, ("available" | "error")):
                assert chunk["toolCallId"] in inputs
                told.calls[chunk["toolCallId"]] = (chunk["toolName"], chunk["input"])
                (by_agent.add if chunk.get("providerExecuted") else by_agent.discard)(chunk["toolCallId"])
            case ("tool-output", _, outcome):
                assert chunk["toolCallId"] in told.calls
                told.results[chunk["toolCallId"]] = chunk.get("output", chunk.get("errorText"))
                told.failed |= {chunk["toolCallId"]} if outcome == "error" else set[str]()
            case _:
                in_step = _take_chunk(told, chunk, in_step)
    assert not in_step
    assert not open_texts or told.end["type"] in ("error", "abort")
    told.waiting = set(told.calls) - by_agent - set(told.results)
    return told


def _take_chunk(told: Told, chunk: Fields, in_step: bool) -> bool:
    kind = chunk["type"]
    if kind in ("start-step", "finish-step"):
        assert in_step == (kind == "finish-step")
        return not in_step
    if kind in ("finish", "error", "abort"):
        told.end = chunk
    elif kind == "file":
        told.files.append(chunk["url"])
    elif kind.startswith("data-") and not chunk.get("transient"):
        told.data.append((kind, chunk["data"]))
    else:
        assert kind in ("start", "source-url") or chunk["transient"]
    return in_step


def read_run(said: Iterable[bytes]) -> Told:
    """Fold the events of an AG-UI run, each validated by the protocol's own models."""
    told, messages, calls = Told(), dict[str, tuple[str, list[str]]](), dict[str, list[str]]()
    names: dict[str, str] = {}
    events = [_AG_UI_EVENT.validate_json(each).model_dump(mode="json", by_alias=True) for each in said]
    assert events[0]["type"] == "RUN_STARTED"
    assert events[0]["protocolVersion"] == "1.0"
    for event in events:
        kind: str = event["type"]
        assert not told.end, f"{kind} after the end"
        if kind.endswith("_MESSAGE_START"):
            assert event["messageId"] not in messages
            messages[event["messageId"]] = (event["role"], [])
        elif kind.endswith("_MESSAGE_CONTENT"):
            messages[event["messageId"]][1].append(event["delta"])
        elif kind.endswith("_MESSAGE_END"):
            role, pieces = messages.pop(event["messageId"])
            (told.reasoning if role == "reasoning" else told.texts).append("".join(pieces))
        elif kind == "TOOL_CALL_START":
            assert event["toolCallId"] not in names
            names[event["toolCallId"]] = event["toolCallName"]
            calls[event["toolCallId"]] = []
        elif kind == "TOOL_CALL_ARGS":
            calls[event["toolCallId"]].append(event["delta"])
        elif kind == "TOOL_CALL_END":
            text = "".join(calls.pop(event["toolCallId"]))
            told.calls[event["toolCallId"]] = (names[event["toolCallId"]], text)
        elif kind == "TOOL_CALL_RESULT":
            assert event["toolCallId"] in told.calls
            told.results[event["toolCallId"]] = event["content"]
        elif kind == "CUSTOM" and event["name"] == "artifact":
            told.data.append((kind, event["value"]))
        elif kind in ("RUN_FINISHED", "RUN_ERROR"):
            told.end = event
    assert not messages or told.end["type"] == "RUN_ERROR"
    assert not calls
    told.waiting = set(told.end.get("outcome", {}).get("pendingToolCallIds") or ())
    return told
