"""The npm package of the chat, in a project of a user who follows the documentation."""

import re
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from fastapi import FastAPI
from fastapi.staticfiles import StaticFiles

from e2e.browser import browsing, note_faults, take_picture
from e2e.ui_streams.node import NODE
from support.live_server import serving
from support.pages import blocks
from tailrace.server import Settings, Turn, create_app
from tailrace.streaming import Update
from tailrace.streaming.a2a.models import Artifact, Part
from tailrace.streaming.task.updates import ArtifactUpdate

pytestmark = pytest.mark.timeout(240)

ROOT = Path(__file__).parents[2]
UI = ROOT / "ui"
REACT = ROOT / "examples/browser/node_modules"
DOCUMENT = ROOT / "docs/playground.md"
APPROVALS = ROOT / "docs/approvals.md"

ANSWER = "Here is **code**:\n\n```python\ndef flow(): pass\n```\n"

MAIN = """
import { createRoot } from "react-dom/client";
import { Support } from "./support";
createRoot(document.querySelector("main")!).render(<Support />);
"""
PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>Support</title><link rel="icon" href="data:,">
<main></main><script type="module" src="build/main.js"></script></html>
"""
# `any` would accept everything: a property that does not exist has to be an error.
TYPES = """
import { TailraceChat } from "tailrace-chat";
import { AgentClient, type TaskEvent } from "tailrace-chat/client";
declare const chat: TailraceChat;
chat.addEventListener("taskstate", ({ detail }) => detail.state.toUpperCase());
// @ts-expect-error
chat.addEventListener("taskstate", ({ detail }) => detail.nothing);
// @ts-expect-error
chat.nothing();
// @ts-expect-error
new AgentClient(1);
export const numbers = (event: TaskEvent): number => event.type === "connection" ? event.after : event.number;
document.querySelector("tailrace-chat")!.newConversation();
"""
COMPILER = """{ "compilerOptions": { "strict": true, "noEmit": true, "jsx": "react-jsx", "module": "esnext", "target": "es2023",
"moduleResolution": "bundler", "lib": ["ES2023", "DOM", "DOM.Iterable"], "skipLibCheck": false, "types": [] } }"""


async def answer(turn: Turn) -> AsyncIterator[Update]:
    yield ArtifactUpdate(Artifact(artifact_id="text", parts=(Part(text=ANSWER),)))


def run(folder: Path, *command: str) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a project with the package, React and TypeScript."""
    for needed in (UI / "node_modules/esbuild", REACT / "react-dom"):
        if not needed.exists():
            pytest.skip(f"{needed} is not installed: run `make e2e`")
    folder = tmp_path_factory.mktemp("project")
    npm = Path(NODE).parents[1] / "lib/node_modules/npm/bin/npm-cli.js"
    run(UI, NODE, str(npm), "pack", "--silent", "--pack-destination", str(folder))
    [package] = folder.glob("*.tgz")
    (folder / "node_modules/tailrace-chat").mkdir(parents=True)
    run(folder, "tar", "xzf", str(package), "-C", "node_modules/tailrace-chat", "--strip-components=1")
    for name in ("react", "react-dom", "scheduler"):
        (folder / "node_modules" / name).symlink_to(REACT / name)
    for name in ("@types", "csstype"):
        (folder / "node_modules" / name).symlink_to(UI / "node_modules" / name)
    return folder


def test_the_package_has_types(project: Path) -> None:
    [example] = re.findall(r"```tsx\n(.*?)```", DOCUMENT.read_text(encoding="utf-8"), re.DOTALL)
    (project / "types.ts").write_text(TYPES)
    (project / "support.tsx").write_text(example)
    [approvals] = blocks(APPROVALS, "ts")
    text = approvals.text.replace("http://127.0.0.1:8000/tailrace-client.js", "tailrace-chat/client")
    (project / "approvals.ts").write_text(text)
    (project / "tsconfig.json").write_text(
        COMPILER.replace("} }", '}, "include": ["types.ts", "support.tsx", "approvals.ts"] }')
    )
    run(project, NODE, str(UI / "node_modules/typescript/bin/tsc"))


async def test_the_documented_react_component_chats(project: Path) -> None:
    [example] = re.findall(r"```tsx\n(.*?)```", DOCUMENT.read_text(encoding="utf-8"), re.DOTALL)
    site = FastAPI()
    site.mount("/", StaticFiles(directory=project, html=True))
    faults: list[str] = []
    async with serving(site) as site_url, browsing() as browser:
        settings = Settings(store="sqlite://", allowed_origins=(site_url,))
        async with serving(create_app(settings, handler=answer)) as url:
            (project / "support.tsx").write_text(example.replace("http://127.0.0.1:8000", url))
            (project / "main.tsx").write_text(MAIN)
            (project / "index.html").write_text(PAGE)
            options = ["--bundle", "--splitting", "--format=esm", "--jsx=automatic", "--outdir=build"]
            run(project, NODE, str(UI / "node_modules/esbuild/bin/esbuild"), "main.tsx", *options)
            page = await browser.new_page()
            note_faults(page, faults)
            states: list[str] = []
            page.on("console", lambda entry: states.append(entry.text) if entry.type == "log" else None)
            await page.goto(site_url)
            await page.get_by_role("heading", name="Support").first.wait_for()
            await page.get_by_label("Message", exact=True).fill("Code, please")
            await page.keyboard.press("Enter")
            await page.locator("article[data-state=completed]").wait_for()
            await page.locator(
                "code .hljs-keyword"
            ).first.wait_for()  # a module that the bundler has split off
            await take_picture(page, "react")
            assert states[-1] == "completed"
            await page.get_by_role("button", name="New", exact=True).click()
            await page.locator(".welcome").wait_for()
    assert faults == []
