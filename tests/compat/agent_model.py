"""The scripted model for foreign agents: it responds to Chat Completions and to the Gemini API, streaming or not."""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

from e2e.clients.agent import ScriptedModel
from support.upstream import Received, Step, json_answer, openai_chunk, openai_stream, sse

Fields = dict[str, Any]

SECOND_ANSWER = "So it is the second."

_SIDE_REQUEST = {"reasoning": "The answer is complete.", "next_speaker": "user", "model_choice": "flash"}
"""The response to requests of gemini-cli beside the conversation, which ask for JSON."""


class AgentModel(ScriptedModel):
    """Responds as `ScriptedModel` does, in the format of the request.

    ``ask`` calls the tool ``ask_user``; its result, and the text ``the second``, get `SECOND_ANSWER`. ``look`` gets the
    number of files of the request.
    """

    def answer(self, request: Received) -> Sequence[Step]:
        """Return the script for a request."""
        if request.method != "POST":
            return json_answer({"data": []})
        path = urlsplit(request.path).path
        if not path.endswith("enerateContent"):
            chat = _plain_chat(request.json)
            return _chat_response(self._steps(request, chat), streaming=bool(chat.get("stream")))
        generation = request.json.get("generationConfig", {})
        if generation.get("responseMimeType") == "application/json":
            return json_answer(_gemini_chunk([{"text": json.dumps(_SIDE_REQUEST)}], "STOP"))
        steps = self._steps(request, _chat_of_gemini(request.json))
        return _gemini_response(steps, _declared(request.json), streaming="streamGenerateContent" in path)

    def _steps(self, request: Received, chat: Fields) -> Sequence[Step]:
        last = chat["messages"][-1]
        if last["role"] == "user" and last["content"] == "ask":
            call = {"name": "ask_user", "arguments": '{"question": "Which one?"}'}
            calls = [{"index": 0, "id": "call-2", "type": "function", "function": call}]
            return [sse(openai_chunk({"tool_calls": calls}), openai_chunk({}, finish="tool_calls"), "[DONE]")]
        if "the second" in last["content"]:
            return openai_stream([SECOND_ANSWER])
        if last.get("files"):
            return openai_stream([f"{last['files']} file"])
        # The same events: a pause knows when the request's client leaves.
        return super().answer(replace(request, body=json.dumps(chat).encode()))


def user_texts(request: Received) -> list[str]:
    """Return the texts of the user's and the model's messages of a request, oldest first."""
    fields = request.json
    chat = _chat_of_gemini(fields) if "contents" in fields else _plain_chat(fields)
    return [message["content"] for message in chat["messages"] if message["role"] != "system"]


def files(request: Received) -> list[str]:
    """Return the base64 content of the files of a request."""
    fields = request.json
    if "contents" in fields:
        parts = [part for content in fields["contents"] for part in content["parts"]]
        return [_plain_base64(part["inlineData"]["data"]) for part in parts if "inlineData" in part]
    items: list[Fields] = []
    for message in fields["messages"]:
        content: Any = message.get("content")
        if not isinstance(content, str):
            items += content or []
    urls: list[str] = [item["image_url"]["url"] for item in items if item["type"] == "image_url"]
    return [url.partition("base64,")[2] for url in urls]


def _plain_base64(data: str) -> str:
    return data.replace("-", "+").replace("_", "/")


def _plain_chat(fields: Fields) -> Fields:
    """Return a chat request with each content as a text."""
    messages: list[Fields] = []
    for message in fields["messages"]:
        content = message.get("content") or ""
        images = 0
        if not isinstance(content, str):
            images = sum(item["type"] != "text" for item in content)
            content = "".join(item.get("text", "") for item in content)
        messages.append({**message, "content": content, "files": images})
    return {**fields, "messages": messages}


def _chat_of_gemini(fields: Fields) -> Fields:
    messages: list[Fields] = []
    for content in fields["contents"]:
        parts = content["parts"]
        results = [part["functionResponse"] for part in parts if "functionResponse" in part]
        if results:
            response = results[-1]["response"]
            text = response.get("result", response.get("output", response))
            messages.append({"role": "tool", "content": text if isinstance(text, str) else json.dumps(text)})
            continue
        # The prompt is the last text: gemini-cli puts its context before it.
        texts = [part["text"] for part in parts if "text" in part and not part.get("thought")]
        role = "assistant" if content.get("role") == "model" else "user"
        text = "".join(texts) if role == "assistant" else "".join(texts[-1:])
        count = sum("inlineData" in part for part in parts)
        messages.append({"role": role, "content": text, "files": count})
    return {"messages": messages}


def _chunks(data: bytes) -> list[Fields]:
    lines = [line.removeprefix("data: ") for line in data.decode().split("\n") if line.startswith("data: {")]
    return [json.loads(line) for line in lines]


def _is_error(steps: Sequence[Step]) -> bool:
    return not any(isinstance(step, bytes) and step.startswith(b"data: ") for step in steps)


def _chat_response(steps: Sequence[Step], *, streaming: bool) -> Sequence[Step]:
    if streaming or _is_error(steps):
        return steps
    message: Fields = {"role": "assistant", "content": None}
    finish = "stop"
    for step in steps:
        for chunk in _chunks(step) if isinstance(step, bytes) else []:
            for choice in chunk["choices"]:
                delta = choice["delta"]
                if delta.get("content"):
                    message["content"] = (message["content"] or "") + delta["content"]
                for name in ("reasoning_content", "tool_calls"):
                    if name in delta:
                        message[name] = delta[name]
                finish = choice.get("finish_reason") or finish
    choice = {"index": 0, "message": message, "finish_reason": finish}
    response = {
        "id": "chat-1",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "choices": [choice],
    }
    return [*_control(steps), *json_answer(response)]


_TOOLS_OF_GEMINI_CLI = {
    "get_weather": ("list_directory", {"dir_path": "."}),
    "ask_user": ("write_file", {"file_path": "x.txt", "content": "x"}),
}
"""gemini-cli's server has tools of its own only: one that it runs, and one that its caller has to confirm."""


def _declared(fields: Fields) -> set[str]:
    return {
        function["name"]
        for tool in fields.get("tools", [])
        for function in tool.get("functionDeclarations", [])
    }


def _gemini_response(steps: Sequence[Step], declared: set[str], *, streaming: bool) -> Sequence[Step]:
    if _is_error(steps):
        error = {"code": 404, "message": "the model is not there", "status": "NOT_FOUND"}
        return json_answer({"error": error}, 404)
    if streaming:
        return [
            sse(*(_gemini_of_chat(chunk, declared) for chunk in _chunks(step)))
            if isinstance(step, bytes)
            else step
            for step in steps
            if not isinstance(step, bytes) or _chunks(step)
        ]
    chunks = [chunk for step in steps if isinstance(step, bytes) for chunk in _chunks(step)]
    parts: list[Fields] = []
    for part in [part for chunk in chunks for part in _gemini_parts(chunk, declared)]:
        if (
            parts
            and "text" in part
            and "text" in parts[-1]
            and part.get("thought") == parts[-1].get("thought")
        ):
            parts[-1]["text"] += part["text"]
        else:
            parts.append(part)
    return [*_control(steps), *json_answer(_gemini_chunk(parts, "STOP"))]


def _control(steps: Sequence[Step]) -> list[Step]:
    return [step for step in steps if not isinstance(step, bytes)]


def _gemini_of_chat(chunk: Fields, declared: set[str]) -> Fields:
    finished = any(choice.get("finish_reason") for choice in chunk["choices"])
    return _gemini_chunk(_gemini_parts(chunk, declared), "STOP" if finished else None)


def _gemini_parts(chunk: Fields, declared: set[str]) -> list[Fields]:
    parts: list[Fields] = []
    for choice in chunk["choices"]:
        delta = choice["delta"]
        if delta.get("reasoning_content"):
            parts.append({"text": delta["reasoning_content"], "thought": True})
        if delta.get("content"):
            parts.append({"text": delta["content"]})
        for call in delta.get("tool_calls", []):
            function = call["function"]
            name, arguments = function["name"], json.loads(function["arguments"])
            if name not in declared:
                name, arguments = _TOOLS_OF_GEMINI_CLI[name]
            parts.append({"functionCall": {"name": name, "args": arguments}})
    return parts


def _gemini_chunk(parts: list[Fields], finish: str | None) -> Fields:
    candidate: Fields = {"index": 0, "content": {"role": "model", "parts": parts}}
    if finish:
        candidate["finishReason"] = finish
    usage = {"promptTokenCount": 7, "candidatesTokenCount": 8, "totalTokenCount": 15}
    return {"candidates": [candidate], "usageMetadata": usage}
