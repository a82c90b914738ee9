"""``tailrace convert``: every target, files and standard input, and unreadable input."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from tailrace.server.cli.commands import create_cli
from tailrace.streaming.a2a.models import StreamResponse, Task
from tailrace.wrappers import TailraceError

FIXTURES = Path(__file__).parents[2] / "fixtures" / "openai"
STREAMS = sorted(FIXTURES.glob("*.sse"))
BROKEN = (FIXTURES / "text.sse").read_bytes()[:2_000]


def convert(*arguments: str, stdin: bytes | None = None) -> Result:
    result = CliRunner().invoke(create_cli(), ["convert", *arguments], input=stdin)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def one_object(result: Result) -> dict[str, Any]:
    assert result.exit_code == 0
    [line] = result.stdout.splitlines()
    return json.loads(line)


@pytest.mark.parametrize("stream", STREAMS, ids=lambda path: path.stem)
def test_all_targets_have_the_same_content(stream: Path) -> None:
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


def test_tool_calls_require_input() -> None:
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
    for arguments in (["--to", "nothing"], ["--dialect", "9"]):
        assert convert(*arguments, stdin=b"").exit_code == 2
    with pytest.raises(TailraceError, match="unknown provider 'nobody'; known: alibaba, anthropic, azure"):
        convert("--provider", "nobody", stdin=b"")


@pytest.mark.parametrize("provider", ["openai", "OpenAI", "groq", "openai-completions"])
def test_a_provider_is_known_by_its_names(provider: str) -> None:
    stream = (FIXTURES / "text.sse").read_bytes()
    converted = one_object(convert("--to", "openai", "--provider", provider, stdin=stream))
    assert converted == one_object(convert("--to", "openai", stdin=stream))


def test_reasoning_in_the_text_is_separated_unless_disabled() -> None:
    [file] = (Path(__file__).parents[2] / "wrappers/scenarios").glob("E05*.sse")
    parted = one_object(convert("--to", "openai", str(file)))["choices"][0]["message"]
    assert (parted["content"], parted["reasoning_content"]) == ("Answer", "hmm")
    whole = one_object(convert("--to", "openai", "--no-think-tags", str(file)))["choices"][0]["message"]
    assert whole["content"] == "<think>hmm</think>Answer"


def test_a_tool_call_that_the_length_limit_cut_is_a_failure() -> None:
    task = one_object(convert("--to", "task", str(FIXTURES / "tool_call_length.sse")))
    message = one_object(convert("--to", "message", str(FIXTURES / "tool_call_length.sse")))
    calls = [call for part in message["parts"] for call in part.get("data", {}).get("tool_calls", [])]
    broken = [call for call in calls if "arguments_error" in call]
    assert broken
    assert task["status"]["state"] == "TASK_STATE_FAILED"
    assert "length limit" in task["status"]["message"]["parts"][0]["text"]


@pytest.mark.parametrize("name", ["text", "tool_call"])
def test_events_of_a2a_0_3_have_a_kind_and_the_last_one_is_final(name: str) -> None:
    stream = str(FIXTURES / f"{name}.sse")
    lines = [json.loads(line) for line in convert("--dialect", "0.3", stream).stdout.splitlines()]
    assert [line["kind"] for line in lines[:2]] == ["task", "status-update"]
    assert [line.get("final", False) for line in lines] == [False] * (len(lines) - 1) + [True]
    newest = convert(stream).stdout.splitlines()
    assert len(lines) == len(newest)
    parts = [part for line in lines if "artifact" in line for part in line["artifact"]["parts"]]
    assert {part["kind"] for part in parts} <= {"text", "data"}
    task = one_object(convert("--dialect", "0.3", "--to", "task", stream))
    assert (task["kind"], task["status"]["state"]) == ("task", lines[-1]["status"]["state"])


def test_events_before_0_2_begin_with_the_work() -> None:
    stream = str(FIXTURES / "text.sse")
    lines = [json.loads(line) for line in convert("--dialect", "0.1", stream).stdout.splitlines()]
    assert lines[0]["status"]["state"] == "working"
    assert lines[-1]["final"] is True
    assert lines[-1]["status"]["state"] == "completed"
    artifacts = [line["artifact"] for line in lines if "artifact" in line]
    assert [artifact.get("append", False) for artifact in artifacts] == [False] + [True] * (
        len(artifacts) - 1
    )
    assert [artifact.get("lastChunk", False) for artifact in artifacts].count(True) == 1
    text = "".join(
        part["text"] for artifact in artifacts for part in artifact["parts"] if part["type"] == "text"
    )
    task = one_object(convert("--dialect", "0.1", "--to", "task", stream))
    assert [part["text"] for part in task["artifacts"][0]["parts"]] == [text]


@pytest.mark.parametrize(("version", "discriminator"), [("0.3", "kind"), ("0.1", "type")])
def test_messages_of_older_versions_declare_the_kinds_of_their_parts(
    version: str, discriminator: str
) -> None:
    for name, kind in (("text", "text"), ("tool_call", "data")):
        stream = str(FIXTURES / f"{name}.sse")
        newest = one_object(convert("--to", "message", stream))
        message = one_object(convert("--to", "message", "--dialect", version, stream))
        assert [part.pop(discriminator) for part in message["parts"]] == [kind] * len(newest["parts"])
        assert message["parts"] == newest["parts"]
        assert (message["role"], message.get("kind")) == ("agent", "message" if version == "0.3" else None)


@pytest.mark.parametrize("version", ["1.0", "0.3", "0.1"])
def test_a_stream_that_broke_off_fails_in_every_version(version: str) -> None:
    result = convert("--dialect", version, stdin=BROKEN)
    assert result.exit_code == 0
    last = json.loads(result.stdout.splitlines()[-1])
    state = last["statusUpdate"]["status"]["state"] if version == "1.0" else last["status"]["state"]
    assert state == ("TASK_STATE_FAILED" if version == "1.0" else "failed")


def test_a_completion_is_the_same_in_every_version() -> None:
    stream = str(FIXTURES / "text.sse")
    newest = one_object(convert("--to", "openai", stream))
    assert one_object(convert("--to", "openai", "--dialect", "0.3", stream)) == newest


def test_another_version_is_refused() -> None:
    assert convert("--dialect", "2.0", stdin=BROKEN).exit_code == 2
