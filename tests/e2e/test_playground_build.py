"""The modules of the playground in the repository are what their sources in ``ui/`` give."""

import subprocess
from pathlib import Path

import pytest

from e2e.ui_streams.node import NODE

pytestmark = pytest.mark.timeout(240)

UI = Path(__file__).parents[2] / "ui"


def run(*arguments: str) -> str:
    """Run Node in the folder of the sources, and return its output and its errors."""
    done = subprocess.run([NODE, *arguments], cwd=UI, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(autouse=True)
def installed() -> None:
    if not (UI / "node_modules/esbuild").exists():
        pytest.skip("the packages of the sources are not installed: run `make e2e`")


def test_the_modules_are_built_from_their_sources() -> None:
    assert "tailrace-chat.js" in run("build.mjs", "--check")


def test_the_sources_have_no_type_errors() -> None:
    run("node_modules/typescript/bin/tsc", "--noEmit")
