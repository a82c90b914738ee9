"""``tailrace convert``: every target, files and standard input, and what cannot be read."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from tailrace.server.cli import app
from tailrace.streaming.a2a.models import StreamResponse, Task
from tailrace.wrappers import TailraceError

FIXTURES = Path(__file__).parents[2] / "fixtures" / "openai"
STREAMS = sorted(FIXTURES.glob("*.sse"))
BROKEN = (FIXTURES / "text.sse").read_bytes()[:2_000]


def convert(*arguments: str, stdin: bytes | None = None) -> Result:
    result = CliRunner().invoke(app, ["convert", *arguments], input=stdin)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def one_object(result: Result) -> dict[str, Any]:
    assert result.exit_code == 0
    [line] = result.stdout.splitlines()
    return json.loads(line)


@pytest.mark.parametrize("stream", STREAMS, ids=lambda path: path.stem)
def test_all_targets_say_the_same(stream: Path) -> None:
    events = [
        StreamResponse.model_validate_json(line)
        for line in convert("--to", "events", str(stream)).stdout.splitlines()
    ]
    task = Task.model_validate(one_object(convert("--to", "task", str(stream))))
    message = one_object(convert("--to", "message", str(stream)))
    completion = one_object(convert("--to", "openai", str(stream)))
    streamed = "".join(
        part.text or ""
        for event in events
        if event.artifact_update and event.artifact_update.artifact.artifact_id == "text"
        for part in event.artifact_update.artifact.parts
    )
    in_task = "".join(
        part.text or "" for each in task.artifacts if each.artifact_id == "text" for part in each.parts
    )
    in_message = "".join(part.get("text", "") for part in message["parts"])
    assert streamed == in_task == in_message == (completion["choices"][0]["message"]["content"] or "")
    assert message["role"] == "agent"
    last = events[-1].status_update
    assert last is not None
    assert last.status.state == task.status.state


def test_standard_input_is_read_when_no_file_is_named() -> None:
    stream = (FIXTURES / "text.sse").read_bytes()
    named = one_object(convert("--to", "message", str(FIXTURES / "text.sse")))
    assert one_object(convert("--to", "message", stdin=stream)) == named
    assert one_object(convert("--to", "message", "-", stdin=stream)) == named


def test_events_are_lines_that_begin_with_the_task() -> None:
    lines = convert(stdin=(FIXTURES / "text.sse").read_bytes()).stdout.splitlines()
    kinds = [next(iter(json.loads(line))) for line in lines]
    assert kinds[:2] == ["task", "statusUpdate"]
    assert set(kinds[2:-1]) == {"artifactUpdate"}
    assert kinds[-1] == "statusUpdate"


def test_tool_calls_ask_for_input() -> None:
    message = one_object(convert("--to", "message", str(FIXTURES / "tool_call.sse")))
    [part] = [part for part in message["parts"] if "data" in part]
    [call] = part["data"]["tool_calls"]
    assert call["name"]
    assert isinstance(call["arguments"], dict)
    task = one_object(convert("--to", "task", str(FIXTURES / "tool_call.sse")))
    assert task["status"]["state"] == "TASK_STATE_INPUT_REQUIRED"


def test_a_stream_that_broke_off_prints_what_it_held_and_ends_failed() -> None:
    *_, last = convert(stdin=BROKEN).stdout.splitlines()
    status = json.loads(last)["statusUpdate"]["status"]
    assert status["state"] == "TASK_STATE_FAILED"
    assert status["message"]["parts"][0]["text"]
    message = one_object(convert("--to", "message", stdin=BROKEN))
    assert message["parts"][0]["text"]
    completion = one_object(convert("--to", "openai", stdin=BROKEN))
    assert completion["choices"][0]["finish_reason"] is None
    assert completion["error"]["type"] == "stream_truncated"


@pytest.mark.parametrize("body", [b"<html>no</html>", b"just words\n", b"\x00\xff\xfe" * 50, b'{"a":1}'])
@pytest.mark.parametrize("target", ["events", "task", "message", "openai"])
def test_what_is_no_stream_is_refused_before_anything_is_printed(body: bytes, target: str) -> None:
    with pytest.raises(TailraceError, match="not an event stream"):
        convert("--to", target, stdin=body)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(TailraceError, match=r"cannot read .*missing\.sse: No such file"):
        convert(str(tmp_path / "missing.sse"))
    with pytest.raises(TailraceError, match="cannot read"):
        convert(str(tmp_path))


def test_unknown_options_are_refused() -> None:
    for arguments in (["--provider", "nobody"], ["--to", "nothing"], ["--dialect", "9"]):
        assert convert(*arguments, stdin=b"").exit_code == 2


def test_reasoning_in_the_text_is_parted_from_it_when_told() -> None:
    stream = (Path(__file__).parents[2] / "wrappers/scenarios").glob("E05*.sse")
    [file] = stream
    parted = one_object(convert("--to", "openai", "--think-tags", str(file)))["choices"][0]["message"]
    assert (parted["content"], parted["reasoning_content"]) == ("Answer", "hmm")
    whole = one_object(convert("--to", "openai", str(file)))["choices"][0]["message"]
    assert whole["content"] == "<think>hmm</think>Answer"


def test_a_tool_call_that_the_length_limit_cut_is_a_failure() -> None:
    task = one_object(convert("--to", "task", str(FIXTURES / "tool_call_length.sse")))
    message = one_object(convert("--to", "message", str(FIXTURES / "tool_call_length.sse")))
    calls = [call for part in message["parts"] for call in part.get("data", {}).get("tool_calls", [])]
    broken = [call for call in calls if "arguments_error" in call]
    assert broken
    assert task["status"]["state"] == "TASK_STATE_FAILED"
    assert "length limit" in task["status"]["message"]["parts"][0]["text"]
