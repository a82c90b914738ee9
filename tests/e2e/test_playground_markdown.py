"""Markdown of the chat component, in a real browser under the playground's own policy."""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio

from e2e.browser import browsing, note_faults
from e2e.playground_answers import ANSWERS, HOSTILE
from support.fixture_contexts import in_own_task
from support.live_server import serving
from tailrace.server import Settings, Turn, create_app
from tailrace.streaming import StatusUpdate, TaskState, Update

if TYPE_CHECKING:
    from playwright.async_api import Page

pytestmark = [pytest.mark.timeout(240), pytest.mark.asyncio(loop_scope="module")]

# Highlighting and math are loaded first, so that later renderings are immediate.
RENDERER = """
    const { Markdown } = await import("/tailrace-chat.js");
    const begin = () => {
        const root = document.createElement("div");
        root.className = "md";
        document.body.append(root);
        return [root, new Markdown(root)];
    };
    if (!window.loaded) {
        const [root, markdown] = begin();
        markdown.add("```python\\ndef f(): pass\\n```\\n\\n$x$\\n");
        markdown.end();
        while (!root.querySelector("code span") || !root.querySelector("math")) await new Promise(requestAnimationFrame);
        root.remove();
        window.loaded = true;
    }
"""

ELEMENTS = r"""
| river | length | *state* |
|:--|--:|:-:|
| Nile | 6,650 km | **long** |

A claim[^long] and another[^1], and the same again[^1].

[^1]: The first *note*.
[^long]: A note
    with a second line.

- [ ] open
- [x] done

The area is $A = \pi r^2$, \(x\) or $$y$$; it costs $5 or $10.

$$
\frac{1}{3}
$$

```python
def parse(text):
    for line in text: print(line)
```

![inline](data:image/png;base64,iVBORw0KGgo=) and ![remote](https://example.com/i.png)
"""


async def finish(turn: Turn) -> AsyncIterator[Update]:
    yield StatusUpdate(TaskState.COMPLETED)


@asynccontextmanager
async def playground() -> AsyncGenerator["Page"]:
    faults: list[str] = []
    app = create_app(Settings(store="sqlite://"), handler=finish)
    async with serving(app) as url, browsing() as browser:
        page = await browser.new_page()
        note_faults(page, faults)
        await page.goto(url)
        yield page
    assert faults == []


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def page() -> AsyncGenerator["Page"]:
    async with in_own_task(playground()) as page:
        yield page


async def evaluate(page: "Page", script: str, argument: Any) -> Any:
    return await page.evaluate(f"async (given) => {{ {RENDERER} {script} }}", argument)


@pytest.mark.parametrize("size", [1, 7])
@pytest.mark.parametrize("name", ANSWERS)
async def test_a_growing_text_looks_as_if_it_had_arrived_at_once(page: "Page", name: str, size: int) -> None:
    different = await evaluate(
        page,
        """
        const { text, size } = given;
        const [root, growing] = begin();
        const atOnce = (text, ended) => {
            const [root, markdown] = begin();
            markdown.add(text);
            if (ended) markdown.end();
            root.remove();
            return root.innerHTML;
        };
        const different = [];
        for (let at = 0; at < text.length; at += size) {
            growing.add(text.slice(at, at + size));
            const expected = atOnce(text.slice(0, at + size), false);
            if (root.innerHTML !== expected) different.push([text.slice(0, at + size), root.innerHTML, expected]);
        }
        growing.end();
        const expected = atOnce(text, true);
        if (root.innerHTML !== expected) different.push([text, root.innerHTML, expected]);
        root.remove();
        return different.slice(0, 1).map((each) => each.map((text) => text.slice(-900)));
        """,
        {"text": ANSWERS[name], "size": size},
    )
    assert different == []


@pytest.mark.parametrize("name", ANSWERS)
async def test_every_word_of_an_answer_is_on_the_page(page: "Page", name: str) -> None:
    shown: str = await evaluate(
        page,
        """
        const [root, markdown] = begin();
        markdown.add(given);
        markdown.end();
        for (const math of root.querySelectorAll("math")) math.replaceWith(math.getAttribute("alttext"));
        const text = root.textContent + [...root.querySelectorAll("a, img")].map((each) => each.href ?? each.src);
        root.remove();
        return text;
        """,
        ANSWERS[name],
    )
    words = {word for word in ANSWERS[name].split() if word.isalpha()}
    languages = {"Title"}
    assert {word for word in words - languages if word not in shown} == set()


async def test_final_blocks_are_not_drawn_again(page: "Page") -> None:
    removed, blocks = await evaluate(
        page,
        """
        const [root, markdown] = begin();
        let removed = 0;
        const first = [];
        for (let at = 0; at < 400; at += 1) {
            markdown.add(`Paragraph ${at} with **bold** text.\\n\\n- item\\n- other\\n\\n`);
            first.push(root.children[2 * at]);
        }
        removed = first.filter((node, at) => root.children[2 * at] !== node).length;
        const blocks = root.childElementCount;
        root.remove();
        return [removed, blocks];
        """,
        None,
    )
    assert (removed, blocks) == (0, 800)


async def test_its_elements(page: "Page") -> None:
    found = await evaluate(
        page,
        """
        const [root, markdown] = begin();
        markdown.add(given);
        markdown.end();
        const texts = (selector) => [...root.querySelectorAll(selector)].map((each) => each.textContent);
        const result = {
            align: [...root.querySelectorAll("tbody tr:first-child td")].map((each) => each.className),
            scrolls: Boolean(root.querySelector(".table[tabindex='0']")),
            notes: [...root.querySelectorAll(".footnote")].map((each) => each.dataset.note),
            marks: texts("sup button"),
            math: root.querySelectorAll("math").length,
            display: root.querySelectorAll("math[display=block]").length,
            boxes: [...root.querySelectorAll("input[type=checkbox]")].map((each) => each.checked),
            keywords: texts(".hljs-keyword"),
            images: [...root.querySelectorAll("img")].map((each) => each.alt),
        };
        root.querySelector("sup button").click();
        result.focused = document.activeElement.dataset.note;
        root.remove();
        return result;
        """,
        ELEMENTS,
    )
    assert found == {
        "align": ["left", "right", "center"],
        "scrolls": True,
        "notes": ["1", "long"],
        "marks": ["long", "1", "1"],
        "math": 4,
        "display": 1,
        "boxes": [False, True],
        "keywords": ["def", "for", "in"],
        "images": ["inline"],
        "focused": "long",
    }


async def test_hostile_texts_run_nothing_and_load_nothing(page: "Page") -> None:
    assert len(HOSTILE) >= 150
    requests: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    found = await evaluate(
        page,
        """
        const elements = new Set(("a b blockquote br button code del div em figcaption figure h3 h4 h5 h6 hr img input li ol p pre " +
            "span strong sup table tbody td th thead tr ul math menclose merror mfrac mi mn mo mover mpadded mphantom mroot mrow " +
            "ms mspace msqrt mstyle msub msubsup msup mtable mtd mtext mtr munder munderover svg path").split(" "));
        const attributes = new Set(("alt alttext aria-hidden aria-label checked class d data-note disabled display href rel role scriptlevel " +
            "src start tabindex target title type displaystyle mathvariant stretchy form lspace rspace width height depth " +
            "mathcolor viewBox voffset fence separator movablelimits linethickness columnalign").split(" "));
        window.hits = 0;
        window.hit = () => (window.hits += 1);
        const wrong = [];
        for (const text of given) {
            const [root, markdown] = begin();
            for (const character of text) markdown.add(character);
            markdown.end();
            for (const node of root.querySelectorAll("*")) {
                const bad = !elements.has(node.localName) || [...node.attributes].some(({ name }) => !attributes.has(name));
                const href = node.getAttribute("href") ?? "https:";
                const src = node.getAttribute("src") ?? "data:image/png";
                if (bad || !/^(https?:|mailto:)/.test(href) || !/^data:image\\/(png|jpeg|gif|webp|avif)/.test(src)) wrong.push([text, node.outerHTML]);
            }
            for (const node of root.querySelectorAll("button, figure, sup, input")) node.click();
            await new Promise((next) => setTimeout(next));
            root.remove();
        }
        return { wrong, hits: window.hits };
        """,
        HOSTILE,
    )
    assert found == {"wrong": [], "hits": 0}
    assert {request for request in requests if "example.com" in request} == set()
