"""Clients of user-interface streams that implement only the protocols' rules."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ag_ui.core import Event as AgUiEvent
from pydantic import TypeAdapter

from tailrace.wrappers import SSEDecoder

Fields = dict[str, Any]

RUN: Fields = {
    "threadId": "t",
    "runId": "r",
    "state": {},
    "tools": [],
    "context": [],
    "forwardedProps": {},
}
"""The members of a run of AG-UI, except its messages."""

_AG_UI_EVENT: TypeAdapter[Any] = TypeAdapter(AgUiEvent)


@dataclass
class ClientTurn:
    """The content of a response at a client.

    Attributes:
        texts: The visible texts, in the order of their start.
        reasoning: The reasoning texts, in the order of their start.
        calls: Name and input, by id.
        results: The results, by the call's id.
        failed: The ids of error results.
        files: URLs.
        data: Names and values.
        end: The last chunk or event that reports the end.
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


def read_ui_messages(frames: Sequence[bytes]) -> ClientTurn:
    """Apply the chunks of an AI SDK message as its client does. Assert that the client would reject no chunk."""
    turn, open_texts, inputs, by_agent = ClientTurn(), dict[str, list[str]](), dict[str, str](), set[str]()
    *chunks, done = frames
    assert done == b"[DONE]"
    assert json.loads(chunks[0])["type"] == "start"
    in_step = False
    for chunk in map(json.loads, chunks):
        kind: str = chunk["type"]
        assert not turn.end, f"{kind} after the end"
        match kind.rpartition("-"):
            case (("text" | "reasoning"), _, "start"):
                assert in_step
                assert chunk["id"] not in open_texts
                open_texts[chunk["id"]] = []
            case (("text" | "reasoning"), _, "delta"):
                open_texts[chunk["id"]].append(chunk["delta"])
            case (("text" | "reasoning") as channel, _, "end"):
                texts = turn.texts if channel == "text" else turn.reasoning
                texts.append("".join(open_texts.pop(chunk["id"])))
            case ("tool-input", _, "start"):
                assert chunk["toolCallId"] not in inputs
                inputs[chunk["toolCallId"]] = ""
            case ("tool-input", _, "delta"):
                inputs[chunk["toolCallId"]] += chunk["inputTextDelta"]
            case ("tool-input", _, ("available" | "error")):
                assert chunk["toolCallId"] in inputs
                turn.calls[chunk["toolCallId"]] = (chunk["toolName"], chunk["input"])
                (by_agent.add if chunk.get("providerExecuted") else by_agent.discard)(chunk["toolCallId"])
            case ("tool-output", _, outcome):
                assert chunk["toolCallId"] in turn.calls
                turn.results[chunk["toolCallId"]] = chunk.get("output", chunk.get("errorText"))
                turn.failed |= {chunk["toolCallId"]} if outcome == "error" else set[str]()
            case _:
                in_step = _take_chunk(turn, chunk, in_step)
    assert not in_step
    assert not open_texts or turn.end["type"] in ("error", "abort")
    turn.waiting = set(turn.calls) - by_agent - set(turn.results)
    return turn


def _take_chunk(turn: ClientTurn, chunk: Fields, in_step: bool) -> bool:
    kind = chunk["type"]
    if kind in ("start-step", "finish-step"):
        assert in_step == (kind == "finish-step")
        return not in_step
    if kind in ("finish", "error", "abort"):
        turn.end = chunk
    elif kind == "file":
        turn.files.append(chunk["url"])
    elif kind.startswith("data-") and not chunk.get("transient"):
        turn.data.append((kind, chunk["data"]))
    else:
        assert kind in ("start", "source-url") or chunk["transient"]
    return in_step


def read_run(frames: Iterable[bytes]) -> ClientTurn:
    """Apply the events of an AG-UI run. The protocol's own models validate each event."""
    turn, messages, calls = ClientTurn(), dict[str, tuple[str, list[str]]](), dict[str, list[str]]()
    names: dict[str, str] = {}
    events = [_AG_UI_EVENT.validate_json(each).model_dump(mode="json", by_alias=True) for each in frames]
    assert events[0]["type"] == "RUN_STARTED"
    assert events[0]["protocolVersion"] == "1.0"
    for event in events:
        kind: str = event["type"]
        assert not turn.end, f"{kind} after the end"
        if kind.endswith("_MESSAGE_START"):
            assert event["messageId"] not in messages
            messages[event["messageId"]] = (event["role"], [])
        elif kind.endswith("_MESSAGE_CONTENT"):
            messages[event["messageId"]][1].append(event["delta"])
        elif kind.endswith("_MESSAGE_END"):
            role, pieces = messages.pop(event["messageId"])
            (turn.reasoning if role == "reasoning" else turn.texts).append("".join(pieces))
        elif kind == "TOOL_CALL_START":
            assert event["toolCallId"] not in names
            names[event["toolCallId"]] = event["toolCallName"]
            calls[event["toolCallId"]] = []
        elif kind == "TOOL_CALL_ARGS":
            calls[event["toolCallId"]].append(event["delta"])
        elif kind == "TOOL_CALL_END":
            text = "".join(calls.pop(event["toolCallId"]))
            turn.calls[event["toolCallId"]] = (names[event["toolCallId"]], text)
        elif kind == "TOOL_CALL_RESULT":
            assert event["toolCallId"] in turn.calls
            turn.results[event["toolCallId"]] = event["content"]
        elif kind == "CUSTOM" and event["name"] == "artifact":
            turn.data.append((kind, event["value"]))
        elif kind in ("RUN_FINISHED", "RUN_ERROR"):
            turn.end = event
    assert not messages or turn.end["type"] == "RUN_ERROR"
    assert not calls
    turn.waiting = set(turn.end.get("outcome", {}).get("pendingToolCallIds") or ())
    return turn
