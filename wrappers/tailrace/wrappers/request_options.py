"""Options of one request: tools, output format, sampling.

The options have the same names for all providers. The module ``request`` of each provider converts them to members of the
provider's request. In contrast, the ``parameters`` of a model client have the provider's own names, and are sent with every
request. Options override parameters. Tools in the options are added to the tools in the parameters.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, cast

from pydantic import BaseModel, ConfigDict, Field

from tailrace.wrappers.decoding.lenient_json import as_mappings
from tailrace.wrappers.messages import JSONObject, Text

NO_PARAMETERS: Mapping[str, Any] = {"type": "object", "properties": {}}
"""JSON schema of a tool without parameters."""


class _Model(BaseModel):
    # JSON and the providers do not support NaN and infinite numbers.
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class ToolDefinition(_Model):
    """A tool that the model may call.

    Attributes:
        name: The name of the tool. For providers that reject such names, it is replaced (see
            `tailrace.wrappers.conversion.tool_names`).
        description: The purpose and use of the tool, for the model.
        parameters: The JSON schema of the arguments, which must be an object.
        strict: True if the arguments must match the schema, False if they may differ; None for the provider's default.
    """

    name: Annotated[Text, Field(min_length=1)]
    description: Text = ""
    parameters: JSONObject = dict(NO_PARAMETERS)
    strict: bool | None = None


class ToolChoice(_Model):
    """The tools that the model may or must call.

    Attributes:
        mode: ``auto``: the model decides. ``none``: the model calls no tool. ``required``: the model calls at least
            one tool. ``tool``: the model calls the tool ``name``.
        name: The name of the tool, only with the mode ``tool``.
    """

    mode: Literal["auto", "none", "required", "tool"] = "auto"
    name: Text = ""


class OutputFormat(_Model):
    """The format of JSON output.

    Attributes:
        schema_: The JSON schema of the output (``schema`` in JSON); None for any JSON object.
        description: A description of the output for the model.
        strict: True if the output must match the schema, False if it may differ; None for the provider's default.
    """

    model_config = ConfigDict(populate_by_name=True)

    schema_: Annotated[JSONObject | None, Field(alias="schema")] = None
    name: Text = "output"
    description: Text = ""
    strict: bool | None = None


class RequestOptions(_Model):
    """Options of one request. None and empty values are not sent, so that the provider's defaults apply.

    Options that a provider does not support are not sent. Only for tools and the output format, `Model.stream` raises a
    `ProtocolError`.

    Attributes:
        tools: Tools that the model may call.
        native_tools: Further tools in the provider's own format, for example web search of the OpenAI Responses API. They are
            sent only to models with `Model.accepts_native_tools`.
        tool_choice: The tools that the model may or must call; None for the provider's default.
        parallel_tool_calls: True if one response may contain several tool calls; None for the provider's default.
        output: The format of JSON output; None for text.
        max_output_tokens: Maximum number of output tokens.
        top_p: Nucleus sampling: only the most likely tokens with this total probability (0 to 1) are considered.
        stop: Texts at which the model stops.
        presence_penalty: Penalty for tokens that already occur in the text.
        frequency_penalty: Penalty for tokens that grows with their frequency in the text.
        reasoning_effort: Amount of reasoning: ``none``, ``minimal``, ``low``, ``medium``, ``high``, …
    """

    tools: tuple[ToolDefinition, ...] = ()
    native_tools: tuple[JSONObject, ...] = ()
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    output: OutputFormat | None = None
    max_output_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    stop: tuple[Text, ...] = ()
    seed: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    reasoning_effort: Text | None = None

    @property
    def tool_names(self) -> frozenset[str]:
        """The names of all tools that the provider does not run itself."""
        names = [tool.name for tool in self.tools]
        for tool in self.native_tools:
            names += map(str, filter(None, _names_of(tool)))
        return frozenset(names)


def _names_of(tool: Mapping[str, Any]) -> list[object]:
    """Return the name of a native tool in a list. For a namespace, return the names of its tools."""
    inner = tool.get("tools")
    if tool.get("type") == "namespace" and isinstance(inner, list):
        return [each.get("name") for each in as_mappings(cast("list[object]", inner))]
    return [tool.get("name")]


NO_OPTIONS = RequestOptions()
"""Default options."""
