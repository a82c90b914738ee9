"""The playground as it is served; ``tests/e2e/test_playground.py`` covers its behaviour in a browser."""

import re
import subprocess
import sys
from collections.abc import AsyncIterator
from html.parser import HTMLParser
from pathlib import Path
from zipfile import ZipFile

import pytest
from fastapi import FastAPI

from support.http_json import HttpJson
from support.rpc import Rpc, message, streamed_text
from support.serving import serving
from tailrace.server import Settings, Turn, create_app, create_router
from tailrace.streaming import Update
from tailrace.streaming.a2a.models import Artifact, Part
from tailrace.streaming.task.updates import ArtifactUpdate

ROOT = Path(__file__).parents[3]
FOLDER = "tailrace/server/http/playground"
FILES = {"/": "index.html", "/tailrace-chat.js": "tailrace-chat.js", "/embed.html": "embed.html"}
SETTINGS = Settings(store="sqlite://")


async def greet(turn: Turn) -> AsyncIterator[Update]:
    yield ArtifactUpdate(Artifact(artifact_id="text", parts=(Part(text="Hello."),)))


@pytest.mark.parametrize("path", FILES)
async def test_its_files_are_served_under_a_strict_policy(path: str) -> None:
    async with serving(create_app(SETTINGS, handler=greet)) as url, Rpc(url) as rpc:
        http = HttpJson(rpc)
        status, headers, body = await http.exchange("GET", path)
        assert (status, body) == (200, (ROOT / "server" / FOLDER / FILES[path]).read_bytes())
        kind = "text/javascript" if path.endswith(".js") else "text/html"
        assert headers["content-type"] == f"{kind}; charset=utf-8"
        policy = dict(rule.split(" ", 1) for rule in headers["content-security-policy"].split("; "))
        assert policy["default-src"] == "'none'"
        assert policy["script-src"] == policy["connect-src"] == "'self'"
        assert "unsafe" not in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"
        status, again, body = await http.exchange("HEAD", path)
        assert (status, again["etag"], body) == (200, headers["etag"], b"")
        status, _, body = await http.exchange("GET", path, headers={"if-none-match": headers["etag"]})
        assert (status, body) == (304, b"")


async def test_the_agent_answers_at_the_same_address() -> None:
    async with serving(create_app(SETTINGS, handler=greet)) as url, Rpc(url) as rpc:
        assert streamed_text(await rpc.stream("SendStreamingMessage", message())) == "Hello."
        status, headers, _ = await HttpJson(rpc).exchange("PUT", "/")
        assert (status, set(headers["allow"].split(", "))) == (405, {"GET", "HEAD", "POST"})


@pytest.mark.parametrize("path", FILES)
async def test_it_can_be_switched_off(path: str) -> None:
    settings = Settings(store="sqlite://", endpoints=())
    async with serving(create_app(settings, handler=greet)) as url, Rpc(url) as rpc:
        status, headers, _ = await HttpJson(rpc).exchange("GET", path)
        # The agent is still at the root, for POST.
        assert status == (405 if path == "/" else 404)
        assert headers["content-type"] == "application/json"


@pytest.mark.parametrize("first", [True, False])
async def test_a_page_of_the_application_that_includes_it_is_served_instead(first: bool) -> None:
    app = FastAPI()
    router = create_router(SETTINGS, handler=greet)
    if first:
        app.include_router(router)

    @app.get("/")
    async def home() -> str:  # pyright: ignore[reportUnusedFunction]
        return "home"

    if not first:
        app.include_router(router)
    async with serving(app) as url, Rpc(url) as rpc:
        http = HttpJson(rpc)
        assert await http.ask("GET", "/") == (200, "home")
        status, _, _ = await http.exchange("GET", "/tailrace-chat.js")
        assert status == 200
        assert streamed_text(await rpc.stream("SendStreamingMessage", message())) == "Hello."


async def test_under_a_prefix_it_is_there_too_and_asks_for_nothing_elsewhere() -> None:
    app = FastAPI()
    app.include_router(create_router(SETTINGS, handler=greet), prefix="/agent")
    async with serving(app) as url, Rpc(url) as rpc:
        http = HttpJson(rpc)
        for path in FILES:
            status, _, body = await http.exchange("GET", f"/agent{path}")
            assert status == 200
            assert not re.search(rb"(src|href)=\"[^\"]*(//|\"/)", body)
        assert (await http.ask("GET", "/"))[0] == 404


class _Page(HTMLParser):
    """Records violations of a strict content security policy, and fetched URLs."""

    def __init__(self) -> None:
        super().__init__()
        self.inline: list[str] = []
        self.fetched: list[str] = []
        self._within = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._within = tag
        for name, value in attrs:
            if name == "style" or name.startswith("on"):
                self.inline.append(f"{tag} {name}")
            if name in ("src", "href"):
                self.fetched.append(value or "")

    def handle_data(self, data: str) -> None:
        if self._within in ("script", "style") and data.strip():
            self.inline.append(data)


@pytest.mark.parametrize("name", ["index.html", "embed.html"])
def test_its_pages_hold_no_code_and_fetch_the_element_alone(name: str) -> None:
    page = _Page()
    page.feed((ROOT / "server" / FOLDER / name).read_text(encoding="utf-8"))
    assert page.inline == []
    assert page.fetched == ["data:,", "tailrace-chat.js"]


def test_the_element_reads_nothing_as_html_and_imports_nothing() -> None:
    module = (ROOT / "server" / FOLDER / "tailrace-chat.js").read_text(encoding="utf-8")
    for word in (
        "innerHTML",
        "outerHTML",
        "insertAdjacentHTML",
        "document.write",
        "eval(",
        "import(",
        "import ",
    ):
        assert word not in module
    assert set(re.findall(r"https?://[\w.]+", module)) == {"http://www.w3.org"}  # the SVG namespace


def test_in_the_wheel_it_is_whole_and_small(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    [wheel] = tmp_path.glob("*.whl")
    with ZipFile(wheel) as files:
        held = {name: files.read(f"{FOLDER}/{name}") for name in FILES.values()}
    assert sum(map(len, held.values())) <= 40 * 1024
    assert b"customElements.define" in held["tailrace-chat.js"]
    for page in ("index.html", "embed.html"):
        assert held[page] == (ROOT / "server" / FOLDER / page).read_bytes()


def test_what_a_model_writes_is_drawn_to_a_bounded_depth() -> None:
    source = (ROOT / "server" / FOLDER / "tailrace-chat.js").read_text(encoding="utf-8")
    nested = re.findall(r"new Markdown\((this\..*)\);", source)
    assert len(nested) == 2
    assert all(arguments.endswith("this.depth + 1") for arguments in nested)
    within = re.search(r"^function inline\(.*?^}", source, re.MULTILINE | re.DOTALL)
    assert within is not None
    calls = re.findall(r"inline\(([^)]*)\)", within[0])[1:]
    assert all(call.endswith("depth + 1") for call in calls)
