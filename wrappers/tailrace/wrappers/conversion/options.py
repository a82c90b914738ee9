"""Options of one request: tools, output format, sampling.

The options are the same for all providers; each model converts them to members of its request (``request.py`` in the
provider's folder). A model's ``parameters`` are sent with every request under the provider's names. Options override
parameters; tools of both are combined.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, cast

from pydantic import BaseModel, ConfigDict, Field

from tailrace.wrappers.decoding.lenient_json import as_mappings
from tailrace.wrappers.messages import JSONObject, Text

NO_PARAMETERS: Mapping[str, Any] = {"type": "object", "properties": {}}
"""JSON schema of a tool without parameters."""


class _Model(BaseModel):
    # JSON and all providers only support finite numbers.
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class ToolDefinition(_Model):
    """A tool that the model may call.

    Attributes:
        name: The tool's name. Names that a provider rejects are replaced in the request and restored in the response, see
            `tailrace.wrappers.conversion.tool_names`.
        description: Purpose and use of the tool, for the model.
        parameters: JSON schema of the arguments, an object.
        strict: Require arguments that match the schema; None for the provider's default.
    """

    name: Annotated[Text, Field(min_length=1)]
    description: Text = ""
    parameters: JSONObject = dict(NO_PARAMETERS)
    strict: bool | None = None


class ToolChoice(_Model):
    """Selection of tools that the model calls.

    Attributes:
        mode: ``auto``: the model decides; ``none``: no tool; ``required``: at least one; ``tool``: the named tool.
        name: The tool's name, for mode ``tool``.
    """

    mode: Literal["auto", "none", "required", "tool"] = "auto"
    name: Text = ""


class OutputFormat(_Model):
    """Format of JSON output.

    Attributes:
        schema_: JSON schema of the output (``schema`` in JSON); None for any JSON object.
        name: The schema's name.
        description: Description of the output, for the model.
        strict: Require output that matches the schema; None for the provider's default.
    """

    model_config = ConfigDict(populate_by_name=True)

    schema_: Annotated[JSONObject | None, Field(alias="schema")] = None
    name: Text = "output"
    description: Text = ""
    strict: bool | None = None


class RequestOptions(_Model):
    """Options of a request. None and empty values are omitted, so that the provider's defaults apply.

    An option that the provider does not support is omitted, except essential ones (tools, the output format), which
    raise a ValueError.

    Attributes:
        tools: Tools that the model may call.
        native_tools: Further tools in the provider's own form, for models with `Model.accepts_native_tools`; other models
            do not receive them. Those of the OpenAI Responses API are custom tools, namespaces, web search and others.
        tool_choice: Selection of the tools to call.
        parallel_tool_calls: Allow several calls in one response.
        output: The output format; None for text.
        max_output_tokens: Maximum length of the output in tokens.
        temperature: Sampling temperature.
        top_p: Probability mass of nucleus sampling.
        stop: Texts that end the output.
        seed: Seed of sampling.
        presence_penalty: Penalty for tokens that have occurred.
        frequency_penalty: Penalty for tokens by their frequency.
        reasoning_effort: Amount of reasoning (``none``, ``minimal``, ``low``, ``medium``, ``high``, …).
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
        """The names of all tools that are run outside of the provider."""
        names = [tool.name for tool in self.tools]
        for tool in self.native_tools:
            names += map(str, filter(None, _names_of(tool)))
        return frozenset(names)


def _names_of(tool: Mapping[str, Any]) -> list[object]:
    """Return the names that calls of a native tool have; a namespace contains several tools."""
    inner = tool.get("tools")
    if tool.get("type") == "namespace" and isinstance(inner, list):
        return [each.get("name") for each in as_mappings(cast("list[object]", inner))]
    return [tool.get("name")]


NO_OPTIONS = RequestOptions()
"""Default options."""
