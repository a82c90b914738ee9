"""``python -m benchmarks.gateway.upstream``: a provider that responds immediately, and uses very little CPU time.

It implements Chat Completions over HTTP/1.1. The request selects the response (`benchmarks.gateway.plan`). ``POST /release``
continues held responses. ``POST /step/N`` sends one more delta of each of N held responses, in turn.
"""

import argparse
import asyncio
import re
import time
from functools import lru_cache
from random import Random
from typing import cast

import uvloop

from benchmarks.bodies import WRITERS, Kind
from benchmarks.gateway.plan import SEEDS, Plan, find_plan, piece

_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
_END = b"0\r\n\r\n"
_DONE = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}"
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_RELEASE = b"POST /release "
_STEP = re.compile(rb"POST /step/(\d+) ")
_PING = b"c\r\n: thinking\n\n\r\n"
_PING_SECONDS = 10  # for a held response

_MARK = "\ue000"
_WRITER = WRITERS["openai"](Random(7))
_TIMED = _WRITER.delta(Kind.TEXT, _MARK).split(_MARK.encode())
_OPENING = b"".join(_WRITER.begin())


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


_TIMED_HEAD = _chunk(_OPENING)


@lru_cache(maxsize=256)
def _events(plan: Plan) -> tuple[bytes, ...]:
    """Return the events of a burst: its first delta with the role, the others, and the end."""
    opening, body, closing = plan.stream.parts
    first, *others = b"".join(opening.reads), *body.reads, closing.reads[0]
    return _chunk(first), *map(_chunk, others), b"".join(map(_chunk, closing.reads[1:]))


@lru_cache(maxsize=64)
def _burst(tokens: int, seed: int, begin: int) -> bytes:
    """Return a burst, beginning with one of its deltas."""
    return b"".join((*_events(Plan(tokens, seed=seed))[begin:], _END))


@lru_cache(maxsize=64)
def _timed_end(tokens: int) -> bytes:
    return b"".join((*map(_chunk, _WRITER.end(tokens)), _END))


class Provider(asyncio.Protocol):
    """One connection.

    Args:
        held: Callbacks that continue held responses; shared by all connections.
    """

    def __init__(self, held: "dict[Provider, None]") -> None:
        self._held = held
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport
        self._request = b""
        self._timer: asyncio.TimerHandle | None = None
        self._plan = Plan(0)
        self._index = 0
        self._due = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Store the transport of a new connection."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's transports have no such base class

    def connection_lost(self, exc: Exception | None) -> None:
        """Drop the held responses of a closed connection."""
        self._held.pop(self, None)
        if self._timer is not None:
            self._timer.cancel()

    def data_received(self, data: bytes) -> None:
        """Collect a request, and respond."""
        self._request += data
        head, found, body = self._request.partition(b"\r\n\r\n")
        if not found:
            return
        length = _LENGTH.search(head)
        if len(body) < (int(length[1]) if length else 0):
            return
        self._request = b""
        if head.startswith(_RELEASE):
            waiting = list(self._held)
            self._held.clear()
            for provider in waiting:
                provider.go_on()
            self._transport.write(_DONE)
            return
        if step := _STEP.match(head):
            for provider in list(self._held)[: int(step[1])]:
                provider.step()
            self._transport.write(_DONE)
            return
        plan = find_plan(body)
        if plan is None:
            self._transport.write(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n")
            return
        self._plan = plan
        self._index = 0
        if plan.timed:
            self._transport.write(_HEAD + _TIMED_HEAD)
            self._due = self._loop.time()
            self._send_timed()
        elif plan.hold:
            self._transport.write(_HEAD + b"".join(_events(Plan(plan.tokens, seed=plan.seed))[: plan.hold]))
            self._index = plan.hold
            self._hold()
        else:
            self._transport.write(_HEAD + _burst(plan.tokens, plan.seed % SEEDS, 0))

    def _hold(self) -> None:
        self._held[self] = None
        self._timer = self._loop.call_later(_PING_SECONDS, self._ping)

    def _ping(self) -> None:
        self._transport.write(_PING)
        self._timer = self._loop.call_later(_PING_SECONDS, self._ping)

    def step(self) -> None:
        """Send one more delta of a held burst, and move to the end of the queue."""
        self._transport.write(_events(Plan(self._plan.tokens, seed=self._plan.seed))[self._index])
        self._index += 1
        if self._timer is not None:
            self._timer.cancel()
        del self._held[self]
        self._hold()

    def go_on(self) -> None:
        """Send the rest of a held response."""
        if self._timer is not None:
            self._timer.cancel()
        if self._plan.timed:
            self._due = self._loop.time()
            self._send_timed(released=True)
        else:
            self._transport.write(_burst(self._plan.tokens, self._plan.seed % SEEDS, self._index))

    def _send_timed(self, *, released: bool = False) -> None:
        """Send one delta, and schedule the next one at an absolute time."""
        plan = self._plan
        if plan.hold and self._index == plan.hold and not released:
            self._hold()
            return
        text = piece(self._index, time.monotonic_ns()).encode()
        before, after = _TIMED
        self._index += 1
        chunk = b"%x\r\n%s%s%s\r\n" % (len(before) + len(text) + len(after), before, text, after)
        if self._index == plan.tokens:
            self._transport.write(chunk + _timed_end(plan.tokens))
            return
        self._transport.write(chunk)
        self._due += 1 / plan.rate
        self._timer = self._loop.call_at(self._due, self._send_timed)


async def _serve(port: int) -> None:
    held: dict[Provider, None] = {}
    server = await asyncio.get_running_loop().create_server(
        lambda: Provider(held), "127.0.0.1", port, backlog=4096
    )
    await server.serve_forever()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    uvloop.run(_serve(parser.parse_args().port))


if __name__ == "__main__":
    main()
