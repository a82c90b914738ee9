"""The program that a client of ours in Python is: reads commands, carries them out, prints what came of them.

A command is a line of JSON, ``{"id": 1, "do": "stream", …}``. Each is carried out at once, beside those that still run,
and answered by lines with its id: ``event`` for each event of a stream, then ``result``, or ``error``.
``{"do": "leave", "of": 1}`` drops the connection of a command. The end of the input ends the program.

It runs in whatever environment a client needs, so it imports nothing but what all have.
"""

import json
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from typing import Any, cast

import anyio

Operation = Callable[..., "Awaitable[object] | AsyncGenerator[object]"]


async def carry_out_commands(operations: Mapping[str, Operation]) -> None:
    """Carry out commands until the input ends.

    Args:
        operations: By name; each gets the command's further fields. One that is an async generator gives the events
            of a stream.
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
    """What a client raised, with the code of JSON-RPC, gRPC or HTTP where it tells one."""
    code = getattr(getattr(error, "error", error), "code", None)
    if callable(code):  # gRPC
        code = getattr(code(), "name", None)
    return {
        "type": type(error).__name__,
        "message": str(error),
        "code": code or getattr(error, "status_code", None),
    }


def _say(number: int, **what: object) -> None:
    print(json.dumps({"id": number, **what}), flush=True)
