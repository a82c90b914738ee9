"""``tailrace record`` and ``--model replay:FOLDER`` as real processes."""

import json
from pathlib import Path
from typing import Any

from support.processes import served
from support.rpc import Rpc, message, text_of
from support.upstream import ScriptedUpstream, openai_stream
from tailrace.server.cli.doctor import doctor

KEY = "sk-proj-0123456789abcdefghij"


async def answered(url: str, text: str) -> dict[str, Any]:
    """The completed task of a message."""
    async with Rpc(url) as rpc:
        return (await rpc.call("SendMessage", message(text)))["result"]["task"]


async def test_recorded_responses_are_replayed_without_the_provider(tmp_path: Path) -> None:
    folder = tmp_path / "cassettes"
    store = "--store", f"sqlite:///{tmp_path}/tailrace.db"
    async with ScriptedUpstream(openai_stream(["Hel", "lo"])) as upstream:
        arguments = str(folder), "--model", "openai:m", "--base-url", upstream.base_url, *store
        with served(tmp_path / "log", *arguments, command="record", TAILRACE_API_KEY=KEY) as server:
            await server.ready()
            recorded = await answered(server.url, "Hi")
    assert text_of(recorded) == "Hello"
    assert not [path for path in folder.iterdir() if KEY in path.read_text()]
    with served(tmp_path / "log", "--model", f"replay:{folder}", *store) as server:
        await server.ready()
        replayed = await answered(server.url, "Hi")
        unknown = await answered(server.url, "Bye")
    assert text_of(replayed) == "Hello"
    assert unknown["status"]["state"] == "TASK_STATE_FAILED"
    assert "no response to this request is recorded" in json.dumps(unknown["status"])


async def test_a_folder_without_recordings_ends_the_start_in_one_line(tmp_path: Path) -> None:
    with served(tmp_path / "log", "--model", f"replay:{tmp_path}/none") as server:
        assert server.process.wait(60) == 2
    (line,) = (tmp_path / "log").read_text().splitlines()
    assert "there is no folder" in line


def test_doctor_checks_the_folder(tmp_path: Path, capsys: Any) -> None:
    doctor(None, as_json=True, ask_model=False, model=f"replay:{tmp_path}/none", store="sqlite://")
    findings = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    (model,) = [finding for finding in findings if "recordings" in json.dumps(finding)]
    assert "there is no folder" in json.dumps(model)
