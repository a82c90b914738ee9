"""Scripted Chat Completions responses, round by round, and the model that requests them."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from support.upstream import Received, ScriptedUpstream, openai_chunk, sse
from tailrace.wrappers.openai.model import ChatCompletionsModel

USAGE = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}

Call = tuple[str, str, Mapping[str, Any] | str]
"""Id, name, and arguments: an object, or text as the model wrote it."""


def answer(
    *text_pieces: str,
    calls: Sequence[Call] = (),
    finish: str | None = "stop",
    usage: Mapping[str, int] | None = USAGE,
    reasoning: str = "",
) -> list[bytes]:
    """A response as steps of a script, with the arguments of calls in two fragments.

    With ``finish=None``, the response is cut after the last call.
    """
    chunks = [openai_chunk({"role": "assistant", "content": ""})]
    if reasoning:
        chunks.append(openai_chunk({"reasoning_content": reasoning}))
    chunks += [openai_chunk({"content": piece}) for piece in text_pieces]
    for index, (call_id, name, arguments) in enumerate(calls):
        text = arguments if isinstance(arguments, str) else json.dumps(arguments)
        begin = {
            "index": index,
            "id": call_id,
            "type": "function",
            "function": {"name": name, "arguments": ""},
        }
        chunks.append(openai_chunk({"tool_calls": [begin]}))
        for piece in (text[: len(text) // 2], text[len(text) // 2 :]):
            chunks.append(openai_chunk({"tool_calls": [{"index": index, "function": {"arguments": piece}}]}))
    if finish is None:
        return [sse(chunk) for chunk in chunks]
    chunks.append(openai_chunk({}, finish="tool_calls" if calls and finish == "stop" else finish))
    if usage is not None:
        chunks.append(openai_chunk(usage=usage))
    return [*(sse(chunk) for chunk in chunks), sse("[DONE]")]


def model_at(upstream: ScriptedUpstream, **arguments: Any) -> ChatCompletionsModel:
    """The model of a scripted upstream, without retries."""
    settings: dict[str, Any] = {"api_key": "none", "max_retries": 0, **arguments}
    return ChatCompletionsModel("scripted", base_url=upstream.base_url, **settings)


def sent(request: Received) -> list[dict[str, Any]]:
    """The messages of a request."""
    return request.json["messages"]
