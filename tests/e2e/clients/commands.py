"""The command loop of a Python client program: reads commands, executes them, prints their results.

A command is a line of JSON, ``{"id": 1, "do": "stream", …}``. Each runs concurrently with those in progress, and is
answered by lines with its id: ``event`` for each event of a stream, then ``result``, or ``error``.
``{"do": "leave", "of": 1}`` closes the connection of a command. The end of the input ends the program.

The module runs in the environment of each client, so it imports only what all of them have.
"""

import json
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from typing import Any, cast

import anyio

_OUTPUT = sys.stdout
"""The output of results: a program whose library prints can replace `sys.stdout` after importing this module."""

Operation = Callable[..., "Awaitable[object] | AsyncGenerator[object]"]


async def carry_out_commands(operations: Mapping[str, Operation]) -> None:
    """Execute commands until the input ends.

    Args:
        operations: By name; each receives the command's further fields. Async generators yield the events of a stream.
    """
    running: dict[int, anyio.CancelScope] = {}

    async def carry_out(number: int, operation: Operation, fields: dict[str, Any]) -> None:
        with anyio.CancelScope() as scope:
            running[number] = scope
            try:
                answer = operation(**fields)
                if hasattr(answer, "__aiter__"):
                    async with aclosing(cast("AsyncGenerator[object]", answer)) as events:
                        async for event in events:
                            _say(number, event=event)
                    _say(number, result=None)
                else:
                    _say(number, result=await cast("Awaitable[object]", answer))
            except Exception as error:
                _say(number, error=_facts(error))
        if scope.cancelled_caught:
            _say(number, result="left")
        del running[number]

    async with anyio.create_task_group() as group:
        async for line in anyio.wrap_file(sys.stdin):
            command = json.loads(line)
            name, number = command.pop("do"), command.pop("id", 0)
            if name == "leave":
                if command["of"] in running:
                    running[command["of"]].cancel()
            else:
                group.start_soon(carry_out, number, operations[name], command)
        group.cancel_scope.cancel()


def _facts(error: Exception) -> dict[str, Any]:
    """Return a client's exception, with its JSON-RPC, gRPC or HTTP code if it has one."""
    code = getattr(getattr(error, "error", error), "code", None)
    if callable(code):  # gRPC
        code = getattr(code(), "name", None)
    return {
        "type": type(error).__name__,
        "message": str(error),
        "code": code or getattr(error, "status_code", None),
    }


def _say(number: int, **what: object) -> None:
    print(json.dumps({"id": number, **what}), file=_OUTPUT, flush=True)
