"""Pages of the playground, and the server of the tested pages."""

import struct
import zlib
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from e2e.browser import note_faults
from e2e.clients.agent import ScriptedModel
from support.live_server import serving
from support.upstream import ScriptedUpstream
from tailrace.server import Settings, create_app

if TYPE_CHECKING:
    from playwright.async_api import Browser, BrowserContext, Page


MARKDOWN = """# Rivers

A **river** is a *natural* stream of `water`; see [this](https://example.com/a_(b)) or https://example.com/c_d.
<img src=x onerror=alert(1)> [bad](javascript:alert(1)) ![seen](https://example.com/pixel.png)

1. First
   - a spring
   - a `glacier`
2. Then

> said by
> another

```python
def flow(river):
    return "**not bold** <b>"
```

| river | length |
|---|---|
| Nile | 6,650 km |

- [x] done

~~gone~~ 2 * 3 * 4 = 24 and snake_case_name
"""


class Agent(NamedTuple):
    """The server of the tested pages.

    Attributes:
        url: Its URL.
        model: The scripted model.
        upstream: All requests to the model.
    """

    url: str
    model: ScriptedModel
    upstream: ScriptedUpstream


@asynccontextmanager
async def serving_agent(store: str) -> AsyncGenerator[Agent]:
    model = ScriptedModel()
    async with ScriptedUpstream(model.answer) as upstream:
        # One event per delta, so that each word has a number.
        settings = Settings(
            model="openai:scripted",
            base_url=upstream.base_url,
            api_key="none",  # pyright: ignore[reportArgumentType]
            store=store,
            coalesce="none",
        )
        async with serving(create_app(settings)) as url:
            yield Agent(url, model, upstream)


@asynccontextmanager
async def window(browser: "Browser", **options: Any) -> AsyncGenerator["BrowserContext"]:
    """A fresh browser context; any error in its pages fails the test."""
    options.setdefault("viewport", {"width": 1280, "height": 800})
    context = await browser.new_context(**options)
    faults: list[str] = []
    context.on("page", lambda page: note_faults(page, faults))
    try:
        yield context
    finally:
        await context.close()
    assert faults == []


async def open_page(context: "BrowserContext", url: str) -> "Page":
    page = await context.new_page()
    await page.goto(url)
    return page


async def say(page: "Page", text: str) -> None:
    await page.get_by_label("Message", exact=True).fill(text)
    await page.keyboard.press("Enter")


async def until_state(page: "Page", state: str) -> None:
    await page.locator(f'article:last-of-type[data-state="{state}"]').wait_for()


def png(width: int, height: int) -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = b"".join(b"\0" + bytes((40, 150, 190)) * width for _ in range(height))
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", head)
        + chunk(b"IDAT", zlib.compress(rows))
        + chunk(b"IEND", b"")
    )
