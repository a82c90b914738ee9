"""Recorded responses of real providers, if the folder with the recordings exists.

The recordings are not part of the project: the folder is beside the repository, or the environment variable
``TAILRACE_RECORDINGS`` names it.
"""

import csv
import json
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from support.a2a_client import fold
from support.reference_extraction import Extract, extract
from support.scenarios import in_reads
from tailrace.streaming.a2a.lifecycle import TaskState
from tailrace.streaming.a2a.models import Task, TaskStatus
from tailrace.streaming.a2a.stream_extension import extension_metadata
from tailrace.streaming.conversion.chat_completion import to_chat_completion
from tailrace.streaming.conversion.recorded_stream import StreamConversion
from tailrace.streaming.task.task_record import TaskRecord
from tailrace.wrappers import MessageAssembly
from tailrace.wrappers.decoding.decoder import ResponseDecoder
from tailrace.wrappers.format_detection import DetectingDecoder
from tailrace.wrappers.providers import FORMATS

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
_LONG = 60_000  # bodies above this many bytes cover the same cases as shorter ones

# The format of each API by its name in the index.
FORMAT_OF = {
    "anthropic-messages": "anthropic",
    "bedrock-converse": "bedrock",
    "bedrock-invoke": "bedrock",
    "cohere-v2": "cohere",
    "gemini-generate": "gemini",
    "gemini-generate-jsonarray": "gemini",
    "google-interactions": "gemini",
    "ollama-chat": "ollama",
    "ollama-generate": "ollama",
    "openai-chat": "openai",
    "openai-completions": "openai",
    "openai-responses": "openai-responses",
}
every_api = pytest.mark.parametrize("api", FORMAT_OF)


def recordings(api: str | None = None) -> Iterator[tuple[str, bytes]]:
    """Name and body of each recording of an API, or of all."""
    with INDEX.open(encoding="utf-8", newline="") as index:
        for row in csv.DictReader(index, delimiter="\t"):
            if api is None or row["api"] == api:
                yield row["file"], (FOLDER / row["file"]).read_bytes()


def new_decoder(api: str) -> ResponseDecoder[Any]:
    return FORMATS[FORMAT_OF[api]].create_decoder()


def convert(api: str, *reads: bytes) -> StreamConversion:
    """The complete conversion of a body in these reads; reasoning in tags stays in the text."""
    conversion = StreamConversion(new_decoder(api), task_id="t", context_id="c", think_tags=False)
    for data in reads:
        conversion.feed(data)
    conversion.close()
    return conversion


def parsed(arguments: str) -> object:
    """Arguments as an object where they are one, else unchanged; no arguments are an empty object."""
    try:
        value: object = json.loads(arguments or "{}")
    except ValueError:
        return arguments
    return cast("object", value) if isinstance(value, dict) else arguments


def is_part_of(wanted: Sequence[object], found: Sequence[object]) -> bool:
    """Return whether all expected items were found in order, with other items allowed in between."""
    remaining = iter(found)
    return all(any(item == each for each in remaining) for item in wanted)


def text_of(message: dict[str, Any], channel: str | None = None) -> str:
    """The text of a message's parts of one channel, taken from its JSON."""
    return "".join(
        part["text"]
        for part in message["parts"]
        if "text" in part and extension_metadata(part.get("metadata", {})).get("channel") == channel
    )


def test_there_are_recordings_of_every_api() -> None:
    counts = Counter(name.split("/")[1] for name, _ in recordings())
    assert counts["openai-chat"] > 300
    assert set(counts) == set(FORMAT_OF)


@every_api
def test_no_content_of_a_recording_is_lost(api: str) -> None:
    wrong: list[str] = []
    for name, body in recordings(api):
        accumulator = convert(api, body).accumulator
        first = accumulator.first or MessageAssembly()
        wanted = extract(api, body)
        if (first.text, first.reasoning) != (wanted.text, wanted.reasoning):
            wrong.append(f"{name}: text or reasoning")
        calls: list[object] = [
            (call.name, call.arguments_text or call.arguments) for call in first.tool_calls
        ]
        if not is_part_of([(tool, parsed(arguments)) for tool, arguments in wanted.calls], calls):
            wrong.append(f"{name}: {first.tool_calls} instead of {wanted.calls}")
        if wanted.finishes and first.finish is None and accumulator.error is None:
            wrong.append(f"{name}: no finish reason, not {wanted.finishes}")
        if not wanted.finishes and first.finish is not None:
            wrong.append(f"{name}: a finish reason that the body does not have: {first.finish}")
        if wanted.has_usage and accumulator.usage is None:
            wrong.append(f"{name}: usage {accumulator.usage}")
    assert wrong == []


@every_api
def test_a_recording_is_recognised(api: str) -> None:
    wrong: list[str] = []
    for name, body in recordings(api):
        decoder = DetectingDecoder()
        conversion = StreamConversion(decoder)
        conversion.feed(body)
        conversion.close()
        is_unrecognised = decoder.format is None and extract(api, body) == Extract()
        if decoder.format != FORMAT_OF[api] and not is_unrecognised:
            wrong.append(f"{name}: {decoder.format}")
    assert wrong == []


@every_api
def test_the_events_of_every_recording_fold_back_to_its_message(api: str) -> None:
    wrong: list[str] = []
    for name, body in recordings(api):
        conversion = StreamConversion(new_decoder(api), task_id="t", context_id="c", think_tags=False)
        events = [
            event for data in in_reads(body, 4096) for event in conversion.feed(data)
        ] + conversion.close()
        task = fold(event.body for event in events)
        message = json.loads(json.dumps(conversion.message()))
        calls = [entry for part in message["parts"] for entry in part.get("data", {}).get("tool_calls", ())]
        shown = [
            entry
            for name, held in task.data.items()
            if name.startswith("tool-call-") and "choice" not in name
            for data in held
            for entry in data["tool_calls"]
        ]
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


@every_api
def test_every_recording_gives_the_same_in_reads_of_odd_sizes(api: str) -> None:
    wrong: list[str] = []
    for name, body in recordings(api):
        whole = to_chat_completion(convert(api, body).accumulator)
        sizes = [size for size in _ODD_SIZES if size > 1 or len(body) < _SHORT]
        if any(
            to_chat_completion(convert(api, *in_reads(body, size)).accumulator) != whole for size in sizes
        ):
            wrong.append(name)
    assert wrong == []


@pytest.mark.parametrize("name", FORMATS)
def test_recordings_of_any_other_api_are_no_reason_to_fail(name: str) -> None:
    for _, body in recordings():
        if len(body) > _LONG:
            continue
        conversion = StreamConversion(FORMATS[name].create_decoder())
        for data in in_reads(body, 1000):
            conversion.feed(data)
        conversion.close()
        assert conversion.record.state.terminal or conversion.record.state.interrupted
        json.dumps(conversion.message(), allow_nan=False)
