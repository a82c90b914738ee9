"""What the server has to do with every foreign agent of the matrix: one list for all.

Each expectation is a conversation through ``tailrace serve --agent``, except the last one, in which the agent is a tool of
a model. The texts of the stream, of the stored task and of its history are equal.
"""

import json
from base64 import b64encode
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

import anyio

from compat.agent_model import SECOND_ANSWER, files, user_texts
from compat.agents import RunningAgent
from compat.expectations import FAILURE, TOOL_ANSWER
from e2e.clients.agent import ANSWER, FIRST_HALF, REASONING
from support.processes import served
from support.rpc import Rpc, message
from support.upstream import Received, ScriptedUpstream, openai_chunk, openai_stream, sse
from tailrace.streaming.a2a.stream_extension import extension_metadata

Fields = dict[str, Any]
Events = list[tuple[int, Fields]]

IMAGE = b64encode(b"\x89PNG\r\n\x1a\n" + bytes(range(256))).decode()

_TOOLS = """\
import os

from tailrace.server.sdk import agent_tools

tools = agent_tools(os.environ["REMOTE_AGENT"], allowed_origins=os.environ.get("REMOTE_ORIGINS", "").split())
"""


@dataclass(frozen=True)
class AgentTrial:
    """One conversation with one agent.

    Attributes:
        agent: The agent, and the server in front of it.
        rpc: A client of the server.
        conversation: The name of the conversation.
    """

    agent: RunningAgent
    rpc: Rpc
    conversation: str = field(default_factory=lambda: str(uuid4()))

    async def stream(self, text: str, **fields: Any) -> Events:
        """Send a message; return the events of the response."""
        return await self.rpc.stream("SendStreamingMessage", self._message(text, **fields))

    async def send(self, text: str, **fields: Any) -> Fields:
        """Send a message without streaming; return the task."""
        return (await self.rpc.result("SendMessage", self._message(text, **fields)))["task"]

    async def stream_until(
        self, text: str, ready: Callable[[Events], bool], act: Callable[[Events], Awaitable[None]]
    ) -> Events:
        """Send a message; when its events are ready, act; return all events."""
        latest: Events = []
        reached = anyio.Event()

        def seen(events: Events) -> None:
            latest[:] = events
            if ready(events):
                reached.set()

        async def follow() -> None:
            await self.rpc.stream("SendStreamingMessage", self._message(text), seen=seen)
            reached.set()

        async with anyio.create_task_group() as group:
            group.start_soon(follow)
            await reached.wait()
            assert ready(latest), f"the stream ended with {_streamed(latest)!r}"
            await act(latest)
        return latest

    async def task(self, events: Events) -> Fields:
        """Return the stored task of a stream."""
        return await self.rpc.result("GetTask", {"id": _task_id(events)})

    def _message(self, text: str, **fields: Any) -> Fields:
        return message(text, **{"contextId": self.conversation, **fields})


async def streams(trial: AgentTrial) -> None:
    """The text arrives while the model produces it, and complete."""
    pause = trial.agent.model.pause()

    async def go_on(_events: Events) -> None:
        pause.go_on.set()

    events = await trial.stream_until(pause.prompt, lambda events: _streamed(events) == FIRST_HALF, go_on)
    await _check_completed(trial, events, ANSWER)


async def waits(trial: AgentTrial) -> None:
    """A request without streaming returns the complete text."""
    task = await trial.send("hello")
    assert _state(task) == trial.agent.ends, task["status"]
    _check_text(_stored(task), ANSWER)


async def continues(trial: AgentTrial) -> None:
    """The second message reaches the agent's model together with the first and its response."""
    events = await trial.stream("Capital of France?")
    await _check_completed(trial, events, ANSWER)
    if trial.agent.ends == "COMPLETED":
        await _check_completed(trial, await trial.stream("And of Italy?"), ANSWER)
    else:  # its task is the conversation
        events = await trial.stream("And of Italy?", taskId=_task_id(events))
        task = await trial.task(events)
        _check_text(_stored(task), ANSWER * 2)
    texts = _newest(trial, "And of Italy?")
    assert texts[-3:] == ["Capital of France?", ANSWER, "And of Italy?"], texts


async def reasons(trial: AgentTrial) -> None:
    """The reasoning arrives apart from the text."""
    events = await trial.stream("think")
    await _check_completed(trial, events, ANSWER)
    task = await trial.task(events)
    reasoning = "".join(
        part.get("text", "")
        for artifact in task["artifacts"]
        if _channel(artifact) == "reasoning"
        for part in artifact["parts"]
    )
    assert reasoning == REASONING, f"reasoning {reasoning!r}"


async def uses_tools(trial: AgentTrial) -> None:
    """The agent runs a tool of its own; the text after it arrives."""
    events = await trial.stream("weather")
    text = _stored(await trial.task(events))
    assert text.startswith(TOOL_ANSWER.partition("sunny")[0]), text
    assert text == TOOL_ANSWER or "error" not in text, text
    await _check_completed(trial, events, text)


async def asks(trial: AgentTrial) -> None:
    """The agent asks its caller, and continues the same task with the response."""
    events = await trial.stream("ask")
    task = await trial.task(events)
    assert _state(task) == "INPUT_REQUIRED", task["status"]
    parts = [*task["status"]["message"]["parts"], *_parts(task)]
    assert "Which one?" in json.dumps(parts, ensure_ascii=False) or _confirmation(parts), parts
    reply = message("the second", taskId=task["id"], contextId=task["contextId"])
    reply["message"]["parts"] = _reply(parts)
    done = (await trial.rpc.result("SendMessage", reply))["task"]
    assert (done["id"], _state(done)) == (task["id"], trial.agent.ends), done["status"]
    answers = (SECOND_ANSWER, TOOL_ANSWER.partition("sunny")[0])
    assert any(answer in _stored(done) for answer in answers), _stored(done)


async def forwards_files(trial: AgentTrial) -> None:
    """A file reaches the agent's model unchanged."""
    parts = [{"text": "look"}, {"raw": IMAGE, "mediaType": "image/png", "filename": "x.png"}]
    task = await trial.send("look", parts=parts)
    assert _state(task) == trial.agent.ends, task["status"]
    sent = [file for request in trial.agent.upstream.requests for file in _files_of(request)]
    assert sent[-1:] == [IMAGE], f"{len(sent)} files"


async def cancels(trial: AgentTrial) -> None:
    """Canceling the task cancels the agent's, which closes its connection to the model."""
    pause = trial.agent.model.pause()

    async def cancel(events: Events) -> None:
        await pause.reached.wait()
        await trial.rpc.result("CancelTask", {"id": _task_id(events)})

    events = await trial.stream_until(pause.prompt, _has_begun, cancel)
    task = await trial.task(events)
    assert _state(task) == "CANCELED", task["status"]
    assert pause.request is not None
    with anyio.move_on_after(30):
        await pause.request.client_left.wait()
    pause.go_on.set()
    assert pause.request.client_left.is_set(), "the agent keeps its request to the model open"


async def resumes(trial: AgentTrial) -> None:
    """The connection to the agent is cut during the response; the caller's stream is complete all the same."""
    pause = trial.agent.model.pause()
    cuts = trial.agent.proxy.cuts

    async def cut(_events: Events) -> None:
        await pause.reached.wait()
        trial.agent.proxy.cut_now()
        pause.go_on.set()

    events = await trial.stream_until(pause.prompt, _has_begun, cut)
    assert trial.agent.proxy.cuts == cuts + 1
    await _check_completed(trial, events, ANSWER)


async def reports_errors(trial: AgentTrial) -> None:
    """An error of the agent's model fails the task with its message."""
    events = await trial.stream("fail")
    task = await trial.task(events)
    shown = json.dumps(task["status"].get("message", {})) + _stored(task)
    assert FAILURE in shown, f"{_state(task)}: {shown}"


async def is_a_tool(trial: AgentTrial) -> None:
    """A model calls the agent as a tool, and gets its response."""
    folder = trial.agent.folder / f"tool-{trial.conversation}"
    await anyio.Path(folder).mkdir()
    await anyio.Path(folder / "remote_tools.py").write_text(_TOOLS)

    def delegate(request: Received) -> list[Any]:
        last = request.json["messages"][-1]
        if last["role"] == "tool":
            return openai_stream([last["content"]])
        function = {
            "name": request.json["tools"][0]["function"]["name"],
            "arguments": '{"message": "hello"}',
        }
        calls = [{"index": 0, "id": "call-1", "type": "function", "function": function}]
        return [sse(openai_chunk({"tool_calls": calls}), openai_chunk({}, finish="tool_calls"), "[DONE]")]

    async with ScriptedUpstream(delegate) as model:
        options = ["--model", "openai:scripted", "--base-url", model.base_url, "--store", "sqlite://"]
        environment = {"PYTHONPATH": str(folder), "REMOTE_AGENT": trial.agent.remote_url}
        with served(folder / "log", *options, "--tools", "remote_tools:tools", **environment) as server:
            await server.ready()
            async with Rpc(server.url) as rpc:
                task = (await rpc.result("SendMessage", message("Ask the agent.")))["task"]
    assert _state(task) == "COMPLETED", task["status"]
    _check_text(_stored(task), ANSWER)


AGENT_EXPECTATIONS: dict[str, Callable[[AgentTrial], Awaitable[None]]] = {
    "stream": streams,
    "blocking": waits,
    "turns": continues,
    "reasoning": reasons,
    "tool": uses_tools,
    "input": asks,
    "file": forwards_files,
    "cancel": cancels,
    "resume": resumes,
    "error": reports_errors,
    "as a tool": is_a_tool,
}


def _has_begun(events: Events) -> bool:
    """Return whether the agent has sent something: the first two events are the server's own."""
    updates = [event for _, event in events if "statusUpdate" in event or "artifactUpdate" in event]
    return len(updates) > 1


async def _check_completed(trial: AgentTrial, events: Events, text: str) -> None:
    """Check that stream, stored task and history have one text."""
    task = await trial.task(events)
    assert _state(task) == trial.agent.ends, task["status"]
    _check_text(_streamed(events), text)
    _check_text(_stored(task), text)
    [message] = [each for each in task["history"][-1:] if each["role"] == "ROLE_AGENT"]
    _check_text("".join(_text(part) for part in message["parts"]), text)


def _check_text(returned: str, expected: str) -> None:
    assert returned == expected, f"returned {returned!r}"


def _channel(artifact: Fields) -> object:
    return extension_metadata(artifact.get("metadata", {})).get("channel")


def _is_text(artifact: Fields) -> bool:
    return _channel(artifact) not in ("reasoning", "tool_call", "tool_result")


def _streamed(events: Events) -> str:
    """Return the text so far: appended text is added, a complete artifact replaces its own."""
    texts: dict[str, str] = {}
    for _, event in events:
        if update := event.get("artifactUpdate"):
            artifact = update["artifact"]
            identifier = artifact["artifactId"]
            known = texts.get(identifier, "") if update.get("append") else ""
            if identifier in texts or _is_text(artifact):
                texts[identifier] = known + "".join(_text(part) for part in artifact["parts"])
    return "".join(texts.values())


def _stored(task: Fields) -> str:
    return "".join(_text(part) for part in _parts(task))


def _parts(task: Fields) -> list[Fields]:
    return [
        part for artifact in task.get("artifacts", []) if _is_text(artifact) for part in artifact["parts"]
    ]


def _text(part: Fields) -> str:
    is_reasoning = extension_metadata(part.get("metadata", {})).get("channel") == "reasoning"
    return "" if is_reasoning else part.get("text", "")


def _task_id(events: Events) -> str:
    return events[0][1]["task"]["id"]


def _state(task: Fields) -> str:
    return task["status"]["state"].removeprefix("TASK_STATE_")


def _newest(trial: AgentTrial, prompt: str) -> list[str]:
    """Return the texts of the newest request to the model with a prompt."""
    for request in reversed(trial.agent.upstream.requests):
        if request.body and (texts := user_texts(request)) and texts[-1] == prompt:
            return texts
    raise AssertionError(f"no request ends with {prompt!r}")


def _files_of(request: Received) -> list[str]:
    return files(request) if request.body else []


def _confirmation(parts: list[Fields]) -> str:
    """Return the id of the call that gemini-cli wants to have confirmed."""
    for part in parts:
        data: Any = part.get("data")
        if data and "request" in data:
            return data["request"]["callId"]
    return ""


def _reply(parts: list[Fields]) -> list[Fields]:
    """Return the parts of a reply in the form that the agent's question names."""
    if call := _confirmation(parts):
        return [{"data": {"callId": call, "outcome": "proceed_once"}}]
    for part in parts:
        if part.get("metadata", {}).get("adk_type") == "function_call":
            data = part["data"]
            result = {"id": data["id"], "name": data["name"], "response": {"result": "the second"}}
            return [{"data": result, "metadata": {"adk_type": "function_response"}}]
    return [{"text": "the second"}]
