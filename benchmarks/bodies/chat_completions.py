"""Response bodies of Chat Completions, as OpenAI, Azure, OpenRouter and Mistral send them."""

import json
from random import Random
from typing import Any

from benchmarks.bodies.body_writer import CREATED, BodyWriter, Kind, sse

_SAFE = {"filtered": False, "severity": "safe"}
_FILTERS = {"hate": _SAFE, "self_harm": _SAFE, "sexual": _SAFE, "violence": _SAFE}


class ChatCompletionsWriter(BodyWriter):
    """OpenAI's format, with reasoning in the format of compatible servers."""

    def __init__(self, rng: Random) -> None:
        super().__init__(rng)
        self._id = self.token(29)
        self._calls = 0

    def begin(self) -> list[bytes]:
        """Return the role."""
        return [self.chunk({"role": "assistant", "content": "", "refusal": None})]

    def open(self, kind: Kind) -> list[bytes]:
        """Return a call's id and name; other blocks have no beginning."""
        if kind is not Kind.CALL:
            return []
        function = {"name": "search", "arguments": ""}
        call = {
            "index": self._calls,
            "id": "call_" + self.token(24),
            "type": "function",
            "function": function,
        }
        self._calls += 1
        return [self.chunk({"tool_calls": [call]})]

    def delta(self, kind: Kind, piece: str) -> bytes:
        """Return one chunk."""
        if kind is Kind.CALL:
            return self.chunk({"tool_calls": [{"index": self._calls - 1, "function": {"arguments": piece}}]})
        return self.chunk({"content" if kind is Kind.TEXT else "reasoning_content": piece})

    def shut(self, kind: Kind, whole: str) -> list[bytes]:
        """Return no event."""
        return []

    def end(self, tokens: int) -> list[bytes]:
        """Return the finish reason, the usage in a chunk without a choice, ``[DONE]``."""
        usage = sse({**self.head(), "choices": [], "usage": _usage(tokens)})
        return [self.chunk({}, self.finish_reason), usage, b"data: [DONE]\n\n"]

    @property
    def finish_reason(self) -> str:
        """Return the finish reason."""
        return "tool_calls" if self._calls else "stop"

    def head(self) -> dict[str, Any]:
        """Return the fields common to all chunks."""
        return {
            "id": "chatcmpl-" + self._id,
            "object": "chat.completion.chunk",
            "created": CREATED,
            "model": "gpt-4o-2024-08-06",
            "service_tier": "default",
            "system_fingerprint": "fp_07871e2ad8",
        }

    def chunk(self, delta: dict[str, Any], finish_reason: str | None = None) -> bytes:
        """Return a chunk with one choice."""
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        # Random padding, which hides the lengths of tokens from observers.
        padding = self.token(self.rng.randint(2, 8))
        return sse({**self.head(), "choices": [choice], "obfuscation": padding})


class AzureWriter(ChatCompletionsWriter):
    """Azure's format: filter results in every chunk, and a first chunk with the filter results of the prompt."""

    def begin(self) -> list[bytes]:
        """Return the filter results of the prompt, then the role."""
        verdict = [{"prompt_index": 0, "content_filter_results": _FILTERS}]
        empty: dict[str, Any] = {"id": "", "object": "", "created": 0, "model": "", "choices": []}
        return [sse({**empty, "prompt_filter_results": verdict}), *super().begin()]

    def chunk(self, delta: dict[str, Any], finish_reason: str | None = None) -> bytes:
        """Return a chunk with one choice."""
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        return sse({**self.head(), "choices": [{"content_filter_results": _FILTERS, **choice}]})


class OpenRouterWriter(ChatCompletionsWriter):
    """OpenRouter's format: the role in every chunk, and the usage in a chunk that has a choice."""

    def begin(self) -> list[bytes]:
        """Return a comment that keeps the connection alive, and the role."""
        return [b": OPENROUTER PROCESSING\n\n", self.delta(Kind.TEXT, "")]

    def delta(self, kind: Kind, piece: str) -> bytes:
        """Return one chunk."""
        role = {"role": "assistant"}
        if kind is Kind.TEXT:
            return self.chunk({**role, "content": piece, "reasoning": None})
        if kind is Kind.CALL:
            return super().delta(kind, piece)
        details = [{"type": "reasoning.text", "text": piece, "format": "unknown", "index": 0}]
        return self.chunk({**role, "content": "", "reasoning": piece, "reasoning_details": details})

    def end(self, tokens: int) -> list[bytes]:
        """Return the finish reason, then a chunk with the usage alone."""
        empty = {"role": "assistant", "content": ""}
        choice = self._choice(empty, None)
        usage = sse({**self.head(), "choices": [choice], "usage": {**_usage(tokens), "cost": 0.00021}})
        return [self.chunk(empty, self.finish_reason), usage, b"data: [DONE]\n\n"]

    def head(self) -> dict[str, Any]:
        """Return the fields common to all chunks."""
        return {
            "id": f"gen-{CREATED}-{self._id[:20]}",
            "provider": "OpenAI",
            "model": "openai/gpt-4o-2024-08-06",
            "object": "chat.completion.chunk",
            "created": CREATED,
        }

    def chunk(self, delta: dict[str, Any], finish_reason: str | None = None) -> bytes:
        """Return a chunk with one choice."""
        return sse({**self.head(), "choices": [self._choice(delta, finish_reason)]})

    @staticmethod
    def _choice(delta: dict[str, Any], finish_reason: str | None) -> dict[str, Any]:
        reasons = {"finish_reason": finish_reason, "native_finish_reason": finish_reason}
        return {"index": 0, "delta": delta, **reasons, "logprobs": None}


class MistralWriter(ChatCompletionsWriter):
    """Mistral's format: padding ``p``, reasoning as parts of the content, complete calls."""

    def begin(self) -> list[bytes]:
        """Return the role."""
        return [self.chunk({"role": "assistant", "content": ""})]

    def open(self, kind: Kind) -> list[bytes]:
        """Return no event."""
        return []

    def delta(self, kind: Kind, piece: str) -> bytes:
        """Return one chunk; none for a call."""
        if kind is Kind.CALL:
            return b""
        if kind is Kind.TEXT:
            return self.chunk({"content": piece})
        thinking = {"type": "thinking", "thinking": [{"type": "text", "text": piece}]}
        return self.chunk({"content": [thinking]})

    def shut(self, kind: Kind, whole: str) -> list[bytes]:
        """Return a complete call."""
        if kind is not Kind.CALL:
            return []
        call = {"id": self.token(9), "function": {"name": "search", "arguments": whole}, "index": self._calls}
        self._calls += 1
        return [self.chunk({"content": "", "tool_calls": [call]})]

    def end(self, tokens: int) -> list[bytes]:
        """Return finish reason and usage in one chunk, and ``[DONE]``."""
        payload = json.loads(self.chunk({"content": ""}, self.finish_reason).removeprefix(b"data: "))
        return [sse({**payload, "usage": _usage(tokens)}), b"data: [DONE]\n\n"]

    def head(self) -> dict[str, Any]:
        """Return the fields common to all chunks."""
        return {
            "id": self._id,
            "object": "chat.completion.chunk",
            "created": CREATED,
            "model": "mistral-medium-2508",
        }

    def chunk(self, delta: dict[str, Any], finish_reason: str | None = None) -> bytes:
        """Return a chunk with one choice."""
        choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
        return sse({**self.head(), "choices": [choice], "p": self.token(self.rng.randint(2, 30))})


def _usage(tokens: int) -> dict[str, int]:
    return {"prompt_tokens": 24, "completion_tokens": tokens, "total_tokens": 24 + tokens}
