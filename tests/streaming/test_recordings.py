"""Real recorded responses of many providers, where the folder that holds them is there.

They belong to others and are not part of the project: the folder is looked for beside the repository, or wherever
the environment variable ``TAILRACE_RECORDINGS`` says.
"""

import csv
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from support.folding import fold
from support.scenarios import accumulate, in_reads, payloads
from tailrace.streaming.a2a.models import Task, TaskStatus
from tailrace.streaming.chat_completion import to_chat_completion
from tailrace.streaming.conversion import StreamConversion
from tailrace.streaming.extension import extension_facts
from tailrace.streaming.lifecycle import TaskState
from tailrace.streaming.task import TaskRecord
from tailrace.wrappers.openai import ChatCompletionsDecoder

FOLDER = Path(
    os.environ.get("TAILRACE_RECORDINGS") or Path(__file__).parents[2] / "../shared/providers/recordings"
)
INDEX = FOLDER / "INDEX.tsv"

pytestmark = pytest.mark.skipif(
    not INDEX.exists(),
    reason=f"the recordings of other people's servers are not here ({FOLDER} has no INDEX.tsv)",
)

_ODD_SIZES = (1, 13, 997)
_SHORT = 3000  # only bodies below this many bytes are read byte by byte


def recordings(api: str | None = None) -> Iterator[tuple[str, bytes]]:
    """Name and body of every recording of an API, or of all."""
    with INDEX.open(encoding="utf-8", newline="") as index:
        for row in csv.DictReader(index, delimiter="\t"):
            if api is None or row["api"] == api:
                yield row["file"], (FOLDER / row["file"]).read_bytes()


def extract(body: bytes) -> tuple[str, str]:
    """Text and reasoning of the first choice, read from the data lines with nothing but the standard library."""
    text = reasoning = ""
    for delta in deltas_of_first_choice(body):
        for part in parts_of(delta.get("content")):
            inner = [*part.get("thinking", ()), *part.get("summary", ())]
            if part["type"] == "text":
                text += part["text"]
            else:
                reasoning += part.get("text", "") + "".join(each["text"] for each in inner)
        reasoning += delta.get("reasoning_content") or delta.get("reasoning") or ""
    return text, reasoning


def deltas_of_first_choice(body: bytes) -> list[dict[str, Any]]:
    choices = cast(
        "list[dict[str, Any]]", [each for chunk in payloads(body) for each in chunk.get("choices") or ()]
    )
    return [choice.get("delta") or {} for choice in choices if choice.get("index", 0) == 0]


def parts_of(content: Any) -> list[dict[str, Any]]:
    if isinstance(content, list):
        return cast("list[dict[str, Any]]", content)
    return [{"type": "text", "text": content or ""}]


def text_of(message: dict[str, Any], channel: str | None = None) -> str:
    """The text of a message's parts of one channel, taken from its JSON."""
    return "".join(
        part["text"]
        for part in message["parts"]
        if "text" in part and extension_facts(part.get("metadata", {})).get("channel") == channel
    )


def test_there_are_recordings_of_chat_completions() -> None:
    assert sum(1 for _ in recordings("openai-chat")) > 300


def test_the_message_of_every_recording_has_the_text_and_the_reasoning_of_its_deltas() -> None:
    wrong: list[str] = []
    for name, body in recordings("openai-chat"):
        conversion = StreamConversion(ChatCompletionsDecoder())
        conversion.feed(body)
        conversion.close()
        message = json.loads(json.dumps(conversion.message(), allow_nan=False))
        if (text_of(message), text_of(message, "reasoning")) != extract(body):
            wrong.append(name)
    assert wrong == []


def test_the_events_of_every_recording_fold_back_to_its_message() -> None:
    wrong: list[str] = []
    for name, body in recordings("openai-chat"):
        conversion = StreamConversion(ChatCompletionsDecoder(), task_id="t", context_id="c")
        events = [
            event for data in in_reads(body, 4096) for event in conversion.feed(data)
        ] + conversion.close()
        task = fold(event.body for event in events)
        message = json.loads(json.dumps(conversion.message()))
        calls = [entry for part in message["parts"] if "data" in part for entry in part["data"]["tool_calls"]]
        shown = [entry for data in task.data.get("tool-call", []) for entry in data["tool_calls"]]
        replayed = TaskRecord(Task(id="t", context_id="c", status=TaskStatus(state=TaskState.SUBMITTED)))
        for event in events:
            replayed.replay(event)
        if not (
            task.texts.get("text", "") == text_of(message)
            and task.texts.get("reasoning", "") == text_of(message, "reasoning")
            and shown == calls
            and sorted(task.complete) == sorted(task.texts)
            and task.state == str(conversion.record.state)
            and replayed.snapshot() == conversion.record.snapshot()
        ):
            wrong.append(name)
    assert wrong == []


def test_every_recording_gives_the_same_in_reads_of_odd_sizes() -> None:
    wrong: list[str] = []
    for name, body in recordings("openai-chat"):
        whole = to_chat_completion(accumulate([body]))
        sizes = [size for size in _ODD_SIZES if size > 1 or len(body) < _SHORT]
        if any(to_chat_completion(accumulate(in_reads(body, size))) != whole for size in sizes):
            wrong.append(name)
    assert wrong == []


def test_recordings_of_any_other_api_are_no_reason_to_fail() -> None:
    for _, body in recordings():
        conversion = StreamConversion(ChatCompletionsDecoder(), think_tags=True)
        for data in in_reads(body, 1000):
            conversion.feed(data)
        conversion.close()
        assert conversion.record.state.terminal or conversion.record.state.interrupted
        json.dumps(conversion.message(), allow_nan=False)
