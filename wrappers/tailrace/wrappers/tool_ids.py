"""Which tool result answers which call: finding what does not match, and mending it before a model is asked.

Providers refuse a conversation in which a call has no result, a result no call, or an id a form that is not theirs.
Conversations get that way: a turn was interrupted, a client sent only some results, the ids are missing or repeated,
or another provider made them. The functions here are pure; they give the very same `History` back when nothing needs
mending, and the same request for the same history always.

A *round* is what the model said (one message, or several that stand together) and what was said up to the model's
next message. A call is answered in its own round: first by results of the same id, those with the tool's name before
others; then, for results without an id, by name; then by order. So calls that share an id are told apart, and a
result that arrives after the model has gone on answers nothing. Calls of kind ``"server"`` are run by the provider,
which alone answers them: among the model's own words, where results without an id answer no others, and under their id
also in a later round.
"""

import json
import re
from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from operator import is_

import msgspec

from tailrace.wrappers.messages import (
    ContentPart,
    ContentPartText,
    ContentPartToolCall,
    ContentPartToolResult,
    History,
    Message,
    Role,
)

NO_ANSWER = "There is no result: the conversation went on before this tool had answered."
"""What the model is told about a call that nobody answered."""

_UNKNOWN = ("", "unknown")  # names of tools that say nothing

_At = tuple[int, int]  # a message's position in the conversation, and a part's in the message

# What a call has in common with its result, from the surest sign to the vaguest; None for nothing.
_Keys = tuple[Hashable, Hashable, Hashable, Hashable]


class ToolPart(msgspec.Struct, frozen=True):
    """A tool call or a result, and where it stands.

    Attributes:
        message: Position of its message in ``History.conversation``.
        part: Position in the message's content.
        id: Its id, as it is.
        name: The tool.
    """

    message: int
    part: int
    id: str
    name: str


class UnmatchedTools(msgspec.Struct, frozen=True):
    """Tool calls and results of a conversation that have no counterpart, in order.

    Attributes:
        calls: Calls that nobody answered, those at the end of the conversation included; never one of kind
            ``"server"``, whose answer is the provider's business.
        results: Results that answer no call.
    """

    calls: tuple[ToolPart, ...] = ()
    results: tuple[ToolPart, ...] = ()


def unmatched_tools(history: History) -> UnmatchedTools:
    """The calls that nobody answered, and the results that answer no call; see the module for what answers what."""
    answers = _answers(history.conversation)
    answered = set(answers.values())
    return UnmatchedTools(
        calls=tuple(
            ToolPart(*at, call.id, call.name)
            for at, call in _calls(history.conversation)
            if at not in answered and call.kind != "server"
        ),
        results=tuple(
            ToolPart(*at, result.id, result.name)
            for at, result in _results(history.conversation)
            if at not in answers
        ),
    )


def unanswered_calls(history: History, since: int = 0) -> list[ContentPartToolCall]:
    """The calls that nobody answered, in order; see `UnmatchedTools.calls`.

    Args:
        history: The conversation.
        since: The position of the first message whose calls count.
    """
    return [
        part
        for each in unmatched_tools(history).calls
        if each.message >= since
        and isinstance(part := history.conversation[each.message].content[each.part], ContentPartToolCall)
    ]


def with_matched_ids(
    history: History, *, pattern: re.Pattern[str] | None = None, make: Callable[[int], str] | None = None
) -> History:
    """The history with an id for every call that is unique in the conversation, and the same for call and result.

    An id that fits and is unique is never changed. One that is missing, taken by an earlier call, or does not fit the
    pattern is replaced by one that occurs nowhere else, made from the call's position among all calls: a conversation
    that grows keeps the ids made for its beginning, unless one of them is received later. A result that does not know
    its tool's name gets that of its call. Results that answer no call stay as they are, see `with_answers`.

    Args:
        history: The conversation.
        pattern: What the whole of an id must match; None where any id will do.
        make: An id for a number; a different one for every number, all of which fit the pattern. ``call00000``,
            ``call00001``, … when None, which nearly every provider takes.

    Returns:
        The same object when nothing needs mending.

    Raises:
        ValueError: ``make`` gave an id that does not fit the pattern, or the same one again and again.
    """
    conversation = history.conversation
    ids = _new_ids(conversation, pattern, make or _default_id)
    mended: dict[_At, ContentPart] = {}
    for at, call in _calls(conversation):
        if at in ids:
            mended[at] = call.model_copy(update={"id": ids[at], "synthetic_id": True})
    answers = _answers(conversation)
    calls = dict(_calls(conversation))
    for at, result in _results(conversation):
        if at not in answers:
            continue
        call = calls[answers[at]]
        right = {"id": ids.get(answers[at], call.id)}
        if result.name in _UNKNOWN and call.name:
            right["name"] = call.name
        if any(getattr(result, field) != value for field, value in right.items()):
            mended[at] = result.model_copy(update=right)
    return _with_parts(history, mended)


def with_answers(history: History) -> History:
    """The history with a result for every call that the model is asked to go on from, and a call for every result.

    - A call that nobody answered, and after whose round the conversation goes on, gets a result that is an error and
      says `NO_ANSWER`. Calls of kind ``"server"`` need none, and calls at the very end of the conversation stay open.
    - The results of a round stand in the TOOL message behind the model's: those that are missing are added there, those
      that were said later in the round are moved there. It is made where there is none, unless the message behind the
      model's holds all results already.
    - Messages of the model that stand together become one where a call of an earlier one is answered behind the last.
    - Results that stand among the model's own words stay there only where the provider ran the tool. Any others are put
      into a TOOL message; what the model said after them comes behind it, if all its calls were answered by then.
    - A result that answers no call becomes text that says what the tool answered, so that the model still knows it:
      where it stands, except in a TOOL message, behind which a USER message with the text is put.

    Everything else stays as it is and where it is.

    Returns:
        The same object when nothing needs mending.
    """
    mended = _Answering(history.conversation).messages()
    if len(mended) == len(history.conversation) and all(map(is_, mended, history.conversation)):
        return history
    return history.model_copy(update={"conversation": tuple(mended)})


# --- which result answers which call ----------------------------------------------------------------------------


def _rounds(conversation: Sequence[Message]) -> Iterator[tuple[range, range]]:
    """Positions of the model's messages of each round, and of those behind them; the first may have none."""
    start = 0
    while start < len(conversation):
        middle = start
        while middle < len(conversation) and conversation[middle].role is Role.MODEL:
            middle += 1
        end = middle
        while end < len(conversation) and conversation[end].role is not Role.MODEL:
            end += 1
        yield range(start, middle), range(middle, end)
        start = end


def _calls(
    conversation: Sequence[Message], positions: Iterable[int] | None = None
) -> Iterator[tuple[_At, ContentPartToolCall]]:
    for position in range(len(conversation)) if positions is None else positions:
        for index, part in enumerate(conversation[position].content):
            if isinstance(part, ContentPartToolCall):
                yield (position, index), part


def _results(
    conversation: Sequence[Message], positions: Iterable[int] | None = None
) -> Iterator[tuple[_At, ContentPartToolResult]]:
    for position in range(len(conversation)) if positions is None else positions:
        for index, part in enumerate(conversation[position].content):
            if isinstance(part, ContentPartToolResult):
                yield (position, index), part


def _answers(conversation: Sequence[Message]) -> dict[_At, _At]:
    """Where the call stands that each result answers; without the results that answer none."""
    answers: dict[_At, _At] = {}
    running: dict[_At, _Keys] = {}  # at the provider, since an earlier round
    for said, behind in _rounds(conversation):
        providers, others = dict(running), dict[_At, _Keys]()
        for at, call in _calls(conversation, said):
            (providers if call.kind == "server" else others)[at] = _call_keys(call)
        if not (providers or others):
            continue
        inside = {at: _result_keys(result, inside=True) for at, result in _results(conversation, said)}
        answers |= _matched(inside, providers, others)
        outside = {at: _result_keys(result, inside=False) for at, result in _results(conversation, behind)}
        answers |= _matched(outside, others)
        running = {at: (*keys[:2], None, None) for at, keys in providers.items()}
    return answers


def _matched(results: dict[_At, _Keys], *calls: dict[_At, _Keys]) -> dict[_At, _At]:
    """Results with the calls that they answer; both are taken out of what was handed in.

    Args:
        results: All of them.
        *calls: In the order in which they are preferred where a result might answer several.
    """
    answers: dict[_At, _At] = {}
    for step in range(4 if results else 0):
        for each in calls:
            waiting: defaultdict[Hashable, deque[_At]] = defaultdict(deque)
            for at, keys in each.items():
                waiting[keys[step]].append(at)
            for at, keys in list(results.items()):
                queue = waiting.get(keys[step]) if keys[step] is not None else None
                if queue and queue[0] < at:
                    answers[at] = queue.popleft()
                    del results[at], each[answers[at]]
    return answers


def _call_keys(call: ContentPartToolCall) -> _Keys:
    by_provider = call.kind == "server"
    return (call.id, call.name), call.id, (by_provider, call.name), by_provider


def _result_keys(result: ContentPartToolResult, *, inside: bool) -> _Keys:
    if result.id:
        return (result.id, result.name), result.id, None, None
    return None, None, (inside, result.name), inside


# --- ids --------------------------------------------------------------------------------------------------------


def _default_id(number: int) -> str:
    return f"call{number:05d}"  # nine letters and digits: some providers take no other length


def _new_ids(
    conversation: Sequence[Message], pattern: re.Pattern[str] | None, make: Callable[[int], str]
) -> dict[_At, str]:
    """The ids of the calls that need another than they have."""
    calls = list(_calls(conversation))
    taken = {call.id for _, call in calls} | {result.id for _, result in _results(conversation)}
    last = len(calls) + len(taken)  # so many numbers give enough different ids
    kept: set[str] = set()
    new: dict[_At, str] = {}
    number = -1
    for position, (at, call) in enumerate(calls):
        if call.id and call.id not in kept and (pattern is None or pattern.fullmatch(call.id)):
            kept.add(call.id)
            continue
        number = max(position, number + 1)
        while (made := make(number)) in taken and number < last:
            number += 1
        if not made or made in taken:
            raise ValueError(f"no new id can be made: {made!r} again and again")
        if pattern is not None and not pattern.fullmatch(made):
            raise ValueError(f"the id {made!r} that was made does not fit {pattern.pattern!r}")
        taken.add(made)
        new[at] = made
    return new


def _with_parts(history: History, parts: Mapping[_At, ContentPart]) -> History:
    """The history with other parts at some places; the same object when there are none."""
    if not parts:
        return history
    conversation = list(history.conversation)
    for position in {at[0] for at in parts}:
        content = enumerate(conversation[position].content)
        new = tuple(parts.get((position, index), part) for index, part in content)
        conversation[position] = conversation[position].model_copy(update={"content": new})
    return history.model_copy(update={"conversation": tuple(conversation)})


# --- answers ----------------------------------------------------------------------------------------------------


class _Answering:
    """Goes through a conversation round by round."""

    def __init__(self, conversation: Sequence[Message]) -> None:
        self._conversation = conversation
        self._calls = dict(_calls(conversation))
        self._answers = _answers(conversation)
        self._answered = set(self._answers.values())

    def messages(self) -> list[Message]:
        """The mended conversation; a message that needs no mending is the same object."""
        messages: list[Message] = []
        for said, behind in _rounds(self._conversation):
            words = _Words()
            for position in said:
                complete, words = self._said(position, words)
                messages += complete
            messages += words.messages(answered=bool(behind or words.results))
            messages += self._behind(words, behind)
        return messages

    def _said(self, position: int, words: "_Words") -> tuple[list[Message], "_Words"]:
        """Add a message of the model's to its words.

        Returns:
            Messages that are complete, since results among the words answer all calls; and the words from there on.
        """
        complete: list[Message] = []
        message = self._conversation[position]
        words.begin(message)
        for index, part in enumerate(message.content):
            at = (position, index)
            if isinstance(part, ContentPartToolResult):
                call_at = self._answers.get(at)
                if call_at is None:
                    words.add(_as_text(part))
                elif self._calls[call_at].kind == "server":
                    words.add(part)
                else:
                    words.results.append(part)
                    del words.open_calls[call_at]
                continue
            if words.results and not words.open_calls:
                complete += words.messages(answered=True)
                complete.append(Message(role=Role.TOOL, content=tuple(words.results)))
                rest = Message(role=Role.MODEL) if words.begun else message
                words = _Words()
                words.begin(rest)
            if isinstance(part, ContentPartToolCall) and part.kind != "server":
                words.open_calls[at] = part
            words.add(part)
        return complete, words

    def _behind(self, words: "_Words", behind: range) -> list[Message]:
        """What follows the last of the model's words of a round: first the message that holds the results."""
        followed = bool(behind or words.results)
        missing = [
            ContentPartToolResult(id=call.id, name=call.name, output=NO_ANSWER, is_error=True)
            for at, call in words.open_calls.items()
            if followed and at not in self._answered
        ]
        answers = [at for at, _ in _results(self._conversation, behind) if at in self._answers]
        gathered = not (words.results or missing) and all(at[0] == behind.start for at in answers)
        moved: list[ContentPart] = []
        messages: list[Message] = []
        for position in behind:
            stay = position == behind.start and (gathered or self._conversation[position].role is Role.TOOL)
            messages += self._rewritten(position, None if stay else moved)
        if words.results or moved or missing:
            home = messages.pop(0) if messages and messages[0].role is Role.TOOL else Message(role=Role.TOOL)
            content = (*words.results, *home.content, *moved, *missing)
            messages.insert(0, _with_content(home, content))
        return messages

    def _rewritten(self, position: int, moved: list[ContentPart] | None) -> list[Message]:
        """What becomes of a message behind the model's, with text for its results that answer no call.

        Args:
            position: Of the message.
            moved: Its other results are put here instead; None when they stay.
        """
        message = self._conversation[position]
        content: list[ContentPart] = []
        apart: list[ContentPart] = []
        for index, part in enumerate(message.content):
            if not isinstance(part, ContentPartToolResult):
                content.append(part)
            elif (position, index) in self._answers:
                (content if moved is None else moved).append(part)
            else:
                (apart if message.role is Role.TOOL else content).append(_as_text(part))
        messages = [_with_content(message, content)] if content or not message.content else []
        return [*messages, Message(role=Role.USER, content=tuple(apart))] if apart else messages


class _Words:
    """What the model said up to the results of its calls, and those that stood among its words.

    Attributes:
        open_calls: Calls that no result among the words answers, but for the provider's own.
        results: The results among the words, but for the provider's own.
    """

    def __init__(self) -> None:
        self.open_calls: dict[_At, ContentPartToolCall] = {}
        self.results: list[ContentPart] = []
        self._messages: list[tuple[Message, list[ContentPart]]] = []

    def begin(self, message: Message) -> None:
        """The next message begins, or goes on behind results."""
        self._messages.append((message, []))

    @property
    def begun(self) -> bool:
        """The latest message holds something."""
        return bool(self._messages[-1][1])

    def add(self, part: ContentPart) -> None:
        """Add to the latest message."""
        self._messages[-1][1].append(part)

    def messages(self, *, answered: bool) -> list[Message]:
        """The messages without the results.

        Args:
            answered: Results follow: from the first message with calls on they become one.
        """
        messages = [
            _with_content(message, content)
            for message, content in self._messages
            if content or not message.content
        ]
        for count, message in enumerate(messages[:-1] if answered else ()):
            if any(call.kind != "server" for call in message.tool_calls):
                return [*messages[:count], _joined(messages[count:])]
        return messages


def _as_text(result: ContentPartToolResult) -> ContentPartText:
    """What a tool answered, in words."""
    output = result.output
    text = output if isinstance(output, str) else json.dumps(output, ensure_ascii=False)
    tool = "A tool" if result.name in _UNKNOWN else f"The tool {result.name}"
    return ContentPartText(text=f"{tool} {'failed' if result.is_error else 'answered'}: {text}")


def _joined(messages: Sequence[Message]) -> Message:
    """Several messages of the model as one; of metadata under the same key the last counts."""
    return Message(
        role=Role.MODEL,
        content=tuple(part for message in messages for part in message.content),
        metadata={key: value for message in messages for key, value in message.metadata.items()},
    )


def _with_content(message: Message, content: Sequence[ContentPart]) -> Message:
    """The message with other content; the same object when it is the same."""
    if len(content) == len(message.content) and all(map(is_, content, message.content)):
        return message
    return message.model_copy(update={"content": tuple(content)})
