"""Arguments of calls in a request: every format sends an object for any text of the model."""

import json
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support import strategies
from support.arguments import sent_arguments
from tailrace.wrappers import (
    ContentPartText,
    ContentPartToolCall,
    ContentPartToolResult,
    History,
    Message,
    Role,
)
from tailrace.wrappers.assembly.tool_calls import arguments_json, arguments_object
from tailrace.wrappers.providers import FORMATS

# The members that hold a call's arguments in each format.
_MEMBERS = ("arguments", "args", "input")


def sent(name: str, call: ContentPartToolCall) -> list[Any]:
    """Return the arguments of a request in the form of the format."""
    question = Message(role=Role.USER, content=(ContentPartText(text="?"),))
    result = Message(role=Role.TOOL, content=(ContentPartToolResult(id=call.id, name=call.name, output="1"),))
    history = History(conversation=(question, Message(role=Role.MODEL, content=(call,)), result))
    return list(_found(FORMATS[name].create_converter().from_history(history)))


def _found(value: Any) -> Any:
    if isinstance(value, list):
        for item in cast("list[Any]", value):
            yield from _found(item)
    elif isinstance(value, dict):
        for key, member in cast("dict[str, Any]", value).items():
            if key in _MEMBERS:
                yield member
            else:
                yield from _found(member)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("text", ['{"x":', "null", "[1]", '"a"', "NaN", '{"a": NaN}', "{'a': 1}"])
def test_arguments_that_are_no_object_go_out_in_one(name: str, text: str) -> None:
    call = ContentPartToolCall(id="call00000", name="f", arguments_text=text)
    (arguments,) = sent(name, call)
    assert (json.loads(arguments) if isinstance(arguments, str) else arguments) == {"input": text}
    assert call.arguments_text == text


@given(strategies.parsed_tool_calls)
def test_an_object_goes_out_always(call: ContentPartToolCall) -> None:
    assert arguments_object(call) == sent_arguments(call)
    assert json.loads(arguments_json(call)) == arguments_object(call)


@given(st.integers(1, 60))
def test_an_object_that_is_too_deep_for_us_goes_out_as_it_was_written(levels: int) -> None:
    text = '{"a": ' * levels + "1" + "}" * levels
    assert arguments_json(ContentPartToolCall(id="c", name="f", arguments_text=text)) == text


def test_nesting_without_end_does_no_harm() -> None:
    text = '{"a": ' * 100_000
    assert json.loads(arguments_json(ContentPartToolCall(id="c", name="f", arguments_text=text))) == {
        "input": text
    }
