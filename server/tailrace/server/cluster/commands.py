"""What one node asks of another: a channel at the broker for each node, and answers on the asker's own.

The broker keeps nothing of it, so that nothing waits for its disk. What nobody hears is said again, as long as somebody waits
for it. A request is carried out once: a node remembers which it has seen, and refuses one that is so old that its asker
may have given up (by the broker's clock, so that a node which was stopped for a while carries out nothing late). Whoever
asks waits for a bounded time, and is then told to try again.
"""

import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from uuid import uuid4

import anyio
import msgspec
from anyio.abc import TaskGroup

from tailrace.server.cluster.broker import PROBE_INTERVAL, Broker
from tailrace.server.cluster.link import BrokerError, Script
from tailrace.server.limits import LimitError, OverloadedError, RateLimitError
from tailrace.server.live import CallContext
from tailrace.streaming.a2a import errors
from tailrace.streaming.a2a.errors import A2AError, FieldViolation, InternalError
from tailrace.wrappers import StoreError, TailraceError

logger = logging.getLogger("tailrace.server")

ASK_SECONDS = 5.0
"""Seconds that another node has to answer."""

MAX_AGE = 4.0
"""Seconds after which a request is not begun any more: its asker is about to give up."""

SAY_AGAIN = 1.0
"""Seconds after which a request is sent again that is not answered yet: it may not have come through."""

NOBODY_PAUSE = 0.05
"""Seconds after which something is sent again that nobody has heard: a node that connects anew."""

MAX_ASKED = 1_000
"""Requests that come at once; what is beyond that is said again."""

REMEMBERED = 10_000
"""Requests of which a node remembers that it has seen them."""


class Cancel(msgspec.Struct, tag=True, frozen=True):
    """Cancel a task; the answer is the task."""

    task_id: str
    owner: str


class Send(msgspec.Struct, tag=True, frozen=True):
    """Take a message to a task, as `Engine.start`; the answer is a `Sent`."""

    task_id: str
    owner: str
    request: bytes
    call: CallContext


class Sent(msgspec.Struct, frozen=True):
    """How the reader of a message begins: after a number, with an event before anything else."""

    task_id: str
    after: int
    first: bytes | None


class SetWebhook(msgspec.Struct, tag=True, frozen=True):
    """Set a webhook; the answer is the webhook."""

    task_id: str
    owner: str
    config: bytes
    dialect: str


class DeleteWebhook(msgspec.Struct, tag=True, frozen=True):
    """Forget a webhook; the answer is empty."""

    task_id: str
    owner: str
    config_id: str


class Look(msgspec.Struct, tag=True, frozen=True):
    """Give a task as it stands."""

    task_id: str
    owner: str


Command = Cancel | Send | SetWebhook | DeleteWebhook | Look


class _Request(msgspec.Struct, tag=True, frozen=True):
    id: str
    sender: str
    command: Command


class _Fault(msgspec.Struct, frozen=True):
    kind: str
    detail: str
    metadata: dict[str, str] = {}
    violations: list[tuple[str, str]] = []


class _Answer(msgspec.Struct, tag=True, frozen=True):
    id: str
    body: bytes
    fault: _Fault | None = None


# With the broker's time, in milliseconds; gives how many have heard it.
_SAY = Script(b"""
local now = redis.call('TIME')
return redis.call('PUBLISH', KEYS[1], now[1] .. string.format('%03d', math.floor(now[2] / 1000)) .. ' ' .. ARGV[1])
""")

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Request | _Answer).decode

_ERRORS: dict[str, type[A2AError]] = {
    each.__name__: each
    for each in (*A2AError.__subclasses__(), RateLimitError, OverloadedError)
    if each.__module__ in (errors.__name__, LimitError.__module__)
}


class NotHere(TailraceError):
    """The node that was asked does not have the task; whoever has it by now is to be asked."""


class NoAnswer(OverloadedError):
    """The node that has the task did not answer in time; that it was not carried out is likely, but not certain."""


CarryOut = Callable[[Command], Awaitable[bytes]]


class Commands:
    """Asks other nodes, and carries out what they ask.

    Args:
        broker: Where the nodes' streams are.
        carry_out: Carries out a request; gives the answer.
    """

    def __init__(self, broker: Broker, carry_out: CarryOut) -> None:
        self._broker = broker
        self._carry_out = carry_out
        self._sending = broker.link()
        self._subscriber = broker.subscriber(lambda _: None, self._hear)
        self._asked: list[tuple[int, _Request]] = []
        self._some_asked = anyio.Event()
        self._waiting: dict[str, tuple[anyio.Event, list[_Answer]]] = {}
        self._seen: OrderedDict[str, None] = OrderedDict()
        self._node = ""

    async def ask(self, node: str, command: Command) -> bytes:
        """Have another node carry something out; gives its answer.

        Raises:
            NotHere: It does not have the task.
            NoAnswer: It cannot be reached, or does not answer.
            A2AError: What it raised.
            StoreError: What it raised.
        """
        request = _Request(uuid4().hex, self._node, command)
        answered, answers = self._waiting[request.id] = anyio.Event(), []
        try:
            with anyio.fail_after(ASK_SECONDS):
                while not answers:
                    await self._send(node, request)
                    with anyio.move_on_after(SAY_AGAIN):
                        await answered.wait()
        except (BrokerError, TimeoutError) as error:
            raise NoAnswer("the server that works on the task does not answer; try again later") from error
        finally:
            del self._waiting[request.id]
        [answer] = answers
        if answer.fault is not None:
            raise _raised(answer.fault)
        return answer.body

    async def run(self, node: str) -> None:
        """For ever: hear what is asked of this node, and what it is answered.

        Args:
            node: Its name.
        """
        self._node = node
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(self._serve_all, group)
                while True:
                    if not self._broker.works:
                        await anyio.sleep(PROBE_INTERVAL)
                        continue
                    try:
                        await self._subscriber.run(lambda: [_channel(node)])
                    except BrokerError as error:
                        logger.warning("other nodes cannot be heard at present: %s", error)
                        self._broker.fail(error)
        finally:
            with anyio.CancelScope(shield=True):
                await self._sending.close()

    def _hear(self, channel: bytes, said: bytes) -> None:
        sent_at, _, held = said.partition(b" ")
        try:
            message = _decode(held)
        except msgspec.DecodeError:
            logger.exception("another node asks what this one does not understand")
            return
        if isinstance(message, _Request):
            if message.id not in self._seen and len(self._asked) < MAX_ASKED:
                self._seen[message.id] = None
                if len(self._seen) > REMEMBERED:
                    self._seen.popitem(last=False)
                self._asked.append((int(sent_at), message))
                self._some_asked.set()
            return
        waiting = self._waiting.get(message.id)
        if waiting is not None and not waiting[1]:
            waiting[1].append(message)
            waiting[0].set()

    async def _serve_all(self, group: TaskGroup) -> None:
        while True:
            await self._some_asked.wait()
            self._some_asked = anyio.Event()
            asked, self._asked = self._asked, []
            for sent_at, request in asked:
                group.start_soon(self._serve, sent_at, request)

    async def _serve(self, sent_at: int, request: _Request) -> None:
        body, fault = b"", None
        try:
            if await self._age(sent_at) > MAX_AGE:
                return
            body = await self._carry_out(request.command)
        except Exception as error:
            if not isinstance(error, TailraceError):
                logger.exception("what another node asked cannot be carried out")
            fault = _fault(error)
        try:
            with anyio.fail_after(ASK_SECONDS):
                await self._send(request.sender, _Answer(request.id, body, fault))
        except (BrokerError, TimeoutError) as error:
            logger.warning("another node cannot be answered: %s", str(error) or "it does not listen")

    async def _age(self, sent_at: int) -> float:
        """How long ago something was sent, by the clock that said when."""
        [now] = await self._sending.run((b"TIME",))
        return int(now[0]) + int(now[1]) / 1e6 - sent_at / 1e3

    async def _send(self, node: str, message: _Request | _Answer) -> None:
        """Say something to a node, until it hears it."""
        call = (_channel(node), _encode(message))
        while True:
            [heard] = await _SAY.run(self._sending, call)
            if heard:
                return
            await anyio.sleep(NOBODY_PAUSE)


def _channel(node: str) -> bytes:
    return f"tailrace:node:{node}".encode()


def _fault(error: Exception) -> _Fault:
    if isinstance(error, A2AError):
        violations = [(each.field, each.description) for each in error.violations]
        return _Fault(type(error).__name__, error.detail, error.metadata, violations)
    if isinstance(error, TailraceError):
        return _Fault(type(error).__name__, str(error))
    return _Fault("InternalError", "the server that works on the task failed")


def _raised(fault: _Fault) -> TailraceError:
    kind = _ERRORS.get(fault.kind)
    if kind is None:
        if fault.kind == NotHere.__name__:
            return NotHere(fault.detail)
        return StoreError(fault.detail) if fault.kind != "InternalError" else InternalError(fault.detail)
    if issubclass(kind, LimitError):
        known = fault.metadata
        return kind(
            fault.detail,
            limit=known.get("limit", ""),
            allowed=int(known.get("allowed", "0")),
            retry_after=float(known.get("retryAfter", "2")),
        )
    violations = [FieldViolation(*each) for each in fault.violations]
    return kind(fault.detail, metadata=fault.metadata, violations=violations)
