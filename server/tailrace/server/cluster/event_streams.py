"""The streams of events in the broker, one for each task. Only the node that writes a task can add entries to its stream.

Every entry is signed (`message_authentication`). Entries that are not authentic are skipped. The scripts of the broker cannot
verify entries: after a forged entry, they may refuse an addition. `ClusterStore` then checks in PostgreSQL whether this node
still writes the task.

An entry has one or more consecutive events. Its id is ``<number of its last event>-0``, so that a subscriber that has received
event *n* continues after ``n-0``. An entry also has the id of its node. After its first addition to a stream, a node can only add
after an entry of its own. A node that takes over a running turn first adds a *fence*: an entry without events
(`TaskStreams.fence`). From then on, the broker refuses additions of the previous node.

Added entries are also published on a channel with the same name as the stream. A node that was not connected reads the stream.
"""

from collections.abc import Iterable, Sequence
from enum import IntEnum
from typing import Any

import anyio
import anyio.to_thread
import msgspec

from tailrace.server.cluster.broker import Broker
from tailrace.server.cluster.broker_connection import Command, ReplyError, Script
from tailrace.server.cluster.message_authentication import Authentication, EntryRejected
from tailrace.streaming.a2a.event import Event
from tailrace.streaming.a2a.lifecycle import TaskState

LARGE_ENTRY = 1024 * 1024
"""Size in bytes above which an entry is signed and verified in a thread. For 32 MiB, this takes 50 ms."""

WORKING_TTL = 7 * 24 * 3600
"""Seconds after which the broker deletes the stream of a task that does not end."""


class Page(msgspec.Struct, frozen=True, gc=False):
    """The entries of one read of a stream.

    Attributes:
        events: The events in order, without duplicates. There may be gaps.
        is_full: True if the stream may have more entries.
    """

    events: list[Event]
    is_full: bool


class Addition(msgspec.Struct, frozen=True):
    """Events to add to a task's stream.

    Attributes:
        task_id: The id of the task.
        events: The events in order.
        is_first: True for the first addition of this node, and after the broker has lost the stream.
        ttl: Seconds after which the stream expires; 0 to leave its expiry unchanged.
    """

    task_id: str
    events: Sequence[Event]
    is_first: bool
    ttl: int


class Outcome(IntEnum):
    """The result of an addition."""

    ADDED = 0
    ALREADY_PRESENT = 1
    """The stream already has the events, because the reply to an earlier attempt was lost."""
    REFUSED = 2
    """Nothing was added: the last entry is of another node, or has a later event."""
    MISSING = 3
    """Nothing was added: the stream does not exist, although this node has added events to it."""


_ADD = b"""
local last = redis.call('XREVRANGE', KEYS[1], '+', '-', 'COUNT', 1)[1]
if last then
  if last[1] == ARGV[2] .. '-0' and last[2][2] == ARGV[1] and last[2][4] == ARGV[3] then return 1 end
  if last[2][2] ~= ARGV[1] and ARGV[4] == '0' then return 2 end
  if tonumber(string.match(last[1], '^%d+')) >= tonumber(ARGV[2]) then return 2 end
elseif ARGV[4] == '0' then return 3 end
redis.call('XADD', KEYS[1], ARGV[2] .. '-0', 'w', ARGV[1], 'e', ARGV[3])
if ARGV[5] ~= '0' then redis.call('EXPIRE', KEYS[1], ARGV[5]) end
redis.call('PUBLISH', KEYS[1], ARGV[2] .. ' ' .. ARGV[1] .. ' ' .. ARGV[3])
return 0
"""

_FENCE = b"""
local last = redis.call('XREVRANGE', KEYS[1], '+', '-', 'COUNT', 1)[1]
local top, step = '0', 0
if last then top, step = string.match(last[1], '^(%d+)-(%d+)$') end
redis.call('XADD', KEYS[1], top .. '-' .. (step + 1), 'w', ARGV[1], 'e', '')
if not last then redis.call('EXPIRE', KEYS[1], ARGV[2]) end
return tonumber(top)
"""


def stream_key(task_id: str) -> bytes:
    """Return the key of a task's stream. The braces assign all keys of a task to one server of a Valkey or Redis cluster."""
    return b"tailrace:{%b}:events" % task_id.encode("utf-8", "surrogatepass")


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[bytes | tuple[bytes, str]]).decode


def _encode_events(events: Iterable[Event]) -> bytes:
    """Encode consecutive events without their numbers, which follow from the id of the entry."""
    return _encode(
        [event.body if event.state is None else (event.body, event.state.value) for event in events]
    )


def _numbered(last: int, items: list[bytes | tuple[bytes, str]]) -> list[Event]:
    number = last - len(items)
    events: list[Event] = []
    for item in items:
        number += 1
        if isinstance(item, bytes):
            events.append(Event(number, item))
        else:
            events.append(Event(number, item[0], TaskState(item[1])))
    return events


# Errors of one key, to which another program has written. All other errors concern the broker.
_KEY_ERRORS = (
    "WRONGTYPE",
    "ERR The ID specified in XADD",
    "ERR The stream has exhausted",
    "ERR Invalid stream ID",
)


def _is_key_error(reply: object) -> bool:
    return isinstance(reply, ReplyError) and reply.reply.startswith(_KEY_ERRORS)


_ADD_SCRIPT, _FENCE_SCRIPT = Script(_ADD), Script(_FENCE)


class TaskStreams:
    """Adds events to the streams of tasks, and reads them.

    Every method that uses the broker raises `BrokerError` if the broker is not available.

    Args:
        broker: The broker with the streams.
        authentication: Signs and verifies the entries.
    """

    def __init__(self, broker: Broker, authentication: Authentication) -> None:
        self.broker = broker
        self._authentication = authentication

    async def add(self, node: str, additions: Sequence[Addition]) -> list[Outcome]:
        """Add events to several streams in one round trip.

        Args:
            node: The id of this node.
            additions: The additions, at most one for each task.

        Returns:
            The result of each addition; also `Outcome.REFUSED` if the key is not a stream.
        """
        writer = node.encode()
        calls: list[Command] = []
        for each in additions:
            key, number = stream_key(each.task_id), b"%d" % each.events[-1].number
            signed = await self._signed(_encode_events(each.events), key, number, writer)
            calls.append((key, writer, number, signed, int(each.is_first), each.ttl))
        replies = await _ADD_SCRIPT.run(self.broker.writing, *calls, accept=_is_key_error)
        outcomes: list[Outcome] = []
        for call, reply in zip(calls, replies, strict=True):
            if isinstance(reply, ReplyError):
                self._reject_key(call[0], reply)
            outcomes.append(Outcome.REFUSED if isinstance(reply, ReplyError) else Outcome(reply))
        return outcomes

    async def _signed(self, body: bytes, *context: bytes) -> bytes:
        if len(body) > LARGE_ENTRY:
            return await anyio.to_thread.run_sync(self._authentication.sign, "event", body, *context)
        return self._authentication.sign("event", body, *context)

    async def fence(self, node: str, task_id: str) -> None:
        """Take over the stream of a task, so that the previous node can no longer add to it.

        If another program has written to the key, no node can add to it.
        """
        key = stream_key(task_id)
        call = (key, node, WORKING_TTL)
        [reply] = await _FENCE_SCRIPT.run(self.broker.writing, call, accept=_is_key_error)
        if isinstance(reply, ReplyError):
            self._reject_key(key, reply)

    async def read(self, task_id: str, after: int, limit: int) -> Page:
        """Return the events after a number, from at most ``limit`` entries."""
        [page] = await self.read_several([(task_id, after)], limit)
        return page

    async def read_several(self, positions: Sequence[tuple[str, int]], limit: int) -> list[Page]:
        """Read the streams of several tasks like `read`, in one round trip.

        Args:
            positions: For each task, its id, and the number of the event after which to read.
            limit: The maximum number of entries of each stream.
        """
        keys = [stream_key(task_id) for task_id, _ in positions]
        commands = [
            (b"XRANGE", key, f"({after}-0", b"+", b"COUNT", limit)
            for key, (_, after) in zip(keys, positions, strict=True)
        ]
        found = await self.broker.reading.run(*commands)
        pages: list[Page] = []
        for key, (_, after), reply in zip(keys, positions, found, strict=True):
            if not isinstance(reply, ReplyError):
                pages.append(await self._page(key, after, reply, limit))
            elif _is_key_error(reply):
                self._reject_key(key, reply)
                pages.append(Page([], is_full=False))
            else:
                raise reply
        return pages

    def read_message(self, key: bytes, message: bytes) -> list[Event]:
        """Return the events of a message on the channel of a stream; none if the message is rejected.

        Args:
            key: The name of the stream and of the channel.
            message: ``NUMBER NODE ENTRY``, with the number of the last event.
        """
        try:
            number, writer, signed = message.split(b" ", 2)
        except ValueError:
            self._authentication.reject("event", key, "it is not of the form NUMBER NODE ENTRY")
            return []
        return self._accepted(key, self._read_entry(key, number, writer, signed))

    async def remove(self, task_id: str) -> None:
        """Remove a task's stream."""
        await self.broker.reading.run((b"UNLINK", stream_key(task_id)))

    async def _page(self, key: bytes, after: int, entries: list[Any], limit: int) -> Page:
        events: list[Event] = []
        last = after
        for name, fields in entries:
            if len(fields) != 4 or fields[0] != b"w" or fields[2] != b"e":
                self._authentication.reject("event", key, "it has other fields than an entry of a node")
                continue
            if not fields[3]:  # a fence, which has no events
                continue
            entry = (key, name.partition(b"-")[0], fields[1], fields[3])
            found = (
                await anyio.to_thread.run_sync(self._read_entry, *entry)
                if len(fields[3]) > LARGE_ENTRY
                else self._read_entry(*entry)
            )
            for event in self._accepted(key, found):
                if event.number > last:
                    events.append(event)
                    last = event.number
        return Page(events, is_full=len(entries) >= limit)

    def _read_entry(
        self, key: bytes, number: bytes, writer: bytes, signed: bytes
    ) -> list[Event] | EntryRejected:
        try:
            payload = self._authentication.verify("event", signed, key, number, writer)
            return _numbered(int(number), _decode(payload))
        except EntryRejected as error:
            return error
        except ValueError:  # it was signed by a node of another version
            return EntryRejected("its content cannot be decoded")

    def _accepted(self, key: bytes, found: list[Event] | EntryRejected) -> list[Event]:
        if isinstance(found, EntryRejected):
            self._authentication.reject("event", key, found)
            return []
        return found

    def _reject_key(self, key: Any, error: ReplyError) -> None:
        self._authentication.reject(
            "event", key, f"its key cannot be used ({error.reply.partition(' script:')[0]})"
        )
