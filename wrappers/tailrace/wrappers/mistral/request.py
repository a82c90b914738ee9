"""What a request asks of a model, as members of a request to Mistral."""

from typing import Any

from tailrace.wrappers.openai.request import response_format, tool_choice
from tailrace.wrappers.options import RequestOptions
from tailrace.wrappers.parameters import asked, function_tool


def request_members(options: RequestOptions) -> dict[str, Any]:
    """The members of ``POST /v1/chat/completions`` that options amount to.

    https://docs.mistral.ai/api/#tag/chat, which has a place for everything and OpenAI's form for most. Schemas are sent
    as they are given. Of ``reasoning_effort`` there is ``high`` or ``none``.
    """
    effort = options.reasoning_effort
    return asked(
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
