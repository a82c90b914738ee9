"""The pytest fixture, in a pytest process as users run it."""

import os
import sys
from pathlib import Path
from subprocess import CompletedProcess

import anyio
import pytest

from support.upstream import ScriptedUpstream, openai_stream

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
