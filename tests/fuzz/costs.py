"""The cost of a stream that repeats its events, or repeats them with new blocks and calls.

A decoder that scans all blocks or calls for each event is as fast as any other on streams of one response.
"""

import cProfile
import gc
import time
import tracemalloc
from collections.abc import Callable, Collection, Sequence
from typing import Any

from fuzz.json_text import parse, places, write
from tailrace.streaming.accumulator import Accumulator
from tailrace.streaming.conversion.recorded_stream import StreamConversion
from tailrace.wrappers.decoding.decoder import ResponseDecoder

MakeDecoder = Callable[[], ResponseDecoder[Any]]

INDEXES = ("index", "output_index", "content_index", "summary_index", "annotation_index", "contentBlockIndex")
"""Members that increase from block to block, from call to call, or from choice to choice."""
IDS = ("id", "item_id", "call_id", "tool_call_id", "tool_use_id", "toolUseId")
"""Members that differ for each call and each item."""


def repeated(payloads: Sequence[bytes], times: int, counting: Collection[str] = ()) -> list[bytes]:
    """Return repeated events as the reads of a body.

    Args:
        payloads: The payloads of the events.
        times: The number of repetitions.
        counting: Members of `INDEXES` and `IDS` that differ in each repetition.
    """
    writers = [_writer(payload, counting) for payload in payloads]
    return [b"data: %s\n\n" % write_one(count) for count in range(times) for write_one in writers]


def _writer(payload: bytes, counting: Collection[str]) -> Callable[[int], bytes]:
    try:
        root = [parse(payload)]
    except ValueError:
        root = []
    found = [place for place in places(root) if place.key in counting]
    numbers = [(place, place.value) for place in found if type(place.value) is int]
    names = [(place, place.value) for place in found if isinstance(place.value, str) and place.value]
    if not (numbers or names):
        return lambda _: payload

    def write_one(count: int) -> bytes:
        for place, value in numbers:
            place.put(value + count)
        for place, value in names:
            place.put(f"{value}-{count}")
        return write(root[0])

    return write_one


def fold(decoder: ResponseDecoder[Any], reads: list[bytes]) -> None:
    """Decode and accumulate, and read the first message."""
    accumulator = Accumulator()
    for data in reads:
        for chunk in decoder.feed(data):
            accumulator.add(chunk)
    for chunk in decoder.close():
        accumulator.add(chunk)
    accumulator.close()
    accumulator.message()


def convert(decoder: ResponseDecoder[Any], reads: list[bytes]) -> None:
    """Convert reads to A2A events."""
    conversion = StreamConversion(decoder, task_id="t", context_id="c")
    for data in reads:
        conversion.feed(data)
    conversion.close()
    conversion.message()


def calls(work: Callable[[], None]) -> int:
    """Return the number of function calls, of Python and of C, until work is done: the same in every run."""
    profile = cProfile.Profile()
    profile.enable()
    try:
        work()
    finally:
        profile.disable()
    return sum([entry.callcount for entry in profile.getstats()])


def held(decoder: ResponseDecoder[Any], reads: list[bytes]) -> int:
    """Return how many more bytes a decoder holds at the end of these reads than after the first of them."""
    decoder.feed(reads[0])
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for data in reads[1:]:
            decoder.feed(data)
        gc.collect()
        return tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()


def seconds(work: Callable[[], None]) -> float:
    """Return the CPU time of the best of three runs."""
    taken: list[float] = []
    for _ in range(3):
        gc.collect()
        begin = time.process_time()
        work()
        taken.append(time.process_time() - begin)
    return min(taken)


def growth(
    make_decoder: MakeDecoder, payloads: Sequence[bytes], counting: Collection[str] = (), *, times: int = 600
) -> float:
    """Return the ratio of the time per event with eight times the events; about 1 if time is linear."""
    few = repeated(payloads, times, counting)
    many = repeated(payloads, 8 * times, counting)
    once = seconds(lambda: fold(make_decoder(), few))
    eight = seconds(lambda: fold(make_decoder(), many))
    return eight / 8 / max(once, 0.002)
