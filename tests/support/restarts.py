"""Servers that end in the middle of a response and are started again."""

import signal
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import aiohttp
import anyio
import pytest

from support.continued_events import Events
from support.processes import served
from support.rpc import Rpc, message
from support.upstream import ScriptedUpstream


async def across_a_restart(
    end: signal.Signals,
    folder: Path,
    upstream: ScriptedUpstream,
    form: str,
    is_reached: Callable[[Events], bool],
    *options: str,
    then: Sequence[str] = (),
    **environment: str,
) -> Events:
    """End a server when its subscriber has received certain events, start it again, and resume.

    Args:
        end: The signal. SIGKILL breaks the connection of the subscriber. After SIGTERM, its stream ends cleanly.
        folder: For the database and the logs.
        upstream: The provider.
        form: The format of the provider.
        is_reached: Whether the server must be ended after these events.
        options: Options of the server.
        then: Further options of the restarted server.
        environment: Environment variables of the server.

    Returns:
        The events before and after the restart.
    """
    arguments = arguments_of(folder, upstream, form, *options)
    breaks = end is signal.SIGKILL
    if not breaks:
        environment = {"TAILRACE_SHUTDOWN_GRACE": "0", **environment}
    before: Events = []
    has_ended = False

    def seen(events: Events) -> None:
        nonlocal has_ended
        before[:] = events
        if not has_ended and is_reached(events):
            has_ended = True
            process.process.send_signal(end)

    with served(folder / "first.log", *arguments, **environment) as process:
        await process.ready()
        async with Rpc(process.url) as rpc:
            with pytest.raises(aiohttp.ClientError) if breaks else nullcontext(), anyio.fail_after(30):
                await rpc.stream("SendStreamingMessage", message("Rivers?"), seen=seen)
        with anyio.fail_after(30):
            await anyio.to_thread.run_sync(process.process.wait, abandon_on_cancel=True)
    with served(folder / "second.log", *arguments, *then, **environment) as process:
        await process.ready()
        async with Rpc(process.url) as rpc:
            ids = {"id": before[0][1]["task"]["id"]}
            with anyio.fail_after(30):
                after = await rpc.stream("SubscribeToTask", ids, {"Last-Event-ID": str(before[-1][0])})
    events = before + after
    assert [number for number, _ in events] == list(range(1, len(events) + 1))
    return events


across_a_kill = partial(across_a_restart, signal.SIGKILL)
across_a_stop = partial(across_a_restart, signal.SIGTERM)


def arguments_of(folder: Path, upstream: ScriptedUpstream, form: str, *options: str) -> list[str]:
    """The arguments of a server for a provider, with its database in a folder."""
    model = ("--model", f"{form}:m", "--base-url", upstream.base_url)
    return [*model, "--store", f"sqlite:///{folder}/t.db", *options]


def state_of(events: Events) -> str:
    """The last state."""
    return events[-1][1]["statusUpdate"]["status"]["state"]
