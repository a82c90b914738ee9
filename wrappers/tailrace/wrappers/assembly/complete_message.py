"""Assembly of a message from all chunk wrappers of a response."""

from collections.abc import Iterable
from typing import Any

from tailrace.wrappers.assembly.message_assembly import MessageAssembly
from tailrace.wrappers.chunks import ChunkWrapper
from tailrace.wrappers.messages import Message


def assemble_message(
    wrappers: Iterable[ChunkWrapper[Any]], *, choice: int | None = None, think_tags: bool = True
) -> Message:
    """Return the message of a response.

    Args:
        wrappers: All chunk wrappers of the response, in order.
        choice: Index of the choice to assemble. None to merge all choices, because some servers distribute one response over
            several choices.
        think_tags: True to separate reasoning in ``<think>`` tags at the start of the response from the text.
    """
    assembly = MessageAssembly(choice or 0, think_tags=think_tags)
    for wrapper in wrappers:
        if choice is None or wrapper.choice == choice:
            assembly.add(wrapper)
    assembly.close()
    return assembly.message()
