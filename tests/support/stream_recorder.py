"""Record the local model's streams for the tests and the demo's replay.

Run ``python tests/support/stream_recorder.py`` (with the dependency group ``local``) when the requests change.
"""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import anyio

from tailrace.server.cli.local_model import LocalModel
from tailrace.server.cli.replay_server import PROMPT

ROOT = Path(__file__).parents[2]
FIXTURES = ROOT / "tests/fixtures/openai"
DEMO_ANSWER = ROOT / "server/tailrace/server/cli/recorded/answer.sse"

# ChatML with tools, which the model's own template lacks.
TOOL_TEMPLATE = """\
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0]['role'] == 'system' %}
        {{- messages[0]['content'] + '\\n\\n' }}
    {%- endif %}
    {{- '# Tools\\n\\nYou may call one or more functions. Their signatures:\\n<tools>' }}
    {%- for tool in tools %}
        {{- '\\n' + tool | tojson }}
    {%- endfor %}
    {{- '\\n</tools>\\n\\nFor each call, return a JSON object with its name and arguments:\\n' }}
    {{- '<tool_call>\\n{"name": <name>, "arguments": <arguments>}\\n</tool_call><|im_end|>\\n' }}
{%- elif messages[0]['role'] == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0]['content'] + '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'user' or (message.role == 'system' and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
    {%- elif message.role == 'assistant' %}
        {{- '<|im_start|>assistant' }}
        {%- if message.content %}{{- '\\n' + message.content }}{%- endif %}
        {%- for call in message.tool_calls or [] %}
            {{- '\\n<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' }}
            {{- (call.function.arguments | tojson) + '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == 'tool' %}
        {{- '<|im_start|>user\\n<tool_response>\\n' + message.content + '\\n</tool_response><|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
"""

WEATHER_TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "enum": ["Paris", "Oslo"]}},
            "required": ["city"],
        },
    },
}

# A model this small finishes a tool call only with help.
TOOL_CALL: dict[str, Any] = {
    "tools": [WEATHER_TOOL],
    "tool_choice": "required",
    "parallel_tool_calls": False,
    "logit_bias": [["<tool_call>", 6]],
}


@dataclass
class Recording:
    """One request to record."""

    name: str
    what: str
    prompt: str
    extra: dict[str, Any] = field(default_factory=dict[str, Any])
    tools: bool = False

    def request(self, model: str) -> dict[str, Any]:
        return {
            "model": model,
            "messages": [{"role": "user", "content": self.prompt}],
            "stream": True,
            "stream_options": {"include_usage": True},
            "temperature": 0,
            "seed": 7,
            **self.extra,
        }


RECORDINGS = [
    Recording("text", "a short answer", "In one sentence: what is a river?"),
    Recording(
        "no_usage", "no usage asked for", "In one sentence: what is a river?", {"stream_options": None}
    ),
    Recording(
        "length", "stopped by the length limit", "Tell me a long story about a river.", {"max_tokens": 12}
    ),
    Recording(
        "two_choices",
        "n=2, interleaved, with a usage chunk for each choice as it ends",
        "Name a river.",
        {"n": 2, "temperature": 1, "max_tokens": 24},
    ),
    Recording(
        "json_schema",
        "structured output",
        "Describe the river Rhine.",
        {
            "max_tokens": 120,
            "response_format": {
                "type": "json_schema",
                "json_schema": {
                    "name": "river",
                    "strict": True,
                    "schema": {
                        "type": "object",
                        "properties": {
                            "name": {"type": "string", "maxLength": 20},
                            "length_km": {"type": "integer", "minimum": 1000, "maximum": 2000},
                            "navigable": {"type": "boolean"},
                        },
                        "required": ["name", "length_km", "navigable"],
                    },
                },
            },
        },
    ),
    Recording(
        "non_ascii",
        "characters of two, three and four bytes, each of several tokens (forced by a grammar)",
        "Greet the river.",
        {"grammar": 'root ::= "Grüße, 川! 🌊 Ça va, река?"'},
    ),
    Recording(
        "tool_call",
        "one tool call, its arguments in pieces",
        "What is the weather in Paris?",
        {**TOOL_CALL, "stop": ["</tool_call>"], "max_tokens": 100},
        tools=True,
    ),
    Recording(
        "tool_call_length",
        "a complete tool call and a second one that the length limit cuts off inside its arguments",
        "What is the weather in Paris?",
        {**TOOL_CALL, "max_tokens": 60},
        tools=True,
    ),
]


async def record(local: LocalModel, recording: Recording) -> bytes:
    """Send the request; return the response body unchanged."""
    # The server closes the connection after a stream without announcing it.
    async with (
        aiohttp.ClientSession(headers={"Connection": "close"}) as session,
        session.post(f"{local.base_url}/chat/completions", json=recording.request(local.model)) as response,
    ):
        body = await response.read()
    if response.status != 200:
        raise SystemExit(f"{recording.name}: HTTP {response.status}: {body.decode()}")
    print(f"{recording.name}: {len(body)} bytes, {body.count(b'data: ')} events")
    return body


def readme(local: LocalModel) -> str:
    """The README of the fixtures: the request of each file."""
    lines = [
        "# Recorded OpenAI Chat Completions streams",
        "",
        "Bodies of `POST /v1/chat/completions`, byte for byte, from the demo's local model (SmolLM2-135M-Instruct",
        "served by llama.cpp). `python tests/support/stream_recorder.py` writes them and this page.",
        "",
    ]
    for recording in RECORDINGS:
        request = json.dumps(recording.request(local.model), ensure_ascii=False)
        template = ", with a chat template for tools" if recording.tools else ""
        lines.append(f"- `{recording.name}.sse`: {recording.what}{template}. Request: `{request}`")
    return "\n".join(lines) + "\n"


async def main() -> None:
    """Record all files again."""
    async with LocalModel() as local:
        DEMO_ANSWER.write_bytes(await record(local, Recording("answer", "the demo's answer", PROMPT)))
        for recording in RECORDINGS:
            if not recording.tools:
                (FIXTURES / f"{recording.name}.sse").write_bytes(await record(local, recording))
    async with LocalModel(chat_template=TOOL_TEMPLATE) as local:
        for recording in RECORDINGS:
            if recording.tools:
                (FIXTURES / f"{recording.name}.sse").write_bytes(await record(local, recording))
        (FIXTURES / "README.md").write_text(readme(local), encoding="utf-8")


if __name__ == "__main__":
    anyio.run(main)
