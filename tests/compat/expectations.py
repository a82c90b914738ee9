"""What every program of the matrix has to do: one list for all.

Each expectation starts a conversation of its own and compares three texts: what the program returns, what the program
stores, and what the server's log holds.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from itertools import cycle
from typing import Any
from uuid import uuid4

import anyio

from e2e.clients.agent import ANSWER, FIRST_HALF, Agent
from e2e.clients.programs import Answer, Client, RefusedError
from support.rpc import Rpc

Fields = dict[str, Any]

FAILURE = "the model is not there"
"""The message of the provider's error."""

TOOL_ANSWER = "The tool says: sunny."

_ROLES = ("user", "agent")


@dataclass(frozen=True)
class Trial:
    """One conversation of one program.

    Attributes:
        agent: The server.
        client: The program.
        instructs: The program adds instructions and tools of its own to the requests to the model.
        conversation: The name of the conversation.
    """

    agent: Agent
    client: Client
    instructs: bool = False
    conversation: str = field(default_factory=lambda: str(uuid4()))

    async def ask(self, text: str) -> str:
        """Send a message without streaming; return the text of the response."""
        return await self.client.ask("ask", conversation=self.conversation, text=text)

    async def stream(self, text: str) -> Answer:
        """Send a message; return the events of the response."""
        return await self.client.stream("stream", conversation=self.conversation, text=text)

    async def cancel(self) -> None:
        """Stop the running response."""
        await self.client.ask("cancel", conversation=self.conversation)

    async def call(self, text: str) -> str:
        """Send a message that leads to a tool call; return the text after the tool's result."""
        return await self.client.ask("call", conversation=self.conversation, text=text)

    async def check_history(self, *texts: str) -> None:
        """Check what the program stores: these texts, by turns of the user and the agent."""
        stored = await self.client.ask("history", conversation=self.conversation)
        expected = [{"role": role, "text": text} for role, text in zip(cycle(_ROLES), texts, strict=False)]
        assert stored == expected, f"stored {stored}"

    async def reload(self) -> None:
        """Restore the conversation from the program's own storage."""
        await self.client.ask("reload", conversation=self.conversation)

    async def tasks(self, number: int = 1) -> list[Fields]:
        """Return the newest tasks of the server, oldest first; they are this conversation's, since no other runs."""
        async with Rpc(self.agent.url) as rpc:
            listed = await rpc.result("ListTasks", {"pageSize": number, "includeArtifacts": True})
        return list(reversed(listed["tasks"]))


async def streams(trial: Trial) -> None:
    """The text arrives while the model produces it, and complete."""
    pause = trial.agent.model.pause()
    stream = await trial.stream(pause.prompt)
    await _read_until(stream, FIRST_HALF)
    pause.go_on.set()
    _check_text(await _read_rest(stream), ANSWER)
    await _check_one_turn(trial, pause.prompt)


async def waits(trial: Trial) -> None:
    """A request without streaming returns the complete text."""
    _check_text(await trial.ask("hello"), ANSWER)
    await _check_one_turn(trial, "hello")


async def continues(trial: Trial) -> None:
    """The second message reaches the model together with the first and its response."""
    for text in ("Capital of France?", "And of Italy?"):
        _check_text(await _read_rest(await trial.stream(text)), ANSWER)
    _check_request(trial, ["Capital of France?", ANSWER, "And of Italy?"])
    first, second = await trial.tasks(2)
    assert (first["contextId"], _text(first)) == (second["contextId"], ANSWER)
    await trial.check_history("Capital of France?", ANSWER, "And of Italy?", ANSWER)


async def calls_a_tool(trial: Trial) -> None:
    """A tool that the program has is called, and its result reaches the model."""
    returned = await trial.call("weather")
    messages = trial.agent.upstream.requests[-1].json["messages"]
    assert [message["role"] for message in messages][-3:] == ["user", "assistant", "tool"]
    output = _content(messages[-1])
    if trial.instructs:  # its shell has been called, and adds to the output
        assert "sunny" in output, f"requested {output}"
    else:
        assert (len(messages), output) == (3, "sunny")
    _check_text(returned, f"The tool says: {output}.")
    [task] = await trial.tasks()
    assert _text(task).endswith(returned)


async def cancels(trial: Trial) -> None:
    """Stopping the response cancels the task and keeps the text so far."""
    pause = trial.agent.model.pause()
    stream = await trial.stream(pause.prompt)
    await _read_until(stream, FIRST_HALF)
    await trial.cancel()
    assert pause.request is not None
    with anyio.fail_after(30):
        await pause.request.client_left.wait()
    async for _ in stream:
        pass
    [task] = await trial.tasks()
    assert (task["status"]["state"], _text(task)) == ("TASK_STATE_CANCELED", FIRST_HALF)
    await trial.check_history(pause.prompt, FIRST_HALF)


async def reports_errors(trial: Trial) -> None:
    """An error of the provider reaches the program's user."""
    try:
        text = await _read_rest(await trial.stream("fail"))
    except RefusedError as refused:
        text = refused.message
    assert FAILURE in text, text


async def reloads(trial: Trial) -> None:
    """A conversation that is restored has all messages, and continues."""
    _check_text(await _read_rest(await trial.stream("hello")), ANSWER)
    await trial.reload()
    await trial.check_history("hello", ANSWER)
    _check_text(await _read_rest(await trial.stream("and?")), ANSWER)
    _check_request(trial, ["hello", ANSWER, "and?"])


EXPECTATIONS: dict[str, Callable[[Trial], Awaitable[None]]] = {
    "stream": streams,
    "blocking": waits,
    "turns": continues,
    "tool": calls_a_tool,
    "cancel": cancels,
    "error": reports_errors,
    "reload": reloads,
}


def _check_text(returned: str, expected: str) -> None:
    assert returned == expected, f"returned {returned!r}"


async def _read_until(stream: Answer, text: str) -> None:
    latest = ""
    async for event in stream:
        latest = event.fields["text"]
        if latest == text:
            return
    raise AssertionError(f"the stream ended with {latest!r}")


async def _read_rest(stream: Answer) -> str:
    latest = ""
    async for event in stream:
        latest = event.fields["text"]
    return latest


async def _check_one_turn(trial: Trial, prompt: str) -> None:
    [task] = await trial.tasks()
    assert (task["status"]["state"], _text(task)) == ("TASK_STATE_COMPLETED", ANSWER)
    await trial.check_history(prompt, ANSWER)


def _check_request(trial: Trial, texts: list[str]) -> None:
    """Check the messages of the newest request to the model."""
    messages = trial.agent.upstream.requests[-1].json["messages"]
    contents = list(map(_content, messages))
    if trial.instructs:
        pairs = zip(contents[-len(texts) :], texts, strict=True)
        assert all(content.endswith(text) for content, text in pairs), f"requested {contents}"
    else:
        assert contents == texts, f"requested {contents}"


def _content(message: Fields) -> str:
    content = message["content"]
    return content if isinstance(content, str) else "".join(part["text"] for part in content)


def _text(task: Fields) -> str:
    """Return the text of a task's artifacts."""
    parts = [part for artifact in task.get("artifacts", []) for part in artifact["parts"]]
    return "".join(part.get("text", "") for part in parts)
