"""The playground as it is served; ``tests/e2e/test_playground*.py`` cover its behaviour in a browser."""

import gzip
import re
import subprocess
import sys
from collections.abc import AsyncIterator
from hashlib import sha256
from html.parser import HTMLParser
from pathlib import Path
from zipfile import ZipFile

import pytest
from aiohttp import ClientSession
from fastapi import FastAPI

from support.http_json import HttpJson
from support.live_server import serving
from support.rpc import Rpc, message, streamed_text
from tailrace.server import Settings, Turn, create_app, create_router
from tailrace.streaming import Update
from tailrace.streaming.a2a.models import Artifact, Part
from tailrace.streaming.task.updates import ArtifactUpdate

ROOT = Path(__file__).parents[3]
FOLDER = "tailrace/server/http/playground"
MODULES = ("tailrace-chat.js", "tailrace-client.js", "tailrace-highlight.js", "tailrace-math.js")
FILES = {"/": "index.html", "/embed.html": "embed.html", **{f"/{name}": name for name in MODULES}}
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


async def test_under_a_prefix_it_loads_nothing_outside_of_it() -> None:
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
    component = (
        f"tailrace-chat.js?v={_hash('tailrace-chat.js')}" if name == "index.html" else "tailrace-chat.js"
    )
    assert page.fetched == ["data:,", component]


def _hash(name: str) -> str:
    return sha256((ROOT / "server" / FOLDER / name).read_bytes()).hexdigest()[:16]


async def test_addresses_with_a_hash_are_immutable_and_others_are_not() -> None:
    async with serving(create_app(SETTINGS, handler=greet)) as url, Rpc(url) as rpc:
        for name in MODULES:
            for query, policy in (
                ("", "public, max-age=60"),
                ("?v=0123456789abcdef", "public, max-age=60"),  # another version, during a deployment
                (f"?v={_hash(name)}", "public, max-age=31536000, immutable"),
            ):
                status, headers, _ = await HttpJson(rpc).exchange("GET", f"/{name}{query}")
                assert (status, headers["cache-control"]) == (200, policy)


@pytest.mark.parametrize("name", MODULES)
def test_the_modules_parse_no_html_and_import_only_each_other(name: str) -> None:
    module = (ROOT / "server" / FOLDER / name).read_text(encoding="utf-8")
    parsers = (
        "innerHTML",
        "outerHTML",
        "insertAdjacentHTML",
        "document.write",
        "DOMParser",
        "eval(",
        "new Function(",
    )
    # highlight.js can color an element of a page itself; lowlight uses its tree, and the policy refuses the rest.
    exempt = {"innerHTML"} if name == "tailrace-highlight.js" else set[str]()
    assert {word for word in parsers if word in module} <= exempt
    # The element imports the modules beside it, when a response needs them. A computed address is none of these.
    imported = re.findall(r"\bimport\(([^)]*)\)", module)
    assert set(imported) <= {f'"./{each}?v={_hash(each)}"' for each in MODULES}
    assert bool(imported) == (name == "tailrace-chat.js")
    assert not re.search(r"(?:^|[;}])import\b(?!\()", module, re.MULTILINE)


async def test_the_first_load_is_small() -> None:
    async with (
        serving(create_app(SETTINGS, handler=greet)) as url,
        ClientSession(auto_decompress=False) as http,
    ):
        transferred = 0
        for path in ("/", "/tailrace-chat.js"):
            async with http.get(url + path, headers={"Accept-Encoding": "gzip"}) as response:
                assert response.headers["content-encoding"] == "gzip"
                assert "accept-encoding" in response.headers["vary"].lower()
                body = await response.read()
            assert gzip.decompress(body) == (ROOT / "server" / FOLDER / FILES[path]).read_bytes()
            transferred += len(body)
        assert transferred <= 60 * 1024
        async with http.get(f"{url}/tailrace-client.js", headers={"Accept-Encoding": "gzip"}) as response:
            assert len(await response.read()) <= 6 * 1024
        async with http.get(f"{url}/tailrace-chat.js", headers={"Accept-Encoding": "identity"}) as response:
            assert "content-encoding" not in response.headers
            assert await response.read() == (ROOT / "server" / FOLDER / "tailrace-chat.js").read_bytes()


def test_the_wheel_contains_its_files(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    [wheel] = tmp_path.glob("*.whl")
    with ZipFile(wheel) as files:
        for name in FILES.values():
            assert files.read(f"{FOLDER}/{name}") == (ROOT / "server" / FOLDER / name).read_bytes()
        assert not any("/ui/" in name or name.endswith(".ts") for name in files.namelist())
