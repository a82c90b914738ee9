"""The chat in Debian's Firefox: streaming, a reload, code, math, and hostile texts under the policy of the page."""

import json
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest

from e2e.browser import PICTURES
from e2e.playground_answers import ANSWERS, HOSTILE
from e2e.ui_streams.node import NODE
from support.live_server import serving
from tailrace.server import Settings, Turn, create_app
from tailrace.streaming import TaskState, Update
from tailrace.streaming.a2a.models import Artifact, Part
from tailrace.streaming.task.updates import ArtifactUpdate, StatusUpdate, TextDelta

pytestmark = pytest.mark.timeout(240)

FIREFOX = shutil.which("firefox-esr") or shutil.which("firefox")
PROGRAM = Path(__file__).parent / "firefox.mjs"
DRIVER = Path(__file__).parent / "ui_streams/javascript/node_modules/puppeteer-core"


async def answer(turn: Turn) -> AsyncIterator[Update]:
    yield StatusUpdate(TaskState.WORKING)
    yield ArtifactUpdate(Artifact(artifact_id="text", parts=(Part(text="# All\n\n"),)), last=False)
    text = "\n\n".join(ANSWERS[name] for name in ("code", "tables", "math"))
    for at in range(0, len(text), 40):
        yield TextDelta("text", text[at : at + 40])
    yield TextDelta("text", "", last=True)


async def test_the_chat_in_firefox() -> None:
    if FIREFOX is None:
        pytest.skip("Firefox is not installed: run `make e2e`")
    if not DRIVER.exists():
        pytest.skip("puppeteer-core is not installed: run `make e2e`")
    assert len(HOSTILE) >= 150
    PICTURES.mkdir(parents=True, exist_ok=True)
    async with serving(create_app(Settings(store="sqlite://"), handler=answer)) as url:
        program = [NODE, str(PROGRAM), FIREFOX, f"{url}/", str(PICTURES / "firefox.png")]
        done = await anyio.run_process(program, input=json.dumps(HOSTILE).encode(), check=False)
    assert done.returncode == 0, done.stderr.decode()
    found = json.loads(done.stdout)
    assert "irefox" in found["version"]
    assert found["streamed"] == found["reloaded"]
    assert "<table>" in found["streamed"]
    assert (found["executed"], found["faults"]) == (0, [])
