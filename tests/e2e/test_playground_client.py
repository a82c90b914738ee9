"""The chat's TypeScript client, as built, in Node and in Deno; the example of its documentation."""

import json
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest

from e2e.ui_streams.node import NODE
from support.approval_server import serving_approvals
from support.live_server import serving
from support.pages import blocks
from support.proxy import CuttingProxy
from support.rounds import answer
from tailrace.server import Settings, Turn, create_app
from tailrace.streaming import TaskState, Update
from tailrace.streaming.a2a.models import Artifact, Part
from tailrace.streaming.task.updates import ArtifactUpdate, StatusUpdate, TextDelta

pytestmark = pytest.mark.timeout(240)

ROOT = Path(__file__).parents[2]
MODULE = ROOT / "server/tailrace/server/http/playground/tailrace-client.js"
PROGRAM = Path(__file__).parent / "playground_client.mjs"

WORDS = [f"w{number} " for number in range(300)]


async def write(turn: Turn) -> AsyncIterator[Update]:
    yield StatusUpdate(TaskState.WORKING)
    yield ArtifactUpdate(Artifact(artifact_id="text", parts=(Part(text="begin "),)), last=False)
    if "".join(part.text or "" for part in turn.message.parts) == "endless":
        await anyio.sleep_forever()
    for word in WORDS:
        yield TextDelta("text", word)
        await anyio.lowlevel.checkpoint()
    yield TextDelta("text", "", last=True)


_PACKAGES = Path(__file__).parent / "ui_streams/javascript/node_modules"
DENO = next(map(str, _PACKAGES.glob("@deno/*/deno")), "")
RUNTIMES = {"node": [NODE], "deno": [DENO, "run", "--no-lock", "--allow-net", "--allow-read"]}


@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize("cuts", [(), (20_000, 1000, 20_000)], ids=["without cuts", "with cuts"])
async def test_the_client_streams_resumes_and_cancels(cuts: tuple[int, ...], runtime: str) -> None:
    if runtime == "deno" and not DENO:
        pytest.skip("Deno is not installed: run `make e2e`")
    settings = Settings(store="sqlite://", coalesce="none", agent_name="Writer")
    async with serving(create_app(settings, handler=write)) as url, CuttingProxy(url) as proxy:
        proxy.cut_after(*cuts)
        program = [*RUNTIMES[runtime], str(PROGRAM), MODULE.as_uri(), proxy.url]
        result = await anyio.run_process(program, check=False)
        assert result.returncode == 0, result.stderr.decode()
        found = json.loads(result.stdout)
        assert proxy.cuts == len(cuts)
    text = "begin " + "".join(WORDS)
    assert found["card"] == "Writer"
    assert found["sent"]["text"] == text
    assert found["sent"]["states"][-1] == "TASK_STATE_COMPLETED"
    assert found["sent"]["numbers"] == list(range(1, found["sent"]["numbers"][-1] + 1))
    assert found["sent"]["requests"][0] == "SendStreamingMessage"
    assert set(found["sent"]["requests"][1:]) <= {"SubscribeToTask"}
    assert found["subscribed"]["text"] == text
    assert found["again"]["numbers"] == list(range(4, found["again"]["numbers"][-1] + 1))
    assert found["canceled"] == "TASK_STATE_CANCELED"
    assert found["left"] == "TASK_STATE_WORKING"
    assert found["tasks"] == 1
    assert found["titles"] == ["endless", "endless", "Renamed"]
    assert found["roles"] == ["ROLE_USER", "ROLE_AGENT"]


async def test_the_documented_program_approves_calls(tmp_path: Path) -> None:
    [example] = blocks(ROOT / "docs/approvals.md", "ts")
    calls = [("c1", "send_mail", {"to": "ann@example.com"})]
    async with serving_approvals(answer(calls=calls), answer("Done.")) as server:
        text = example.text.replace("http://127.0.0.1:8000/tailrace-client.js", MODULE.as_uri())
        program = tmp_path / "approve.mts"
        program.write_text(text.replace("http://127.0.0.1:8000", server.url))
        result = await anyio.run_process([NODE, str(program)], check=False)
        assert result.returncode == 0, result.stderr.decode()
        assert result.stdout.decode() == example.output
        assert server.ran == ["ann@example.com"]
