"""Complete streams in each version of the protocol, compared byte for byte with the golden files.

``python tests/streaming/a2a/test_golden.py`` rewrites the files in ``tests/fixtures/a2a``; a difference is a change of
the wire format.
"""

import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from support.deltas import Delta, call, count, end, say, think
from tailrace.streaming import ResponseTranslator, StatusUpdate, TaskState, Update
from tailrace.streaming.a2a.event import Event
from tailrace.streaming.a2a.models import Message, Part, Role
from tailrace.streaming.a2a.v0_1 import Version01
from tailrace.streaming.a2a.v0_3 import Version03
from tailrace.streaming.a2a.v0_3_proto_json import Version03ProtoJson
from tailrace.streaming.a2a.v1_0 import Version10
from tailrace.streaming.a2a.version_codec import Dialect
from tailrace.streaming.task.task_record import TaskRecord, agent_message
from tailrace.wrappers import ChunkDetails, ContentPartFile, UpstreamError, UpstreamFault, Usage

FOLDER = Path(__file__).parents[2] / "fixtures/a2a"
DIALECTS: dict[str, Callable[[], Dialect]] = {
    "1.0": Version10,
    "0.3": Version03,
    "0.3-http": Version03ProtoJson,
    "0.1": Version01,
}

_ID = re.compile(rb"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}")
_TIME = re.compile(rb"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")


def answer(*chunks: Delta, error: UpstreamError | None = None) -> list[Update]:
    """The updates of one model response."""
    translator = ResponseTranslator()
    updates = [update for chunk in chunks for update in translator.feed([chunk])]
    return updates + translator.close(error)


IMAGE = ContentPartFile(data=b"\x89PNG", media_type="image/png", filename="cat.png")
BROKEN = UpstreamError("the connection broke in the middle of the answer", fault=UpstreamFault.TRUNCATED)

SEQUENCES: dict[str, Callable[[], list[Update]]] = {
    "text": lambda: answer(say("Hel"), say("lo\u2028there"), *count(Usage(3, 2, 5)), end()),
    "tool_call": lambda: answer(
        call('{"city":', index=0, id="c1", name="weather"), call('"Paris"}', index=0), end()
    ),
    "reasoning": lambda: answer(think("hmm"), think(", yes"), say("Yes."), end()),
    "file": lambda: answer(say("Here:"), Delta(None, 0, ChunkDetails(parts=[IMAGE])), end()),
    "error": lambda: answer(say("Half an ans"), error=BROKEN),
    "cancel": lambda: [*answer(say("Half an ans"))[:1], StatusUpdate(TaskState.CANCELED)],
    "input_required": lambda: [StatusUpdate(TaskState.INPUT_REQUIRED, agent_message("Which one?"))],
}


def events_of(name: str) -> list[Event]:
    """The events of a task whose handler yields the updates of a sequence."""
    question = Message(message_id="m1", role=Role.USER, parts=(Part(text="A question"),))
    record = TaskRecord.create(question, task_id="task-1", context_id="context-1")
    events = [record.submitted(), record.apply(StatusUpdate(TaskState.WORKING))]
    *updates, last = SEQUENCES[name]()
    events += [record.apply(update) for update in updates]
    events += [record.apply(update) for update in record.closing_updates()]
    return [*events, record.apply(last)]


def written(name: str, version: str) -> bytes:
    """The stream in a version of the protocol, one event a line, with ids and times replaced by constants."""
    events = events_of(name)
    dialect = DIALECTS[version]().for_stream()
    lines = [dialect.write_event(event, is_last=event is events[-1]) for event in events]
    body = b"".join(line + b"\n" for line in lines if line is not None)
    return _TIME.sub(b"2026-01-01T00:00:00.000Z", _ID.sub(b"00000000-0000-4000-8000-000000000000", body))


@pytest.mark.parametrize("version", DIALECTS)
@pytest.mark.parametrize("name", SEQUENCES)
def test_a_stream_is_written_as_it_always_was(name: str, version: str) -> None:
    assert written(name, version) == (FOLDER / version / f"{name}.jsonl").read_bytes()


def test_nothing_else_is_checked_in() -> None:
    files = {str(path.relative_to(FOLDER)) for path in FOLDER.rglob("*.jsonl")}
    assert files == {f"{version}/{name}.jsonl" for version in DIALECTS for name in SEQUENCES}


def main() -> None:
    """Rewrite all golden files."""
    for version in DIALECTS:
        (FOLDER / version).mkdir(parents=True, exist_ok=True)
        for name in SEQUENCES:
            (FOLDER / version / f"{name}.jsonl").write_bytes(written(name, version))


if __name__ == "__main__":
    sys.exit(main())
