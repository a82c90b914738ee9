"""What one request asks of a model beyond the conversation: tools, the form of the answer, sampling.

One vocabulary for all providers: each model puts it into the members of its own request (``request.py`` in the
provider's folder). What a model is always asked with, under the provider's own names, are its ``parameters``; where both
say something, the options win, and tools are added up.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from tailrace.wrappers.messages import JSONObject, Text

NO_PARAMETERS: Mapping[str, Any] = {"type": "object", "properties": {}}
"""The JSON schema of a tool that takes nothing."""


class _Model(BaseModel):
    # JSON has no numbers that are not finite, and no provider takes one.
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class ToolDefinition(_Model):
    """A tool that the model may call.

    Attributes:
        name: What the model calls it by. Names that a provider refuses are mended in the request and undone in the
            answer, see `tailrace.wrappers.tool_names`.
        description: What it does, and when to use it, in words for the model.
        parameters: JSON schema of its arguments, an object.
        strict: The provider is to hold the model to the schema; None for what the provider does by itself.
    """

    name: Annotated[Text, Field(min_length=1)]
    description: Text = ""
    parameters: JSONObject = dict(NO_PARAMETERS)
    strict: bool | None = None


class ToolChoice(_Model):
    """Whether the model is to call a tool.

    Attributes:
        mode: ``auto``: as it likes; ``none``: no tool; ``required``: at least one; ``tool``: the one named.
        name: That tool, with mode ``tool``.
    """

    mode: Literal["auto", "none", "required", "tool"] = "auto"
    name: Text = ""


class OutputFormat(_Model):
    """The answer is to be JSON.

    Attributes:
        schema_: JSON schema of the answer (``schema`` in JSON); None for any JSON object.
        name: What the schema is called.
        description: What the answer is, in words for the model.
        strict: The provider is to hold the model to the schema; None for what the provider does by itself.
    """

    model_config = ConfigDict(populate_by_name=True)

    schema_: Annotated[JSONObject | None, Field(alias="schema")] = None
    name: Text = "output"
    description: Text = ""
    strict: bool | None = None


class RequestOptions(_Model):
    """What a request asks of a model. Everything that is None or empty is left to the provider.

    A provider that has no place for something is asked without it; only what the answer cannot do without (tools, the
    output format) is refused by a ValueError where the provider cannot be told.

    Attributes:
        tools: Those that the model may call.
        tool_choice: Whether it is to.
        parallel_tool_calls: Whether it may call several at once.
        output: The form of the answer; None for text.
        max_output_tokens: How long the answer may be.
        temperature: Of sampling.
        top_p: Of sampling.
        stop: Texts before which the answer ends.
        seed: Of sampling.
        presence_penalty: Of sampling.
        frequency_penalty: Of sampling.
        reasoning_effort: How much the model is to think (``none``, ``minimal``, ``low``, ``medium``, ``high``, …).
    """

    tools: tuple[ToolDefinition, ...] = ()
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


NO_OPTIONS = RequestOptions()
"""Nothing beyond the conversation."""
