"""Folding of a complete response's wrappers into its message."""

from collections.abc import Iterable
from typing import Any

from tailrace.wrappers.assembly.assembly import MessageAssembly
from tailrace.wrappers.chunks import ChunkWrapper
from tailrace.wrappers.messages import Message


def fold_message(
    wrappers: Iterable[ChunkWrapper[Any]], *, choice: int | None = None, think_tags: bool = True
) -> Message:
    """Fold the wrappers of one response into a message.

    Args:
        wrappers: All wrappers, in order.
        choice: Index of the choice; None to merge all choices, for servers that spread one response over several.
        think_tags: Separate reasoning in ``<think>`` tags at the start of the text.
    """
    assembly = MessageAssembly(choice or 0, think_tags=think_tags)
    for wrapper in wrappers:
        if choice is None or wrapper.choice == choice:
            assembly.add(wrapper)
    assembly.close()
    return assembly.message()
