"""Codex CLI and opencode finish a task that uses a tool, with ``tailrace serve`` as their provider.

Their versions are pinned in ``tests/compat``; each needs hundreds of megabytes, so the test is nightly. That of opencode is its
program for Linux on x86-64, without the package that chooses one.
"""

import json
import os
import subprocess
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from e2e.ui_streams.node import NODE
from e2e.ui_streams.node import main as run_npm
from support.processes import served
from support.rounds import answer
from support.upstream import Received, ScriptedUpstream, Step, sse

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(600)]

COMPAT = Path(__file__).parents[1] / "compat"
PATCH = "*** Begin Patch\n*** Add File: hello.txt\n+hello\n*** End Patch\n"
PROMPT = "Write hello.txt"


def install(name: str) -> Path:
    """Install a program; return its packages."""
    folder = COMPAT / name
    options = ("--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error")
    assert run_npm("npm", "ci", "--prefix", str(folder), *options) == 0
    return folder / "node_modules"


async def run(command: Sequence[str], work: Path, **environment: str) -> str:
    """Run a coding agent in a folder; return its output."""
    await anyio.Path(work).mkdir()
    home = {"HOME": str(work.parent), "PATH": os.environ["PATH"], **environment}
    done = await anyio.run_process(list(command), cwd=work, env=home, check=False, stderr=subprocess.STDOUT)
    output = done.stdout.decode()
    assert done.returncode == 0, output
    return output


def chat_script(request: Received) -> Sequence[Step]:
    """Call the shell of a coding agent, and state the end after its result; a title is requested without tools."""
    body = request.json
    names = {tool["function"]["name"] for tool in body.get("tools", ())}
    if not names or body["messages"][-1]["role"] == "tool":
        return answer("Done.")
    command = "echo hello > hello.txt"
    if "exec_command" in names:
        return answer("I write it.", calls=[("c1", "exec_command", {"cmd": command})])
    return answer("I write it.", calls=[("c1", "bash", {"command": command, "description": "Write"})])


def responses_script(request: Received) -> Sequence[Step]:
    """Call the custom tool of Codex, and state the end after its result."""
    if request.json["input"][-1].get("type") == "custom_tool_call_output":
        content = [{"type": "output_text", "text": "Done.", "annotations": list[Any]()}]
        item: dict[str, Any] = {"type": "message", "id": "m", "role": "assistant", "content": content}
    else:
        item = {"type": "custom_tool_call", "id": "x", "call_id": "c1", "name": "apply_patch", "input": PATCH}
    done = {"type": "response.output_item.done", "output_index": 0, "item": item}
    added = {"type": "response.output_item.added", "output_index": 0, "item": item}
    return [sse(added, done, {"type": "response.completed", "response": {"id": "r", "status": "completed"}})]


@asynccontextmanager
async def provider(folder: Path, upstream: ScriptedUpstream, model: str) -> AsyncGenerator[str]:
    """Run the server; yield the root of its OpenAI-compatible API."""
    options = [
        "--model",
        model,
        "--base-url",
        upstream.base_url,
        "--store",
        f"sqlite:///{folder / 'tasks.db'}",
    ]
    with served(folder / "log", *options) as server:
        await server.ready()
        yield f"{server.url}/v1"


async def codex(work: Path, url: str, model: str) -> str:
    """Let Codex carry out the prompt."""
    packages = install("codex")
    home = work.parent / "codex-home"
    home.mkdir()
    fields = f'{{name="tailrace",base_url="{url}",wire_api="responses"}}'
    options = ["-c", "model_provider=tailrace", "-c", f"model_providers.tailrace={fields}", "-m", model]
    options += ["--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"]
    program = str(packages / "@openai/codex/bin/codex.js")
    return await run([NODE, program, "exec", *options, PROMPT], work, CODEX_HOME=str(home))


async def test_codex_runs_a_command_with_any_model(tmp_path: Path) -> None:
    work = tmp_path / "work"
    async with (
        ScriptedUpstream(chat_script) as upstream,
        provider(tmp_path, upstream, "openai:scripted") as url,
    ):
        output = await codex(work, url, "scripted")
    assert (work / "hello.txt").read_text() == "hello\n"
    assert output.rstrip().endswith("Done.")
    assert upstream.requests[-1].json["messages"][-1]["role"] == "tool"


async def test_codex_applies_a_patch_with_a_model_of_the_responses_api(tmp_path: Path) -> None:
    work = tmp_path / "work"
    async with (
        ScriptedUpstream(responses_script) as upstream,
        provider(tmp_path, upstream, "openai-responses:gpt-5.5") as url,
    ):
        output = await codex(work, url, "gpt-5.5")
    assert (work / "hello.txt").read_text() == "hello\n"
    assert output.rstrip().endswith("Done.")
    assert "Success" in upstream.requests[-1].json["input"][-1]["output"]


async def test_opencode_runs_a_command(tmp_path: Path) -> None:
    work = tmp_path / "work"
    program = install("opencode") / "opencode-linux-x64-baseline/bin/opencode"
    async with (
        ScriptedUpstream(chat_script) as upstream,
        provider(tmp_path, upstream, "openai:scripted") as url,
    ):
        tailrace: dict[str, Any] = {
            "npm": "@ai-sdk/openai-compatible",
            "options": {"baseURL": url, "apiKey": "none"},
            "models": {"scripted": {}},
        }
        config = {
            "provider": {"tailrace": tailrace},
            "permission": {"bash": "allow"},
            "autoupdate": False,
            "share": "disabled",
        }
        (tmp_path / "opencode.json").write_text(json.dumps(config))
        output = await run(
            [str(program), "run", "--model", "tailrace/scripted", PROMPT],
            work,
            OPENCODE_CONFIG=str(tmp_path / "opencode.json"),
        )
    assert (work / "hello.txt").read_text() == "hello\n"
    assert "Done." in output
    assert any(request.json["messages"][-1]["role"] == "tool" for request in upstream.requests)
