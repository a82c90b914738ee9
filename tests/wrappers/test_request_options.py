"""The options of a request, and that every provider supports all of them."""

import json
from importlib import import_module
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.strategies import json_objects, names, texts
from tailrace.wrappers import OutputFormat, RequestOptions, ToolChoice, ToolDefinition
from tailrace.wrappers.conversion.request_parameters import merged
from tailrace.wrappers.conversion.tool_names import ToolNames
from tailrace.wrappers.http.http_model import HTTPModel
from tailrace.wrappers.providers import FORMATS
from tailrace.wrappers.request_options import NO_OPTIONS

NEED_A_SCHEMA = {"anthropic", "bedrock"}

numbers = st.none() | st.floats(allow_nan=False, allow_infinity=False)
yes_or_no = st.none() | st.booleans()
tools = st.builds(ToolDefinition, name=names, description=texts, parameters=json_objects, strict=yes_or_no)
choices = st.builds(ToolChoice, mode=st.sampled_from(["auto", "none", "required", "tool"]), name=names)
formats = st.builds(
    OutputFormat, schema_=st.none() | json_objects, name=texts, description=texts, strict=yes_or_no
)
all_options = st.builds(
    RequestOptions,
    tools=st.lists(tools, max_size=3).map(tuple),
    tool_choice=st.none() | choices,
    parallel_tool_calls=yes_or_no,
    output=st.none() | formats,
    max_output_tokens=st.none() | st.integers(1, 1_000_000),
    temperature=numbers,
    top_p=numbers,
    stop=st.lists(texts, max_size=2).map(tuple),
    seed=st.none() | st.integers(-(2**63), 2**63),
    presence_penalty=numbers,
    frequency_penalty=numbers,
    reasoning_effort=st.none()
    | st.sampled_from(["", "none", "minimal", "low", "medium", "high", "xhigh"])
    | texts,
)


def members_of(name: str, options: RequestOptions) -> dict[str, Any]:
    return import_module(f"{FORMATS[name].module}.request").request_members(options)


def model_of(name: str, **parameters: Any) -> HTTPModel:
    arguments: dict[str, Any] = {
        "base_url": "http://127.0.0.1:9/v1",
        "api_key": "k",
        "parameters": parameters,
    }
    if name == "bedrock":
        arguments["region"] = "eu-west-1"
    model = FORMATS[name].create_model("m", **arguments)
    assert isinstance(model, HTTPModel)
    return model


@pytest.mark.parametrize("name", FORMATS)
@given(options=all_options)
def test_all_options_become_json(name: str, options: RequestOptions) -> None:
    needs = name in NEED_A_SCHEMA and options.output is not None and options.output.schema_ is None
    if needs:
        with pytest.raises(ValueError, match="needs a schema"):
            members_of(name, options)
        return
    members = members_of(name, options)
    parameters = ToolNames(FORMATS[name].create_converter().name_rule).replace_in_parameters(
        merged({}, members)
    )
    assert json.loads(json.dumps(parameters, allow_nan=False)) == parameters
    assert all(value is not None for value in parameters.values())


@pytest.mark.parametrize("name", FORMATS)
@given(options=all_options, given=st.dictionaries(names.map("own_{}".format), json_objects, max_size=3))
def test_further_parameters_of_the_operator_are_sent(
    name: str, options: RequestOptions, given: dict[str, Any]
) -> None:
    options = options.model_copy(update={"output": None})
    members = members_of(name, options)
    both = merged(given, members)
    assert both == {**given, **merged({}, members)}
    assert merged(members, given) == {**members, **given}


@pytest.mark.parametrize("name", FORMATS)
def test_no_members_are_sent_without_options(name: str) -> None:
    assert members_of(name, NO_OPTIONS) == members_of(name, RequestOptions()) == {}


@pytest.mark.parametrize("name", FORMATS)
async def test_without_tools_no_tool_choice_is_sent(name: str) -> None:
    model = model_of(name)
    for mode in ("auto", "none"):
        options = RequestOptions(tool_choice=ToolChoice(mode=mode), parallel_tool_calls=False)
        assert model._request_members(options) == {}  # pyright: ignore[reportPrivateUsage]
    await model.aclose()


@pytest.mark.parametrize("name", [name for name in FORMATS if name != "ollama"])
async def test_a_required_tool_choice_is_sent_even_without_tools(name: str) -> None:
    model = model_of(name)
    options = RequestOptions(tool_choice=ToolChoice(mode="required"))
    assert model._request_members(options) != {}  # pyright: ignore[reportPrivateUsage]
    await model.aclose()


async def test_a_tool_choice_among_the_operators_tools_is_sent() -> None:
    model = model_of("openai", tools=[{"type": "function", "function": {"name": "f"}}])
    members = model._request_members(RequestOptions(tool_choice=ToolChoice(mode="none")))  # pyright: ignore[reportPrivateUsage]
    assert members["tool_choice"] == "none"
    assert len(members["tools"]) == 1
    await model.aclose()


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_what_is_no_number_in_json_is_refused(number: float) -> None:
    with pytest.raises(ValueError, match="finite"):
        RequestOptions(temperature=number)


def test_options_are_json_and_back() -> None:
    options = RequestOptions(
        tools=(ToolDefinition(name="f"),),
        tool_choice=ToolChoice(mode="tool", name="f"),
        output=OutputFormat(schema_={}),
    )
    written = options.model_dump(mode="json", by_alias=True)
    assert written["output"]["schema"] == {}
    assert RequestOptions.model_validate(written) == options
    assert RequestOptions.model_validate_json(json.dumps(written)) == options
