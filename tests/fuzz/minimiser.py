"""Minimisation of a body that shows a fault."""

from collections.abc import Callable, Sequence
from time import monotonic
from typing import Any, TypeVar

from fuzz.framing import Frame, join, split
from fuzz.json_text import parse, places, write

T = TypeVar("T")
Fails = Callable[[bytes], bool]


class _OutOfTimeError(Exception):
    """The time is over: the best result so far is used."""


def minimised(body: bytes, fails: Fails, *, seconds: float = 20) -> bytes:
    """The smallest failing body found within a time limit: without unnecessary events, members and bytes.

    Args:
        body: A failing body.
        fails: Returns whether a body shows the fault.
        seconds: The time limit by the clock; the last attempt may exceed it.
    """
    best = body
    until = monotonic() + seconds

    def still_fails(candidate: bytes) -> bool:
        nonlocal best
        if monotonic() > until:
            raise _OutOfTimeError
        if len(candidate) < len(best) and fails(candidate):
            best = candidate
            return True
        return False

    try:
        while True:
            before = len(best)
            _without(split(best), join, still_fails)
            _without_members(best, still_fails)
            if len(best) < 4000:
                _without(list(best), bytes, still_fails)
            if len(best) == before:
                return best
    except _OutOfTimeError:
        return best


def _without(items: Sequence[T], make: Callable[[list[T]], bytes], fails: Fails) -> None:
    """Remove halves, quarters, …, single items while the fault remains."""
    kept = list(items)
    size = len(kept) // 2
    while size:
        at = 0
        while at < len(kept):
            fewer = kept[:at] + kept[at + size :]
            if fails(make(fewer)):
                kept = fewer
            else:
                at += size
        size //= 2


def _without_members(body: bytes, fails: Fails) -> None:
    """Remove members and items, and shorten texts, in the JSON of each event."""
    frames = split(body)
    for index, frame in enumerate(frames):
        try:
            root = [parse(frame.payload)]
        except ValueError:
            continue
        position = 0
        while position < len(found := places(root)):
            place = found[position]
            if place.parent is root:
                position += 1
                continue
            former = place.parent[place.index]
            del place.parent[place.index]
            if _fails_with(frames, index, root, fails):
                continue
            place.parent.insert(place.index, former)
            text = place.value
            if isinstance(text, str) and len(text) > 1:
                place.put(text[: len(text) // 2])
                if _fails_with(frames, index, root, fails):
                    continue
                place.put(text)
            position += 1


def _fails_with(frames: list[Frame], index: int, root: list[Any], fails: Fails) -> bool:
    former = frames[index]
    try:
        payload = write(root[0])
    except RecursionError:
        return False
    frames[index] = Frame(former.head, payload, former.tail, former.binary)
    if fails(join(frames)):
        return True
    frames[index] = former
    return False
