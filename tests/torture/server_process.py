"""The server under test: the real ``tailrace serve``, with SQLite on disk, restarted after each kill."""

import itertools
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
from pydantic import BaseModel

from support.processes import Served, served

_COUNT = itertools.count(1)


@asynccontextmanager
async def server(
    folder: Path,
    base_url: str,
    settings: Mapping[str, object],
    *,
    model: str = "openai:t",
    store_options: str = "",
) -> AsyncGenerator[Served]:
    """Run a server on the store of the folder while the block runs; the test may kill it.

    Args:
        folder: The folder with the database and the logs.
        base_url: The provider's base URL.
        settings: The settings by name: ``on_crash`` is ``TAILRACE_ON_CRASH``. Upper-case names are environment variables.
        model: The model, as ``provider:name``.
        store_options: The query of the store's URL.
    """
    arguments = [
        "--model",
        model,
        "--base-url",
        base_url,
        "--store",
        f"sqlite:///{folder}/t.db{store_options}",
    ]
    environment = as_environment(settings)
    with served(folder / f"log.{next(_COUNT)}", *arguments, **environment) as process:
        await process.ready()
        yield process


def as_environment(settings: Mapping[str, object]) -> dict[str, str]:
    """Return settings as environment variables."""
    return {
        name if name.isupper() else f"TAILRACE_{name.upper()}": value.model_dump_json(exclude_unset=True)
        if isinstance(value, BaseModel)
        else str(value)
        for name, value in settings.items()
    }


def database(folder: Path) -> Path:
    """Return the file of the store."""
    return folder / "t.db"


async def until(holds: Callable[[], Awaitable[object]], seconds: float) -> bool:
    """Poll for a state of another process; return False if it is not reached in time."""
    with anyio.move_on_after(seconds):
        while True:
            if await holds():
                return True
            await anyio.sleep(0.02)
    return False
