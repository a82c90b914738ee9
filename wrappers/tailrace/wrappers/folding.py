"""Folding the wrappers of a whole answer into its message."""

from collections.abc import Iterable
from typing import Any

from tailrace.wrappers.assembly import MessageAssembly
from tailrace.wrappers.chunks import ChunkWrapper
from tailrace.wrappers.messages import Message


def fold_message(
    wrappers: Iterable[ChunkWrapper[Any]], *, choice: int | None = None, think_tags: bool = True
) -> Message:
    """The message that the wrappers of one response make.

    Args:
        wrappers: All of them, in order.
        choice: The one of several parallel answers; None when all that came is one answer, as it is where only one
            was asked for (some servers spread it over several choices).
        think_tags: Part the reasoning that an answer begins with, in ``<think>`` tags, from its text.
    """
    assembly = MessageAssembly(choice or 0, think_tags=think_tags)
    for wrapper in wrappers:
        if choice is None or wrapper.choice == choice:
            assembly.add(wrapper)
    assembly.close()
    return assembly.message()
