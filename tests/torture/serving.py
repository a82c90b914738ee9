"""The server under torture: the real ``tailrace serve``, with SQLite on disk, as often as it is killed."""

import itertools
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import anyio

from support.processes import Served, served

_COUNT = itertools.count(1)


@asynccontextmanager
async def server(
    folder: Path, base_url: str, settings: Mapping[str, object], *, store_options: str = ""
) -> AsyncGenerator[Served]:
    """Run a server on the store of the folder while the block runs; it may be killed in between.

    Args:
        folder: Where the database and the logs are.
        base_url: The provider.
        settings: By their names: ``max_lag`` is ``TAILRACE_MAX_LAG``. Names in capitals are environment variables.
        store_options: The query of the store's URL.
    """
    arguments = [
        "--model",
        "openai:t",
        "--base-url",
        base_url,
        "--store",
        f"sqlite:///{folder}/t.db{store_options}",
    ]
    environment = {
        name if name.isupper() else f"TAILRACE_{name.upper()}": str(value) for name, value in settings.items()
    }
    with served(folder / f"log.{next(_COUNT)}", *arguments, **environment) as process:
        await process.ready()
        yield process


def database(folder: Path) -> Path:
    """The file of the store."""
    return folder / "t.db"


async def until(holds: Callable[[], Awaitable[object]], seconds: float) -> bool:
    """Wait for a state of another process, which nothing but asking tells; False when it does not come in time."""
    with anyio.move_on_after(seconds):
        while True:
            if await holds():
                return True
            await anyio.sleep(0.02)
    return False
