"""Interrupted responses of the local model: llama.cpp's server behind a proxy that cuts its streams, and a fallback."""

import random
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from support.continuing import ContinuingServer
from support.processes import served
from support.proxy import CuttingProxy
from support.rpc import Rpc, message, text_of
from support.upstream import Received, ScriptedUpstream, Step
from tailrace.server.cli.local_model import MODEL, LocalModel, unavailable_reason
from tailrace.streaming.a2a.stream_extension import EXTENSION_URI

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.timeout(600),
    pytest.mark.skipif(unavailable_reason() is not None, reason="needs the local model"),
]

QUESTIONS = [
    f"{begin} {topic} in one short sentence."
    for begin in ("Describe", "Explain", "Praise", "Define")
    for topic in ("a river", "the moon", "bread", "a library", "music")
]
EQUAL = 0.95
"""The share of continued responses that equal the uncut ones."""


@asynccontextmanager
async def local_model() -> AsyncGenerator[CuttingProxy]:
    """The local model behind a proxy; its default temperature is 0."""
    async with LocalModel() as local, CuttingProxy(local.base_url) as proxy:
        yield proxy


async def ask(rpc: Rpc, question: str, **fields: Any) -> tuple[dict[str, Any], list[str]]:
    """Ask a question; return the task, and the routes of its continuations."""
    events = await rpc.stream("SendStreamingMessage", message(question, **fields))
    assert [number for number, _ in events] == list(range(1, len(events) + 1))
    updates = [each["statusUpdate"].get("metadata", {}) for _, each in events if "statusUpdate" in each]
    facts = [each[EXTENSION_URI] for each in updates if EXTENSION_URI in each]
    routes = [each["continuation"]["route"] for each in facts if "continuation" in each]
    return await rpc.result("GetTask", {"id": events[0][1]["task"]["id"]}), routes


@pytest.mark.parametrize(
    "answers", [5, pytest.param(100, marks=[pytest.mark.nightly, pytest.mark.timeout(3600)])]
)
async def test_a_continued_response_equals_an_uncut_one(tmp_path: Path, answers: int) -> None:
    chance = random.Random(f"local {answers}")
    uncut: dict[str, tuple[str, int]] = {}
    different: list[str] = []
    counts: Counter[str] = Counter()
    async with local_model() as proxy:
        options = ["--model", f"openai:{MODEL}", "--base-url", f"{proxy.url}/v1", "--store", "sqlite://"]
        with served(tmp_path / "log", *options) as server:
            await server.ready()
            async with Rpc(server.url) as rpc:
                for number in range(answers):
                    question = QUESTIONS[number % len(QUESTIONS)]
                    if question not in uncut:
                        before = proxy.passed
                        task, _ = await ask(rpc, question)
                        uncut[question] = text_of(task), proxy.passed - before
                    text, size = uncut[question]
                    cut = chance.randrange(1, size)
                    proxy.cut_after(cut)
                    task, routes = await ask(rpc, question)
                    proxy.cut_after()
                    counts[", ".join(routes) or "finished, or repeated without a response"] += 1
                    assert task["status"]["state"] == "TASK_STATE_COMPLETED", task["status"]
                    if text_of(task) != text:
                        different.append(
                            f"{question} cut at {cut} of {size}, {routes}: {text!r}, {text_of(task)!r}"
                        )
    print(f"{answers} responses cut: {dict(counts)}; {len(different)} differ", *different, sep="\n")
    assert counts["prefill"] > answers / 2
    assert len(different) <= answers * (1 - EQUAL), different


class Anthropic:
    """A scripted server of Anthropic's format; some of its responses break off.

    Args:
        cut: The responses that break off, by number.
    """

    TEXT = "Rivers carry water to the sea."

    def __init__(self, *cut: int) -> None:
        self.histories: list[list[tuple[str, str]]] = []
        self._cut = cut

    def respond(self, request: Received) -> Sequence[Step]:
        """The script of a response."""
        self.histories.append(
            [
                (each["role"], "".join(part["text"] for part in each["content"]))
                for each in request.json["messages"]
            ]
        )
        server = ContinuingServer("anthropic", [self.TEXT[:12], self.TEXT[12:]])
        if len(self.histories) - 1 in self._cut:
            server.cut = server.first_body.index(self.TEXT[12:].encode())
        return server.respond(request)


async def direct(rpc: Rpc, base_url: str, *texts: str) -> str:
    """The local model's response to a conversation, without tailrace."""
    messages = [
        {"role": "assistant" if number % 2 else "user", "content": text} for number, text in enumerate(texts)
    ]
    async with rpc.http.post(
        f"{base_url}/chat/completions", json={"model": MODEL, "messages": messages}
    ) as response:
        completion = await response.json()
    return completion["choices"][0]["message"]["content"]


async def test_a_fallback_of_another_format_receives_the_conversation(tmp_path: Path) -> None:
    """Each of the models continues the conversation that the other one has begun, in its own format."""
    first, second, third = "Name a river.", "Explain rivers in one short sentence.", "Name another river."
    anthropic = Anthropic()
    async with local_model() as proxy, ScriptedUpstream(anthropic.respond) as upstream:
        target = f"anthropic:m@{upstream.base_url.removesuffix('/v1')}"
        options = ["--model", f"openai:{MODEL}", "--base-url", f"{proxy.url}/v1", "--store", "sqlite://"]
        environment = {"ANTHROPIC_API_KEY": "none", "TAILRACE_BOUNDS": '{"continue_attempts": 0}'}
        with served(tmp_path / "log", *options, "--fallback", target, **environment) as server:
            await server.ready()
            async with Rpc(server.url) as rpc:
                begun, routes = await ask(rpc, first)
                assert routes == []
                context = begun["contextId"]
                proxy.cut_after(1500)  # behind the response's head and several events
                replaced, routes = await ask(rpc, second, contextId=context)
                assert (routes, text_of(replaced)) == (["replace"], Anthropic.TEXT)
                assert anthropic.histories == [
                    [("user", first), ("assistant", text_of(begun)), ("user", second)]
                ]
                last, routes = await ask(rpc, third, contextId=context)
                assert routes == []
                conversation = [first, text_of(begun), second, Anthropic.TEXT, third]
                assert text_of(last) == await direct(rpc, f"{proxy.url}/v1", *conversation)


async def test_the_local_model_answers_in_place_of_another_format(tmp_path: Path) -> None:
    """The second response of the first model breaks off; the third is again from the first model."""
    first, second, third = "Name a river.", "Name another river.", "Explain rivers."
    anthropic = Anthropic(1)
    async with local_model() as proxy, ScriptedUpstream(anthropic.respond) as upstream:
        options = [
            "--model",
            "anthropic:m",
            "--base-url",
            upstream.base_url.removesuffix("/v1"),
            "--store",
            "sqlite://",
        ]
        target = f"openai:{MODEL}@{proxy.url}/v1"
        environment = {"OPENAI_API_KEY": "none", "TAILRACE_BOUNDS": '{"continue_attempts": 0}'}
        with served(tmp_path / "log", *options, "--fallback", target, **environment) as server:
            await server.ready()
            async with Rpc(server.url) as rpc:
                begun, routes = await ask(rpc, first)
                assert (routes, text_of(begun)) == ([], Anthropic.TEXT)
                context = begun["contextId"]
                replaced, routes = await ask(rpc, second, contextId=context)
                assert routes == ["replace"]
                answer = text_of(replaced)
                assert answer == await direct(rpc, f"{proxy.url}/v1", first, Anthropic.TEXT, second)
                last, routes = await ask(rpc, third, contextId=context)
                assert (routes, text_of(last)) == ([], Anthropic.TEXT)
                assert anthropic.histories[-1] == [
                    ("user", first),
                    ("assistant", Anthropic.TEXT),
                    ("user", second),
                    ("assistant", answer),
                    ("user", third),
                ]
