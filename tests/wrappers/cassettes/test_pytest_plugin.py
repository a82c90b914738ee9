"""The pytest fixture, in a pytest process as users run it."""

import os
import re
import sys
from pathlib import Path
from subprocess import CompletedProcess

import anyio
import pytest

from support.upstream import ScriptedUpstream, openai_stream

PAGE = Path(__file__).parents[3] / "docs/recordings.md"
CONFTEST = 'pytest_plugins = ["tailrace.wrappers.cassettes.pytest_plugin"]\n'

TEST = """
import anyio
from tailrace.streaming import Agent

def test_the_agent_answers(cassette_model):
    async def run():
        async with Agent(cassette_model("openai:m", base_url="{url}")) as agent:
            return (await agent.run("Hi")).output
    assert anyio.run(run) == "Hello"
"""


async def run_pytest(folder: Path, *options: str) -> CompletedProcess[bytes]:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options, str(folder)]
    environment = {
        **os.environ,
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    }  # the plugins of this project's own tests
    return await anyio.run_process(command, check=False, cwd=folder, env=environment)


@pytest.mark.timeout(240)  # starts three processes
async def test_a_test_records_once_and_replays_without_the_provider(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    async with ScriptedUpstream(openai_stream(["Hel", "lo"])) as upstream:
        (tmp_path / "test_it.py").write_text(TEST.format(url=upstream.base_url))
        missing = await run_pytest(tmp_path)
        assert b"`pytest --record-cassettes` records the responses" in missing.stdout
        recording = await run_pytest(tmp_path, "--record-cassettes")
        assert recording.returncode == 0, recording.stdout
    folder = tmp_path / "cassettes/test_it/test_the_agent_answers/openai-m"
    assert [path.name[:5] for path in folder.iterdir()] == ["0001-"]
    replay = await run_pytest(tmp_path)
    assert replay.returncode == 0, replay.stdout


@pytest.mark.timeout(240)  # starts a process
async def test_the_documented_test_runs(tmp_path: Path) -> None:
    section = PAGE.read_text().partition("## Tests with pytest")[2]
    configuration, conftest, test = re.findall(r"```[^\n]*\n(.*?)```", section, re.DOTALL)[:3]
    (tmp_path / "pyproject.toml").write_text(configuration)
    (tmp_path / "conftest.py").write_text(conftest)
    async with ScriptedUpstream(openai_stream(["Bern", "."])) as upstream:
        model = '"openai:gpt-5-mini"'
        (tmp_path / "test_it.py").write_text(test.replace(model, f'{model}, base_url="{upstream.base_url}"'))
        recording = await run_pytest(tmp_path, "-p", "pytest_asyncio.plugin", "--record-cassettes")
    assert recording.returncode == 0, recording.stdout
    assert b"1 passed" in recording.stdout
