"""Ids of tool calls: each call of a conversation gets a unique and valid id, and its result the same id."""

import re
from collections.abc import Callable, Mapping, Sequence

from tailrace.wrappers.conversion.tool_matching import (
    UNNAMED,
    Position,
    calls_of,
    has_tool_parts,
    match_results,
    results_of,
)
from tailrace.wrappers.messages import ContentPart, History, Message


def with_matched_ids(
    history: History, *, pattern: re.Pattern[str] | None = None, create_id: Callable[[int], str] | None = None
) -> History:
    """Give each call a unique and valid id, and give its result the same id.

    A missing, invalid or repeated id is replaced with a new id. Appended messages do not change the new ids of earlier calls,
    unless they contain one of these ids. A result without a tool name gets the name in its call. A result without a call does not
    change (see `with_repaired_results`).

    Args:
        history: The conversation.
        pattern: Regular expression that a complete id must match; None if all ids are valid.
        create_id: Function that returns a different id for each number. The ids must match the pattern. None for ``call00000``,
            ``call00001``, …, which most providers accept.

    Returns:
        The repaired history; the same object if nothing changes.

    Raises:
        ValueError: ``create_id`` returned an id that does not match the pattern, or only ids that are in use.
    """
    conversation = history.conversation
    if not has_tool_parts(conversation):
        return history
    ids = _new_ids(conversation, pattern, create_id or _default_id)
    replaced: dict[Position, ContentPart] = {}
    for at, call in calls_of(conversation):
        if at in ids:
            replaced[at] = call.model_copy(update={"id": ids[at], "synthetic_id": True})
    matches = match_results(conversation)
    calls = dict(calls_of(conversation))
    for at, result in results_of(conversation):
        if at not in matches:
            continue
        call = calls[matches[at]]
        changes = {"id": ids.get(matches[at], call.id)}
        if result.name in UNNAMED and call.name:
            changes["name"] = call.name
        if any(getattr(result, field) != value for field, value in changes.items()):
            replaced[at] = result.model_copy(update=changes)
    return _with_parts(history, replaced)


def _default_id(number: int) -> str:
    return f"call{number:05d}"  # some providers require exactly nine letters and digits


def _new_ids(
    conversation: Sequence[Message], pattern: re.Pattern[str] | None, make: Callable[[int], str]
) -> dict[Position, str]:
    """Return new ids for the calls with a missing, duplicate or invalid id."""
    calls = list(calls_of(conversation))
    used = {call.id for _, call in calls} | {result.id for _, result in results_of(conversation)}
    last = len(calls) + len(used)  # an unused id is found within this many numbers
    valid: set[str] = set()
    new: dict[Position, str] = {}
    number = -1
    for position, (at, call) in enumerate(calls):
        if call.id and call.id not in valid and (pattern is None or pattern.fullmatch(call.id)):
            valid.add(call.id)
            continue
        number = max(position, number + 1)
        while (candidate := make(number)) in used and number < last:
            number += 1
        if not candidate or candidate in used:
            raise ValueError(
                f"cannot create a new tool call id: the function returned {candidate!r} repeatedly"
            )
        if pattern is not None and not pattern.fullmatch(candidate):
            raise ValueError(f"the created tool call id {candidate!r} does not match {pattern.pattern!r}")
        used.add(candidate)
        new[at] = candidate
    return new


def _with_parts(history: History, parts: Mapping[Position, ContentPart]) -> History:
    """Replace parts in a history. Return the same object if no part is replaced."""
    if not parts:
        return history
    conversation = list(history.conversation)
    for position in {at[0] for at in parts}:
        content = enumerate(conversation[position].content)
        new = tuple(parts.get((position, index), part) for index, part in content)
        conversation[position] = conversation[position].model_copy(update={"content": new})
    return history.model_copy(update={"conversation": tuple(conversation)})
