"""What one node asks of another: a stream at the broker for each node, and answers on the asker's own.

A request is carried out once: a node remembers which it has seen, and refuses one that is so old that its asker may have
given up (by the broker's clock, so that a node which was stopped for a while carries out nothing late). Whoever asks waits
for a bounded time, and is then told to try again.
"""

import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Any
from uuid import uuid4

import anyio
import msgspec
from anyio.abc import TaskGroup

from tailrace.server.cluster.broker import PROBE_INTERVAL, Broker
from tailrace.server.cluster.link import BrokerError
from tailrace.server.limits import LimitError, OverloadedError, RateLimitError
from tailrace.streaming.a2a import errors
from tailrace.streaming.a2a.errors import A2AError, FieldViolation, InternalError
from tailrace.wrappers import StoreError, TailraceError

logger = logging.getLogger("tailrace.server")

ASK_SECONDS = 5.0
"""Seconds that another node has to answer."""

MAX_AGE = 4.0
"""Seconds after which a request is not begun any more: its asker is about to give up."""

WAIT_SECONDS = 1.0
"""Seconds that the broker is asked to wait for something new; after that it is asked again."""

MAX_INBOX = 10_000
"""Requests and answers that are kept for a node which does not read them."""

INBOX_TTL = 600
"""Seconds for which they are kept."""

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
    named_in: str
    spoken: str
    extensions: tuple[str, ...]
    send_key: str
    fingerprint: str


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
                await self._send(node, request)
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
        link, cursor, key = self._broker.link(), b"0-0", _inbox(node)
        wait = round(WAIT_SECONDS * 1000)
        try:
            async with anyio.create_task_group() as group:
                while True:
                    if not self._broker.works:
                        await anyio.sleep(PROBE_INTERVAL)
                        continue
                    read = (b"XREAD", b"BLOCK", wait, b"COUNT", 100, b"STREAMS", key, cursor)
                    try:
                        [found] = await link.run(read, waits=WAIT_SECONDS)
                        if isinstance(found, BrokerError):
                            raise found
                    except BrokerError as error:
                        logger.warning("other nodes cannot be heard at present: %s", error)
                        self._broker.fail()
                        continue
                    for name, fields in found[0][1] if found else ():
                        cursor = name
                        self._hear(group, name, fields[1])
        finally:
            with anyio.CancelScope(shield=True):
                await link.close()
                await self._sending.close()

    def _hear(self, group: TaskGroup, name: bytes, held: bytes) -> None:
        try:
            message = _decode(held)
        except msgspec.DecodeError:
            logger.exception("another node asks what this one does not understand")
            return
        if isinstance(message, _Request):
            if message.id not in self._seen:
                self._seen[message.id] = None
                if len(self._seen) > REMEMBERED:
                    self._seen.popitem(last=False)
                group.start_soon(self._serve, int(name.partition(b"-")[0]), message)
            return
        waiting = self._waiting.get(message.id)
        if waiting is not None and not waiting[1]:
            waiting[1].append(message)
            waiting[0].set()

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
            await self._send(request.sender, _Answer(request.id, body, fault))
        except BrokerError as error:
            logger.warning("another node cannot be answered: %s", error)

    async def _age(self, sent_at: int) -> float:
        """How long ago something was sent, by the clock that said when."""
        [now] = await self._sending.run((b"TIME",))
        return int(now[0]) + int(now[1]) / 1e6 - sent_at / 1e3

    async def _send(self, node: str, message: _Request | _Answer) -> None:
        key = _inbox(node)
        add = (b"XADD", key, b"MAXLEN", b"~", MAX_INBOX, b"*", b"m", _encode(message))
        replies: list[Any] = await self._sending.run(add, (b"EXPIRE", key, INBOX_TTL))
        if isinstance(replies[0], BrokerError):
            raise replies[0]


def _inbox(node: str) -> bytes:
    return f"tailrace:node:{node}:commands".encode()


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
