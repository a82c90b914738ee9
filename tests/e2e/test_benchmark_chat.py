"""The benchmark of the chat, with few and small runs: it measures everything, and its times are not compared with the bounds."""

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.chat_page import PAGE, put
from e2e.browser import CHROMIUM

pytestmark = pytest.mark.timeout(240)

ROOT = Path(__file__).parents[2]


def test_the_chat_is_measured() -> None:
    if CHROMIUM is None:
        pytest.skip("Chromium is not installed: run `make e2e`")
    options = ["--runs", "1", "--tokens", "200", "--messages", "6"]
    program = [sys.executable, "-m", "benchmarks.chat_page", *options]
    done = subprocess.run(program, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    rows = [line.split(" | ") for line in done.stdout.splitlines() if line.startswith("|")]
    assert len(rows) == 14
    assert {len(row) for row in rows[2:]} == {5}
    page = put(PAGE.read_text(encoding="utf-8"), done.stdout)
    assert page.count(rows[-1][0]) == 2  # of both responses
    assert put(page, done.stdout) == page
