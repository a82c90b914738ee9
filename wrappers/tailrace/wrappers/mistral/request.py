"""Conversion of request options (tools, output format, sampling) to members of a request to Mistral."""

from typing import Any

from tailrace.wrappers.conversion.request_parameters import function_tool, without_empty
from tailrace.wrappers.openai.request import response_format, tool_choice
from tailrace.wrappers.request_options import RequestOptions


def request_members(options: RequestOptions) -> dict[str, Any]:
    """Convert options to members of ``POST /v1/chat/completions``, most of which are those of OpenAI.

    Schemas are sent unchanged. Mistral supports only the values ``none`` and ``high`` of ``reasoning_effort``. Every effort
    except ``none`` is sent as ``high``.

    Source: https://docs.mistral.ai/api/#tag/chat
    """
    effort = options.reasoning_effort
    return without_empty(
        tools=[function_tool(tool) for tool in options.tools] or None,
        tool_choice=tool_choice(options.tool_choice),
        parallel_tool_calls=options.parallel_tool_calls,
        response_format=response_format(options.output),
        max_tokens=options.max_output_tokens,
        temperature=options.temperature,
        top_p=options.top_p,
        stop=list(options.stop) or None,
        random_seed=options.seed,
        presence_penalty=options.presence_penalty,
        frequency_penalty=options.frequency_penalty,
        reasoning_effort=("none" if effort == "none" else "high") if effort else None,
    )
