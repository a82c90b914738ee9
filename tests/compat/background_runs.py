"""Background mode: a program finishes a run with a tool, although the server is killed during each response of the model.

The client of such a program has two more commands: ``background`` (``text``) is ``call`` with background responses, and
``polled`` waits until the program next retrieves a response.
"""

from collections.abc import Sequence
from pathlib import Path

import anyio

from compat.programs import Program
from e2e.clients.programs import Answer, running_client
from support.processes import served
from support.proxy import CuttingProxy
from support.rpc import Rpc
from support.upstream import (
    Hang,
    Received,
    ScriptedUpstream,
    SetEvent,
    Step,
    openai_chunk,
    openai_stream,
    sse,
)

TEXT = "The tool says: sunny."

_SECONDS = 300
"""The limit for a run with its three servers."""

_RESPONSES = 2  # the tool call, and the text after its result


class _InterruptedModel:
    """Begins each response twice: the first one hangs after some text.

    Attributes:
        hangs: For each response, set when its text has been sent.
    """

    def __init__(self) -> None:
        self.hangs = [anyio.Event() for _ in range(_RESPONSES)]

    def answer(self, request: Received) -> Sequence[Step]:
        """Return the script for a request."""
        is_last = any(message["role"] == "tool" for message in request.json["messages"])
        hangs = self.hangs[is_last]
        if not hangs.is_set():
            return [sse(openai_chunk({"content": "The "})), SetEvent(hangs), Hang()]
        if is_last:
            return openai_stream([TEXT])
        function = {"name": "get_weather", "arguments": '{"city": "Zürich"}'}
        calls = [{"index": 0, "id": "call-1", "type": "function", "function": function}]
        return [sse(openai_chunk({"tool_calls": calls}), openai_chunk({}, finish="tool_calls"), "[DONE]")]


async def finishes_across_restarts(program: Program, folder: Path) -> None:
    """The run returns the text after the tool's result, and is one task with one call of the tool."""
    await anyio.Path(folder).mkdir()
    with anyio.fail_after(_SECONDS):
        await _run(program, folder)


async def _run(program: Program, folder: Path) -> None:
    model = _InterruptedModel()
    async with ScriptedUpstream(model.answer) as upstream, CuttingProxy("http://127.0.0.1:9") as proxy:
        async with running_client(program.kind, proxy.url, str(folder)) as client:
            run: Answer | None = None
            for number, hangs in enumerate([*model.hangs, None]):
                options = ["--model", "openai:scripted", "--base-url", upstream.base_url]
                options += ["--store", f"sqlite:///{folder / 'tasks.db'}"]
                with served(folder / f"log.{number}", *options) as server:
                    await server.ready()
                    proxy.turn_to(server.url)
                    run = run or await client.stream("background", text="weather")
                    if hangs is not None:
                        await hangs.wait()
                        await client.ask("polled")
                        server.kill()
                        continue
                    async for event in run:
                        raise AssertionError(f"unexpected event: {event}")
                    assert run.result == TEXT, f"returned {run.result!r}"
                    async with Rpc(server.url) as rpc:
                        [task] = (await rpc.result("ListTasks", {}))["tasks"]
                    assert task["status"]["state"] == "TASK_STATE_COMPLETED"
    assert len(upstream.requests) == 2 * _RESPONSES
