"""Requests from one node to another.

Each node receives messages on its own channel of the broker. A reply is published on the channel of the requester.

The broker does not store these messages. If no node receives a message, it is published again. After a limited time without a
reply, the requester raises a retryable error. Each request is executed at most once: a node ignores repeated requests, by their
ids, and old requests, by the clock of the broker.

Messages are signed (`message_authentication`) together with their channel and the time at which they were sent. If a third party
publishes a recorded message again, nodes ignore it because of its id or its age.
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
from tailrace.server.cluster.broker_connection import BrokerError, ReplyError
from tailrace.server.cluster.broker_connection import Command as BrokerCommand
from tailrace.server.cluster.message_authentication import Authentication, EntryRejected
from tailrace.server.runtime.active_task import CallContext
from tailrace.server.runtime.limits import LimitError, OverloadedError, RateLimitError
from tailrace.server.store.store import SendKey
from tailrace.streaming.a2a import errors
from tailrace.streaming.a2a.errors import A2AError, FieldViolation, InternalError
from tailrace.wrappers import StoreError, TailraceError

logger = logging.getLogger("tailrace.server")

REQUEST_TIMEOUT = 5.0
"""Seconds within which another node must reply."""

MAX_AGE = 4.0
"""Seconds after the first publication of a request during which its execution may begin: less than `REQUEST_TIMEOUT`."""

REPEAT_INTERVAL = 1.0
"""Seconds after which a request without a reply is published again."""

ABSENCE_PAUSE = 0.05
"""Seconds after which a message without a receiver is published again."""

MAX_REQUESTS = 1_000
"""Maximum number of waiting and running requests. Further requests are ignored, and published again."""

MAX_REQUEST_IDS = 10_000
"""Number of request ids that a node stores."""


class Cancel(msgspec.Struct, tag=True, frozen=True):
    """Cancel a task. The reply is the task."""

    task_id: str
    owner: str


class Send(msgspec.Struct, tag=True, frozen=True):
    """Send a message to a task, like `Engine.start`. The reply is a `Sent`."""

    task_id: str
    owner: str
    request: bytes
    call: CallContext


class Sent(msgspec.Struct, frozen=True):
    """The start of the stream for a message: the event ``first``, if any, and the events after the number ``after``.

    Attributes:
        repeated_key: As for `Subscription`. None in replies of older nodes.
    """

    task_id: str
    after: int
    first: bytes | None
    repeated_key: SendKey | None = msgspec.field(default=None, name="repeats")


class SetWebhook(msgspec.Struct, tag=True, frozen=True):
    """Set a webhook. The reply is the webhook."""

    task_id: str
    owner: str
    config: bytes
    dialect: str


class DeleteWebhook(msgspec.Struct, tag=True, frozen=True):
    """Delete a webhook. The reply is empty."""

    task_id: str
    owner: str
    config_id: str


class GetSnapshot(msgspec.Struct, tag="Look", frozen=True):
    """Return the current state of a task. The reply is the task."""

    task_id: str
    owner: str


class RemoveFromMemory(msgspec.Struct, tag="Forget", frozen=True):
    """Remove a deleted task from memory. The reply is empty."""

    task_id: str
    owner: str


Command = Cancel | Send | SetWebhook | DeleteWebhook | GetSnapshot | RemoveFromMemory


class _Request(msgspec.Struct, tag=True, frozen=True):
    id: str
    sender: str
    command: Command


class _ErrorReply(msgspec.Struct, frozen=True):
    kind: str
    detail: str
    metadata: dict[str, str] = {}
    violations: list[tuple[str, str]] = []


class _Answer(msgspec.Struct, tag=True, frozen=True):
    id: str
    body: bytes
    fault: _ErrorReply | None = None


_TIME_BYTES = 8  # size of the time before each message (milliseconds since 1970)

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Request | _Answer).decode

_ERRORS: dict[str, type[A2AError]] = {
    each.__name__: each
    for each in (*A2AError.__subclasses__(), RateLimitError, OverloadedError)
    if each.__module__ in (errors.__name__, LimitError.__module__)
}


class WrongNodeError(TailraceError):
    """The requested node does not run the task. Another node may run it."""


_WRONG_NODE = "NotHere"
"""The name of `WrongNodeError` in messages between nodes of all versions."""


class NoReply(OverloadedError):
    """The node that runs the task is dead, or did not reply in time. It may have executed the request."""


ExecuteCommand = Callable[[Command], Awaitable[bytes]]


class Commands:
    """Sends requests to other nodes, and executes requests of other nodes.

    Args:
        broker: The broker with the channels of the nodes.
        authentication: Signs and verifies messages.
        execute_command: Executes a request, and returns the reply.
    """

    def __init__(
        self, broker: Broker, authentication: Authentication, execute_command: ExecuteCommand
    ) -> None:
        self._broker = broker
        self._authentication = authentication
        self._execute_command = execute_command
        self._sending = broker.create_connection()
        self._subscriber = broker.subscriber(lambda _: None, self._receive)
        self._requests: list[tuple[int, _Request]] = []
        self._open = 0  # number of waiting and running requests
        self._has_requests = anyio.Event()
        self._waiting: dict[str, tuple[anyio.Event, list[_Answer]]] = {}
        self._seen: OrderedDict[str, None] = OrderedDict()
        self._node = ""

    async def send_request(self, node: str, command: Command) -> bytes:
        """Send a request to another node, and return the reply.

        Raises:
            WrongNodeError: The node does not run the task.
            NoReply: The node cannot be reached, or did not reply.
            A2AError: The node replied with this error.
            StoreError: The node replied with this error.
        """
        request = _Request(uuid4().hex, self._node, command)
        answered, answers = self._waiting[request.id] = anyio.Event(), []
        try:
            with anyio.fail_after(REQUEST_TIMEOUT):
                sent_at = await self._now()
                while not answers:
                    await self._send(node, request, sent_at)
                    with anyio.move_on_after(REPEAT_INTERVAL):
                        await answered.wait()
        except (BrokerError, TimeoutError) as error:
            raise NoReply("the server that runs the task does not reply; try again later") from error
        finally:
            del self._waiting[request.id]
        [answer] = answers
        if answer.fault is not None:
            raise _raised(answer.fault)
        return answer.body

    async def run(self, node: str) -> None:
        """Receive requests and replies for this node, until this method is cancelled."""
        self._node = node
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(self._serve_all, group)
                while True:
                    if not self._broker.is_usable:
                        await anyio.sleep(PROBE_INTERVAL)
                        continue
                    try:
                        await self._subscriber.run(lambda: [_channel(node)])
                    except BrokerError as error:
                        logger.warning("messages of other nodes cannot be received at present: %s", error)
                        self._broker.fail(error)
        finally:
            with anyio.CancelScope(shield=True):
                await self._sending.close()

    def _receive(self, channel: bytes, signed: bytes) -> None:
        try:
            payload = self._authentication.verify("command", signed, channel)
            sent_at, message = int.from_bytes(payload[:_TIME_BYTES], "big"), _decode(payload[_TIME_BYTES:])
        except EntryRejected as error:
            self._authentication.reject("command", channel, error)
            return
        except msgspec.DecodeError:  # it was signed by a node of another version
            self._authentication.reject("command", channel, "its content cannot be decoded")
            return
        if isinstance(message, _Request):
            if message.id not in self._seen and self._open < MAX_REQUESTS:
                self._open += 1
                self._seen[message.id] = None
                if len(self._seen) > MAX_REQUEST_IDS:
                    self._seen.popitem(last=False)
                self._requests.append((sent_at, message))
                self._has_requests.set()
            return
        waiting = self._waiting.get(message.id)
        if waiting is not None and not waiting[1]:
            waiting[1].append(message)
            waiting[0].set()

    async def _serve_all(self, group: TaskGroup) -> None:
        while True:
            await self._has_requests.wait()
            self._has_requests = anyio.Event()
            requests, self._requests = self._requests, []
            for sent_at, request in requests:
                group.start_soon(self._serve, sent_at, request)

    async def _serve(self, sent_at: int, request: _Request) -> None:
        try:
            await self._answer(sent_at, request)
        finally:
            self._open -= 1

    async def _answer(self, sent_at: int, request: _Request) -> None:
        body, fault = b"", None
        try:
            if abs(await self._now() - sent_at / 1e3) > MAX_AGE:
                return
            body = await self._execute_command(request.command)
        except Exception as error:
            if not isinstance(error, TailraceError):
                logger.exception("the request of another node failed")
            fault = _fault(error)
        try:
            with anyio.fail_after(REQUEST_TIMEOUT):
                await self._send(request.sender, _Answer(request.id, body, fault), await self._now())
        except (BrokerError, TimeoutError) as error:
            logger.warning(
                "the reply to another node was not delivered: %s", str(error) or "it does not listen"
            )

    async def _now(self) -> float:
        """Return the time in seconds by the clock of the broker."""
        seconds, microseconds = await self._run((b"TIME",))
        return int(seconds) + int(microseconds) / 1e6

    async def _send(self, node: str, message: _Request | _Answer, sent_at: float) -> None:
        """Publish a message repeatedly until the node receives it."""
        channel, milliseconds = _channel(node), round(sent_at * 1e3)
        encoded = milliseconds.to_bytes(_TIME_BYTES, "big") + _encode(message)
        signed = self._authentication.sign("command", encoded, channel)
        while True:
            if await self._run((b"PUBLISH", channel, signed)):
                return
            await anyio.sleep(ABSENCE_PAUSE)

    async def _run(self, command: BrokerCommand) -> Any:
        [reply] = await self._sending.run(command)
        if isinstance(reply, ReplyError):
            raise reply
        return reply


def _channel(node: str) -> bytes:
    return f"tailrace:node:{node}".encode()


def _fault(error: Exception) -> _ErrorReply:
    if isinstance(error, A2AError):
        violations = [(each.field, each.description) for each in error.violations]
        return _ErrorReply(type(error).__name__, error.detail, error.metadata, violations)
    if isinstance(error, WrongNodeError):
        return _ErrorReply(_WRONG_NODE, str(error))
    if isinstance(error, TailraceError):
        return _ErrorReply(type(error).__name__, str(error))
    return _ErrorReply("InternalError", "the server that works on the task failed")


def _raised(fault: _ErrorReply) -> TailraceError:
    kind = _ERRORS.get(fault.kind)
    if kind is None:
        if fault.kind == _WRONG_NODE:
            return WrongNodeError(fault.detail)
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
