"""Recorded responses of all providers: what is written, and that a replay equals the response."""

import gzip
import json
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anyio
import pytest

from support.options import WEATHER, ask
from support.provider_cases import CASES, HISTORY, ProviderCase
from support.rounds import answer
from support.upstream import Head, Reset, ScriptedUpstream, SetEvent, Wait, json_answer, openai_stream
from tailrace.streaming import Agent
from tailrace.wrappers import (
    ConfigurationError,
    ContentPartText,
    History,
    Message,
    Role,
    UpstreamError,
    UpstreamFault,
)
from tailrace.wrappers.cassettes import CassetteModel, RecordingModel, load_cassettes
from tailrace.wrappers.model import Model
from tailrace.wrappers.openai.model import ChatCompletionsModel
from tailrace.wrappers.providers import create_model
from tailrace.wrappers.request_options import NO_OPTIONS, RequestOptions

pytestmark = pytest.mark.usefixtures("bare_environment")

SECRET = "sk-proj-0123456789abcdefghij"


@pytest.fixture(params=list(CASES.values()), ids=lambda case: case.name)
def case(request: pytest.FixtureRequest) -> ProviderCase:
    return request.param


def chat_model(upstream: ScriptedUpstream) -> ChatCompletionsModel:
    return ChatCompletionsModel("m", base_url=upstream.base_url, api_key=SECRET, max_retries=0)


def question(text: str) -> History:
    return History(conversation=(Message(role=Role.USER, content=(ContentPartText(text=text),)),))


async def chunks_of(
    model: Model, history: History = HISTORY, options: RequestOptions = NO_OPTIONS
) -> list[Any]:
    """The chunks of a response, each as the values that consumers read."""
    values: list[Any] = []
    async with model.stream(history, options) as batches:
        async for batch in batches:
            values += [
                (chunk.get_text(), chunk.get_tool_calls(), chunk.get_finish_message(), chunk.get_usage())
                for chunk in batch
            ]
    return values


async def failure_of(model: Model, history: History = HISTORY) -> tuple[list[str], UpstreamError]:
    """The text that arrived before a response failed, and the failure."""
    texts: list[str] = []
    try:
        async with model.stream(history) as batches:
            async for batch in batches:
                texts += [chunk.get_text() for chunk in batch]
    except UpstreamError as error:
        return texts, error
    raise AssertionError("the response did not fail")


def only_file(folder: Path) -> Path:
    (path,) = folder.iterdir()
    return path


def facts(error: UpstreamError) -> Sequence[object]:
    return error.fault, error.message, error.status, error.code, error.retry_after, error.provider


async def test_a_replayed_response_equals_the_recorded_one(case: ProviderCase, tmp_path: Path) -> None:
    async with ScriptedUpstream(case.whole_response()) as upstream:
        recorded = await chunks_of(RecordingModel(case.model(upstream.base_url), tmp_path))
    replayed = CassetteModel(tmp_path, timed=False)
    assert await chunks_of(replayed) == recorded
    assert (replayed.provider, replayed.name) == (case.name, "m")
    assert type(replayed.converter) is type(case.converter)


async def test_names_of_tools_that_the_provider_rejects_are_restored(
    case: ProviderCase, tmp_path: Path
) -> None:
    options = RequestOptions(tools=(WEATHER.model_copy(update={"name": "weather.get" * 8}),))
    async with ScriptedUpstream(case.whole_response()) as upstream:
        recorded = await chunks_of(RecordingModel(case.model(upstream.base_url), tmp_path), options=options)
    assert await chunks_of(CassetteModel(tmp_path, timed=False), options=options) == recorded


async def test_a_rejected_request_is_rejected_again(case: ProviderCase, tmp_path: Path) -> None:
    async with ScriptedUpstream(json_answer(case.refusal, 429, {"retry-after": "200"})) as upstream:
        _, recorded = await failure_of(RecordingModel(case.model(upstream.base_url), tmp_path))
    _, replayed = await failure_of(CassetteModel(tmp_path, timed=False))
    assert facts(replayed) == facts(recorded)
    assert replayed.status == 429


async def test_a_response_that_broke_off_breaks_off_at_the_same_place(
    case: ProviderCase, tmp_path: Path
) -> None:
    async with ScriptedUpstream(case.response(case.begin, Reset())) as upstream:
        texts, recorded = await failure_of(RecordingModel(case.model(upstream.base_url), tmp_path))
    replayed_texts, replayed = await failure_of(CassetteModel(tmp_path, timed=False))
    assert "".join(replayed_texts) == "".join(texts) == "Hel"
    assert facts(replayed) == facts(recorded)
    assert replayed.fault is UpstreamFault.TRUNCATED


async def test_an_error_inside_the_stream_is_replayed(case: ProviderCase, tmp_path: Path) -> None:
    async with ScriptedUpstream(case.response(case.begin, case.failure("Out of tokens"))) as upstream:
        recorded = await ask(RecordingModel(case.model(upstream.base_url), tmp_path), NO_OPTIONS, HISTORY)
    replayed = await ask(CassetteModel(tmp_path, timed=False), NO_OPTIONS, HISTORY)
    assert recorded.error is not None
    assert replayed.error is not None
    assert str(replayed.error) == str(recorded.error)


async def test_equal_requests_get_their_responses_in_order_and_then_the_last_again(tmp_path: Path) -> None:
    async with ScriptedUpstream(*(openai_stream([text]) for text in ("one", "two", "other"))) as upstream:
        model = RecordingModel(chat_model(upstream), tmp_path)
        for text in ("Count", "Count", "Something else"):
            await chunks_of(model, question(text))
    replay = CassetteModel(tmp_path, timed=False)
    answers = [
        (await ask(replay, NO_OPTIONS, question(text))).message().text
        for text in ("Something else", "Count", "Count", "Count")
    ]
    assert answers == ["other", "one", "two", "two"]


async def test_ids_that_the_provider_chooses_anew_do_not_matter(tmp_path: Path) -> None:
    async with ScriptedUpstream(openai_stream(["Sunny"])) as upstream:
        await chunks_of(RecordingModel(chat_model(upstream), tmp_path))
    renamed = HISTORY.model_validate_json(HISTORY.model_dump_json().replace("call00001", "other"))
    assert await chunks_of(CassetteModel(tmp_path, timed=False), renamed)


async def test_an_unknown_request_names_the_recorded_ones(tmp_path: Path) -> None:
    async with ScriptedUpstream(openai_stream(["Hi"])) as upstream:
        await chunks_of(RecordingModel(chat_model(upstream), tmp_path), question("Hello"))
    _, error = await failure_of(CassetteModel(tmp_path), question("Goodbye"))
    assert error.status == 404
    assert "1 message with the last text 'Goodbye'" in error.message
    assert "1 message with the last text 'Hello'" in error.message


async def test_an_agent_with_a_tool_runs_from_its_recordings(tmp_path: Path) -> None:
    async def now(city: str) -> str:
        """Return the time in a city."""
        return f"noon in {city}"

    script = answer(calls=[("call_1", "now", {"city": "Bern"})]), answer("It is ", "noon.")
    async with ScriptedUpstream(*script) as upstream:
        async with Agent(RecordingModel(chat_model(upstream), tmp_path), tools=[now]) as agent:
            recorded = await agent.run("What time is it?")
    async with Agent(create_model(f"replay:{tmp_path}"), tools=[now]) as agent:
        replayed = await agent.run("What time is it?")
    assert replayed.output == recorded.output == "It is noon."
    assert replayed.messages == recorded.messages


async def test_the_bytes_arrive_at_their_recorded_times(tmp_path: Path) -> None:
    first, *rest = openai_stream(["Hel", "lo"])
    go_on = anyio.Event()
    async with ScriptedUpstream([first, Wait(go_on), *rest]) as upstream:
        model = RecordingModel(chat_model(upstream), tmp_path)
        async with model.stream(HISTORY) as batches:
            await anext(batches)
            go_on.set()
            async for _ in batches:
                pass
    path = only_file(tmp_path)
    fields = json.loads(path.read_text())
    fields["pieces"][-1]["at"] = 1000.0
    path.write_text(json.dumps(fields))
    async with CassetteModel(tmp_path).stream(HISTORY) as batches:
        await anext(batches)
        with anyio.move_on_after(0.1) as scope:
            async for _ in batches:
                pass
    assert scope.cancelled_caught


async def test_a_response_whose_reader_leaves_is_not_recorded(tmp_path: Path) -> None:
    arrived = anyio.Event()
    script = [openai_stream(["Hel"])[0], SetEvent(arrived), Wait(anyio.Event())]
    async with ScriptedUpstream(script) as upstream, anyio.create_task_group() as tasks:
        model = RecordingModel(chat_model(upstream), tmp_path / "new")
        tasks.start_soon(chunks_of, model)
        await arrived.wait()
        tasks.cancel_scope.cancel()
    assert not (tmp_path / "new").exists()


# --- what a file contains -----------------------------------------------------------------------------------------------


async def test_a_recording_is_readable_and_private(tmp_path: Path) -> None:
    async with ScriptedUpstream(openai_stream(["Good day"])) as upstream:
        await chunks_of(RecordingModel(chat_model(upstream), tmp_path), question("Hello"))
    path = only_file(tmp_path)
    assert path.name.startswith("0001-")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    text = path.read_text()
    assert "Good day" in text
    assert '"text": "Hello"' in text
    (cassette,) = load_cassettes(tmp_path)
    assert b"".join(piece.data for piece in cassette.pieces) == b"".join(openai_stream(["Good day"]))
    assert (cassette.provider, cassette.model, cassette.format) == ("openai", "m", "openai")


async def test_no_file_has_the_key(case: ProviderCase, tmp_path: Path) -> None:
    async with ScriptedUpstream(case.whole_response()) as upstream:
        await chunks_of(RecordingModel(case.model(upstream.base_url, api_key=SECRET), tmp_path))
    assert SECRET not in only_file(tmp_path).read_text()


@pytest.mark.parametrize(
    "pieces", [[SECRET], [SECRET[:9], SECRET[9:]], [*SECRET]], ids=["one", "two", "single"]
)
async def test_credentials_in_texts_are_removed(pieces: list[str], tmp_path: Path) -> None:
    async with ScriptedUpstream([*openai_stream(pieces)]) as upstream:
        await chunks_of(RecordingModel(chat_model(upstream), tmp_path), question(f"My key is {SECRET}"))
    text = only_file(tmp_path).read_text()
    assert SECRET not in text
    if len(pieces) == 1:
        answered = await ask(
            CassetteModel(tmp_path, timed=False), NO_OPTIONS, question(f"My key is {SECRET}")
        )
        assert answered.message().text == "[redacted]"


async def test_a_response_that_is_no_text_keeps_its_bytes(tmp_path: Path) -> None:
    case = CASES["bedrock"]
    async with ScriptedUpstream(case.whole_response()) as upstream:
        await chunks_of(RecordingModel(case.model(upstream.base_url), tmp_path))
    (cassette,) = load_cassettes(tmp_path)
    assert b"".join(piece.data for piece in cassette.pieces) == case.begin + case.rest


async def test_a_folder_that_cannot_be_written_does_not_stop_the_response(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    occupied = tmp_path / "file"
    occupied.write_text("")
    async with ScriptedUpstream(openai_stream(["Hi"])) as upstream:
        answered = await ask(RecordingModel(chat_model(upstream), occupied), NO_OPTIONS, HISTORY)
    assert answered.message().text == "Hi"
    assert "was not recorded" in caplog.text


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "0001-000000000000.json"),
        ('{"tailrace_cassette": 2}', "tailrace_cassette"),
        ('{"tailrace_cassette": 1, "provider": "openai"}', "model: Field required"),
    ],
    ids=["no JSON", "a later form", "incomplete"],
)
def test_a_file_that_is_no_recording_is_named(content: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "0001-000000000000.json").write_text(content)
    with pytest.raises(ConfigurationError, match=message):
        CassetteModel(tmp_path)


@pytest.mark.parametrize("folder", ["", "missing"], ids=["empty", "missing"])
def test_a_folder_without_recordings_is_refused(folder: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="recordings"):
        create_model(f"replay:{tmp_path / folder}")


def test_a_model_without_http_cannot_be_recorded(tmp_path: Path) -> None:
    (tmp_path / "0001-000000000000.json").write_text(
        '{"tailrace_cassette": 1, "provider": "openai", "model": "m", "format": "openai",'
        ' "recorded": "2026-01-01T00:00:00Z", "request": {"digest": "0", "history": {}}}'
    )
    with pytest.raises(ConfigurationError, match="cannot be recorded"):
        RecordingModel(CassetteModel(tmp_path), tmp_path)


async def test_a_compressed_response_is_recorded_as_it_is_read(tmp_path: Path) -> None:
    body = gzip.compress(b"".join(openai_stream(["Hi"])))
    head = Head(headers={"content-type": "text/event-stream", "content-encoding": "gzip"})
    async with ScriptedUpstream([head, body]) as upstream:
        await chunks_of(RecordingModel(chat_model(upstream), tmp_path), question("Hello"))
    answered = await ask(CassetteModel(tmp_path, timed=False), NO_OPTIONS, question("Hello"))
    assert answered.message().text == "Hi"
