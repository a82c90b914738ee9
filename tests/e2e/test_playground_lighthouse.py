"""Lighthouse's audits of the playground: performance and accessibility."""

import json
import os
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest

from e2e.browser import CHROMIUM
from e2e.ui_streams.node import NODE
from support.live_server import serving
from tailrace.server import Settings, Turn, create_app
from tailrace.streaming import StatusUpdate, TaskState, Update

pytestmark = pytest.mark.timeout(240)

LIGHTHOUSE = Path(__file__).parent / "ui_streams/javascript/node_modules/lighthouse/cli/index.js"
LEAST = 0.95


async def finish(turn: Turn) -> AsyncIterator[Update]:
    yield StatusUpdate(TaskState.COMPLETED)


async def test_lighthouse_finds_it_fast_and_accessible(tmp_path: Path) -> None:
    if CHROMIUM is None or not LIGHTHOUSE.exists():
        pytest.skip("Chromium or Lighthouse is not installed: run `make e2e`")
    report = tmp_path / "report.json"
    options = [
        "--chrome-flags=--headless --no-sandbox",
        "--only-categories=performance,accessibility",
        "--quiet",
    ]
    async with serving(create_app(Settings(store="sqlite://"), handler=finish)) as url:
        program = [NODE, str(LIGHTHOUSE), f"{url}/", *options, "--output=json", f"--output-path={report}"]
        done = await anyio.run_process(program, check=False, env={**os.environ, "CHROME_PATH": CHROMIUM})
    assert done.returncode == 0, done.stderr.decode()
    scores = {name: each["score"] for name, each in json.loads(report.read_text())["categories"].items()}
    assert min(scores.values()) >= LEAST, scores
