"""The chat in a browser: ``python -m benchmarks.chat_page``. Needs Chromium and the dependency group `browser`.

The page is measured in a headless Chromium:

- long tasks (of the main thread, over 50 ms) and CPU time, while a response of 5,000 tokens arrives at 400 tokens per second:
  Markdown of all kinds, or one block of code;
- the compressed bytes of the first load, and its first contentful paint, without a cache;
- a conversation of 200 messages: opened in a page, and loaded with a page.

A busy machine increases all figures except the CPU times.
"""

import json
import os
import re
import shutil
import statistics
import subprocess
import sys
from collections.abc import AsyncIterator, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import anyio
import typer
import uvicorn

from benchmarks.generated_sections import replace_section
from benchmarks.runner import machine
from tailrace.server import Settings, Turn, create_app
from tailrace.streaming import ArtifactUpdate, StatusUpdate, TaskState, TextDelta, Update
from tailrace.streaming.a2a.models import Artifact, Part

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page

PAGE = Path(__file__).parents[1] / "docs/performance.md"
"""The page with the figures, between two markers."""
_BEGIN, _END = (
    "<!-- chat figures: python -m benchmarks.chat_page --write -->\n",
    "<!-- end of chat figures -->\n",
)

RATE = 400
"""Tokens per second."""
_QUIET = 1.5
"""Maximum load of an idle machine."""
_SECTION = '''## Section {n}: a river in *code*

The **Nile** is 6,650 km long; see `flow()` and [the guide](https://example.com/{n}). The area is $A_{{{n}}} = \\pi r^2$ 🌍.

```python
def flow_{n}(river: str, speed: float = 1.5) -> Iterator[float]:
    """Yield each drop of `river`."""
    for number, drop in enumerate(drops_of(river), start={n}):
        if drop.size > 0.5 and not drop.is_frozen:  # ice does not flow
            yield drop.size * speed ** 2
    return None
```

| river | length | share |
|---|--:|:-:|
| Nile | 6,650 km | {n} % |
| Amazon | 6,400 km | **most** |

1. first
   - a spring, with `code` and *emphasis*
   - a lake
2. then the sea

```ts
export async function* drops<T extends Drop>(river: River<T>): AsyncGenerator<T> {{
  for await (const drop of river.read({{ after: {n} }})) if (drop.size > 0) yield drop;
}}
```

> A quote, and a formula:
>
> $$ \\sum_{{i=1}}^{{{n}}} i = \\frac{{n(n+1)}}{{2}} $$

'''
_CODE = '''def flow_{n}(river: str, speed: float = 1.5) -> Iterator[float]:
    """Yield each drop of `river`."""
    for number, drop in enumerate(drops_of(river), start={n}):
        if drop.size > 0.5 and not drop.is_frozen:  # ice does not flow
            yield drop.size * speed ** 2
    return None


'''
_TEXTS = {"markdown": ("", _SECTION), "code": ("```python\n", _CODE)}
_SHORT = "# Answer\n\n| a | b |\n|---|---|\n| 1 | **2** |\n\n- one\n- two\n\nSome `code` and a [link](https://example.com).\n"


def tokens(kind: str, number: int) -> list[str]:
    """Return a text of ``number`` tokens.

    Args:
        kind: ``markdown``, or ``code`` for one block of code.
        number: The number of tokens.
    """
    begin, section = _TEXTS[kind]
    text = begin + "".join(section.format(n=n) for n in range(number // 20))
    return re.findall(r"\s*\w{1,6}|\s*[^\w\s]", text)[:number]


# --- the server -------------------------------------------------------------------------------------------------


async def respond(turn: Turn) -> AsyncIterator[Update]:
    """Send a paced response to a message such as ``markdown 5000``, and a short one to other messages."""
    kind, _, number = "".join(part.text or "" for part in turn.message.parts).partition(" ")
    if kind not in _TEXTS:
        yield ArtifactUpdate(Artifact(artifact_id="text", parts=(Part(text=_SHORT),)))
        return
    yield StatusUpdate(TaskState.WORKING)
    yield ArtifactUpdate(Artifact(artifact_id="text", parts=(Part(text=""),)), last=False)
    begun = anyio.current_time()
    for at, token in enumerate(tokens(kind, int(number))):
        await anyio.sleep_until(begun + at / RATE)
        yield TextDelta("text", token)
    yield TextDelta("text", "", last=True)


def serve() -> None:
    config = uvicorn.Config(
        create_app(Settings(store="sqlite://"), handler=respond), port=0, access_log=False
    )
    uvicorn.Server(config).run()


@contextmanager
def serving() -> Generator[str]:
    """Run the server as a process while the block runs. Yield its URL.

    Raises:
        RuntimeError: The server did not start.
    """
    command = [sys.executable, "-m", "benchmarks.chat_page", "--serve"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        for line in process.stderr:
            if found := re.search(r"running on (\S+)", line):
                yield found[1]
                break
        else:
            raise RuntimeError("the server did not start")
    finally:
        process.terminate()
        process.wait()


# --- the measurements -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Figure:
    """The results of all runs of a measurement.

    Attributes:
        what: The measurement.
        unit: The unit of the results.
        results: One result per run.
        bound: The bound on each result; None without a bound.
    """

    what: str
    unit: str
    results: Sequence[float]
    bound: float | None = None

    @property
    def holds(self) -> bool:
        """Whether all results are within the bound."""
        return self.bound is None or max(self.results) <= self.bound

    def row(self) -> str:
        """Return the row of the table."""
        bound = "" if self.bound is None else f"≤ {self._format(self.bound)}"
        median, worst = statistics.median(self.results), max(self.results)
        cells = self.what, bound, self._format(median), self._format(worst), str(len(self.results))
        return f"| {' | '.join(cells)} |"

    def _format(self, value: float) -> str:
        return f"{value:,.{1 if value % 1 and value < 100 else 0}f} {self.unit}".strip()


# The tasks over 50 ms, in milliseconds, since the page was opened or `longTasks` was emptied.
_OBSERVE = """
    window.longTasks = [];
    new PerformanceObserver((list) => longTasks.push(...list.getEntries().map(({ duration }) => duration))).observe({ type: "longtask", buffered: true });
"""
_STREAM = """async (prompt) => {
    const chat = document.querySelector("tailrace-chat");
    const found = { text: "" };
    const over = new Promise((resolve) => {
        chat.addEventListener("textdelta", ({ detail }) => { found.first ??= performance.now(); found.text += detail.text; });
        chat.addEventListener("taskstate", ({ detail }) => detail.state === "completed" && resolve());
    });
    longTasks.length = 0;
    await chat.send(prompt);
    await over;
    found.seconds = (performance.now() - found.first) / 1000;
    // The last frame, and the observer, which is notified later.
    await new Promise(requestAnimationFrame);
    await new Promise((drawn) => setTimeout(drawn, 500));
    return { ...found, longTasks };
}"""
_CONVERSE = """async (messages) => {
    const { client } = document.querySelector("tailrace-chat");
    let contextId;
    for (let at = 0; at < messages / 2; at += 1) {
        const stream = client.send([{ text: `hello ${at}` }], { contextId });
        for await (const event of stream) contextId ??= event.task?.contextId;
    }
    return contextId;
}"""
_OPEN = """async (context) => {
    const chat = document.querySelector("tailrace-chat");
    await chat.newConversation();
    const begun = performance.now();
    await chat.open(context);
    await new Promise(requestAnimationFrame);
    await new Promise((drawn) => setTimeout(drawn));
    return [performance.now() - begun, chat.shadowRoot.querySelectorAll("article").length];
}"""
_LOADED = """async (count) => {
    const articles = () => document.querySelector("tailrace-chat")?.shadowRoot?.querySelectorAll("article").length;
    while (articles() !== count) await new Promise(requestAnimationFrame);
    await new Promise((drawn) => setTimeout(drawn));
    return performance.now();
}"""
_PAINT = """() => new Promise((resolve) => new PerformanceObserver((list) => {
    const [entry] = list.getEntriesByName("first-contentful-paint");
    if (entry) resolve(entry.startTime);
}).observe({ type: "paint", buffered: true }))"""


@contextmanager
def _new_page(browser: "Browser", url: str) -> Generator["Page"]:
    """A page without a cache."""
    context: BrowserContext = browser.new_context(viewport={"width": 1280, "height": 800})
    try:
        page = context.new_page()
        page.add_init_script(_OBSERVE)
        page.goto(url)
        yield page
    finally:
        context.close()


def stream_figures(browser: "Browser", url: str, kind: str, number: int, runs: int) -> list[Figure]:
    """Measure the main thread while a response arrives.

    Raises:
        RuntimeError: The page did not receive the complete text.
    """
    counts: list[float] = []
    longest: list[float] = []
    longest_cpu: list[float] = []
    busy: list[float] = []
    rates: list[float] = []
    for _ in range(runs):
        with _new_page(browser, url) as page:
            page.evaluate("document.querySelector('tailrace-chat').opened")
            browser.start_tracing(page=page, categories=["-*", "disabled-by-default-devtools.timeline"])
            found = page.evaluate(_STREAM, f"{kind} {number}")
            times = _cpu_times(json.loads(browser.stop_tracing())["traceEvents"])
        if found["text"] != "".join(tokens(kind, number)):
            raise RuntimeError("the text on the page is not complete")
        counts.append(len(found["longTasks"]))
        longest.append(max(found["longTasks"], default=0))
        longest_cpu.append(max(times))
        busy.append(sum(times) / found["seconds"] / 10)
        rates.append(number / found["seconds"])
    content = "Markdown with code, tables and math" if kind == "markdown" else "one block of code"
    what = f"{number:,} tokens at {statistics.median(rates):.0f} per second, {content}"
    return [
        Figure(f"{what}: long tasks (over 50 ms)", "", counts, 0),
        Figure("the longest of these tasks (0: none)", "ms", longest),
        Figure("CPU time of the longest task", "ms", longest_cpu, 50),
        Figure("CPU time of all tasks", "% of a core", busy),
    ]


def _cpu_times(events: Sequence[dict[str, Any]]) -> list[float]:
    """Return the CPU time of each task of the page's main thread, in milliseconds."""
    threads = {
        (each["pid"], each["tid"])
        for each in events
        if each["name"] == "thread_name" and each["args"]["name"] == "CrRendererMain"
    }
    return [
        each["tdur"] / 1000
        for each in events
        if each["name"] == "RunTask" and "tdur" in each and (each["pid"], each["tid"]) in threads
    ]


def load_figures(browser: "Browser", url: str, runs: int) -> list[Figure]:
    sizes: list[float] = []
    paints: list[float] = []
    for _ in range(runs):
        with _new_page(browser, "about:blank") as page:
            requests: list[Any] = []
            page.on("request", lambda request, found=requests: found.append(request))
            page.goto(url)
            paints.append(page.evaluate(_PAINT))
            page.wait_for_load_state("networkidle")
            sizes.append(sum(each.sizes()["responseBodySize"] for each in requests) / 1000)
    return [
        Figure("first load, compressed", "KB", sizes, 60),
        Figure("first contentful paint", "ms", paints, 200),
    ]


def conversation_figures(browser: "Browser", url: str, messages: int, runs: int) -> list[Figure]:
    """Measure a conversation of many messages: half of them are the user's.

    Raises:
        RuntimeError: The page does not show all messages.
    """
    times: list[float] = []
    loads: list[float] = []
    with _new_page(browser, url) as page:
        context = page.evaluate(_CONVERSE, messages)
        for _ in range(runs):
            milliseconds, count = page.evaluate(_OPEN, context)
            if count != messages / 2:
                raise RuntimeError(f"the page shows {count} of {messages // 2} messages")
            times.append(milliseconds)
    for _ in range(runs):
        with _new_page(browser, f"{url}#{context}") as page:
            loads.append(page.evaluate(_LOADED, messages // 2))
    what = f"a conversation of {messages} messages"
    return [
        Figure(f"{what}, opened in the page", "ms", times, 500),
        Figure(f"{what}, loaded with the page", "ms", loads, 500),
    ]


def table(figures: Sequence[Figure], version: str, load: float) -> str:
    """Return the table in Markdown, after a description of the machine."""
    facts = machine()
    head = f"{facts['processor']} · {facts['cpus']} processors · {facts['python']} · Chromium {version} · load {load:.1f}"
    if load > _QUIET:
        head += "  \nThe machine was busy, which delays everything except the CPU times."
    rows = ["| measurement | bound | median | worst | runs |", "|---|--:|--:|--:|--:|"]
    return "\n".join([head, "", *rows, *(figure.row() for figure in figures), ""])


def put(text: str, found: str) -> str:
    """Return the page with its table replaced.

    Raises:
        ValueError: The page has no markers for the table.
    """
    return replace_section(text, _BEGIN, _END, found)


def main(
    runs: Annotated[int, typer.Option(min=1, help="Runs of each measurement; at most five for streams.")] = 9,
    number: Annotated[int, typer.Option("--tokens", min=1, help="Tokens of a streamed response.")] = 5000,
    messages: Annotated[int, typer.Option(min=2, help="Messages of the conversation.")] = 200,
    check: Annotated[
        bool, typer.Option("--check", help="Exit status 1 if the worst run exceeds a bound.")
    ] = False,
    write: Annotated[bool, typer.Option("--write", help="Write the table into docs/performance.md.")] = False,
    only_serve: Annotated[bool, typer.Option("--serve", hidden=True)] = False,
) -> None:
    """Measure the chat in a headless Chromium (long tasks and CPU time, load times in ms, size in KB), and print a table."""
    if only_serve:
        serve()
        return
    from playwright.sync_api import sync_playwright  # installed by `make sync-browser`

    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        raise typer.BadParameter("Chromium is not installed: run `make browser`")
    load = os.getloadavg()[0]
    with serving() as url, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        try:
            load_figures(browser, url, 1)  # the server compresses the modules at the first request
            figures = [
                *load_figures(browser, url, runs),
                *conversation_figures(browser, url, messages, runs),
                *stream_figures(browser, url, "markdown", number, min(runs, 5)),
                *stream_figures(browser, url, "code", number, min(runs, 5)),
            ]
            found = table(figures, browser.version, load)
        finally:
            browser.close()
    print(found)
    if write:
        PAGE.write_text(put(PAGE.read_text(encoding="utf-8"), found), encoding="utf-8")
    if check and not all(figure.holds for figure in figures):
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
