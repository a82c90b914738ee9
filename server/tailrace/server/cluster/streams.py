"""The events of tasks in the broker: one stream a task, which only the node that has the task can add to.

An entry holds one event or several in a row, and its id is ``<number of the last of them>-0``: a reader that has seen
event *n* reads on after ``n-0``. An entry also names the node that wrote it. A node adds only behind an entry of its own
(or to an empty stream), and a node that takes a task over writes an entry without events first (`TaskStreams.fence`):
from then on the node before it is refused by the broker itself.

What is added is also published, on the channel that is named like the stream: for those who follow it without asking
again and again. The broker puts nothing off that was published, and keeps none of it: whoever was not connected reads
the stream.
"""

from collections.abc import Iterable, Sequence
from enum import IntEnum
from typing import Any

import msgspec

from tailrace.server.cluster.broker import Broker
from tailrace.server.cluster.link import ReplyError, Script
from tailrace.streaming.lifecycle import TaskState
from tailrace.streaming.task import Event

WORKING_TTL = 7 * 24 * 3600
"""Seconds for which a stream is kept whose task does not come to an end."""


class Entry(msgspec.Struct, frozen=True, gc=False):
    """An entry of a task's stream.

    Attributes:
        id: Of the entry: a reader goes on after it.
        events: In order; none where a node took the task over.
    """

    id: bytes
    events: list[Event]


class Addition(msgspec.Struct, frozen=True):
    """Events to be added to a task's stream.

    Attributes:
        task_id: The task.
        events: In order.
        begins: The stream is new, or may be: it is empty, or this node takes it over.
        ttl: Seconds for which the stream is kept from now on; 0: as it is.
    """

    task_id: str
    events: Sequence[Event]
    begins: bool
    ttl: int


class Outcome(IntEnum):
    """What came of an addition."""

    ADDED = 0
    THERE = 1
    """It was there: an earlier try had come through, of which the answer was lost."""
    REFUSED = 2
    """Another node has written to the stream since."""
    MISSING = 3
    """The stream is gone, though it should hold earlier events; nothing was added."""


_ADD = b"""
local last = redis.call('XREVRANGE', KEYS[1], '+', '-', 'COUNT', 1)[1]
if last then
  if last[2][2] ~= ARGV[1] then
    if ARGV[4] == '0' then return 2 end
  end
  if tonumber(string.match(last[1], '^%d+')) >= tonumber(ARGV[2]) then
    if last[2][2] == ARGV[1] then return 1 end
    return 2
  end
elseif ARGV[4] == '0' then return 3 end
redis.call('XADD', KEYS[1], ARGV[2] .. '-0', 'w', ARGV[1], 'e', ARGV[3])
if ARGV[5] ~= '0' then redis.call('EXPIRE', KEYS[1], ARGV[5]) end
redis.call('PUBLISH', KEYS[1], ARGV[2] .. ' ' .. ARGV[3])
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
    """Where a task's events are; in braces, so that all that is a task's is in one place in a cluster of brokers."""
    return b"tailrace:{%b}:events" % task_id.encode("utf-8", "surrogatepass")


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[bytes | tuple[bytes, str]]).decode


def encode_events(events: Iterable[Event]) -> bytes:
    """Events in a row as an entry holds them; their numbers are the entry's id."""
    return _encode(
        [event.body if event.state is None else (event.body, event.state.value) for event in events]
    )


def decode_entry(entry: list[Any]) -> Entry:
    """An entry as the broker gives it: ``[id, ["w", node, "e", events]]``.

    Raises:
        ValueError: It is none of ours.
    """
    name, fields = entry
    try:
        held = fields[fields.index(b"e") + 1]
        items = _decode(held) if held else []
    except msgspec.DecodeError as error:
        raise ValueError(f"an entry of a task's stream cannot be read: {error}") from None
    return Entry(name, _numbered(int(name.partition(b"-")[0]), items))


def decode_message(message: bytes) -> list[Event]:
    """The events that were added, as they are published: ``NUMBER EVENTS``, with the number of the last of them.

    Raises:
        ValueError: They are none of ours.
    """
    number, _, held = message.partition(b" ")
    try:
        return _numbered(int(number), _decode(held))
    except msgspec.DecodeError as error:
        raise ValueError(f"what was published of a task cannot be read: {error}") from None


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


_ADD_SCRIPT, _FENCE_SCRIPT = Script(_ADD), Script(_FENCE)


class TaskStreams:
    """Adds to the streams of tasks, and reads them.

    Every method raises `BrokerError` when the broker does not work.

    Args:
        broker: Where they are.

    Attributes:
        broker: As given.
    """

    def __init__(self, broker: Broker) -> None:
        self.broker = broker

    async def add(self, node: str, additions: Sequence[Addition]) -> list[Outcome]:
        """Add to several streams in one round trip; what is added is kept when this returns.

        Args:
            node: Who writes.
            additions: One a task.

        Returns:
            What came of each.
        """
        calls = [
            (
                stream_key(each.task_id),
                node,
                each.events[-1].number,
                encode_events(each.events),
                int(each.begins),
                each.ttl,
            )
            for each in additions
        ]
        return [Outcome(reply) for reply in await _ADD_SCRIPT.run(self.broker.writing, *calls)]

    async def fence(self, node: str, task_id: str) -> int:
        """Take a task's stream over: nobody else can add to it any more. Gives the number of its last event."""
        [top] = await _FENCE_SCRIPT.run(self.broker.writing, (stream_key(task_id), node, WORKING_TTL))
        return int(top)

    async def read(self, task_id: str, after: int, limit: int) -> list[Entry]:
        """The entries with events after a number, oldest first, ``limit`` at most."""
        [entries] = await self.read_several([(task_id, after)], limit)
        return entries

    async def read_several(self, wanted: Sequence[tuple[str, int]], limit: int) -> list[list[Entry]]:
        """As `read`, of several tasks in one round trip.

        Args:
            wanted: Tasks, each with a number.
            limit: Entries of each at most.
        """
        commands = [
            (b"XRANGE", stream_key(task_id), f"({after}-0", b"+", b"COUNT", limit)
            for task_id, after in wanted
        ]
        found = await self.broker.reading.run(*commands)
        for reply in found:
            if isinstance(reply, ReplyError):
                raise reply
        return [[decode_entry(entry) for entry in entries] for entries in found]

    async def remove(self, task_id: str) -> None:
        """Forget a task's stream."""
        await self.broker.reading.run((b"UNLINK", stream_key(task_id)))
